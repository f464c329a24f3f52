//! README and docs/own-task.md, followed word by word from an empty folder, and the pages of the guide that go on
//! there.
//!
//! What README takes for granted is put in place before: the model and the dataset that it names, small ones; the
//! binaries on the path. Numbers that only make a run long are replaced ([`SHORTER`]). Lines for a clone (`git`, `cd`,
//! `cargo`) are the business of continuous integration, and lines with `…` or a word in capitals stand for something of
//! the reader's and are not run.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
};

use harness::{cli, tiny_model, training::json_lines};
use serde_json::json;
use shared::process::exit::NOTHING_LEARNED;

use super::{
    guide::{self, AFTER_OWN_TASK, AFTER_README},
    pages::{blocks, commands, document, file, in_a_shell, is_run},
};

/// Settings of README's run, and what they are here.
const SHORTER: &[(&str, &str)] = &[("max_steps", "3"), ("save_steps", "2"), ("max_completion_length", "16")];

/// Held by a test that trains: two runs at once on two cores take far longer than one after the other.
static CORES: Mutex<()> = Mutex::new(());

/// Puts a small model and a small dataset where a configuration wants its own.
fn prepare(dir: &Path, config: &str) {
    let config: toml::Table = config.parse().unwrap();
    let path = |key: &str| dir.join(config[key].as_str().unwrap_or_else(|| panic!("`{key}` is a path")));
    let model = path("model");
    tiny_model::SMALL.write(&model, 1);
    tiny_model::write_tokenizer(&model);
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    let tokenizer = json!({"eos_token": "<eos>", "chat_template": template});
    fs::write(model.join("tokenizer_config.json"), tokenizer.to_string()).unwrap();
    let row =
        |n: u32| json!({"question": format!("What is {n} and 1?"), "answer": format!("One more.\n#### {}", n + 1)});
    let dataset = path("dataset");
    fs::create_dir_all(dataset.parent().unwrap()).unwrap();
    let rows: String = (0..64).map(|n| format!("{}\n", row(n))).collect();
    fs::write(dataset.with_file_name("gsm8k_test.jsonl"), &rows).unwrap();
    fs::write(dataset, rows).unwrap();
}

#[test]
fn the_readme_can_be_followed_word_by_word() {
    let readme = document("README.md");
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut trained = Vec::new();
    for block in blocks(&readme) {
        if let Some((name, text)) = file(&block, SHORTER) {
            fs::write(dir.path().join(&name), &text).unwrap();
            if block.language == "toml" {
                prepare(dir.path(), &text);
                trained.push(text.parse::<toml::Table>().unwrap());
            }
        }
        for command in commands(&block).iter().filter(|_| block.language == "console").filter(|command| is_run(command))
        {
            let finished = in_a_shell(dir.path(), command);
            // The random model solves no problem of GSM8K, and a run says so.
            if finished.status.code() != Some(NOTHING_LEARNED.into()) {
                let _ = finished.success();
            }
        }
    }
    assert!(!trained.is_empty(), "README has no run of one's own");
    for config in trained {
        let run = dir.path().join(config["output_dir"].as_str().unwrap());
        for name in ["config.toml", "metrics.jsonl", "report.html", "checkpoint-3/model.safetensors"] {
            assert!(run.join(name).is_file(), "README's run leaves no {name}");
        }
    }
    guide::follow(AFTER_README, dir.path(), true);
}

/// Nothing is put in place and nothing is shortened: the page makes all it needs, and what it promises comes true.
#[test]
fn the_page_on_a_task_of_one_s_own_leads_from_an_empty_folder_to_a_rising_curve() {
    let page = document("docs/own-task.md");
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    for block in blocks(&page) {
        if let Some((name, text)) = file(&block, &[]) {
            assert!(page.contains(&format!("`{name}`")), "the reader is not told of {name}");
            fs::write(dir.path().join(name), text).unwrap();
            continue;
        }
        assert_eq!(block.language, "console");
        for command in commands(&block) {
            assert!(is_run(&command), "{command}");
            let said = in_a_shell(dir.path(), &command).success().stderr;
            // Other programs on this machine are none of the page's.
            let warned = |line: &str| line.contains("warning: ") && !line.contains("this machine is busy");
            assert!(!said.lines().any(warned), "a reader who does as the page says is warned: {said}");
            count += 1;
        }
    }
    assert!((3..=5).contains(&count), "{count} commands");
    let curve: Vec<f64> = json_lines(&dir.path().join("runs/sums/metrics.jsonl"))
        .iter()
        .map(|step| step["rewards/close/mean"].as_f64().unwrap())
        .collect();
    let mean = |steps: &[f64]| steps.iter().sum::<f64>() / steps.len() as f64;
    let (first, last) = (mean(&curve[..3]), mean(&curve[curve.len() - 5..]));
    assert!(first < 0.8 && last > 0.88, "{curve:?}");
    let report = fs::read_to_string(dir.path().join("runs/sums/report.html")).unwrap();
    assert!(report.contains("\"rewards/close/mean\":["), "the report has no curve");
    assert_eq!(json_lines(&dir.path().join("said.jsonl")).len(), 16);
    guide::follow(AFTER_OWN_TASK, dir.path(), false);
}

/// `tandem report runs/gsm8k` in a sentence is a command as well.
#[test]
fn the_commands_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut known = BTreeSet::new();
    for page in pages.chain(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name))) {
        let text = fs::read_to_string(&page).unwrap();
        for (program, other) in [("tandem", "COMMAND"), ("rollout", "COMMAND"), ("learner", "COMMAND")] {
            for (at, _) in text.match_indices(&format!("`{program} ")) {
                let rest = &text[at + program.len() + 2..];
                let name = rest.split([' ', '`', '\n']).next().unwrap_or_default();
                if name != other && known.insert((program, name.to_owned())) {
                    let help = cli::run(program, [name, "--help"]);
                    let page = page.display();
                    assert!(help.status.success(), "{page} names `{program} {name}`: {}", help.stderr);
                }
            }
        }
    }
    assert!(known.len() > 10, "{known:?}");
}
