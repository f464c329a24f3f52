//! `tandem demo`: a tiny model learns arithmetic before the user's eyes.

mod model;
mod problems;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;
use shared::{
    RunDir,
    config::{LrSchedulerType, TrainConfig, layers},
    files::atomic,
    metrics,
    system::{load, native},
};

use crate::{
    programs::tool::{self, Words},
    supervise::Outcome,
    terminal::output,
    train::{self, Trained},
};
use model::TinyModel;
use problems::Problems;

/// Flags of `tandem demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where model, data, run and report are written; an earlier demo there is replaced
    #[arg(long, value_name = "DIR", default_value = "runs/demo")]
    output_dir: PathBuf,
    /// Seed of the problems, the model and the sampling
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Steps of GRPO; fewer than the default show that everything works, but not much learning
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..))]
    max_steps: u64,
    /// A model of another architecture: its `config.json`, with the 19 tokens of the demo
    #[arg(long, value_name = "FILE")]
    model_config: Option<PathBuf>,
    /// Stop after the warm start, with everything that `tandem train DIR/run.toml` needs
    #[arg(long)]
    warm_up_only: bool,
}

/// The last line on stdout.
#[derive(Debug, Serialize)]
struct Figures {
    accuracy_before: f64,
    accuracy_after: f64,
    steps: u64,
    reward_first: Option<f64>,
    reward_last: Option<f64>,
    tokens_per_s: Option<f64>,
    swap_ms: Option<f64>,
    swap_stall_ms: Option<f64>,
    seconds: f64,
    seed: u64,
    report: String,
}

/// Runs the demo; progress goes to stderr, and the last line on stdout is one JSON object.
pub fn run(args: &Args) -> Result<ExitCode> {
    let begin = Instant::now();
    // A library that is missing costs no warm-up, and a file that does not fit costs no earlier demo.
    native::onnxruntime()?;
    let model = TinyModel::of(args.model_config.as_deref())?;
    let place = Folder::new(&args.output_dir)?;
    let problems = Problems::new(args.seed);
    place.write(&problems, &model)?;

    say(&format!("1/4  A tiny model ({model}) imitates a teacher of addition who mostly forgets the carry."));
    warm_up(&place, args.seed)?;
    let before = accuracy(&place, &place.path("warm"), "before")?;
    say(&format!("2/4  It solves {:.0} % of {} held-out problems.", 100.0 * before, problems.held_out.len()));
    let config = configuration(&place, args.seed, args.max_steps);
    atomic::write(&place.path("run.toml"), layers::to_toml(&config).as_bytes())?;
    if args.warm_up_only {
        let warm = json!({ "accuracy_before": before, "config": place.path("run.toml"), "seed": args.seed });
        output::print(warm);
        return Ok(ExitCode::SUCCESS);
    }

    say("3/4  GRPO: the sampler tries, the learner learns from what was rewarded; nobody shows it the carry again.");
    let trained = train::train(config)?;
    trained.has_learned()?;
    if trained.outcome != Outcome::Finished {
        return Ok(train::interrupted());
    }
    let last = trained.dir.checkpoint(trained.summary.steps);
    let after = accuracy(&place, &last, "after")?;
    say(&format!("4/4  It solves {:.0} % of the held-out problems.", 100.0 * after));

    let figures = figures(before, after, &trained, begin.elapsed().as_secs_f64(), args.seed);
    tell(&figures, &last);
    output::print(serde_json::to_string(&figures)?);
    Ok(ExitCode::SUCCESS)
}

fn say(line: &str) {
    output::tell(format_args!("\n{line}"));
}

/// The folder of the demo.
struct Folder {
    root: PathBuf,
    /// Held for as long as the demo runs.
    _lock: fs::File,
}

/// Marks a folder as one that the demo may clear.
const MARK: &str = "tandem-demo";

impl Folder {
    /// Takes an empty folder, or the folder of an earlier demo, whose content it removes.
    fn new(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root)?;
        let shown = root.display().to_string();
        let is_demo = root.join(MARK).is_file();
        if !is_demo && fs::read_dir(&root).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{shown} is not empty and holds no earlier demo; choose another --output-dir");
        }
        let make = |folder: &Path| fs::create_dir_all(folder).with_context(|| format!("--output-dir {shown}"));
        make(&root)?;
        let lock = train::hold(&root.join(MARK), &root, Duration::ZERO)?;
        let place = Self { root, _lock: lock };
        if is_demo {
            train::remove(&RunDir::new(place.path("run")))?;
            for part in ["data", "logs", "model", "warm"] {
                let _ = fs::remove_dir_all(place.path(part));
            }
        }
        for part in ["data", "logs"] {
            make(&place.path(part))?;
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, problems: &Problems, model: &TinyModel) -> Result<()> {
        model.write(&self.path("model"))?;
        atomic::write(&self.path("data/warm_up.jsonl"), problems.warm_up_rows().as_bytes())?;
        atomic::write(&self.path("data/train.jsonl"), problems::prompt_rows(&problems.train).as_bytes())?;
        atomic::write(&self.path("data/held_out.jsonl"), problems::prompt_rows(&problems.held_out).as_bytes())?;
        Ok(())
    }
}

/// Longest completion: the longest worked addition has 25 tokens.
const MAX_COMPLETION_LENGTH: u32 = 32;

fn warm_up(place: &Folder, seed: u64) -> Result<()> {
    let words = Words::of("sft")
        .with("model", place.text("model"))
        .with("data", place.text("data/warm_up.jsonl"))
        .with("output", place.text("warm"))
        .with("init-seed", seed)
        .with("seed", seed)
        .with("max-steps", 700)
        .with("batch-size", 64)
        .with("learning-rate", "2e-3")
        .with("lr-scheduler-type", LrSchedulerType::Cosine)
        .with("warmup-steps", 20);
    // A warm start does not suffer from another kind of rounding, but it would from taking ten times as long.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let words = match load::is_too_busy_for(threads) {
        true => {
            output::tell("  the machine is busy, and so the learner takes one thread, which is faster then");
            words.with("threads", 1)
        }
        false => words,
    };
    tool::run("learner", &words, &place.path("logs/warm_up.log")).map(drop)
}

/// Share of the held-out problems that the model solves when it always takes the likeliest token.
fn accuracy(place: &Folder, model: &Path, when: &str) -> Result<f64> {
    let words = Words::of("eval")
        .with("model", model.display())
        .with("dataset", place.text("data/held_out.jsonl"))
        .with("reward-funcs", "correctness")
        .with("max-completion-length", MAX_COMPLETION_LENGTH)
        .with("max-num-seqs", 100);
    let answer = tool::answer("rollout", &words, &place.path(&format!("logs/eval_{when}.log")))?;
    tool::number(&answer, metrics::AVG.of(1).as_str())
}

/// The same configuration that `tandem train` would read from a file.
fn configuration(place: &Folder, seed: u64, max_steps: u64) -> TrainConfig {
    let defaults = TrainConfig::default();
    TrainConfig {
        model: place.path("warm"),
        dataset: place.path("data/train.jsonl").into(),
        eval_dataset: Some(place.path("data/held_out.jsonl")),
        eval_steps: Some(20),
        output_dir: place.path("run"),
        reward_funcs: vec!["correctness".into(), "format".into()],
        // For functions in Python that somebody adds to the file, which names every option.
        reward_python: layers::named_interpreter().unwrap_or(defaults.reward_python.clone()),
        num_generations: 8,
        max_completion_length: MAX_COMPLETION_LENGTH,
        per_device_train_batch_size: 256,
        max_steps: Some(max_steps),
        // At 2e-4 the carry is learned in twenty steps, and the rest of the curve is flat.
        learning_rate: 6e-6,
        lr_scheduler_type: LrSchedulerType::Constant,
        save_steps: 25,
        save_total_limit: Some(2),
        logging_steps: 20,
        seed,
        ..defaults
    }
}

fn figures(before: f64, after: f64, trained: &Trained, seconds: f64, seed: u64) -> Figures {
    let milliseconds = |metric| {
        crate::records::summary::recent(&trained.records, metric, usize::MAX >> 1).map(|seconds| 1e3 * seconds)
    };
    let summary = &trained.summary;
    Figures {
        accuracy_before: before,
        accuracy_after: after,
        steps: summary.steps,
        reward_first: summary.reward_first,
        reward_last: summary.reward_last,
        tokens_per_s: summary.tokens_per_s,
        swap_ms: milliseconds(metrics::ROLLOUT_SWAP_S),
        swap_stall_ms: milliseconds(metrics::ROLLOUT_SWAP_STALL_S),
        seconds,
        seed,
        report: summary.report.clone(),
    }
}

fn tell(figures: &Figures, model: &Path) {
    let shown = |value: Option<f64>, unit: &str| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.1} {unit}"));
    let lines = [
        (
            "held-out accuracy",
            format!("{:.1} % -> {:.1} %", 100.0 * figures.accuracy_before, 100.0 * figures.accuracy_after),
        ),
        ("steps", figures.steps.to_string()),
        ("speed", shown(figures.tokens_per_s, "tokens/s, generation and training together")),
        ("weight swap", format!("{}, standstill {}", shown(figures.swap_ms, "ms"), shown(figures.swap_stall_ms, "ms"))),
        ("time", format!("{:.0} s in all", figures.seconds)),
        ("model", model.display().to_string()),
        ("report", figures.report.clone()),
    ];
    output::tell("");
    for (name, value) in lines {
        output::tell(format_args!("  {name:<18} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_an_earlier_demo_is_cleared() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("demo");
        let place = Folder::new(&dir).unwrap();
        let second = Folder::new(&dir).err().expect("one demo at a time").to_string();
        assert!(second.contains("still at work there"), "{second}");
        fs::create_dir(place.path("run")).unwrap();
        fs::write(place.path("run/metrics.jsonl"), "{}").unwrap();
        fs::write(place.path("notes.txt"), "mine").unwrap();
        drop(place);
        let again = Folder::new(&dir).unwrap();
        assert!(!again.path("run").exists() && again.path("notes.txt").exists());
        let foreign = root.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("x"), "").unwrap();
        let error = Folder::new(&foreign).err().unwrap().to_string();
        assert!(error.contains("foreign") && error.contains("--output-dir"), "{error}");
    }

    #[test]
    fn a_run_in_which_somebody_is_at_work_is_not_cleared() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::new(Folder::new(root.path()).unwrap().path("run"));
        run.create().unwrap();
        let lock = fs::File::create(run.lock()).unwrap();
        lock.lock().unwrap();
        thread::scope(|scope| {
            let next = scope.spawn(|| Folder::new(root.path()).map(drop));
            thread::sleep(Duration::from_millis(300));
            assert!(run.logs().exists());
            drop(lock);
            next.join().unwrap().unwrap();
        });
        assert!(!run.root().exists());
    }

    #[test]
    fn the_configuration_is_valid_and_trains_on_nothing_held_out() {
        let root = tempfile::tempdir().unwrap();
        let place = Folder::new(root.path()).unwrap();
        let config = configuration(&place, 1, 150);
        config.validate().unwrap();
        assert!(config.dataset[0].ends_with("data/train.jsonl"));
        assert!(config.eval_dataset.is_some_and(|d| d.ends_with("data/held_out.jsonl")));
    }
}
