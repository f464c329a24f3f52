//! The table of workers, on the page and in the report.

use std::path::Path;

use harness::{browser::Browser, cli, skipped};
use serde_json::{Value, json};
use shared::{RunDir, run::workers::WorkersTable};

use super::{Ui, made_up_run, workers};

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
            "number": number, "name": format!("node-{number}"), "state": state, "tokens_per_s": tokens_per_s,
            "busy_share": 0.875,
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
    let waits = "No worker has been at work for 1 min 15 s, and the run waits: tandem worker --join tls/HOST:7447 \
        --token-file FILE";
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
        "{table}.scrollLeft > 0 && document.activeElement === {table} && \
         {table}.marked === {table}.querySelector('tbody tr')"
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
