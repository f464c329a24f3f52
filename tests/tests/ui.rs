//! The page of `tandem ui` and the report, as a server and in a browser.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use harness::{bench::Bench, binary, browser::Browser, cli, skipped};
use serde_json::{Value, json};
use shared::{RunDir, workers::WorkersTable};

/// `tandem ui`, which ends with the test.
struct Ui {
    child: Child,
    address: String,
}

impl Ui {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(binary("tandem"));
        command.args(["ui", "--port", "0"]).args(words).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    fn of(folder: &Path) -> Self {
        Self::start(&[folder.to_str().unwrap()])
    }

    fn port(&self) -> u16 {
        self.address.split(['/', ':']).find_map(|part| part.parse().ok()).expect("an address has a port")
    }

    /// Head and body of an answer.
    fn get(&self, path: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(&format!("/api/{path}"), "Host: localhost");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run that has made these steps, of four completions each.
fn made_up_run(dir: &Path, steps: u64, text: impl Fn(u64, u64) -> String) {
    fs::create_dir_all(dir.join("completions")).unwrap();
    let mut metrics = String::new();
    for step in 1..=steps {
        let wave = (step as f64 / 20.0).sin();
        let record = json!({
            "step": step, "total_steps": steps, "reward": 0.00125 * wave, "rewards/one/mean": wave, "entropy": 1.0 / step as f64,
            "mismatch_kl": 1e-9, "step_time": 1.0, "perf/rollout_wait_s": 0.5, "perf/fwd_bwd_s": 0.4, "perf/publish_s": 0.1,
            "rollout/busy_s": 0.5, "rollout/idle_s": 0.5, "completions/num_tokens": 100, "completions/mean_length": 25.0,
        });
        metrics.push_str(&format!("{record}\n"));
        let row = |sample: u64| {
            let row = json!({
                "step": step, "group": sample / 2, "position": 2 * step + sample / 2, "prompt_id": sample / 2, "sample": sample % 2,
                "state": if sample == 3 { "stale" } else { "trained" }, "prompt": format!("prompt {}", sample / 2),
                "completion": text(step, sample), "rewards": {"one": sample as f64}, "reward": sample as f64, "advantage": 0.5,
                "finish_reason": if sample == 2 { "length" } else { "stop" }, "version": step - 1, "tokens": 3 + sample,
            });
            format!("{row}\n")
        };
        fs::write(dir.join(format!("completions/step-{step}.jsonl")), (0..4).map(row).collect::<String>()).unwrap();
    }
    fs::write(dir.join("metrics.jsonl"), metrics).unwrap();
}

/// The table of a coordinator that has just written it.
fn workers(rows: &[Value]) -> WorkersTable {
    let table = json!({
        "written": shared::workers::now(), "listen": "tls/0.0.0.0:7447", "version": 7, "verified": 12, "disputed": 1,
        "refused_calls": 2, "store_bytes_out": 4_200_000_000_u64, "workers": rows,
    });
    serde_json::from_value(table).unwrap()
}

/// Chooses a value of the control of this name.
fn choose(browser: &mut Browser, name: &str, value: &str) {
    let _ = browser.eval(&format!(
        "(() => {{ const control = [...document.querySelectorAll('.control')].find((one) => one.innerText.startsWith('{name}')); \
         const select = control.querySelector('select'); select.value = '{value}'; select.dispatchEvent(new Event('change')); }})()"
    ));
}

/// Words of the page.
const TEXT: &str = "document.body.innerText";

#[test]
fn the_server_answers_to_this_machine_alone_and_to_others_with_the_token() {
    let dir = tempfile::tempdir().unwrap();
    made_up_run(&dir.path().join("run"), 3, |step, sample| format!("{step} {sample}"));
    let ui = Ui::of(dir.path());
    let (head, body) = ui.get("/", "Host: localhost");
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("<div id=\"page\">"), "{head}");
    for fixed in ["content-security-policy: default-src 'none'; script-src 'self'", "x-content-type-options: nosniff"] {
        assert!(head.contains(fixed), "{head}");
    }
    assert!(ui.get("/api/runs", "Host: evil.example").0.starts_with("HTTP/1.1 403"));
    for (path, status) in [
        ("/assets/nothing.js", 404),
        ("/assets/..%2f..%2fCargo.toml", 404),
        ("/api/runs/7/steps", 404),
        ("/api/runs/0/steps/9", 404),
    ] {
        assert!(ui.get(path, "Host: localhost").0.starts_with(&format!("HTTP/1.1 {status}")), "{path}");
    }
    assert_eq!(ui.json("runs")[0]["steps"], 3);
    let generation = &ui.json("runs/0/curves")["generation"];
    assert_eq!(ui.json(&format!("runs/0/curves?steps=2&generation={generation}"))["steps"]["step"], json!([3]));
    assert_eq!(ui.json("runs/0/curves?steps=2&generation=5")["steps"]["step"], json!([1, 2, 3]));
    assert_eq!(ui.json("runs/0/steps"), json!([1, 2, 3]));
    assert_eq!(ui.json("runs/0/steps/2")["groups"][1]["samples"][1]["completion"], "2 3");
    assert_eq!(ui.json("runs/0/steps/2/5/1")["row"]["state"], "stale");
    assert_eq!(ui.json("runs/0/search?q=2%203")["hits"][0]["step"], 2);

    let open = Ui::start(&[dir.path().to_str().unwrap(), "--host", "0.0.0.0"]);
    let (_, token) = open.address.split_once("token=").expect("the address has the token");
    assert!(open.get("/api/runs", "Host: x").0.starts_with("HTTP/1.1 401"));
    assert!(open.get("/?token=0123", "Host: x").0.starts_with("HTTP/1.1 401"));
    let (welcome, _) = open.get(&format!("/?token={token}"), "Host: x");
    assert!(
        welcome.starts_with("HTTP/1.1 303") && welcome.contains("location: /\r\n") && welcome.contains("HttpOnly"),
        "{welcome}"
    );
    let cookie = format!("Host: x\r\nCookie: tandem-{}={token}", open.port());
    assert!(open.get("/api/runs", &cookie).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn what_cannot_be_shown_is_refused_by_name() {
    let refused = cli::run("tandem", ["ui", "/no/such/folder"]);
    assert_eq!(refused.refusal(), "error: /no/such/folder is no folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = cli::run("tandem", ["ui", env!("CARGO_MANIFEST_DIR"), "--port", &port]);
    assert!(refused.refusal().contains("--port 0"), "{}", refused.stderr);
}

#[test]
fn the_page_follows_a_run_and_shows_every_completion() {
    const TEST: &str = "the_page_follows_a_run_and_shows_every_completion";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let bench = Bench::new(
        "dataset = [\"prompts.jsonl\"]\neval_dataset = \"prompts.jsonl\"\neval_steps = 200\nmax_steps = 600\nmax_completion_length = 24\n\
         num_generations = 4\ngeneration_batch_size = 8\nper_device_train_batch_size = 8\nlearning_rate = 1e-3\n",
    );
    let ui = Ui::of(&bench.path(""));
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    assert!(browser.eval(TEXT).as_str().unwrap().contains("There is no run yet"));
    // The page was there before the run, and is not opened again.
    let mut running = bench.start("run", &[]);
    browser.wait_for("document.querySelector('.runs input')?.checked");
    browser.wait_for("[...document.querySelectorAll('.tile')].some((tile) => /steps/.test(tile.innerText))");
    let steps = "Number(document.querySelector('.tile b').textContent)";
    let first = browser.eval(steps).as_u64().unwrap();
    browser.wait_for(&format!("{steps} > {}", first + 1));
    assert!(running.wait().unwrap().success());
    browser.wait_for(&format!("{steps} === 600"));
    browser.wait_for("document.querySelector('.state').textContent === 'finished'");
    browser.wait_for("[...document.querySelectorAll('.chart h3')].filter((title) => title.closest('figure').offsetParent).length > 8");

    // A completion with its tokens, as both halves saw them.
    browser.click("nav a[href='#completions']");
    browser.wait_for("document.querySelectorAll('button.sample').length === 8");
    choose(&mut browser, "Sort by", "length");
    browser.click("button.sample");
    browser.wait_for("document.querySelectorAll('dialog .token').length > 1");
    browser.click("dialog .token");
    let readout = browser.eval("document.querySelector('.readout').textContent");
    for word in ["token 1 of", "sampler −", "learner −", "entropy", "advantage", "version 599"] {
        assert!(readout.as_str().unwrap().contains(word), "{readout}");
    }
    browser.press("ArrowRight");
    browser.wait_for("document.querySelector('.readout').textContent.startsWith('token 2 of')");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('dialog')");
    assert_eq!(browser.complaints(), [""; 0]);

    // The report is the same page without a server.
    browser.open(&format!("file://{}", bench.path("run/report.html").display()));
    browser.wait_for("document.querySelector('.tile b').textContent === '600'");
    browser.click("nav a[href='#completions']");
    browser.wait_for("document.querySelector('button.sample')");
    browser.click("button.sample");
    browser.wait_for("document.querySelectorAll('dialog .token').length > 0");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn runs_are_chosen_filtered_and_sorted_by_mouse_finger_and_keys() {
    const TEST: &str = "runs_are_chosen_filtered_and_sorted_by_mouse_finger_and_keys";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    for (name, steps) in [("a", 60), ("b", 30)] {
        made_up_run(&dir.path().join(name), steps, |step, sample| format!("step {step}, sample {sample}"));
        fs::write(dir.path().join(name).join("config.toml"), format!("learning_rate = 0.{steps}\n")).unwrap();
    }
    let ui = Ui::of(dir.path());
    let shown = "document.querySelectorAll('button.sample').length";
    let first = "document.querySelector('button.sample .words').textContent";

    // Mouse.
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    browser.click(".run:nth-of-type(2) input");
    browser.wait_for("document.querySelectorAll('tbody tr').length === 2");
    browser.wait_for("document.querySelector('.chart .legend').children.length >= 2");
    let legend = browser.eval("[...document.querySelectorAll('.grid .chart .legend')].map((list) => [...list.querySelectorAll('line')].map((line) => line.getAttribute('stroke-dasharray')))");
    for dashes in legend.as_array().unwrap() {
        let mut dashes: Vec<&str> = dashes.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let count = dashes.len();
        dashes.sort_unstable();
        dashes.dedup();
        assert_eq!(dashes.len(), count, "series of one chart can be told apart without colour");
    }
    browser.hover(".grid .chart .plot", 40.0);
    browser.wait_for("/^step \\d+$/.test(document.querySelector('.grid .chart output').textContent)");
    browser.drag(".grid .chart .plot", 80.0);
    browser.wait_for("[...document.querySelectorAll('button')].some((button) => button.textContent === 'Whole range' && !button.hidden)");
    browser.click("nav a[href='#configuration']");
    browser.wait_for(
        "[...document.querySelectorAll('tr.differs th')].map((cell) => cell.textContent).join() === '≠ learning_rate'",
    );

    // Keys alone.
    browser.open(&ui.address);
    browser.focus(".grid .chart .plot");
    browser.press("Home");
    browser.wait_for("document.activeElement.closest('figure').querySelector('output').textContent === 'step 1'");
    browser.press("ArrowRight");
    browser.wait_for("document.activeElement.closest('figure').querySelector('output').textContent === 'step 2'");
    browser.focus("nav a[href='#completions']");
    browser.press("Enter");
    browser.wait_for(&format!("{shown} === 4"));
    for _ in 0..40 {
        if browser.eval("document.activeElement.matches('button.sample')") == true {
            break;
        }
        browser.press("Tab");
    }
    browser.press("Enter");
    browser.wait_for("document.querySelector('dialog[open] .facts')");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('dialog') && document.activeElement.matches('button.sample')");

    // A finger, on a phone.
    browser.window(390, 844, true);
    browser.open(&format!("{}#completions", ui.address));
    browser.wait_for(&format!("{shown} === 4"));
    browser.tap("button[aria-label='Earlier step']");
    browser.wait_for(&format!("{first}.startsWith('step 59') || {first}.startsWith('step 29')"));
    for (filter, count, text) in [
        ("best", 2, "sample 1"),
        ("worst", 2, "sample 0"),
        ("truncated", 1, "sample 2"),
        ("stale", 1, "sample 3"),
        ("failed", 0, ""),
    ] {
        choose(&mut browser, "Show", filter);
        browser.wait_for(&format!("{shown} === {count}"));
        assert!(count == 0 || browser.eval(first).as_str().unwrap().ends_with(text), "{filter}");
    }
    choose(&mut browser, "Show", "all");
    choose(&mut browser, "Sort by", "reward");
    browser.wait_for(&format!("{first}.endsWith('sample 3')"));
    browser.tap("input[type=search]");
    browser.type_text("step 7, sample 1");
    browser.wait_for(&format!("{shown} === 0"));
    browser.press("Enter");
    browser.wait_for(&format!("{shown} === 1"));
    browser.tap("button.sample");
    browser.wait_for("document.querySelector('dialog .facts')?.innerText.includes('trained')");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// An address names a run by its path, whichever server shows it; what is renewed leaves alone whoever is at it; and
/// what cannot be read is said for as long as it cannot.
#[test]
fn links_last_and_nobody_is_disturbed() {
    const TEST: &str = "links_last_and_nobody_is_disturbed";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let runs = ["a", "b"].map(|name| dir.path().join(name));
    for (run, steps) in runs.iter().zip([30, 20]) {
        made_up_run(run, steps, |step, sample| format!("{} of {steps}, {sample}", step));
    }
    fs::write(runs[1].join("config.toml"), "lerning_rate = 1.0\n").unwrap();
    let first = "document.querySelector('button.sample .words')?.textContent";
    let focus = "document.activeElement === [...document.querySelectorAll('.runs input')]";
    browser.window(1440, 900, false);
    for (run, steps) in runs.iter().zip([30, 20]) {
        let ui = Ui::of(dir.path());
        let path = run.display().to_string().replace('/', "%2F");
        browser.open(&format!("{}#completions/{path}/7", ui.address));
        browser.wait_for(&format!("{first} === '7 of {steps}, 0'"));
        browser.click("button[aria-label='Later step']");
        browser.wait_for(&format!("{first} === '8 of {steps}, 0' && location.hash === '#completions/{path}/8'"));
        if steps == 30 {
            continue;
        }
        browser.click("nav a[href='#configuration']");
        browser.wait_for(
            "/\\/b: config.toml: .*lerning_rate/.test(document.querySelector('section .problem')?.textContent)",
        );
        let at = "[...document.querySelectorAll('.runs .name')].findIndex((name) => name.textContent.endsWith('/a'))";
        browser.eval(&format!("document.querySelectorAll('.runs input')[{at}].focus()"));
        browser.press(" ");
        browser.wait_for(&format!("document.querySelectorAll('.runs :checked').length === 2 && {focus}[{at}]"));

        // A run goes on: the list is renewed, and who is in it stays there. One that is removed is called so.
        let metrics = runs[0].join("metrics.jsonl");
        let line = json!({"step": 31, "total_steps": 31, "reward": 0.5, "step_time": 1.0});
        fs::write(&metrics, format!("{}{line}\n", fs::read_to_string(&metrics).unwrap())).unwrap();
        let item = format!("document.querySelectorAll('.run')[{at}]");
        browser.wait_for(&format!("{item}.innerText.includes('step 31') && {focus}[{at}]"));
        fs::remove_dir_all(&runs[0]).unwrap();
        browser.wait_for(&format!("{item}.querySelector('.state').textContent === 'removed'"));
        let (before, words) = (TEXT, "this page does not answer");
        drop(ui);
        browser.wait_for(&format!("{before}.includes('{words}') && {before}.includes('not connected')"));
    }
}

/// A row changes where it stands: whoever has scrolled the table, or is in it, stays there. What is drawn once for
/// curves is left alone by what changes every second.
#[test]
fn workers_are_seen_while_they_come_and_go() {
    const TEST: &str = "workers_are_seen_while_they_come_and_go";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::new(dir.path().join("run"));
    made_up_run(run.root(), 3, |step, sample| format!("{step} {sample}"));
    made_up_run(&dir.path().join("alone"), 3, |step, sample| format!("{step} {sample}"));
    let row = |number: &str, state: &str, tokens_per_s: f64| {
        json!({
            "number": number, "name": format!("node-{number}"), "state": state, "tokens_per_s": tokens_per_s, "busy_share": 0.875,
            "version": 6, "staleness": 1, "fetched_bytes": 1_234_567_u64, "fetch_s": 0.5, "clock_off_s": -0.25,
            "reason": (state == "dropped").then_some("its log-probs differ"),
        })
    };
    WorkersTable { alone_s: 75.0, ..workers(&[]) }.write(&run).unwrap();
    let ui = Ui::of(dir.path());
    assert_eq!(ui.json("runs").as_array().unwrap().len(), 2);
    let with =
        (0..2).find(|run| ui.json(&format!("runs/{run}/workers")) != Value::Null).expect("one of them has workers");
    assert_eq!(ui.json(&format!("runs/{}/workers", 1 - with)), Value::Null);

    browser.window(390, 844, true);
    browser.open(&ui.address);
    browser.eval("document.querySelectorAll('.runs input').forEach((box) => box.checked || box.click())");
    let waits = "No worker has been at work for 1 min 15 s, and the run waits: tandem worker --join tls/HOST:7447";
    browser.wait_for(&format!("document.querySelector('.workers')?.closest('section').innerText.includes('{waits}')"));
    assert_eq!(
        browser.eval("document.querySelectorAll('table.workers').length"),
        1,
        "of the other run there is nothing"
    );

    let table = "document.querySelector('table.workers').parentElement";
    let texts = format!("{table}.innerText");
    workers(&[row("a", "sampling", 123.4), row("b", "dropped", 0.0)]).write(&run).unwrap();
    browser.wait_for(&format!("{texts}.includes('node-b') && {texts}.includes('dropped: its log-probs differ')"));
    let words = browser.eval("document.querySelector('table.workers').closest('section').innerText");
    for expected in [
        "1 at work, 123 tokens/s; 12 prompts verified, 1 disputed; 4.2 GB written to the store; 2 calls refused.",
        "6, 1 behind",
        "1.23 MB in 0.5 s",
        "88 %",
        "−0.25 s",
    ] {
        assert!(words.as_str().unwrap().contains(expected), "{expected}: {words}");
    }
    assert!(!words.as_str().unwrap().contains("the run waits"), "{words}");

    // It is scrolled by keys, and what changes leaves it there.
    browser.eval(&format!("{table}.focus(); {table}.marked = {table}.querySelector('tbody tr')"));
    for _ in 0..4 {
        browser.press("ArrowRight");
    }
    browser.wait_for(&format!("{table}.scrollLeft > 0 && document.activeElement === {table}"));
    browser.eval("window.chart = document.querySelector('.tiles')");
    workers(&[row("a", "silent", 0.0), row("b", "dropped", 0.0), row("c", "loading", 0.0)]).write(&run).unwrap();
    browser.wait_for(&format!("{texts}.includes('node-c') && {texts}.includes('silent')"));
    browser.wait_for(&format!(
        "{table}.scrollLeft > 0 && document.activeElement === {table} && {table}.marked === {table}.querySelector('tbody tr')"
    ));
    assert_eq!(browser.eval("window.chart === document.querySelector('.tiles')"), true, "only the table was drawn");
    assert_eq!(browser.complaints(), [""; 0]);

    // The report has the table as it was last.
    let report = cli::run("tandem", [Path::new("report"), run.root()]).success().stdout;
    browser.open(&format!("file://{}", report.trim()));
    browser.wait_for(&format!("{texts}.includes('node-c')"));
    browser
        .wait_for("/As of \\d{4}-.* UTC/.test(document.querySelector('table.workers').closest('section').innerText)");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Contrast of every text against what is behind it, and whether anything sticks out of the window.
const LEGIBLE: &str = r"(() => {
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const over = (above, below) => above.slice(0, 3).map((value, at) => (value * above[3] + below[at] * (255 - above[3])) / 255);
  const behind = (element) => {
    if (!element) return rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const light = (color) => {
    const [r, g, b] = color.map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const problems = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || element.matches('script, option, :disabled')) continue;
    const back = behind(element);
    const [a, b] = [light(over(rgba(getComputedStyle(element).color), back)), light(back)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) problems.push(`${contrast.toFixed(2)}: ${element.className} ${texts.currentNode.textContent.slice(0, 40)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) problems.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  return [...new Set(problems)];
})()";

#[test]
fn everything_is_legible_at_every_size_and_in_both_schemes() {
    const TEST: &str = "everything_is_legible_at_every_size_and_in_both_schemes";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let names = ["first", "a-run-with-quite-a-long-name-that-somebody-has-chosen-in-a-hurry"];
    for name in names {
        made_up_run(&dir.path().join(name), 30, |step, sample| {
            format!("step {step}, {}", "word ".repeat(40 * sample as usize))
        });
    }
    let notice = json!({"kind": "truncated", "step": 3, "text": "something is odd", "remedy": "do this"});
    fs::write(dir.path().join("first/notices.jsonl"), format!("{notice}\n")).unwrap();
    let comparison = json!({"a": "/m/one", "b": "/m/two", "sentences": ["accuracy: B is better, they say"]});
    fs::write(dir.path().join("first/comparisons.jsonl"), format!("{comparison}\n")).unwrap();
    let names = ["node-1".to_owned(), "a-name-that-somebody-has-chosen-in-a-hurry-".repeat(4)];
    let states = ["sampling", "dropped"];
    let rows: Vec<Value> = (0..2)
        .map(|at| json!({"number": at.to_string(), "name": names[at], "state": states[at], "reason": "word ".repeat(20 * at)}))
        .collect();
    workers(&rows).write(&RunDir::new(dir.path().join("first"))).unwrap();
    let ui = Ui::of(dir.path());
    for (width, height, touch) in [(1440, 900, false), (390, 844, true)] {
        for dark in [false, true] {
            browser.window(width, height, touch);
            browser.dark(dark);
            browser.open(&ui.address);
            browser.eval("document.querySelectorAll('.runs input').forEach((box) => box.checked || box.click())");
            browser.wait_for("document.querySelectorAll('tbody tr').length === 4");
            browser.wait_for(&format!("{TEXT}.includes('accuracy: B is better, they say')"));
            assert_eq!(browser.eval(LEGIBLE), json!([]), "curves, {width} wide, dark {dark}");
            for part in ["completions", "configuration"] {
                browser.eval(&format!("location.hash = '{part}'"));
                browser
                    .wait_for(&format!("document.querySelector(\"a[href='#{part}']\").hasAttribute('aria-current')"));
                assert_eq!(browser.eval(LEGIBLE), json!([]), "{part}, {width} wide, dark {dark}");
            }
            browser.eval("location.hash = 'completions'");
            browser.wait_for("document.querySelector('button.sample')?.checkVisibility()");
            browser.click("button.sample");
            browser.wait_for("document.querySelector('dialog .facts')");
            assert_eq!(browser.eval(LEGIBLE), json!([]), "a completion, {width} wide, dark {dark}");
        }
    }
    // Ticks and values are not rounded to other numbers.
    let ticks = browser.eval("Format.ticks([0, 0.00125, 0.0025, 0.00375], 0.00125)");
    assert_eq!(ticks, json!(["0.00000", "0.00125", "0.00250", "0.00375"]));
    assert_eq!(browser.eval("Format.ticks([0, 2500, 5000], 2500)"), json!(["0", "2,500", "5,000"]));
    assert_eq!(browser.eval("Format.ticks([0, 1.25e-7, 2.5e-7], 1.25e-7)"), json!(["0", "1.25e−7", "2.5e−7"]));
    assert_eq!(browser.eval("Format.number(0.00125)"), "0.00125");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn given_tokens_are_muted_and_have_no_figures() {
    const TEST: &str = "given_tokens_are_muted_and_have_no_figures";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    made_up_run(&run, 3, |_, _| "a completion".into());
    let record = |sample: u64, owner: Option<Value>| {
        let mut record = json!({
            "group": 0, "sample": sample, "tokens": [1, 2, 3], "versions": [[0, 2]], "sampler": [-1.0, null, -1.0],
            "learner": [-1.5, null, -1.0], "entropy": [0.5, null, 0.5], "advantages": [1.0, null, 1.0], "weights": [],
            "marks": {},
        });
        owner.map(|owner| record.as_object_mut().unwrap().insert("owner".into(), owner));
        format!("{record}\n")
    };
    let records = record(0, Some(json!([1, 0, 1]))) + &record(1, None);
    fs::write(run.join("completions/tokens-3.jsonl"), records).unwrap();
    let ui = Ui::of(dir.path());
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    browser.wait_for("document.querySelectorAll('.legend').length > 3");
    browser.click("nav a[href='#completions']");
    browser.wait_for("document.querySelectorAll('button.sample').length === 4");
    let class = "[...document.querySelectorAll('dialog .token')].map((token) => token.classList.contains('given'))";
    let open = |browser: &mut Browser, sample: u64| {
        let is_it = format!("(one) => one.querySelector('.id').textContent === '0.{sample}'");
        let _ = browser.eval(&format!("[...document.querySelectorAll('button.sample')].find({is_it}).click()"));
        browser.wait_for("document.querySelectorAll('dialog .token').length === 3");
    };
    open(&mut browser, 0);
    assert_eq!(browser.eval(class), json!([false, true, false]));
    browser.click("dialog .token:nth-of-type(2)");
    browser.wait_for("document.querySelector('.readout').textContent.endsWith('given to the policy, not sampled')");
    browser.press("Escape");
    browser.wait_for("!document.querySelector('dialog')");
    open(&mut browser, 1);
    assert_eq!(browser.eval(class), json!([false, false, false]));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn hostile_texts_stay_texts() {
    const TEST: &str = "hostile_texts_stay_texts";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("<img src=x onerror=hacked=1>");
    let evil = |_, sample| match sample {
        0 => "</script><script>hacked=1</script><img src=x onerror=hacked=1><!--<style>*{display:none}</style>"
            .to_owned(),
        1 => "\u{1b}[2J\u{0}\u{202e}evil\u{2066}\u{feff}\u{7f}".to_owned(),
        2 => "m".repeat(3_000_000),
        _ => "שלום, עולם. مرحبا بالعالم ".repeat(50),
    };
    made_up_run(&run, 3, evil);
    let evil_name = "</script><img src=x onerror=hacked=1>";
    let record = json!({"step": 4, format!("rewards/{evil_name}/mean"): 0.5, "step_time": 1.0});
    let mut metrics = fs::OpenOptions::new().append(true).open(run.join("metrics.jsonl")).unwrap();
    writeln!(metrics, "{record}").unwrap();
    let notice = json!({"kind": "truncated", "step": 3, "text": evil(0, 0), "remedy": evil(0, 1)});
    fs::write(run.join("notices.jsonl"), format!("{notice}\n")).unwrap();
    fs::write(run.join("config.toml"), format!("reward_funcs = [{evil_name:?}]\n")).unwrap();
    let tokens = json!({
        "group": 0, "sample": 0, "tokens": [1, 2], "versions": [[0, 2]], "sampler": [-1.0, null], "learner": [-1.5, null],
        "entropy": [0.5, 0.25], "advantages": [1.0, 1.0], "weights": [], "marks": {evil_name: [1]},
    });
    fs::write(run.join("completions/tokens-3.jsonl"), format!("{tokens}\n")).unwrap();
    let worker =
        json!({"number": evil_name, "name": evil(0, 1), "state": "dropped", "reason": evil(0, 0), "class": evil_name});
    WorkersTable { listen: evil_name.into(), written: 1e300, ..workers(&[worker]) }.write(&RunDir::new(&run)).unwrap();
    let ui = Ui::of(dir.path());
    let report = cli::run("tandem", [Path::new("report"), &run]).success().stdout;

    for address in [
        ui.address.clone(),
        format!("file://{}", report.trim().replace('<', "%3C").replace('>', "%3E").replace(' ', "%20")),
    ] {
        browser.window(1440, 900, false);
        browser.open(&address);
        browser.wait_for("document.querySelectorAll('.legend').length > 3");
        // The notice is shown as it is.
        browser.wait_for(&format!("{TEXT}.includes('</script><script>hacked=1')"));
        browser.wait_for(
            "document.querySelector('table.workers td').textContent.includes('dropped: </script><script>hacked=1')",
        );
        for part in ["configuration", "completions"] {
            browser.click(&format!("nav a[href='#{part}']"));
        }
        browser.wait_for("document.querySelectorAll('button.sample').length === 4");
        for at in 0..4 {
            browser.eval(&format!("document.querySelectorAll('button.sample')[{at}].click()"));
            browser.wait_for("document.querySelector('dialog .facts') && !document.querySelector('dialog .body').innerText.startsWith('Loading')");
            let shown = browser.eval("document.querySelector('dialog .body').innerText");
            let expected =
                ["</script><script>hacked=1</script>", "␛[2J␀⟨202E⟩evil⟨2066⟩⟨FEFF⟩␡", "3,000,000 characters", "שלום"]
                    [at];
            assert!(shown.as_str().unwrap().contains(expected), "{}", &shown.to_string()[..300]);
            if at == 0 {
                browser.click("dialog .token:nth-of-type(2)");
                browser.wait_for("document.querySelector('.readout').textContent.includes('counted in </script>')");
            }
            browser.press("Escape");
            browser.wait_for("!document.querySelector('dialog')");
        }
        assert_eq!(
            browser.eval(
                "[typeof hacked, document.images.length, document.querySelectorAll('#page script, #page style').length]"
            ),
            json!(["undefined", 0, 0])
        );
        assert_eq!(browser.complaints(), [""; 0]);
    }
    assert!(fs::metadata(report.trim()).unwrap().len() < 20_000_000);
}

/// How long it takes is measured in BENCHMARKS.md; what is printed here says how long it took this time.
#[test]
fn a_long_run_opens_and_scrolls_to_its_end() {
    const TEST: &str = "a_long_run_opens_and_scrolls_to_its_end";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    let steps: u64 = std::env::var("TANDEM_UI_STEPS").map_or(2_000, |steps| steps.parse().expect("a number"));
    made_up_run(dir.path(), steps, |step, sample| format!("step {step} sample {sample}"));
    // The last step has as many completions as make all of them ten for each step.
    let row = |sample: u64| {
        let row = json!({"group": sample / 10, "position": sample / 10, "sample": sample % 10, "prompt": "p", "completion": format!("number {sample} {}", "x".repeat(4000)), "reward": 0.5});
        format!("{row}\n")
    };
    let many = 6 * steps;
    fs::write(dir.path().join(format!("completions/step-{steps}.jsonl")), (0..many).map(row).collect::<String>())
        .unwrap();
    let ui = Ui::of(dir.path());
    browser.window(1440, 900, false);
    let begin = Instant::now();
    browser.open(&ui.address);
    browser.wait_for("document.querySelectorAll('.grid .u-wrap').length > 3");
    println!("{steps} steps are drawn after {} ms", begin.elapsed().as_millis());
    let begin = Instant::now();
    let run = dir.path().display().to_string().replace('/', "%2F");
    browser.open(&format!("{}#completions/{run}/{steps}", ui.address));
    browser.wait_for("document.querySelectorAll('button.sample').length >= 20");
    println!("{many} completions are listed after {} ms", begin.elapsed().as_millis());
    // Of each text, the beginning is fetched; and what is laid out is what a reader sees at first.
    let fetched = browser.eval(&format!(
        "performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/steps/{steps}'))\
         .reduce((bytes, entry) => bytes + entry.decodedBodySize, 0)"
    ));
    let listed = browser.eval("document.querySelectorAll('button.sample').length").as_u64().unwrap();
    let all = fs::metadata(dir.path().join(format!("completions/step-{steps}.jsonl"))).unwrap().len();
    println!("{} of {all} bytes are fetched, {listed} of {many} completions listed", fetched);
    let fetched = fetched.as_f64().unwrap();
    assert!(0.0 < fetched && fetched < all as f64 / 2.0, "{fetched} of {all}");
    assert!(listed < 500, "{listed} of {many}");
    assert!(browser.eval("document.querySelector('main').innerText").as_str().unwrap().contains("completions in"));
    // Frames while it scrolls for two seconds.
    let frames = browser.eval(
        "new Promise((done) => { let [last, most, count] = [performance.now(), 0, 0]; const begin = last; const frame = (now) => { \
         most = Math.max(most, now - last); last = now; count += 1; window.scrollBy(0, 400); \
         now - begin > 2000 ? done([count, most, document.querySelectorAll('button.sample').length]) : requestAnimationFrame(frame); }; \
         requestAnimationFrame(frame); })",
    );
    println!(
        "while it scrolls: {} frames in 2 s, the longest {} ms, {} completions passed",
        frames[0], frames[1], frames[2]
    );
    assert!(frames[2].as_u64().unwrap() > 100.max(listed), "{frames}");
    assert_eq!(browser.complaints(), [""; 0]);
}
