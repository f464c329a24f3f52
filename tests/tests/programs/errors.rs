//! What a user gets wrong is refused with one clear line and a non-zero exit, by every binary that can notice it.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    tiny_model::{self, ModelFolder, Qwen2, TINY},
};
use serde_json::json;

/// A model, its inputs and a configuration, all of them good, for a test to spoil one of them.
struct Bench {
    place: ModelFolder,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { place: ModelFolder::new() };
        tiny_model::write_tokenizer(&bench.path("model"));
        fs::write(bench.path("prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+2=\"}\n").unwrap();
        let tokens = json!({"prompt_ids": [5, 6], "completion_ids": [7, 0]});
        fs::write(bench.path("tokens.jsonl"), format!("{tokens}\n{tokens}\n")).unwrap();
        fs::write(bench.path("pairs.jsonl"), "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n").unwrap();
        bench.write_config("");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    fn write_config(&self, more: &str) {
        let text = format!(
            "model = {:?}\ndataset = {:?}\noutput_dir = {:?}\nreward_funcs = [\"length:target=2\"]\n\
             num_generations = 2\nmax_completion_length = 4\nper_device_train_batch_size = 4\nmax_steps = 1\n\
             stop = [\"1\", \"2\", \"3\", \"4\", \"5\"]\n{more}\n",
            self.path("model"),
            self.path("prompts.jsonl"),
            self.path("run")
        );
        fs::write(self.path("run.toml"), text).unwrap();
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(binary(name));
        command.args(args).current_dir(self.path("")).env("TANDEM_CACHE_DIR", self.path("cache"));
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> Finished {
        cli::finish(self.command(name, args))
    }

    fn refusal(&self, name: &str, args: &[&str]) -> String {
        self.run(name, args).refusal().to_owned()
    }

    /// What each program that opens a model says.
    fn refusals_of_the_model(&self) -> Vec<String> {
        [EXPORT, GENERATE, LOGPROBS, TRAIN].iter().map(|(name, args)| self.refusal(name, args)).collect()
    }
}

const EXPORT: (&str, &[&str]) = ("tandem", &["export", "--model", "model", "--out", "exported"]);
const GENERATE: (&str, &[&str]) = (
    "rollout",
    &[
        "generate",
        "--model",
        "model",
        "--prompts",
        "prompts.jsonl",
        "--output",
        "out.jsonl",
        "--max-completion-length",
        "4",
    ],
);
const LOGPROBS: (&str, &[&str]) =
    ("learner", &["logprobs", "--model", "model", "--input", "tokens.jsonl", "--output", "out.jsonl"]);
const TRAIN: (&str, &[&str]) = ("tandem", &["train", "run.toml"]);

/// Asserts that every message holds every word.
fn assert_named(messages: &[String], words: &[&str]) {
    for message in messages {
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    }
}

#[test]
fn what_the_tests_spoil_works_before() {
    let bench = Bench::new();
    for (name, args) in [EXPORT, GENERATE, LOGPROBS, TRAIN] {
        let _ = bench.run(name, args).success();
    }
}

#[test]
fn a_wrong_config_key_is_named_with_the_nearest_one() {
    let bench = Bench::new();
    bench.write_config("num_generatoins = 2");
    let in_file = bench.refusal("tandem", &["train", "run.toml"]);
    assert_named(&[in_file], &["num_generatoins", "`num_generations`", "run.toml"]);
    bench.write_config("");
    let as_flag = bench.refusal("tandem", &["train", "run.toml", "--learning_rat", "1e-3"]);
    assert_named(&[as_flag], &["learning_rat", "`learning_rate`"]);
}

#[test]
fn a_missing_file_is_named() {
    let bench = Bench::new();
    let missing = |name: &str, args: &[&str]| {
        let message = bench.refusal(name, args);
        assert_named(&[message], &["absent"]);
    };
    missing("tandem", &["train", "absent.toml"]);
    missing("tandem", &["train", "run.toml", "--model", "absent"]);
    missing("tandem", &["train", "run.toml", "--dataset", "absent.jsonl"]);
    missing("tandem", &["report", "absent"]);
    missing("tandem", &["export", "--model", "absent", "--out", "exported"]);
    missing("rollout", &["generate", "--model", "absent", "--prompts", "prompts.jsonl", "--output", "out.jsonl"]);
    missing("rollout", &["generate", "--model", "model", "--prompts", "absent.jsonl", "--output", "out.jsonl"]);
    missing("rollout", &["eval", "--model", "model", "--dataset", "absent.jsonl", "--reward-funcs", "format"]);
    missing("learner", &["logprobs", "--model", "model", "--input", "absent.jsonl", "--output", "out.jsonl"]);
    missing("learner", &["sft", "--model", "model", "--data", "absent.jsonl", "--output", "sft"]);

    fs::remove_file(bench.path("model/model.safetensors")).unwrap();
    assert_named(&bench.refusals_of_the_model(), &["model.safetensors"]);
}

#[test]
fn a_corrupt_safetensors_file_is_named() {
    let bench = Bench::new();
    let path = bench.path("model/model.safetensors");
    let whole = fs::read(&path).unwrap();
    let mut huge_header = whole.clone();
    huge_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut no_json = whole.clone();
    no_json[8..12].copy_from_slice(b"!!!!");
    for corrupt in [&huge_header[..], &no_json, &whole[..whole.len() / 2], &whole[..4]] {
        fs::write(&path, corrupt).unwrap();
        assert_named(&bench.refusals_of_the_model(), &["model.safetensors"]);
    }
}

#[test]
fn an_unsupported_model_is_refused_with_key_and_value() {
    let bench = Bench::new();
    for (key, value) in [("model_type", json!("mixtral")), ("hidden_act", json!("gelu_new"))] {
        let mut changes = json!({key: value});
        if key == "model_type" {
            changes["architectures"] = json!(["MixtralForCausalLM"]);
        }
        bench.place.change_config(&changes);
        assert_named(&bench.refusals_of_the_model(), &[value.as_str().unwrap()]);
    }
}

/// A dry run makes every check of a real start, so it knows what the export and the engine would refuse.
#[test]
fn what_no_sampler_runs_is_refused_by_a_dry_run() {
    let bench = Bench::new();
    // Each problem has a line of its own above the last.
    let refused = |more: &[&str]| {
        let finished = bench.run("tandem", &[&["train", "run.toml", "--dry-run"], more].concat());
        let _ = finished.refusal();
        finished.stderr
    };
    bench.place.change_config(&json!({"head_dim": 12}));
    assert_named(&[refused(&[])], &["`model`: `head_dim` = 12 cannot be exported"]);
    bench.place.change_config(&json!({"head_dim": 520}));
    let part = "needs the packed kernels, which do not know the model: `head_dim` 520 is above 512";
    for [option, value] in [["--rollout_dtype", "int8"], ["--kv_dtype", "bf16"], ["--speculative_tokens", "2"]] {
        assert_named(&[refused(&[option, value])], &[&option[2..], part]);
    }
    assert!(!refused(&[]).contains(part));
    let nameless = bench.run("tandem", &["serve", "--model", "model", "--served-model-name", ""]);
    assert_eq!(nameless.status.code(), Some(2), "{nameless:?}");
}

#[test]
fn a_bad_line_of_a_dataset_is_named_with_file_and_number() {
    let bench = Bench::new();
    for bad in ["{\"prompt\": ", "{\"text\": \"no prompt\"}", "{\"prompt\": 3}", "[1]"] {
        fs::write(bench.path("prompts.jsonl"), format!("{{\"prompt\": \"1+1=\"}}\n\n{bad}\n")).unwrap();
        let messages = [GENERATE, TRAIN].map(|(name, args)| bench.refusal(name, args));
        assert_named(&messages, &["prompts.jsonl", "line 3"]);
    }
    fs::write(bench.path("tokens.jsonl"), "{\"prompt_ids\": [5], \"completion_ids\": [6]}\n{\"prompt_ids\": [5]}\n")
        .unwrap();
    assert_named(&[bench.refusal(LOGPROBS.0, LOGPROBS.1)], &["tokens.jsonl", "line 2"]);
    fs::write(bench.path("pairs.jsonl"), "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n{\"prompt\": \"1\"}\n")
        .unwrap();
    let sft = bench.refusal("learner", &["sft", "--model", "model", "--data", "pairs.jsonl", "--output", "sft"]);
    assert_named(&[sft], &["pairs.jsonl", "line 2"]);
}

#[test]
fn what_an_interrupted_training_has_left_of_its_output_is_removed() {
    let bench = Bench::new();
    // Process ids end at 2^22, so no process writes it.
    let left = bench.path(".tmp-4194305-0-sft");
    fs::create_dir(&left).unwrap();
    let _ = bench.refusal("learner", &["sft", "--model", "model", "--data", "absent.jsonl", "--output", "sft"]);
    assert!(!left.exists());
}

#[test]
fn an_unwritable_output_is_named() {
    let bench = Bench::new();
    // A folder below a regular file cannot be made by anybody, not even by root.
    fs::write(bench.path("file"), "").unwrap();
    let refused = |name: &str, args: &[&str]| {
        let message = bench.refusal(name, args);
        assert_named(&[message], &["file/out"]);
    };
    refused("tandem", &["train", "run.toml", "--output_dir", "file/out"]);
    refused("tandem", &["export", "--model", "model", "--out", "file/out"]);
    refused("rollout", &["generate", "--model", "model", "--prompts", "prompts.jsonl", "--output", "file/out"]);
    refused("learner", &["logprobs", "--model", "model", "--input", "tokens.jsonl", "--output", "file/out"]);
    refused("learner", &["sft", "--model", "model", "--data", "pairs.jsonl", "--output", "file/out"]);
}

/// Lets a command write no file beyond `bytes`, as a full disk would; the error is another one (EFBIG), and comes with
/// a signal that ends programs which do not catch it.
fn with_full_disk(mut command: Command, bytes: u64) -> Finished {
    // SAFETY: both calls are async-signal-safe and touch nothing of the parent.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    cli::finish(command)
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing_half_written() {
    let bench = Bench::new();
    let finished = with_full_disk(bench.command(EXPORT.0, EXPORT.1), 8192);
    assert_named(&[finished.refusal().to_owned()], &["exported", "File too large"]);
    assert!(!bench.path("exported").exists());

    // The exported model is in the cache now, so that only the output itself does not fit.
    let _ = bench.run(GENERATE.0, GENERATE.1).success();
    for (name, args) in [GENERATE, LOGPROBS] {
        let _ = fs::remove_file(bench.path("out.jsonl"));
        let finished = with_full_disk(bench.command(name, args), 16);
        assert_named(&[finished.refusal().to_owned()], &["out.jsonl", "File too large"]);
        assert!(!bench.path("out.jsonl").exists(), "{name}");
    }
    let finished = with_full_disk(bench.command(TRAIN.0, TRAIN.1), 16);
    assert_named(&[finished.refusal().to_owned()], &["File too large"]);
    let visible: Vec<_> = fs::read_dir(bench.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!visible.iter().any(|name| name.to_string_lossy().starts_with(".tmp-")), "{visible:?}");
}

/// Whatever is wrong with a reward program, from the first step on or later: a run that would learn nothing of what was
/// asked for ends, and says of which function and why.
#[test]
fn a_reward_that_always_fails_ends_the_run() {
    let bench = Bench::new();
    let list = |rows: &str| format!("while read line; do echo '{rows}'; done");
    for (script, reason) in [
        ("echo 'SyntaxError: invalid syntax' >&2; exit 1".to_owned(), "ended"),
        (list("[1]"), "answered 1 entries for 2 completions"),
        (list("ready"), "answered `ready`"),
    ] {
        fs::write(bench.path("reward.sh"), script).unwrap();
        for more in [&[][..], &["--dynamic_sampling"], &["--reward_failure=skip_function"]] {
            let _ = fs::remove_dir_all(bench.path("run"));
            let rewards = ["--reward_funcs", "format,command:run=sh reward.sh", "--rehearse_rewards", "false"];
            let args = [TRAIN.1, &rewards, more].concat();
            let message = bench.refusal(TRAIN.0, &args);
            let words = ["reward function `command` failed on all 4 completions of step 1", reason, "rollout.log"];
            assert_named(&[message], &words);
        }
    }
}

/// The steps before the first of which nothing was scored are kept, and nothing is tried a second time.
#[test]
fn a_reward_that_breaks_later_ends_the_run_with_a_checkpoint() {
    let bench = Bench::new();
    fs::write(
        bench.path("reward.sh"),
        "while read line; do if [ -e broken ]; then echo no; else echo '[0, 1]'; fi; done",
    )
    .unwrap();
    let more = ["--reward_funcs", "command:run=sh reward.sh", "--max_steps", "100000", "--save_steps", "100000"];
    let (metrics, broken) = (bench.path("run/metrics.jsonl"), bench.path("broken"));
    let breaker = thread::spawn(move || {
        while fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 3 {
            thread::sleep(Duration::from_millis(5));
        }
        fs::write(broken, "").unwrap();
    });
    let finished = bench.run(TRAIN.0, &[TRAIN.1, &more].concat());
    breaker.join().unwrap();
    assert_named(
        &[finished.refusal().to_owned()],
        &["reward function `command` failed on all 4 completions", "answered `no`"],
    );
    assert!(!finished.stderr.contains("restarting"), "{}", finished.stderr);
    let steps = fs::read_to_string(bench.path("run/metrics.jsonl")).unwrap().lines().count();
    assert!(steps >= 3 && bench.path(&format!("run/checkpoint-{steps}")).is_dir(), "{steps}");
}

#[test]
fn more_sequences_than_memory_holds_are_refused_with_figures() {
    let bench = Bench::new();
    let generate = [GENERATE.1, &["--max-num-seqs", "100000000", "--max-model-len", "2048"]].concat();
    let train = [TRAIN.1, &["--max_num_seqs", "100000000", "--max_model_len", "2048"]].concat();
    let messages = [bench.refusal("rollout", &generate), bench.refusal("tandem", &train)];
    assert_named(&messages, &["100000000", "GiB"]);
}

#[test]
fn a_model_too_large_for_memory_is_refused_with_figures() {
    let bench = Bench::new();
    // 2.2 TiB of embedding.
    let model = Qwen2 { vocab_size: 1 << 27, hidden_size: 4096, intermediate_size: 64, ..TINY };
    model.write_sparse(&bench.path("model"));
    for (name, args) in [GENERATE, LOGPROBS, TRAIN] {
        // A program that tried all the same must not fill the disk.
        let finished = with_full_disk(bench.command(name, args), 1 << 30);
        assert_named(&[finished.refusal().to_owned()], &["memory", "GiB"]);
    }
}

/// Each would take all memory that there is; a program that starts takes a second at most.
#[test]
fn sizes_that_no_model_has_are_refused_before_memory_is_asked_for() {
    let bench = Bench::new();
    for (changes, words) in [
        (json!({"num_hidden_layers": 1_000_000_000_000_u64}), "`num_hidden_layers` must be at most"),
        (json!({"vocab_size": 1_000_000_000_000_u64}), "`vocab_size` must be at most"),
        (json!({"hidden_size": 1 << 30, "intermediate_size": 1 << 30}), "a model of about"),
    ] {
        bench.place.change_config(&changes);
        let begin = Instant::now();
        assert_named(&bench.refusals_of_the_model(), &["config.json: ", words]);
        assert!(begin.elapsed() < Duration::from_secs(30), "{changes}: {:?}", begin.elapsed());
    }
    bench.place.change_config(&json!({"num_hidden_layers": 1000}));
    let messages = [EXPORT, GENERATE, LOGPROBS].map(|(name, args)| bench.refusal(name, args));
    assert_named(&messages, &["`num_hidden_layers` = 1000, but the weights have 1 layers"]);
}

#[test]
fn a_chat_template_that_fills_memory_ends_the_program_with_one_line() {
    let bench = Bench::new();
    fs::write(bench.path("prompts.jsonl"), "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2=\"}]}\n").unwrap();
    let doubling = format!("{{% set s = 'ab' %}}{}{{{{ s | length }}}}", "{% set s = s ~ s %}".repeat(60));
    for template in [
        doubling.as_str(),
        "{{ 'a' | indent(100000000000) }}",
        "{{ '%100000000000s' | format('a') }}",
        "{{ 'a'.center(100000000000) }}",
        "{{ range(100000) | list * 100000 | list }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    ] {
        fs::write(bench.path("model/chat_template.jinja"), template).unwrap();
        let begin = Instant::now();
        assert_named(&[bench.refusal(GENERATE.0, GENERATE.1)], &["chat template"]);
        assert!(begin.elapsed() < Duration::from_secs(60), "{template}: {:?}", begin.elapsed());
    }
}

#[test]
fn what_a_file_says_does_not_reach_the_terminal_as_it_is() {
    let bench = Bench::new();
    fs::write(bench.path("prompts.jsonl"), "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2=\"}]}\n").unwrap();
    let raising = r#"{{ raise_exception("gone\u001b[2J\nerror: everything is fine") }}"#;
    fs::write(bench.path("model/chat_template.jinja"), raising).unwrap();
    let said = bench.refusal(GENERATE.0, GENERATE.1);
    assert_named(std::slice::from_ref(&said), &["gone\\u{1b}[2J\\nerror: everything is fine"]);

    fs::remove_file(bench.path("model/chat_template.jinja")).unwrap();
    fs::write(bench.path("prompts.jsonl"), "{\"prompt\": \"2+2=\"}\n").unwrap();
    let header = json!({"evil\u{1b}[31m\ntensor": {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(bench.path("model/model.safetensors"), bytes).unwrap();
    let messages = [EXPORT, GENERATE, LOGPROBS].map(|(name, args)| bench.refusal(name, args));
    assert_named(&messages, &["tensor evil\\u{1b}[31m\\ntensor has element type I8"]);
}
