//! A run says why it does not learn, what has changed since its checkpoint, and everything that keeps it from starting.

use std::{fs, path::Path, process::Command};

use harness::{
    binary,
    cli::{self, Finished},
    data_dir,
    tiny_model::{self, ModelFolder, Qwen2, TINY},
    training::json_lines,
};
use serde_json::json;

/// A folder with a model and a configuration that learns: the shorter completions are, the better.
struct Bench {
    place: ModelFolder,
}

const REWARD: &str = "length:target=2";

impl Bench {
    fn new() -> Self {
        let bench = Self { place: ModelFolder::new() };
        tiny_model::write_tokenizer(&bench.place.path("model"));
        bench.write("prompts.jsonl", "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+2=\"}\n");
        let config = format!(
            "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"run\"\nreward_funcs = [{REWARD:?}]\n\
             num_generations = 4\nmax_completion_length = 8\nper_device_train_batch_size = 8\nmax_steps = 2\n\
             learning_rate = 1e-3\nstop = [\"1\", \"2\", \"3\", \"4\", \"5\"]\n"
        );
        bench.write("run.toml", &config);
        bench
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.place.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.place.path(name)).unwrap()
    }

    fn train(&self, options: &[&str]) -> Finished {
        let mut command = Command::new(binary("tandem"));
        command.args(["train", "run.toml"]).args(options).current_dir(self.place.path(""));
        command.env("TANDEM_CACHE_DIR", self.place.path("cache"));
        cli::finish(command)
    }
}

/// The kinds in `notices.jsonl` of a run directory, with their steps.
fn kinds(run: &Path) -> Vec<(String, u64)> {
    let of = |line: &serde_json::Value| (line["kind"].as_str().unwrap().to_owned(), line["step"].as_u64().unwrap());
    json_lines(&run.join("notices.jsonl")).iter().map(of).collect()
}

fn occurrences(text: &str, words: &str) -> usize {
    text.matches(words).count()
}

/// A small model of stories cannot do sums, and does not come to an end before it is cut off.
#[test]
fn gsm8k_on_a_model_that_never_succeeds_says_why_nothing_was_learned() {
    let Some(data) = data_dir("gsm8k_on_a_model_that_never_succeeds_says_why_nothing_was_learned") else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "model = {:?}\ndataset = {:?}\noutput_dir = \"run\"\nreward_funcs = [\"gsm8k\"]\nmax_steps = 3\n\
         num_generations = 4\nper_device_train_batch_size = 8\nmax_completion_length = 16\nmax_prompt_length = 128\n",
        data.join("stories260K"),
        data.join("gsm8k/train.jsonl")
    );
    fs::write(dir.path().join("run.toml"), config).unwrap();
    let mut command = Command::new(binary("tandem"));
    command.args(["train", "run.toml"]).current_dir(&dir).env("TANDEM_CACHE_DIR", dir.path().join("cache"));
    let finished = cli::finish(command);
    let said = &finished.stderr;
    assert_eq!(finished.status.code(), Some(4), "{said}");
    assert!(!said.contains("finished"), "{said}");
    let equal = "all completions of each prompt earned the same in steps 1 to 3 (reward 0.000)";
    let truncated = "were cut off at `max_completion_length` 16";
    let notices: Vec<&str> = said.lines().filter(|line| line.starts_with("notice: step 3: ")).collect();
    assert!(notices.len() == 2 && notices[0].contains(equal) && notices[1].contains(truncated), "{said}");
    let last = said.trim_end().lines().last().unwrap();
    assert!(last.starts_with("error: nothing was learned: no update of 3 steps had a gradient; "), "{said}");
    assert!(last.contains(equal) && last.contains("tandem sft"), "{last}");

    let run = dir.path().join("run");
    assert_eq!(kinds(&run), [("equal_groups".to_owned(), 3), ("truncated".to_owned(), 3)]);
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    for words in ["\"in_vain\":\"", "nothing was learned: no update", truncated, "warm it up with `tandem sft`"] {
        assert!(report.contains(words), "{words}");
    }
    assert!(run.join("checkpoint-3").is_dir(), "the run is whole all the same");
}

#[test]
fn a_run_that_learns_explains_its_loss_and_ends_well() {
    let bench = Bench::new();
    let finished = bench.train(&["--loss_type", "grpo"]).success();
    let notice = "notice: step 1: a loss near 0 (";
    assert!(occurrences(&finished.stderr, notice) == 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("finished 2 steps"), "{}", finished.stderr);
    let again =
        bench.train(&["--loss_type", "grpo", "--resume_from_checkpoint", "latest", "--max_steps", "3"]).success();
    assert!(!again.stderr.contains(notice), "it was told before: {}", again.stderr);
}

#[test]
fn each_evaluation_that_failed_is_told_once_also_the_last_one_and_without_a_metric_to_choose_by() {
    let bench = Bench::new();
    bench.write("held_out.jsonl", "{\"prompt\": \"1+1=\", \"broken\": true}\n");
    // The learner has ended before the last evaluation has.
    let function = "import time\n\n\ndef f(completions, broken=None, **kwargs):\n    if broken:\n        \
                    time.sleep(1)\n        raise ValueError('no judge')\n    \
                    return [-len(completion) for completion in completions]\n";
    bench.write("f.py", function);
    let options = ["--reward_funcs", "f.py:f", "--eval_dataset", "held_out.jsonl", "--eval_steps", "1"];
    let finished = bench.train(&options).success();
    let mut told = kinds(&bench.place.path("run"));
    told.retain(|(kind, _)| kind == "evaluation_lost");
    told.sort_unstable();
    assert_eq!(told.iter().map(|(_, step)| *step).collect::<Vec<_>>(), [0, 1, 2], "{}", finished.stderr);
    let report = bench.read("run/report.html");
    for which in ["the starting model", "step 1", "step 2"] {
        let words = format!("in the evaluation of {which}, 1 of 1 prompts have no score because something failed");
        assert_eq!(occurrences(&finished.stderr, &words), 1, "{}", finished.stderr);
        assert!(report.contains(&words), "{words}");
    }
}

#[test]
fn a_resume_says_which_options_and_data_have_changed() {
    let bench = Bench::new();
    let _ = bench.train(&[]).success();
    bench.write("prompts.jsonl", "{\"prompt\": \"3+3=\"}\n{\"prompt\": \"4+4=\"}\n");
    let changed = ["--learning_rate", "2e-3", "--num_generations", "8", "--reward_funcs", "length:target=3"];
    let more = ["--resume_from_checkpoint", "latest", "--max_steps", "3"];
    let finished = bench.train(&[&changed[..], &more].concat()).success();
    let begin = "notice: step 2: the run goes on from checkpoint-2 with ";
    for words in
        ["`learning_rate` 0.001 -> 0.002", "`num_generations` 4 -> 8", "[\"length:target=2\"] -> [\"length:target=3\"]"]
    {
        assert!(occurrences(&finished.stderr, words) == 1, "{words}: {}", finished.stderr);
    }
    assert!(finished.stderr.contains(&format!("{begin}other options than it was made with: ")), "{}", finished.stderr);
    assert!(finished.stderr.contains(&format!("{begin}another content of ")), "{}", finished.stderr);
    let finished = bench.train(&[&changed[..], &["--resume_from_checkpoint", "latest", "--max_steps", "3"]].concat());
    assert!(!finished.success().stderr.contains(" -> "), "the last checkpoint was made with them");
}

#[test]
fn a_checkpoint_of_another_model_is_refused_before_anything_is_touched() {
    let bench = Bench::new();
    let _ = bench.train(&[]).success();
    let other = bench.place.path("other");
    Qwen2 { hidden_size: 16, ..TINY }.write(&other, 1);
    tiny_model::write_tokenizer(&other);
    let before = (bench.read("run/config.toml"), bench.read("run/metrics.jsonl"));
    let finished = bench.train(&["--model", "other", "--resume_from_checkpoint", "latest", "--max_steps", "3"]);
    let refusal = finished.refusal();
    for words in
        ["`resume_from_checkpoint`: ", "checkpoint-2: is of another model than `model` ", "embed_tokens.weight is ["]
    {
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    assert_eq!((bench.read("run/config.toml"), bench.read("run/metrics.jsonl")), before);
}

#[test]
fn a_dry_run_lists_everything_that_training_would_be_refused_for() {
    let bench = Bench::new();
    assert!(bench.train(&["--dry-run"]).success().stdout.contains("max_steps = 2\n"));
    bench.write("chat.jsonl", &format!("{}\n", json!({"prompt": [{"role": "user", "content": "1+1="}]})));
    let options = ["--reward_funcs", "formt,gsm8k", "--resume_from_checkpoint", "latest", "--dataset", "chat.jsonl"];
    let finished = bench.train(&[&["--dry-run"][..], &options].concat());
    assert_eq!(finished.refusal(), "error: 3 problems keep the run from starting");
    for words in ["holds no checkpoint", "unknown reward function `formt` (did you mean `format`?)", "chat template"] {
        let line = finished.stderr.lines().find(|line| line.contains(words));
        assert!(line.is_some_and(|line| line.starts_with("- ")), "{words}: {}", finished.stderr);
    }
    assert!(finished.stdout.is_empty() && !bench.place.path("run").exists());

    bench.write("weights.jsonl", "\u{1}\n");
    for (options, words) in [
        (["--dataset", "weights.jsonl"], "weights.jsonl, line 1: "),
        (["--dataset", "absent.jsonl"], "`dataset`: "),
        (["--reward_funcs", "gsm8k"], "needs the column"),
        (["--max_model_len", "99999"], "above the model's limit"),
        (["--max_num_seqs", "100000000"], "GiB"),
        (["--output_dir", "prompts.jsonl/run"], "`output_dir`"),
    ] {
        let finished = bench.train(&[&["--dry-run"][..], &options].concat());
        assert!(finished.refusal().contains(words), "{words}: {}", finished.stderr);
    }
    fs::remove_file(bench.place.path("model/model.safetensors")).unwrap();
    assert!(bench.train(&["--dry-run"]).refusal().contains("model.safetensors"));
}

#[test]
fn what_is_wrong_on_the_command_line_is_explained() {
    let bench = Bench::new();
    let finished = bench.train(&["--use_vllm", "--optim=lion_32bit", "--learning_rat=1"]);
    assert_eq!(finished.refusal(), "error: 3 problems keep the run from starting");
    for line in [
        "- unknown option `use_vllm` (command line): the sampler is ONNX Runtime in a process of its own",
        "- unknown option `optim` (command line): the optimiser is AdamW",
        "- unknown option `learning_rat` (command line); did you mean `learning_rate`?",
    ] {
        assert!(finished.stderr.contains(line), "{line}: {}", finished.stderr);
    }
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let doctor = |no_colour: &str| {
        let mut command = Command::new(binary("tandem"));
        command.arg("doctor").env("CLICOLOR_FORCE", "1").env("NO_COLOR", no_colour);
        cli::finish(command).stdout
    };
    assert!(doctor("").contains("\u{1b}["), "colours are forced");
    let plain = doctor("1");
    assert!(plain.contains("processor") && !plain.contains('\u{1b}'), "{plain}");
}
