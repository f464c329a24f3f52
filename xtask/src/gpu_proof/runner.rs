//! `xtask gpu-proof-run`: runs the measurements without a result, and writes each result as soon as it exists.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    machine::{Machine, MemoryWatch, Places},
    plan::{Device, Figures, Measurement, PARTS, Program, Sizes, plan},
    process::{self, End},
    results::{Outcome, Results, without_figures},
    table,
};
use crate::model::Model;

/// Most bytes of a failed program's output, and of its errors, that are kept with its result.
const SAID: usize = 2000;
/// The measurement that describes the machine.
const MACHINE: &str = "machine";

/// Flags of `xtask gpu-proof-run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Folder of `results.jsonl` and `table.md`. What has a result there is not run again
    #[arg(long)]
    out: PathBuf,
    /// Where to measure
    #[arg(long, value_enum, default_value = "cuda")]
    device: Device,
    /// Begin nothing that could last longer than this; the next call goes on
    #[arg(long, default_value_t = 8)]
    minutes: u64,
    /// Folder of the programs of the bundle [default: that of this one]
    #[arg(long)]
    bundle: Option<PathBuf>,
    /// Folder for models, runs and logs, 50 GB at most on a GPU [default: `work` in the folder of the bundle]
    #[arg(long)]
    work: Option<PathBuf>,
    /// The python of the rivals, and of the torch whose libraries the learner takes
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// A libtorch for the learner instead of the python's
    #[arg(long, env = "LIBTORCH")]
    libtorch: Option<PathBuf>,
    /// A libonnxruntime.so for the sampler [default: `onnxruntime/libonnxruntime.so` in the folder of the bundle]
    #[arg(long, env = "ORT_DYLIB_PATH")]
    onnxruntime: Option<PathBuf>,
    /// Only this part, by its number: 1 is the most telling one, and each takes four minutes at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=PARTS.len() as i64))]
    part: Option<u8>,
    /// Only measurements whose name begins with this
    #[arg(long)]
    only: Option<String>,
    /// Run again what failed or was left out
    #[arg(long)]
    retry: bool,
}

/// Runs the measurements, and writes the table of all results so far.
///
/// # Errors
/// When a library is missing or the results cannot be written. A measurement that fails is a result.
pub fn run(args: RunArgs) -> Result<()> {
    let beside = || Some(env::current_exe().ok()?.parent()?.to_path_buf());
    let bundle = args.bundle.or_else(beside).context("this program has no folder; name the bundle with --bundle")?;
    let bundle = bundle.canonicalize().with_context(|| format!("--bundle {}", bundle.display()))?;
    let work = args.work.unwrap_or_else(|| bundle.join("work"));
    for dir in [&args.out, &work] {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let work = work.canonicalize().with_context(|| format!("--work {}", work.display()))?;
    let (python, libtorch, onnxruntime) = (args.python, args.libtorch, args.onnxruntime);
    let machine = Machine::find(Places { bundle, work: work.clone(), python, libtorch, onnxruntime }, args.device)?;
    let path = args.out.join("results.jsonl");
    let mut results = Results::open(&path)?;
    let device = json!(args.device.name());
    match results.get(MACHINE) {
        Some(found) => ensure!(
            found["device"] == device,
            "{} has results of --device {}: name another folder with --out",
            path.display(),
            found["device"]
        ),
        None => results.add(&path, json!({"name": MACHINE, "device": device, "figures": machine.describe()}))?,
    }

    let proof = Proof { machine, work: &work, device: args.device };
    let planned = plan(args.device, &work);
    let wanted = |measurement: &&Measurement| {
        args.part.is_none_or(|part| measurement.part == PARTS[usize::from(part) - 1])
            && args.only.as_ref().is_none_or(|only| measurement.name.starts_with(only))
    };
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    for measurement in planned.iter().filter(wanted) {
        let again = [Outcome::Failed, Outcome::Missing, Outcome::LeftOut];
        let again = args.retry && again.iter().any(|outcome| results.is(&measurement.name, *outcome));
        if results.get(&measurement.name).is_some() && !again {
            continue;
        }
        let (part, seconds) = measurement.part;
        let left = Duration::from_secs_f64((seconds as f64 - results.seconds(part)).max(0.0));
        let limit = measurement.limit.min(left);
        if limit > end.saturating_duration_since(Instant::now()) {
            break;
        }
        let result = proof.measure(measurement, limit)?;
        let reason = result["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
        eprintln!("{:<36} {}{reason}", measurement.name, result["outcome"].as_str().unwrap_or_default());
        results.add(&path, result)?;
    }
    let open = planned.iter().filter(wanted).filter(|measurement| results.get(&measurement.name).is_none()).count();
    let table = table::render(&results);
    let page = args.out.join("table.md");
    fs::write(&page, &table).with_context(|| page.display().to_string())?;
    println!("{table}");
    if open > 0 {
        eprintln!("{open} measurements are left: call this again with the same --out");
    }
    Ok(())
}

struct Proof<'a> {
    machine: Machine,
    work: &'a Path,
    device: Device,
}

impl Proof<'_> {
    /// One result, also of a failure.
    fn measure(&self, measurement: &Measurement, limit: Duration) -> Result<Value> {
        let (part, seconds) = measurement.part;
        let left_out = |reason: &str| without_figures(part, &measurement.name, Outcome::LeftOut, reason);
        if let Some(reason) = measurement.left_out {
            return Ok(left_out(reason));
        }
        if limit.is_zero() {
            return Ok(left_out(&format!("the {seconds} s of the part are over")));
        }
        let start = Instant::now();
        let watch = MemoryWatch::start(self.device);
        let (end, log) = self.run(measurement, start + limit)?;
        let memory = watch.stop();
        let figures = figures(&measurement.figures, &log);
        if let Figures::Steps(run) = &measurement.figures {
            // The next measurement needs the disk space.
            let _ = fs::remove_dir_all(run);
        }
        let (outcome, reason) = match (end, &figures) {
            (End::Success, Some(_)) => (Outcome::Done, None),
            (End::Success, None) => (Outcome::Failed, Some("it printed no figures".to_owned())),
            (End::TimeOver, Some(_)) => (Outcome::Cut, Some(format!("ended after {:.0} s", limit.as_secs_f64()))),
            (End::TimeOver, None) => (Outcome::Failed, Some(format!("no figures within {:.0} s", limit.as_secs_f64()))),
            (End::Missing(what), _) => (Outcome::Missing, Some(what)),
            (End::Failure(why), _) => (Outcome::Failed, Some(failed_tests(&measurement.figures, &log).unwrap_or(why))),
        };
        let said =
            (outcome == Outcome::Failed).then(|| [&log, &log.with_extension("err")].map(|log| tail(log)).concat());
        Ok(json!({
            "part": part,
            "name": measurement.name,
            "outcome": outcome.name(),
            "reason": reason,
            "seconds": start.elapsed().as_secs_f64(),
            "device_memory_bytes": memory,
            "commands": measurement.commands.iter().map(|(program, words)| format!("{program:?} {}",
            words.join(" "))).collect::<Vec<_>>(),
            "figures": figures,
            "said": said,
        }))
    }

    /// Makes the model if need be and runs the commands until one fails; returns how the last one ended, and its
    /// output.
    fn run(&self, measurement: &Measurement, deadline: Instant) -> Result<(End, PathBuf)> {
        let log = |index: usize| {
            let name = format!("{}-{index}.out", measurement.name.replace(' ', "-"));
            self.work.join("logs").join(name)
        };
        let making = measurement.model.map(|(model, weights)| self.make(model, weights)).transpose()?.flatten();
        let commands: Vec<_> = making.iter().chain(&measurement.commands).collect();
        for (index, (program, words)) in commands.iter().enumerate() {
            let mut command = self.machine.command(*program);
            command.args(words);
            let left = deadline.saturating_duration_since(Instant::now());
            match process::run(command, &log(index), left)? {
                End::Success => {}
                end => return Ok((end, log(index))),
            }
        }
        Ok((End::Success, log(commands.len() - 1)))
    }

    /// Writes the files of a model, and returns the command that makes its weights if they are missing.
    fn make(&self, model: Model, weights: bool) -> Result<Option<(Program, Vec<String>)>> {
        let Sizes { prompt, completion, .. } = Sizes::of(self.device);
        model.write(self.work, u64::from(prompt), u64::from(completion))?;
        let init =
            || (Program::Learner, vec!["init".into(), "--model".into(), model.dir(self.work).display().to_string()]);
        Ok((weights && !model.has_weights(self.work)).then(init))
    }
}

/// The figures of a measurement, if it has any.
fn figures(from: &Figures, log: &Path) -> Option<Value> {
    match from {
        Figures::LastLine => last_object(&fs::read_to_string(log).ok()?),
        Figures::Tests => tests(&fs::read_to_string(log).ok()?, &fs::read_to_string(log.with_extension("err")).ok()?),
        Figures::Steps(run) => steps(&fs::read_to_string(run.join("metrics.jsonl")).ok()?),
    }
}

fn last_object(printed: &str) -> Option<Value> {
    serde_json::from_str::<Value>(printed.lines().next_back()?).ok().filter(Value::is_object)
}

/// How many tests passed, failed, and reported that they were skipped.
fn tests(printed: &str, errors: &str) -> Option<Value> {
    let summary = printed.lines().rfind(|line| line.starts_with("test result: "))?;
    let count = |word: &str| -> Option<u64> {
        summary.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
    };
    let skipped = errors.lines().filter(|line| line.starts_with("SKIPPED ")).count();
    Some(json!({"passed": count("passed")?, "failed": count("failed")?, "skipped": skipped}))
}

/// The failed tests, if the measurement consists of tests.
fn failed_tests(from: &Figures, log: &Path) -> Option<String> {
    let printed = (*from == Figures::Tests).then(|| fs::read_to_string(log).ok())??;
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    let names: Vec<String> = printed.lines().filter_map(name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Medians over the steps after the second.
fn steps(metrics: &str) -> Option<Value> {
    // The last line of an interrupted run may be torn.
    let records: Vec<Value> = metrics.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    let measured = records.get(2..).filter(|rest| !rest.is_empty())?;
    let median = |key: &str| {
        let mut values: Vec<f64> = measured.iter().filter_map(|record| record[key].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let mut figures = json!({"steps": records.len()});
    for key in STEP_METRICS {
        figures[key] = json!(median(key));
    }
    Some(figures)
}

/// Metrics of a run that are kept with its result.
pub const STEP_METRICS: [&str; 10] = [
    "step_time",
    "perf/rollout_wait_s",
    "perf/fwd_bwd_s",
    "perf/optimizer_s",
    "perf/publish_s",
    "rollout/swap_s",
    "rollout/swap_stall_s",
    "rollout/busy_s",
    "rollout/tokens_per_s",
    "mismatch_kl",
];

/// The end of a file.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let start =
        (text.len().saturating_sub(SAID)..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    text[start..].to_owned()
}

const _: () = {
    // A machine may be lent for a quarter of an hour, transfers included.
    let mut index = 0;
    while index < PARTS.len() {
        assert!(PARTS[index].1 <= 4 * 60);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_where_programs_leave_them() {
        assert_eq!(last_object("a table\n{\"seconds\":1.5}\n"), Some(json!({"seconds": 1.5})));
        assert_eq!(last_object("{\"seconds\":1.5}\nbroken off"), None);
        let printed =
            "running 4 tests\ntest a ... ok\n\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; finished in 2.1s\n";
        let said = "SKIPPED a: no device\nSKIPPED b: no device\nnothing\n";
        assert_eq!(tests(printed, said), Some(json!({"passed": 3, "failed": 1, "skipped": 2})));
        assert_eq!(tests("running 4 tests\n", ""), None);
    }

    #[test]
    fn the_first_steps_and_a_torn_one_do_not_count() {
        let line = |seconds: f64| format!("{}\n", json!({"step_time": seconds, "perf/publish_s": null}));
        let metrics = [9.0, 8.0, 1.0, 3.0, 2.0].map(line).concat() + "{\"step_time\": 7";
        let figures = steps(&metrics).unwrap();
        assert_eq!((&figures["steps"], &figures["step_time"]), (&json!(5), &json!(2.0)));
        assert_eq!(figures["perf/publish_s"], Value::Null);
        assert_eq!(steps(&[9.0, 8.0].map(line).concat()), None);
    }

    #[test]
    fn kept_metrics_exist() {
        for key in STEP_METRICS {
            assert!(shared::metrics::catalogue::all().any(|metric| metric.key == key), "{key}");
        }
    }
}
