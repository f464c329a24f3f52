//! What people need beside a completion: the right answer, the other columns of its row, and what reward functions log.

use std::fs;

use harness::{bench::Bench, browser::Browser, cli, skipped, training::json_lines};
use serde_json::{Value, json};

use super::{TEXT, Ui};

const REWARDS: &str = "
def judge(completions, answer, log_extra, log_metric, **kwargs):
    log_extra('ends_with', [text[-1:] for text in completions])
    log_extra('verdict', ['<b>wrong</b>'] * len(completions))
    log_metric('right', 0.25)
    log_metric('right', 0.75)
    log_metric('broken', float('nan'))
    return [float(len(set(text))) for text in completions]


def raises(completions, **kwargs):
    raise KeyError('no such thing')
";

const CONFIG: &str = "dataset = [\"rows.jsonl\"]\nmax_completion_length = 8\nnum_generations = 4\n\
                      generation_batch_size = 8\nper_device_train_batch_size = 8\n";

fn bench() -> Bench {
    let bench = Bench::new(CONFIG);
    let row = |n: u64| {
        let row = json!({"prompt": format!("{n}+{n}="), "answer": format!("It is {}.\n#### {}", 2 * n, 2 * n),
            "level": n, "tests": "x".repeat(5000)});
        format!("{row}\n")
    };
    fs::write(bench.path("rows.jsonl"), (1..=8).map(row).collect::<String>()).unwrap();
    fs::write(bench.path("rewards.py"), REWARDS).unwrap();
    bench
}

#[test]
fn the_right_answer_and_what_functions_log_stand_beside_each_completion() {
    const TEST: &str = "the_right_answer_and_what_functions_log_stand_beside_each_completion";
    let bench = bench();
    let words = ["--reward_funcs", "rewards.py:judge", "--max_steps", "2"];
    assert!(bench.start("run", &words).wait().unwrap().success());
    let rows = json_lines(&bench.path("run/completions/step-2.jsonl"));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        let of = |key: &str| row["columns"][key].clone();
        let level = of("level").as_u64().unwrap();
        assert_eq!(row["prompt"], format!("{level}+{level}="));
        assert!(of("answer").as_str().unwrap().ends_with(&format!("#### {}", 2 * level)), "{row}");
        let tests = of("tests");
        let tests = tests.as_str().unwrap();
        assert!(tests.ends_with("x…") && tests.chars().count() == 2001, "a long value is cut, with a mark");
        let last = row["completion"].as_str().unwrap().chars().last().map(String::from).unwrap_or_default();
        assert_eq!(row["extra"], json!({"ends_with": last, "verdict": "<b>wrong</b>"}));
    }
    for record in json_lines(&bench.path("run/metrics.jsonl")) {
        assert_eq!((&record["logged/right"], record.get("logged/broken")), (&json!(0.5), None));
    }
    let explained = cli::run("tandem", ["explain", bench.path("run").to_str().unwrap(), "2.0.0"]).success();
    let level = &rows[0]["columns"]["level"];
    for line in [format!("row: level {level}"), "logged by reward functions: verdict \"<b>wrong</b>\"".to_owned()] {
        assert!(explained.stdout.contains(&line), "{}", explained.stdout);
    }

    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let ui = Ui::of(&bench.path(""));
    for address in [ui.address.clone(), format!("file://{}", bench.path("run/report.html").display())] {
        browser.window(1440, 900, false);
        browser.open(&format!("{address}#completions"));
        browser.wait_for("document.querySelectorAll('button.sample .answer').length === 8");
        // Of a worked solution, the list has the result.
        let answer = browser.eval("document.querySelector('button.sample .answer').textContent");
        assert_eq!(answer, format!("right: {}", 2 * level.as_u64().unwrap()));
        browser.click("button.sample");
        browser.wait_for("document.querySelector('dialog .answered')");
        let shown = browser.eval("document.querySelector('dialog .body').innerText");
        let shown = shown.as_str().unwrap();
        for words in
            ["Right answer", "It is ", "Row of the dataset", "level", "Logged by reward functions", "<b>wrong</b>"]
        {
            assert!(shown.contains(words), "{words} is not in {shown}");
        }
        // Beside the completion on a wide window, below it on a narrow one.
        let sides =
            "[...document.querySelectorAll('.answered > section')].map((one) => one.getBoundingClientRect().top)";
        let tops = browser.eval(sides);
        assert_eq!(tops[0], tops[1]);
        browser.window(390, 844, true);
        let tops = browser.eval(sides);
        assert!(tops[0].as_f64() < tops[1].as_f64(), "{tops}");
        assert_eq!(browser.eval("document.documentElement.scrollWidth > innerWidth"), false);
        assert_eq!(browser.complaints(), [""; 0]);
    }
}

#[test]
fn how_a_run_ended_is_left_for_the_page() {
    const TEST: &str = "how_a_run_ended_is_left_for_the_page";
    let bench = bench();
    let ended = |run: &str| -> Value {
        serde_json::from_slice(&fs::read(bench.path(run).join("ended.json")).unwrap()).unwrap()
    };
    for (run, more, code, how) in [
        ("good", ["--reward_funcs", "rewards.py:judge"], 0, "finished"),
        // No completion has any of the tags, so that all earn the same.
        ("vain", ["--reward_funcs", "format"], 4, "learned_nothing"),
        ("bad", ["--reward_funcs", "rewards.py:raises"], 1, "failed"),
    ] {
        let words = [&["--max_steps", "2", "--rehearse_rewards", "false"][..], &more].concat();
        assert_eq!(bench.start(run, &words).wait().unwrap().code(), Some(code), "{run}");
        assert_eq!(ended(run)["how"], how);
    }
    assert!(ended("bad")["error"].as_str().unwrap().contains("no such thing"), "{}", ended("bad"));

    let Some(mut browser) = Browser::start() else { return skipped(TEST, "no Chromium") };
    let ui = Ui::of(&bench.path(""));
    browser.window(1440, 900, false);
    browser.open(&ui.address);
    browser.wait_for("document.querySelectorAll('.runs .run').length === 3");
    let states = browser.eval(
        "Object.fromEntries([...document.querySelectorAll('.run')]\
         .map((row) => ['.name', '.state'].map((part) => row.querySelector(part).textContent.split('/').at(-1))))",
    );
    assert_eq!(states, json!({"good": "finished", "vain": "learned nothing", "bad": "failed"}));
    assert!(browser.eval(TEXT).as_str().unwrap().contains("no such thing"), "the error stands in its row");
    assert_eq!(browser.complaints(), [""; 0]);
}
