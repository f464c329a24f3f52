//! Runs on the page: followed, chosen and linked.

use std::{fs, time::Instant};

use harness::{bench::Bench, browser::Browser, skipped};
use serde_json::{Value, json};

use super::{TEXT, Ui, choose, made_up_run};

#[test]
fn the_page_follows_a_run_and_shows_every_completion() {
    const TEST: &str = "the_page_follows_a_run_and_shows_every_completion";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let bench = Bench::new(
        "dataset = [\"prompts.jsonl\"]\neval_dataset = \"prompts.jsonl\"\neval_steps = 200\n\
         max_steps = 600\nmax_completion_length = 24\n\
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
    browser.wait_for(
        "[...document.querySelectorAll('.chart h3')]\
         .filter((title) => title.closest('figure').offsetParent).length > 8",
    );

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
    browser.wait_for("document.querySelectorAll('main tbody tr').length === 2");
    browser.wait_for("document.querySelector('.chart .legend').children.length >= 2");
    let legend = browser.eval(
        "[...document.querySelectorAll('.grid .chart .legend')].map((list) => \
         [...list.querySelectorAll('line')].map((line) => line.getAttribute('stroke-dasharray')))",
    );
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
    browser.wait_for(
        "[...document.querySelectorAll('button')]\
         .some((button) => button.textContent === 'Whole range' && !button.hidden)",
    );
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
    browser.tap("input[aria-label='search completions']");
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
        browser.wait_for(&format!("{item}.innerText.includes('31 of 31') && {focus}[{at}]"));
        fs::remove_dir_all(&runs[0]).unwrap();
        browser.wait_for(&format!("{item}.querySelector('.state').textContent === 'removed'"));
        let (before, words) = (TEXT, "this page does not answer");
        drop(ui);
        browser.wait_for(&format!("{before}.includes('{words}') && {before}.includes('not connected')"));
    }
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
        let row = json!({"group": sample / 10, "position": sample / 10, "sample": sample % 10, "prompt": "p",
            "completion": format!("number {sample} {}", "x".repeat(4000)), "reward": 0.5});
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
        "new Promise((done) => { let [last, most, count] = [performance.now(), 0, 0]; const begin = last; \
         const frame = (now) => { \
         most = Math.max(most, now - last); last = now; count += 1; window.scrollBy(0, 400); \
         now - begin > 2000 ? done([count, most, document.querySelectorAll('button.sample').length]) \
         : requestAnimationFrame(frame); }; \
         requestAnimationFrame(frame); })",
    );
    println!(
        "while it scrolls: {} frames in 2 s, the longest {} ms, {} completions passed",
        frames[0], frames[1], frames[2]
    );
    assert!(frames[2].as_u64().unwrap() > 100.max(listed), "{frames}");
    assert_eq!(browser.complaints(), [""; 0]);
}
