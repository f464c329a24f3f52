//! Texts on the page: legible at every size, marked by their owner, and harmless.

use std::{fs, io::Write, path::Path};

use harness::{browser::Browser, cli, skipped};
use serde_json::{Value, json};
use shared::{RunDir, run::workers::WorkersTable};

use super::{TEXT, Ui, made_up_run, workers};

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
    // Tokens of the strongest colour, which those of the highest entropy have.
    let tokens = json!({
        "group": 0, "sample": 0, "tokens": [1, 2, 3], "versions": [[0, 29]], "sampler": [-1.0, -1.0, -1.0],
        "learner": [-1.0, -1.0, -1.0], "entropy": [0.5, 1.0, 0.0], "advantages": [1.0, 1.0, 1.0], "weights": [],
        "marks": {},
    });
    for name in names {
        fs::write(dir.path().join(name).join("completions/tokens-30.jsonl"), format!("{tokens}\n")).unwrap();
    }
    let notice = json!({"kind": "truncated", "step": 3, "text": "something is odd", "remedy": "do this"});
    fs::write(dir.path().join("first/notices.jsonl"), format!("{notice}\n")).unwrap();
    let comparison = json!({"a": "/m/one", "b": "/m/two", "sentences": ["accuracy: B is better, they say"]});
    fs::write(dir.path().join("first/comparisons.jsonl"), format!("{comparison}\n")).unwrap();
    let names = ["node-1".to_owned(), "a-name-that-somebody-has-chosen-in-a-hurry-".repeat(4)];
    let states = ["sampling", "dropped"];
    let rows: Vec<Value> = (0..2)
        .map(|at| {
            json!({"number": at.to_string(), "name": names[at], "state": states[at],
            "reason": "word ".repeat(20 * at)})
        })
        .collect();
    workers(&rows).write(&RunDir::new(dir.path().join("first"))).unwrap();
    let ui = Ui::of(dir.path());
    for (width, height, touch) in [(1440, 900, false), (390, 844, true)] {
        for dark in [false, true] {
            browser.window(width, height, touch);
            browser.dark(dark);
            browser.open(&ui.address);
            browser.eval("document.querySelectorAll('.runs input').forEach((box) => box.checked || box.click())");
            browser.wait_for("document.querySelectorAll('main tbody tr').length === 4");
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
            browser.wait_for("document.querySelector('dialog .facts') && document.querySelector('dialog .token')");
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
    let record = |sample: u64, learner: f64, owner: Option<Value>| {
        let mut record = json!({
            "group": 0, "sample": sample, "tokens": [1, 2, 3], "versions": [[0, 2]], "sampler": [-1.0, null, -1.0],
            "learner": [learner, null, -1.0], "entropy": [0.5, null, 0.5], "advantages": [1.0, null, 1.0],
            "weights": [], "marks": {},
        });
        owner.map(|owner| record.as_object_mut().unwrap().insert("owner".into(), owner));
        format!("{record}\n")
    };
    let records = record(0, -1.000_000_1, Some(json!([1, 0, 1]))) + &record(1, -1.5, None);
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
    let coloured = "[...document.querySelectorAll('dialog .token')]\
                    .map((token) => token.style.backgroundColor !== '')";
    assert_eq!(browser.eval("document.querySelector('dialog select').value"), "entropy", "the halves agree");
    assert_eq!(browser.eval(coloured), json!([true, false, true]));
    browser.press("Escape");
    browser.wait_for("!document.querySelector('dialog')");
    open(&mut browser, 1);
    assert_eq!(browser.eval(class), json!([false, false, false]));
    assert_eq!(browser.eval("document.querySelector('dialog select').value"), "difference");
    assert_eq!(browser.eval(coloured), json!([true, false, false]));
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
        "group": 0, "sample": 0, "tokens": [1, 2], "versions": [[0, 2]], "sampler": [-1.0, null], "learner": [-1.5,
        null],
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
            browser.wait_for(
                "document.querySelector('dialog .facts') && \
                 !document.querySelector('dialog .body').innerText.startsWith('Loading')",
            );
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
