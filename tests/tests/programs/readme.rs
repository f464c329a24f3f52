//! README and docs/own-task.md, followed word by word from an empty folder.
//!
//! What stands in a block under the name of a file is written to that file: a comment in the first line of `toml` or
//! `python`, or the word behind the language. The lines of `console` blocks that begin with `$` are run by a shell, one
//! after the other, and must succeed. What README takes for granted is put in place before: the model and the dataset
//! that it names, small ones; the binaries on the path. Numbers that only make a run long are replaced ([`SHORTER`]).
//! Lines for a clone (`git`, `cd`, `cargo`) are the business of continuous integration, and lines with `…` or a word in
//! capitals stand for something of the reader's and are not run.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
};

use harness::{
    binary,
    cli::{self, Finished},
    tiny_model,
    training::json_lines,
};
use serde_json::json;
use shared::process::exit::NOTHING_LEARNED;

/// Settings of README's run, and what they are here.
const SHORTER: &[(&str, &str)] = &[("max_steps", "3"), ("save_steps", "2"), ("max_completion_length", "16")];

/// Held by a test that trains: two runs at once on two cores take far longer than one after the other.
static CORES: Mutex<()> = Mutex::new(());

/// A fenced block: its language and its lines.
struct Block<'a> {
    language: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => open = Some(Block { language, lines: Vec::new() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, None) => (),
        }
    }
    assert!(open.is_none(), "a block does not end");
    blocks
}

/// The commands of a console block; a line that ends in a backslash goes on.
fn commands(block: &Block) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in &block.lines {
        if let Some(begin) = line.strip_prefix("$ ") {
            commands.push(begin.to_owned());
        } else if let Some(last) = commands.last_mut().filter(|last| last.ends_with('\\')) {
            last.push('\n');
            last.push_str(line);
        }
    }
    commands
}

fn is_run(command: &str) -> bool {
    let of_a_clone = ["git ", "cd ", "cargo "].iter().any(|begin| command.starts_with(begin));
    let is_for_the_reader = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    let words = command.split('#').next().unwrap_or_default();
    !of_a_clone && !command.contains('…') && !words.split([' ', '/']).any(is_for_the_reader)
}

/// The file that a block names, and its text with the shorter settings.
fn file(block: &Block, shorter: &[(&str, &str)]) -> Option<(String, String)> {
    if let Some((_, name)) = block.language.split_once(' ') {
        return Some((name.to_owned(), block.lines.join("\n") + "\n"));
    }
    let name = block.lines.first()?.strip_prefix("# ")?.trim();
    let shorter = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        let value = shorter.iter().find(|(name, _)| *name == key)?.1;
        Some(format!("{key} = {value}"))
    };
    let lines: Vec<String> =
        block.lines.iter().map(|line| shorter(line).unwrap_or_else(|| (*line).to_owned())).collect();
    let is_file =
        [("toml", ".toml"), ("python", ".py")].iter().any(|(l, end)| block.language == *l && name.ends_with(end));
    is_file.then(|| (name.to_owned(), lines.join("\n") + "\n"))
}

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
    fs::write(dataset, (0..64).map(|n| format!("{}\n", row(n))).collect::<String>()).unwrap();
}

/// A document of the project.
fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
}

/// A command as the reader gives it, in that folder, with the programs on the path.
fn in_a_shell(dir: &Path, command: &str) -> Finished {
    let programs = binary("tandem").parent().unwrap().to_owned();
    let mut shell = Command::new("/bin/sh");
    // The page is there until its reader has enough of it.
    let command = command.replacen("tandem ui ", "timeout --preserve-status --signal TERM 3 tandem ui --port 0 ", 1);
    shell.args(["-c", &command]).current_dir(dir);
    shell.env("PATH", std::env::join_paths([programs, "/usr/bin".into(), "/bin".into()]).unwrap());
    shell.env("TANDEM_CACHE_DIR", dir.join("cache"));
    cli::finish(shell)
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
}

/// `tandem report runs/gsm8k` in a sentence is a command as well.
#[test]
fn the_commands_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = 0;
    for document in ["README.md", "CONTRIBUTING.md", "docs/configuration.md", "docs/importing.md", "docs/rewards.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        for (program, other) in [("tandem", "COMMAND"), ("rollout", "COMMAND"), ("learner", "COMMAND")] {
            for (at, _) in text.match_indices(&format!("`{program} ")) {
                let rest = &text[at + program.len() + 2..];
                let name = rest.split([' ', '`', '\n']).next().unwrap_or_default();
                if name != other {
                    let help = cli::run(program, [name, "--help"]);
                    assert!(help.status.success(), "{document} names `{program} {name}`: {}", help.stderr);
                    found += 1;
                }
            }
        }
    }
    assert!(found > 10, "{found}");
}

#[test]
fn what_is_run_is_told_from_what_the_reader_fills_in() {
    for (command, run) in [
        ("tandem train run.toml                 # any key is also a flag: --learning_rate", true),
        ("tandem report runs/gsm8k", true),
        ("rollout bench … --trace out.json", false),
        ("rollout tune --model DIR", false),
        ("tandem replay RUN/checkpoint-1", false),
        ("cargo xtask demo", false),
    ] {
        assert_eq!(is_run(command), run, "{command}");
    }
    let text = "a\n```console\n$ one \\\n    two\nits output\n$ three\n```\nb\n```toml\n# r.toml\nmax_steps = 200 # \
        many\nseed = 1\n```\n";
    let blocks = blocks(text);
    assert_eq!(commands(&blocks[0]), ["one \\\n    two", "three"]);
    assert_eq!(file(&blocks[1], SHORTER), Some(("r.toml".into(), "# r.toml\nmax_steps = 3\nseed = 1\n".into())));
    assert!(file(&blocks[0], SHORTER).is_none());
}
