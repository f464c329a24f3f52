//! Asking a model: `tandem generate` with prompts as texts, and `tandem chat`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{
    binary,
    cli::{self, Finished},
    processes,
    tiny_model::{SMALL, write_tokenizer},
    training,
};
use serde_json::Value;

/// Refuses messages that hold `no`.
const TEMPLATE: &str = "{% for m in messages %}{% if 'no' in m.content %}{{ raise_exception('that is not said') }}\
    {% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

/// A folder with a model that has a chat template, `chat`, and one that has none, `plain`.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["chat", "plain"] {
            SMALL.write(&place.path(name), 1);
            write_tokenizer(&place.path(name));
        }
        fs::write(place.path("chat/chat_template.jinja"), TEMPLATE).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("tandem"));
        command.args(words).current_dir(self.dir.path());
        command.env("TANDEM_CACHE_DIR", self.path("cache")).env("TANDEM_MAX_COMPLETION_LENGTH", "12");
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        cli::finish(self.command(words))
    }

    fn run_with(&self, words: &[&str], input: impl AsRef<[u8]>) -> Finished {
        cli::finish_with(self.command(words), input.as_ref())
    }

    fn refusal(&self, words: &[&str], input: impl AsRef<[u8]>) -> String {
        let finished = self.run_with(words, input);
        assert_eq!(finished.stdout, "", "{words:?}");
        finished.refusal().to_owned()
    }
}

fn rows(finished: &Finished) -> Vec<Value> {
    finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_prompt_is_answered_on_stdout_and_the_rows_say_the_same() {
    let place = Place::new();
    let model = ["generate", "--model", "chat"];
    let ask = |more: &[&str]| place.run(&[&model, more].concat()).success();
    let text = ask(&["--prompt", "12+34="]).stdout;
    let printed = place.run_with(&[&model[..], &["--prompt", "-"]].concat(), "12+34=\n").success().stdout;
    assert_eq!(printed, text, "from stdin");
    let json = rows(&ask(&["--prompt", "12+34=", "--json"]));
    assert_eq!(json.len(), 1);
    let said = json[0]["text"].as_str().unwrap();
    assert_eq!(text, if said.ends_with('\n') { said.to_owned() } else { format!("{said}\n") });
    assert_eq!(json[0]["prompt"], "user: 12+34=\nassistant: ", "a text is a user message");
    assert_eq!(json[0]["logprobs"].as_array().unwrap().len(), json[0]["token_ids"].as_array().unwrap().len());
    let raw = rows(&ask(&["--prompt", "12+34=", "--raw", "--json"]));
    assert_eq!(raw[0]["prompt"], "12+34=");

    // What is printed, piped or written is the same.
    let lines = "{\"prompt\": \"1+1=\"}\n{\"question\": \"2?\"}\n";
    fs::write(place.path("rows.jsonl"), lines).unwrap();
    let of_file = ask(&["--prompts", "rows.jsonl", "--json", "--num-generations", "2"]).stdout;
    let words = [&model[..], &["--prompts", "-", "--json", "--num-generations", "2"]].concat();
    assert_eq!(place.run_with(&words, lines).success().stdout, of_file);
    let silent = ask(&["--prompts", "rows.jsonl", "--output", "out.jsonl", "--num-generations", "2"]);
    assert_eq!((silent.stdout, fs::read_to_string(place.path("out.jsonl")).unwrap()), (String::new(), of_file));
    let several = ask(&["--prompt", "a", "--prompt", "-b", "--num-generations", "2"]).stdout;
    for heading in ["prompt 0, sample 0", "prompt 0, sample 1", "prompt 1, sample 0", "prompt 1, sample 1"] {
        assert_eq!(several.matches(&format!("--- {heading} ---\n")).count(), 1, "{several}");
    }
}

#[test]
fn a_run_answers_with_its_newest_checkpoint_and_an_adapter_on_its_base() {
    let place = Place::new();
    fs::write(place.path("rows.jsonl"), "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n".repeat(4)).unwrap();
    let config = format!(
        "model = {:?}\ndataset = {:?}\nreward_funcs = [\"reward.py:variety\"]\nmax_steps = 2\nsave_steps = 1\n\
         num_generations = 2\ngeneration_batch_size = 4\nper_device_train_batch_size = 4\n\
         max_completion_length = 8\nlearning_rate = 1e-2\nuse_peft = true\nlora_r = 4\n",
        place.path("chat"),
        place.path("rows.jsonl")
    );
    let reward = "def variety(completions, **_):\n    return [sum(map(ord, text)) % 97 / 97 for text in completions]\n";
    fs::write(place.path("reward.py"), reward).unwrap();
    let training = training::train(place.dir.path(), "run", &config);
    let before = tree(&training.run);
    let ask = |model: &str| place.run(&["generate", "--model", model, "--prompt", "12+34=", "--json"]).success();
    let of_run = ask("run");
    assert!(of_run.stderr.contains("the model is run/checkpoint-2, its newest checkpoint"), "{}", of_run.stderr);
    assert_eq!(ask("run/checkpoint-2").stdout, of_run.stdout);
    assert_ne!(ask("chat").stdout, of_run.stdout);
    let adapter = fs::read_to_string(training.run.join("checkpoint-2/adapter_config.json")).unwrap();
    assert!(adapter.contains("base_model_name_or_path"));
    assert_eq!(tree(&training.run), before, "the run is only read");

    // Versions are those of a run that goes on or was killed. The base alone is one, of its own export.
    fs::create_dir_all(place.path("begun/weights")).unwrap();
    let _ = place.run(&["export", "--model", "chat", "--out", "begun/weights/v000000"]).success();
    let empty = place.refusal(&["generate", "--model", "begun", "--prompt", "x"], "");
    assert!(empty.contains("begun: has no config.json"), "{empty}");
    fs::copy(training.run.join("config.toml"), place.path("begun/config.toml")).unwrap();
    let of_version = ask("begun");
    let choice = "the model is begun/weights/v000000, its last published version, after 0 steps";
    assert!(of_version.stderr.contains(choice), "{}", of_version.stderr);
    assert_eq!(of_version.stdout, ask("chat").stdout);
    assert_eq!(ask("begun/weights/v000000").stdout, of_version.stdout);
}

/// All files below a folder, with lengths and times.
fn tree(folder: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let about = entry.path().symlink_metadata().unwrap();
        if about.is_dir() {
            found.extend(tree(&entry.path()));
        }
        found.push((entry.path(), about.len(), about.modified().unwrap()));
    }
    found.sort();
    found
}

#[test]
fn a_conversation_over_a_pipe_answers_each_line_and_refuses_by_name() {
    let place = Place::new();
    let chat = |input: &str| place.run_with(&["chat", "--model", "chat", "--temperature", "0"], input).success();
    let one = chat("12+34=\n");
    let asked = place.run(&["generate", "--model", "chat", "--temperature", "0", "--prompt", "12+34="]).success();
    assert_eq!(one.stdout, asked.stdout, "the first question is a prompt");
    assert!(!one.stderr.contains("> "), "nobody types");
    let again = chat("12+34=\n/reset\n12+34=\n").stdout;
    assert_eq!(again, one.stdout.repeat(2));
    let refused = chat("no\n12+34=\n/nonsense\n");
    assert_eq!(refused.stdout, one.stdout);
    assert!(
        refused.stderr.contains("not asked: ") && refused.stderr.contains("that is not said"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("/nonsense is no command"), "{}", refused.stderr);
    let words = ["chat", "--model", "chat", "--temperature", "0", "--max-model-len", "40"];
    let long = place.run_with(&words, format!("{}\n12+34=\n", "long".repeat(20))).success();
    assert!(long.stderr.contains("there is room for 40; /reset makes room"), "{}", long.stderr);
    assert_eq!(long.stdout, one.stdout);
    let bytes = [&b"\xff\xfe\n"[..], b"12+34=\n"].concat();
    let foreign = place.run_with(&["chat", "--model", "chat", "--temperature", "0"], bytes).success();
    assert!(foreign.stderr.contains("line 1 of stdin is not UTF-8"), "{}", foreign.stderr);
    assert_eq!(foreign.stdout, one.stdout);
}

#[test]
fn ctrl_c_breaks_off_an_answer_and_the_next_line_is_answered() {
    let place = Place::new();
    // Long enough that the signal comes before the end: the likeliest token of this model ends no completion.
    let path = place.path("chat/config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["max_position_embeddings"] = 32768.into();
    fs::write(path, config.to_string()).unwrap();
    let words = ["chat", "--model", "chat", "--temperature", "0", "--max-completion-length", "32000"];
    let mut command = place.command(&words);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let stderr = BufReader::new(child.stderr.take().unwrap());
    stdin.write_all(b"12+34=\n").unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    processes::signal(child.id(), "INT");
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "the answer was broken off"));
    stdin.write_all(b"/help\n").unwrap();
    assert!(lines.any(|line| line.starts_with("/system TEXT")), "it goes on");
    processes::signal(child.id(), "INT");
    assert!(lines.any(|line| line.starts_with("once more ends")));
    processes::signal(child.id(), "INT");
    drop(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn whoever_stops_reading_ends_it_quietly() {
    let place = Place::new();
    for words in [
        &["generate", "--model", "plain", "--prompt", "a", "--num-generations", "400"][..],
        &["generate", "--model", "plain", "--prompt", "a", "--num-generations", "400", "--json"],
        &["chat", "--model", "chat"],
    ] {
        let mut command = place.command(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let _ = child.stdin.take().unwrap().write_all(&b"12+34=\n".repeat(20));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{words:?}: {said}");
        assert!(!said.contains("error") && !said.contains("panicked"), "{words:?}: {said}");
    }
}

#[test]
fn what_cannot_be_asked_is_one_line_that_names_the_way_out() {
    let place = Place::new();
    let generate =
        |more: &[&str], input: &[u8]| place.refusal(&[&["generate", "--model", "chat"], more].concat(), input);
    for (more, input, words) in [
        (&["--prompt", ""][..], &b""[..], &["--prompt is empty"][..]),
        (&["--prompt", "-"], b"\n", &["--prompt -: the text on stdin is empty"]),
        (&["--prompt", "-"], b"a\xff", &["--prompt -: stdin is not UTF-8 from byte 2 on", "iconv"]),
        (&["--prompts", "-"], b"", &["stdin"]),
        (&["--prompts", "-"], b"12+34=\n", &["stdin, line 1"]),
        (&["--prompt", "no"], b"", &["--prompt, text 1", "that is not said"]),
        (&["--prompt", "long", "--max-model-len", "9"], b"", &["--prompt", "leaves room for a completion"]),
        (&["--prompt", "a", "--reward-funcs", "format"], b"", &["--reward-funcs", "--json or --output"]),
    ] {
        let message = generate(more, input);
        assert!(words.iter().all(|word| message.contains(word)), "{more:?}: {message}");
    }
    let absent = place.refusal(&["generate", "--model", "absent", "--prompt", "a"], "");
    assert!(absent.contains("--model: absent: no such directory"), "{absent}");
    let plain = place.refusal(&["chat", "--model", "plain"], "a\n");
    assert!(plain.contains("plain: has no chat template") && plain.contains("tandem generate --prompt"), "{plain}");
    let both = place.run(&["generate", "--model", "chat", "--prompt", "a", "--prompts", "b"]);
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr);
    assert!(place.run(&["generate", "--model", "chat"]).stderr.contains("--prompt <TEXT>"));
}

/// A reward function may abstain from some completions, but nothing is known if it does so from all.
#[test]
fn completions_of_which_none_has_a_score_are_an_error_and_written_all_the_same() {
    let place = Place::new();
    fs::write(place.path("mine.py"), "def none(completions, **kwargs):\n    return [None] * len(completions)\n")
        .unwrap();
    fs::write(place.path("rows.jsonl"), "{\"prompt\": \"1+2=\"}\n").unwrap();
    let words = "no completion could be scored: every reward function abstained from every one of them";
    for command in [
        ["eval", "--model", "plain", "--dataset", "rows.jsonl", "--output", "eval.jsonl"],
        ["generate", "--model", "plain", "--prompts", "rows.jsonl", "--output", "generate.jsonl"],
    ] {
        let finished = place.run(&[&command[..], &["--reward-funcs", "mine.py:none"]].concat());
        assert!(finished.refusal().contains(words), "{}", finished.stderr);
        assert_eq!(fs::read_to_string(place.path(command[6])).unwrap().lines().count(), 1);
    }
}
