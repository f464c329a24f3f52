//! The guide's pages: each command of a `console` block is followed, or it is listed here with its need.
//!
//! Pages go on in the folder of README or of docs/own-task.md, in the order of [`AFTER_README`] and [`AFTER_OWN_TASK`].
//! So the tests of these two (`readme.rs`) follow them, and the pages share their runs.

use std::{collections::BTreeSet, fs, path::Path};

use harness::cli;
use shared::{config::option, process::exit::NOTHING_LEARNED};

use super::pages::{blocks, commands, document, exit_code, file, in_a_shell};

/// Pages that go on in README's folder, with its run `runs/gsm8k`.
pub const AFTER_README: &[&str] =
    &["docs/rewards.md", "docs/asking.md", "docs/runs.md", "docs/importing.md", "docs/serving.md", "docs/exporting.md"];

/// Pages that go on in the folder of docs/own-task.md, with its run `runs/sums`.
pub const AFTER_OWN_TASK: &[&str] = &[
    "docs/first-run.md",
    "docs/own-model.md",
    "docs/curves.md",
    "docs/not-learning.md",
    "docs/evaluation.md",
    "docs/recovering.md",
    "docs/speed.md",
    "docs/profiling.md",
];

/// Commands that are not run: the page, how they begin, what they need.
const NEEDS: &[(&str, &str, &str)] = &[
    ("docs/agents.md", "", "a model that calls tools: `agents.rs`"),
    ("docs/agents-endpoint.md", "", "a server of verifiers: `verifiers.rs`"),
    ("docs/evaluation.md", "tandem eval --model runs/calculator/run", "the example's run: `agents_evaluated.rs`"),
    ("docs/evaluation.md", "tandem eval --model runs/maze/warm", "the example's warm start: `agents_evaluated.rs`"),
    ("docs/fleet.md", "", "other hosts, a cluster or two terminals: `fleet.rs`, `fleet_lines.rs` and `deploy/`"),
    ("docs/scaling.md", "", "a run with workers, which go on beside it: `fleet.rs`"),
    ("docs/serving.md", "cargo build", "a clone"),
    ("docs/serving.md", "tandem serve", "a terminal of its own: `serve.rs`"),
    ("docs/asking.md", "cargo build", "a clone"),
    ("docs/exporting.md", "tandem export --model runs/gsm8k --format gguf", "a tokenizer of llama.cpp: `export.rs`"),
    ("docs/exporting.md", "tandem push --model runs/gsm8k --repo me/gsm8k", "a token of the Hub: `push.rs`"),
    ("docs/exporting.md", "llama-", "llama.cpp"),
    ("docs/exporting.md", "ollama", "Ollama"),
    ("docs/exporting-genai.md", "", "a tokenizer that GenAI reads: `export.rs`"),
    ("docs/serving.md", "lm-eval", "lm-eval and the server: `cargo xtask conformity serve`"),
    ("docs/serving.md", "curl", "the server in the other terminal: `serve.rs`"),
];

/// What stands for the words of a page: runs of these tests are shorter, and the folder of docs/own-task.md has the
/// demo's warm start already.
const SHORTER: &[(&str, &str)] = &[
    ("tandem demo --output_dir start", "tandem train start/run.toml --max_steps 3"),
    ("runs/gsm8k/checkpoint-200", "runs/gsm8k/checkpoint-3"),
    ("--step 200", "--step 3"),
    ("--learning_rate 1e-6,1e-5 --seed 1,2,3", "--learning_rate 1e-6,1e-5"),
];

fn need(page: &str, command: &str) -> Option<&'static str> {
    let entry = NEEDS.iter().find(|(of, begin, _)| *of == page && command.starts_with(begin));
    entry.map(|(_, _, need)| *need)
}

/// Follows pages in a folder, word by word. With `untrained`, the model of the folder is too small to learn anything,
/// and a run may end with that error.
pub fn follow(pages: &[&str], dir: &Path, untrained: bool) {
    for page in pages {
        let text = document(page);
        for block in blocks(&text) {
            if let Some((name, text)) = file(&block, &[]) {
                fs::write(dir.join(name), text).unwrap();
                continue;
            }
            for command in commands(&block).iter().filter(|_| block.language == "console") {
                if need(page, command).is_some() {
                    continue;
                }
                let shorter = SHORTER.iter().fold(command.clone(), |words, (long, short)| words.replace(long, short));
                let finished = in_a_shell(dir, &shorter);
                let code = finished.status.code();
                let as_said = code == Some(exit_code(command)) || untrained && code == Some(NOTHING_LEARNED.into());
                let output = format!("{}\n{}", finished.stdout, finished.stderr);
                assert!(as_said, "{page}: `{command}` ended with {}:\n{output}", finished.status);
            }
        }
    }
}

/// The console commands of the guide's pages.
fn all_commands() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            let page = format!("docs/{name}");
            let text = document(&page);
            let consoles = blocks(&text).into_iter().filter(|block| block.language == "console");
            found.extend(consoles.flat_map(|block| commands(&block)).map(|command| (page.clone(), command)));
        }
    }
    found
}

#[test]
fn every_command_of_the_guide_is_followed_or_has_a_need() {
    let followed: BTreeSet<&str> =
        [AFTER_README, AFTER_OWN_TASK, &["docs/own-task.md"]].into_iter().flatten().copied().collect();
    let all = all_commands();
    for (page, command) in &all {
        let known = followed.contains(&**page) || need(page, command).is_some();
        assert!(known, "{page}: no test follows `{command}`: add the page to a list, or the command to NEEDS");
    }
    for (page, begin, _) in NEEDS {
        assert!(all.iter().any(|(of, command)| of == page && command.starts_with(begin)), "{page} has no `{begin}`");
    }
    for page in followed {
        assert!(all.iter().any(|(of, _)| of == page), "{page} has no command");
    }
}

/// A command that is not run may still be misspelt.
#[test]
fn the_flags_of_commands_that_are_not_run_exist() {
    let mut found = 0;
    for (page, command) in all_commands().iter().filter(|(page, command)| need(page, command).is_some()) {
        let Some(words) = command.split('#').next().unwrap_or_default().strip_prefix("tandem ") else { continue };
        let mut words = words.split_whitespace();
        let name = words.next().unwrap();
        let help = cli::run("tandem", [name, "--help"]).success().stdout;
        let flags: BTreeSet<&str> = help.split([' ', ',', '\n', '=']).collect();
        for flag in words.filter(|word| word.starts_with("--")) {
            let is_option = name == "train" && option(&flag[2..]).is_some();
            assert!(is_option || flags.contains(flag), "{page}: `tandem {name}` has no {flag}");
            found += 1;
        }
    }
    assert!(found > 10, "{found}");
}
