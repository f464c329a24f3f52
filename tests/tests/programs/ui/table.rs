//! The table of runs, and metrics that no chart shows.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{browser::Browser, skipped};
use serde_json::json;
use shared::{
    RunDir,
    channel::RunId,
    run::ended::{Ended, How},
};

use super::{TEXT, Ui, choose};

/// A run of some steps that all earned the same, made with a learning rate.
fn run(root: &Path, name: &str, steps: u64, reward: f64, rate: f64, how: How) {
    let dir = RunDir::new(root.join(name));
    dir.create().unwrap();
    // The clock of a file system may be a coarse one, and runs are listed by their beginning.
    thread::sleep(Duration::from_millis(10));
    fs::write(dir.config(), format!("learning_rate = {rate}\nmodel = \"/models/{name}-model\"\n")).unwrap();
    let line = |step: u64| {
        let record = json!({"step": step, "total_steps": steps, "reward": reward, "step_time": 2.0, "kl": 0.5,
            "sample/aborted": 3 * step, "sample/dropped_stale": 1});
        format!("{record}\n")
    };
    fs::write(dir.metrics(), (1..=steps).map(line).collect::<String>()).unwrap();
    let id = RunId::draw();
    id.leave(&dir).unwrap();
    Ended::new(id, how, None).leave(&dir).unwrap();
}

/// The ends of the names of the runs, in the order of the table.
const NAMES: &str =
    "[...document.querySelectorAll('.run .name')].map((name) => name.textContent.split('/').at(-1)).join()";
/// Those of the runs that are shown.
const SHOWN: &str =
    "[...document.querySelectorAll('.run.chosen .name')].map((name) => name.textContent.split('/').at(-1)).join()";

fn filter(browser: &mut Browser, text: &str) {
    browser.eval(&format!(
        "(() => {{ const field = document.querySelector('.runlist input[type=search]'); field.value = '{text}'; \
         field.dispatchEvent(new Event('input')); }})()"
    ));
}

/// Clicks the box that chooses all listed runs.
fn click_all(browser: &mut Browser) {
    browser.eval("document.querySelector('.runlist .controls input[type=checkbox]').click()");
}

#[test]
fn runs_are_sorted_filtered_grouped_and_chosen_together() {
    const TEST: &str = "runs_are_sorted_filtered_grouped_and_chosen_together";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", 10, 0.5, 0.25, How::Finished);
    run(dir.path(), "b", 30, 0.9, 0.5, How::LearnedNothing);
    run(dir.path(), "c", 20, 0.1, 0.25, How::Stopped);
    let ui = Ui::of(dir.path());
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    browser.wait_for(&format!("{NAMES} === 'c,b,a'"));
    let row = browser.eval("document.querySelectorAll('.run')[1].innerText");
    for word in ["30 of 30", "0.9", "learned nothing", "1 min 00 s", "b-model"] {
        assert!(row.as_str().unwrap().contains(word), "{word} is not in {row}");
    }

    // By its heads, with keys: each column goes both ways.
    let head = "[...document.querySelectorAll('.runs thead button')].find((one) => one.textContent === 'Reward')";
    browser.eval(&format!("{head}.focus()"));
    browser.press("Enter");
    browser.wait_for(&format!("{NAMES} === 'b,a,c' && {head}.closest('th').ariaSort === 'descending'"));
    browser.press("Enter");
    browser.wait_for(&format!("{NAMES} === 'c,a,b' && {head}.closest('th').ariaSort === 'ascending'"));

    // A run that begins while the page is open takes its place, and nobody loses the focus.
    run(dir.path(), "d", 5, 0.2, 0.5, How::Failed);
    browser.wait_for(&format!("{NAMES} === 'c,d,a,b' && document.activeElement === {head}"));

    // Words of name, option and state; then all of these are shown, and the charts are theirs.
    for (text, names) in
        [("learned", "b"), ("learning_rate=0.25", "c,a"), ("0.25 finished", "a"), ("D-MODEL", "d"), ("no-such-run", "")]
    {
        filter(&mut browser, text);
        browser.wait_for(&format!("{NAMES} === '{names}'"));
    }
    filter(&mut browser, "learning_rate=0.25");
    click_all(&mut browser);
    browser.wait_for(&format!("{SHOWN} === 'c,a'"));
    browser.wait_for("document.querySelector('.grid .legend').children.length === 2");
    filter(&mut browser, "");
    browser.wait_for(&format!("{NAMES} === 'c,d,a,b' && {SHOWN} === 'c,a'"));
    click_all(&mut browser);
    browser.wait_for(&format!("{SHOWN} === 'c,d,a,b'"));
    browser.click(".run:nth-of-type(2) .name");
    browser.wait_for(&format!("{SHOWN} === 'd'"));

    choose(&mut browser, "Group by", "learning_rate");
    let groups = "[...document.querySelectorAll('.runs .group')].map((head) => head.innerText).join('|')";
    browser.wait_for(&format!("{NAMES} === 'c,a,d,b'"));
    assert_eq!(
        browser.eval(groups),
        "learning_rate = 0.252 runs, mean reward 0.3|learning_rate = 0.52 runs, mean reward 0.55"
    );
    choose(&mut browser, "Group by", "");

    // A narrow window has a list in place of the heads, and every figure keeps its name.
    browser.window(390, 844, true);
    choose(&mut browser, "Order", "steps down");
    browser.wait_for(&format!("{NAMES} === 'b,c,a,d'"));
    let title =
        browser.eval("getComputedStyle(document.querySelector('.run td[data-column=reward]'), '::before').content");
    assert_eq!(title, "\"Reward\"");
    assert_eq!(browser.eval("document.documentElement.scrollWidth > innerWidth"), false);
    assert_eq!(browser.complaints(), [""; 0]);
}

/// How long it takes is printed; nothing here waits for more runs than a page can show.
#[test]
fn four_hundred_runs_are_listed_and_filtered_at_once() {
    const TEST: &str = "four_hundred_runs_are_listed_and_filtered_at_once";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    for number in 0..400 {
        run(dir.path(), &format!("run-{number:03}"), 20, f64::from(number), f64::from(number % 4), How::Finished);
    }
    let ui = Ui::of(dir.path());
    browser.window(1440, 900, false);
    let begin = Instant::now();
    browser.open(&ui.address);
    browser.wait_for("document.querySelectorAll('.run').length === 400");
    println!("400 runs are listed after {} ms", begin.elapsed().as_millis());
    let time = "(() => { const begin = performance.now(); \
                const field = document.querySelector('.runlist input[type=search]'); \
                field.value = 'run-00'; field.dispatchEvent(new Event('input')); document.body.offsetHeight; \
                return performance.now() - begin; })()";
    let took = browser.eval(time).as_f64().unwrap();
    println!("they are filtered in {took:.0} ms");
    assert_eq!(browser.eval("document.querySelectorAll('.run').length"), 10);
    assert!(took < 1000.0, "{took} ms");
    // All at once are more lines than anybody can follow.
    filter(&mut browser, "");
    let begin = Instant::now();
    click_all(&mut browser);
    browser.wait_for("document.querySelectorAll('.run.chosen').length === 50");
    browser.wait_for("document.querySelector('.grid .legend').children.length === 50");
    println!("50 of them are drawn after {} ms", begin.elapsed().as_millis());
    assert!(
        browser.eval(TEXT).as_str().unwrap().contains("400 runs, 50 shown; at most the first 50 are shown together")
    );
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn any_metric_is_found_drawn_and_kept_in_the_address() {
    const TEST: &str = "any_metric_is_found_drawn_and_kept_in_the_address";
    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "a", 10, 0.5, 0.25, How::Finished);
    let ui = Ui::of(dir.path());
    let titles = "[...document.querySelectorAll('.chart h3')].filter((title) => title.checkVisibility())\
                  .map((title) => title.textContent)";
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    browser.wait_for(&format!("{titles}.includes('Reward')"));
    assert_eq!(browser.eval(&format!("{titles}.includes('sample/aborted')")), false);
    browser.click(".picker summary");
    browser.wait_for("document.activeElement.matches('.picker input')");
    browser.type_text("ABORT");
    browser.wait_for("document.querySelectorAll('.choices button').length === 1");
    browser.press("Enter");
    browser.wait_for(&format!("{titles}.includes('sample/aborted') && location.hash === '#curves/sample%2Faborted'"));
    let value = "[...document.querySelectorAll('.chart')].find((one) => one.innerText.startsWith('sample/aborted'))\
                 ?.querySelector('.legend b')?.textContent";
    // It is smoothed, as other curves are.
    browser.wait_for(&format!("Number({value}) > 20 && Number({value}) < 30"));

    // The address opens it again, also after another tab; steps that come later are drawn, too.
    let address = browser.eval("location.href").as_str().unwrap().to_owned();
    browser.open(&format!("{}?elsewhere", ui.address));
    assert_eq!(browser.eval(&format!("{titles}.includes('sample/aborted')")), false);
    browser.open(&address);
    browser.wait_for(&format!("{titles}.includes('sample/aborted')"));
    browser.click("nav a[href='#configuration']");
    browser.click("nav a:first-child");
    browser.wait_for(&format!("{titles}.includes('sample/aborted') && location.hash === '#curves/sample%2Faborted'"));
    let metrics = dir.path().join("a/metrics.jsonl");
    let line = json!({"step": 11, "total_steps": 11, "reward": 0.5, "step_time": 1.0, "sample/aborted": 1000});
    fs::write(&metrics, format!("{}{line}\n", fs::read_to_string(&metrics).unwrap())).unwrap();
    browser.wait_for(&format!("Number({value}) > 100"));
    browser.click("button.away");
    browser.wait_for(&format!("!{titles}.includes('sample/aborted') && location.hash === '#curves'"));
    assert_eq!(browser.complaints(), [""; 0]);
}
