//! Countdown from scratch: combine numbers to a target with `+ - * /`, each number once (Jiayi-Pan/TinyZero's task).
//!
//! `cargo xtask example countdown` runs this program. It drives `tandem` as one would by hand, and prints every
//! command; README.md beside it says what to expect.

mod problems;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use problems::{Maker, Problem};
use serde_json::{Value, json};
use shared::{RunDir, files::atomic, generation::rng::Stream};

/// Five million parameters; the tokenizer is made in [`tokenizer`].
const MODEL: [(&str, &str); 3] = [
    ("config.json", include_str!("model/config.json")),
    ("generation_config.json", include_str!("model/generation_config.json")),
    ("tokenizer_config.json", include_str!("model/tokenizer_config.json")),
];
/// Problems that nothing is trained on: 100 of two numbers, 200 of three, 200 of four.
const HELD_OUT: &str = include_str!("held_out.jsonl");
/// Options of GRPO; model, dataset and folder are given with the command.
const RUN: &str = include_str!("run.toml");
/// Problems for GRPO; a run sees each of them once at most.
const TRAIN: usize = 20_000;
/// Completions per held-out problem.
const SAMPLES: u32 = 8;
/// The file that marks a folder as one of this program, with the seed that everything in it was made with.
const MARK: &str = "countdown.json";

/// A small model learns countdown: a warm start on solved examples, then GRPO.
///
/// What is finished stays: the same command goes on after an interruption.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask example countdown")]
struct Args {
    /// Where data, models and the run are written
    #[arg(long, value_name = "DIR", default_value = "runs/countdown")]
    output_dir: PathBuf,
    /// Seed of problems, weights and sampling
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Updates of the warm start, of 32 examples each
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u64).range(1..))]
    warm_up_steps: u64,
    /// Stop after the warm start, for instance to train it with another program
    #[arg(long)]
    warm_up_only: bool,
    /// Options of GRPO that replace those of run.toml, as in `--max_steps 20`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    grpo: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let place = Folder::open(args)?;

    if !place.path("warm").exists() {
        say("1/4  A model of 5 million parameters imitates a program that solves problems, some of them aloud.");
        place.write_data(args)?;
        warm_up(&place, args)?;
    }
    say("2/4  What it solves of 500 problems that it has not seen.");
    let before = place.evaluate("warm")?;
    println!("{}", in_words(&before));
    let solved = before["pass@8"].as_f64().is_some_and(|share| share > 0.0);
    ensure!(
        solved,
        "the warm start solves none of them, so there is nothing to reward: more --warm-up-steps are needed"
    );
    if args.warm_up_only {
        println!("{}", json!({ "before": before, "model": place.text("warm") }));
        return Ok(());
    }

    say("3/4  GRPO: it tries by itself, and learns from what was rewarded.");
    let summary = grpo(&place, args)?;
    say("4/4  What it solves now.");
    let after = place.evaluate(&format!("run/checkpoint-{}", summary["steps"]))?;
    println!("before  {}\nafter   {}", in_words(&before), in_words(&after));
    let [gained, error] =
        ["pass@1", "pass_stderr@1"].map(|key| [&before, &after].map(|e| e[key].as_f64().unwrap_or(0.0)));
    if gained[1] - gained[0] < 1.96 * error[0].hypot(error[1]) {
        eprintln!("warning: GRPO has gained nothing that 500 problems show; with the options of run.toml it does");
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{}", json!({ "before": before, "after": after, "run": summary, "seed": args.seed, "seconds": seconds }));
    Ok(())
}

/// The folder with everything that is made.
struct Folder(PathBuf);

impl Folder {
    /// Takes an empty folder, or that of an earlier call with the same seed.
    fn open(args: &Args) -> Result<Self> {
        let place = Self(std::path::absolute(&args.output_dir)?);
        let shown = place.0.display();
        let mark = json!({ "seed": args.seed, "warm_up_steps": args.warm_up_steps });
        let path = place.path(MARK);
        if path.exists() {
            let found: Value = serde_json::from_slice(&fs::read(&path)?).with_context(|| path.display().to_string())?;
            ensure!(found == mark, "--output-dir {shown} was made with {found}, not {mark}; choose another folder");
        } else if fs::read_dir(&place.0).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("--output-dir {shown} is not empty, and not of this program; choose another folder");
        } else {
            fs::create_dir_all(&place.0).with_context(|| format!("--output-dir {shown}"))?;
            atomic::write(&path, mark.to_string().as_bytes())?;
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes the model without weights, and the rows of warm start, GRPO and evaluation.
    fn write_data(&self, args: &Args) -> Result<()> {
        atomic::write_dir(&self.path("model"), |dir| {
            MODEL.iter().try_for_each(|(name, text)| atomic::write(&dir.join(name), text.as_bytes()))?;
            atomic::write(&dir.join("tokenizer.json"), tokenizer().to_string().as_bytes())
        })?;
        let held_out: Vec<Problem> = HELD_OUT.lines().map(Problem::parse).collect::<Result<_>>()?;
        let mut random = Stream::new(&[args.seed]);
        let mut maker = Maker::new(&held_out, &mut random);
        let solved = (0..args.warm_up_steps * BATCH).map(|_| maker.solved());
        self.write_rows("solved.jsonl", solved)?;
        self.write_rows("train.jsonl", (0..TRAIN).map(|_| maker.problem().row()))?;
        self.write_rows("held_out.jsonl", held_out.iter().map(Problem::row))
    }

    fn write_rows(&self, name: &str, rows: impl Iterator<Item = Value>) -> Result<()> {
        let text: String = rows.map(|row| format!("{row}\n")).collect();
        atomic::write(&self.path(name), text.as_bytes()).with_context(|| name.to_owned())
    }

    /// The JSON object that `tandem eval` prints about a model.
    fn evaluate(&self, model: &str) -> Result<Value> {
        tandem(&[
            "eval",
            &format!("--model={}", self.text(model)),
            &format!("--dataset={}", self.text("held_out.jsonl")),
            "--reward-funcs=countdown",
            &format!("--num-generations={SAMPLES}"),
            &format!("--max-completion-length={}", option("max_completion_length")?),
        ])
    }
}

/// Examples of an update of the warm start.
const BATCH: u64 = 32;

fn warm_up(place: &Folder, args: &Args) -> Result<()> {
    tandem(&[
        "sft",
        &format!("--model={}", place.text("model")),
        &format!("--data={}", place.text("solved.jsonl")),
        &format!("--output={}", place.text("warm")),
        &format!("--init-seed={}", args.seed),
        &format!("--seed={}", args.seed),
        &format!("--max-steps={}", args.warm_up_steps),
        &format!("--batch-size={BATCH}"),
        "--learning-rate=1e-3",
        "--lr-scheduler-type=cosine",
        "--warmup-steps=50",
    ])?;
    Ok(())
}

fn grpo(place: &Folder, args: &Args) -> Result<Value> {
    atomic::write(&place.path("run.toml"), RUN.as_bytes())?;
    let mut words = vec![
        "train".to_owned(),
        place.text("run.toml"),
        format!("--model={}", place.text("warm")),
        format!("--dataset={}", place.text("train.jsonl")),
        format!("--eval_dataset={}", place.text("held_out.jsonl")),
        format!("--output_dir={}", place.text("run")),
        format!("--seed={}", args.seed),
    ];
    let run = RunDir::new(place.path("run"));
    if run.checkpoints().is_ok_and(|steps| !steps.is_empty()) {
        words.push("--resume_from_checkpoint=latest".into());
    } else if run.root().exists() {
        // The run was interrupted before its first checkpoint.
        let lock = File::options().write(true).open(run.lock());
        ensure!(lock.is_ok_and(|lock| lock.try_lock().is_ok()), "somebody is at work in {}", run.root().display());
        fs::remove_dir_all(run.root()).with_context(|| run.root().display().to_string())?;
    }
    words.extend(args.grpo.iter().cloned());
    tandem(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Tokens: the tags of the answer, signs, and single digits, as in Qwen's tokenizer. It is a BPE over bytes without
/// merges, so that every format of `tandem export` takes it.
fn tokenizer() -> Value {
    let special = ["<|endoftext|>", "<|unknown|>"];
    let tags = ["<answer>", "</answer>"];
    // A line break, as BPE over bytes writes it, and signs.
    let signs = ["\u{10a}", ":", ",", "=", "+", "-", "*", "/", "(", ")"];
    let words = special.into_iter().chain(tags).chain(signs).map(str::to_owned);
    let vocabulary = words.chain((0..=9).map(|n| n.to_string()));
    let added = |(id, content): (usize, &str)| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special.contains(&content) })
    };
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0",
        "added_tokens": special.into_iter().chain(tags).enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": bytes.clone(),
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "vocab": vocabulary.zip(0..).map(|(word, id)| (word, Value::from(id))).collect::<serde_json::Map<_, _>>(),
            "merges": [],
            "unk_token": "<|unknown|>",
        },
    })
}

/// An option of run.toml.
fn option(key: &str) -> Result<toml::Value> {
    let mut options: toml::Table = RUN.parse()?;
    options.remove(key).with_context(|| format!("run.toml has no `{key}`"))
}

/// Runs `tandem`, which lies beside the folder of the examples, and returns the JSON object that it ends with.
fn tandem(words: &[&str]) -> Result<Value> {
    let program = std::env::current_exe()?;
    let program = program.parent().and_then(Path::parent).context("this program lies in no folder")?.join("tandem");
    eprintln!("$ tandem {}", words.join(" "));
    let mut command = Command::new(&program);
    let mut child = command
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} (`cargo xtask example countdown` builds it)", program.display()))?;
    let stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
    let last = stdout.lines().map_while(Result::ok).last();
    let status = child.wait()?;
    ensure!(status.success(), "`tandem {}` ended with {status}", words[0]);
    let last = last.with_context(|| format!("`tandem {}` printed nothing", words[0]))?;
    serde_json::from_str(&last).with_context(|| format!("`tandem {}` printed {last}", words[0]))
}

fn say(line: &str) {
    eprintln!("\n{line}");
}

/// Accuracy of single completions and of the best of eight, with intervals of 95 %.
fn in_words(evaluation: &Value) -> String {
    let percent = |key: String| 100.0 * evaluation[&key].as_f64().unwrap_or(f64::NAN);
    let share =
        |k| format!("{:.1} % ± {:.1}", percent(format!("pass@{k}")), 1.96 * percent(format!("pass_stderr@{k}")));
    let length = evaluation["eval_completions/mean_length"].as_f64().unwrap_or(f64::NAN);
    format!("pass@1 {}  pass@8 {}  {length:.0} tokens", share(1), share(8))
}
