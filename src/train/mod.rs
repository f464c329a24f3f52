//! `tandem train`: from `run.toml` to a finished run with its report.
//!
//! All obstacles to a start are listed at once ([`Problems`]). A run that has learned nothing has an exit code of its
//! own ([`NothingLearned`]).

mod ask;
mod data;
mod directory;
mod disk;
mod duration;
mod hub;
mod options;
mod precision;
mod printed;
mod problems;
mod progress;
mod rehearsal;
mod resolve;
mod sampler_check;
mod session;
mod workers;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, anyhow};
use rollout_rewards::filter::FilterMetric;
use serde::Serialize;
use shared::{
    ModelDir, RunDir,
    channel::iox::remove_leftovers,
    config::{Device, OPTIONS, OptionSpec, TrainConfig, VersionStorage, layers},
    metrics::{self, MetricRecord},
    run::{
        best::Best,
        ended::{Ended, How},
        memory_plan::{RunPlan, SamplerSizes, VersionRoom},
        notices::{self, NothingLearned},
        resume,
        versions::VersionPlace,
    },
    system::load,
};

use crate::{
    doctor,
    programs::{Spec, binaries},
    records::{notices::add_lost_evaluations, summary},
    report,
    report_to::{self, Reporter},
    supervise::{self, Chaos, Limits, Outcome, Watch},
    terminal::{
        output,
        signals::{self, Interrupted},
    },
};

pub use ask::ask;
use directory::OwnedRun;
pub use directory::{goes_on, hold, remove};
use duration::Estimate;
pub use hub::locate;
pub use options::described;
pub use problems::Problems;
pub use rehearsal::rehearse;
use resolve::Resolved;
pub use resolve::{CommandLine, explained, make_absolute, take};

/// Words of `tandem train`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tandem train [RUN.toml] [--key value]... [--dry-run]",
    after_help = options::every_option()
)]
pub struct Args {
    /// The configuration file, then options. A .yaml, .json or .sh file of TRL, verl or RLinf is translated on the way
    /// (docs/importing.md).
    #[arg(value_name = "RUN.toml", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs `tandem train`. The last line on stdout is one JSON object.
pub fn run(args: &Args) -> Result<ExitCode> {
    let line = CommandLine::parse(&args.words)?;
    let config = line.config()?;
    if line.dry_run {
        let nothing_given = line.file.is_none() && line.overrides.is_empty();
        output::print(if nothing_given { every_key(&config) } else { dry_run(config)? }.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let trained = train_with(config, line.chaos)?;
    output::print(serde_json::to_string(&trained.summary)?);
    trained.has_learned()?;
    Ok(match trained.outcome {
        Outcome::Finished => ExitCode::SUCCESS,
        Outcome::Interrupted | Outcome::Killed => interrupted(),
    })
}

/// The exit code of a run that was asked to end: 128 + the signal. If only the learner got a signal, it counts as
/// Ctrl-C.
pub fn interrupted() -> ExitCode {
    const CTRL_C: u8 = 130;
    ExitCode::from(signals::check().err().map_or(CTRL_C, Interrupted::exit_code))
}

/// The configuration that would run, with comments on its data, its memory and remarks.
///
/// # Errors
/// All reasons for which training would be refused.
fn dry_run(mut config: TrainConfig) -> Result<String> {
    check_fleet(&config)?;
    let before = resolve::before(&config);
    let located = hub::locate(&mut config, before.as_ref())?;
    make_absolute(&mut config)?;
    let mut problems = Problems::default();
    let resolved = problems.take(resolve::resolve(config.clone()));
    if config.problems().is_empty() {
        problems.extend(sampler_check::problems(&config)?);
    }
    problems.check()?;
    // The sampler has checked the policy's weights.
    resolve::check_critic(&config)?;
    let Resolved { mut config, plan, disk, about, checkpoint } =
        resolved.expect("what could not be resolved is a problem");
    report_to::check(&config)?;
    rehearsal::rehearse(&mut config)?;
    config.check_best()?;
    filter(&config)?;
    let comment = |line: &str| format!("# {}\n", line.trim_start());
    let about: String = located.iter().chain(&about).map(|line| comment(line)).collect();
    let plan: String = plan.to_string().lines().map(comment).chain([comment(&disk.to_string())]).collect();
    let time = comment(&estimate(&config, checkpoint.as_deref())?.to_string());
    let remarks = remarks(&config, checkpoint.as_deref());
    let remarks: String =
        remarks.iter().chain(&disk.warning()).map(|remark| comment(&format!("warning: {remark}"))).collect();
    Ok(layers::to_toml(&config) + "\n" + &about + &plan + &time + &remarks)
}

/// The configuration that would run and its memory, after all checks that need no process.
///
/// # Errors
/// All reasons for which training would be refused.
pub fn resolved_plan(mut config: TrainConfig) -> Result<(TrainConfig, RunPlan)> {
    check_fleet(&config)?;
    let before = resolve::before(&config);
    hub::locate(&mut config, before.as_ref())?;
    let Resolved { config, plan, .. } = resolve::resolve(config)?;
    resolve::check_weights(&config)?;
    Ok((config, plan))
}

/// Loads what a resolved configuration names of the user's own code, reward functions and tools, and checks what names
/// their metrics. Nothing of it is called.
///
/// # Errors
/// What cannot be found or loaded.
pub fn check_code(config: &TrainConfig) -> Result<()> {
    let mut config = TrainConfig { rehearse_rewards: false, ..config.clone() };
    rehearsal::rehearse(&mut config)?;
    check_tools(&config)?;
    config.check_best()?;
    filter(&config).map(drop)
}

/// Tools are the user's own code, which only the sampler can load.
fn check_tools(config: &TrainConfig) -> Result<()> {
    let mut problems = Problems::default();
    if config.has_tools() {
        problems.extend(sampler_check::problems(config)?);
    }
    problems.check()?;
    Ok(())
}

/// Refuses a run whose sampler is another program than `rollout` if that was not built, before anything is downloaded
/// or created.
fn check_fleet(config: &TrainConfig) -> Result<()> {
    if config.listen.is_some() || config.agent.is_some() { sampler(config).map(drop) } else { Ok(()) }
}

/// How long the steps after a checkpoint will take.
fn estimate(config: &TrainConfig, from: Option<&Path>) -> Result<Estimate> {
    let model = ModelDir::open(&config.model).context("`model`")?;
    Ok(Estimate::new(config, model.config(), from.and_then(directory::step_of).unwrap_or(0)))
}

/// The criterion of dynamic sampling, in words; by now the reward functions have their names.
fn filter(config: &TrainConfig) -> Result<Option<String>> {
    if !config.dynamic_sampling {
        return Ok(None);
    }
    let (name, of_sum) = (config.filter_groups_metric.as_deref(), config.contrast());
    let metric = FilterMetric::choose(name, &config.reward_funcs, of_sum)
        .map_err(|problem| anyhow!("`filter_groups_metric`: {problem}"))?;
    Ok(Some(format!("dynamic sampling keeps {}", metric.describe(&config.reward_funcs))))
}

/// From so many weights on, products take most of a step.
const LARGE: u64 = 50_000_000;

/// Hints before the start of a run: [`TrainConfig::warnings`], and what this machine could do better.
fn hints(config: &TrainConfig) -> Vec<String> {
    let mut list = config.warnings();
    if let Ok(model) = ModelDir::open(&config.model) {
        list.extend(model.remarks());
        let is_packed = SamplerSizes::of(config, model.config(), 1, 1).packed();
        if let Some(part) = model.config().unknown_to_packed().filter(|_| is_packed) {
            list.push(format!(
                "the packed kernels do not know the model ({part}), so the slower kernels of ONNX Runtime generate"
            ));
        }
    }
    let in_fp32 = config.learner_device == Device::Cpu && !config.bf16;
    let large = || ModelDir::open(&config.model).is_ok_and(|model| model.config().parameter_count() >= LARGE);
    if in_fp32 && doctor::has_bf16_tiles() && large() {
        list.push("this processor has tiles for bfloat16: `bf16` true makes the learner's step much shorter".into());
    }
    let threads = [config.learner_threads, config.rollout_threads].into_iter().flatten().max().unwrap_or(1);
    if config.learner_device == Device::Cpu {
        list.extend(load::too_busy_for(threads, "`learner_threads` and `rollout_threads` to 1"));
    }
    list
}

/// Remarks on a run that goes on from a checkpoint: settings that are allowed but probably not meant. During a run, the
/// learner's notices cover what is not in [`hints`].
fn remarks(config: &TrainConfig, from: Option<&Path>) -> Vec<String> {
    let mut list = hints(config);
    let model = ModelDir::open(&config.model).ok();
    let weights = model.as_ref().map_or(0, |model| model.config().parameter_count());
    let length = model.and_then(|model| notices::model_length(config, model.config().max_position_embeddings));
    list.extend(notices::learning_rate(config, weights).into_iter().chain(length).map(|notice| notice.to_string()));
    let saved = from.and_then(resume::saved_config);
    let changes = saved.map(|saved| resume::changed_options(&saved, config)).unwrap_or_default();
    list.extend(changes.iter().map(|change| format!("the run goes on with another option: {change}")));
    list
}

/// Every option with its default, in declaration order; those that are absent by default as comments.
fn every_key(defaults: &TrainConfig) -> String {
    let toml = layers::to_toml(defaults);
    let line = |option: &OptionSpec| {
        let given = toml.lines().find(|line| line.split(" = ").next() == Some(option.key));
        let absent = || format!("# {} = (absent: {})\n", option.key, option.absent.unwrap_or("it must be given"));
        given.map_or_else(absent, |line| format!("{line}\n"))
    };
    OPTIONS.iter().map(line).collect()
}

/// A run that has ended.
pub struct Trained {
    /// How it ended.
    pub outcome: Outcome,
    /// Its figures.
    pub summary: Summary,
    /// Its records.
    pub records: Vec<MetricRecord>,
    /// Its directory.
    pub dir: RunDir,
    /// The error of a run that made all of its steps and learned nothing.
    nothing: Option<NothingLearned>,
}

impl Trained {
    /// The checkpoint that is the run's model: the best one with `load_best_model_at_end`, else the last one.
    pub fn model(&self) -> PathBuf {
        self.dir.chosen_checkpoint().unwrap_or_else(|| self.dir.checkpoint(self.summary.steps))
    }

    /// Refuses a run of which no update had a gradient.
    ///
    /// # Errors
    /// The reason.
    pub fn has_learned(&self) -> Result<(), NothingLearned> {
        self.nothing.clone().map_or(Ok(()), Err)
    }
}

/// The figures of a run, as the last line of stdout shows them.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Completed steps, those before a resume included.
    pub steps: u64,
    /// Mean reward of the first steps.
    pub reward_first: Option<f64>,
    /// Mean reward of the last steps.
    pub reward_last: Option<f64>,
    /// Seconds from the start of the pair to its end.
    pub seconds: f64,
    /// Completion tokens of this session's steps per second of their time.
    pub tokens_per_s: Option<f64>,
    /// The path of the report.
    pub report: String,
    /// The best checkpoint, with `metric_for_best_model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// The path of the run's model, with `load_best_model_at_end`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
}

/// Resolves the configuration, runs the pair to its end and writes the report.
pub fn train(config: TrainConfig) -> Result<Trained> {
    train_with(config, None)
}

fn train_with(mut config: TrainConfig, chaos: Option<Chaos>) -> Result<Trained> {
    check_fleet(&config)?;
    let before = resolve::before(&config);
    hub::locate(&mut config, before.as_ref())?.iter().for_each(output::tell);
    let Resolved { mut config, plan, about, checkpoint, .. } = resolve::resolve(config)?;
    about.iter().for_each(output::tell);
    let dir = RunDir::new(&config.output_dir);
    if let Some(step) = is_done(&config, &dir, checkpoint.as_deref()) {
        let steps = steps_in_words(step);
        output::tell(format_args!("all {steps} are made (checkpoint-{step}); raise `max_steps` to go on"));
        return concluded(&config, dir, Outcome::Finished, (0.0, step), false);
    }
    output::tell(&plan);
    output::tell(estimate(&config, checkpoint.as_deref())?);
    resolve::check_weights(&config)?;
    check_tools(&config)?;
    rehearsal::rehearse(&mut config)?;
    // By now the reward functions have their names, and so have the metrics of evaluations.
    config.check_best()?;
    filter(&config)?.iter().for_each(output::tell);
    for hint in hints(&config) {
        output::tell(format_args!("warning: {hint}"));
    }
    let run = directory::prepare(&config)?;
    let dir = run.dir.clone();
    let versions = place_of_versions(&config, &plan, &dir)?;
    let reporter = Reporter::start(&config, &dir)?;
    signals::check()?;
    let begin = Instant::now();
    let mut watch = progress::Progress::new(&config, &run);
    let first_step = watch.steps();
    watch.announce(&config, checkpoint.as_deref().and_then(directory::step_of));
    let limits = Limits { chaos, ..Limits::new(&config) };
    let learner = spec(
        "learner",
        binaries::find("learner")?,
        &run,
        "lower `micro_batch_tokens`, or set `gradient_checkpointing`, `bf16` or `use_peft`",
    );
    let sampler =
        spec("rollout", sampler(&config)?, &run, "lower `max_num_seqs`, or set `kv_dtype` or `rollout_dtype` to int8");
    let outcome = supervise::supervise(learner, sampler, limits, &mut watch);
    // Both processes are gone, and only this run's folder and segments are touched.
    if let Err(error) = remove_leftovers(&dir) {
        watch.say(&format!("warning: killed processes may have left shared memory behind: {error}"));
    }
    drop(versions);
    if matches!(outcome, Ok(Outcome::Finished))
        && let Err(error) = add_lost_evaluations(&dir, &config)
    {
        watch.say(&format!("warning: whether the last evaluation has failed is not told: {error}"));
    }
    // Its last lines may say why it ended.
    watch.finish();
    reporter.into_iter().for_each(Reporter::finish);
    if outcome.is_err() && watch.steps() == first_step {
        run.give_up();
    }
    if let Err(error) = &outcome
        && (watch.steps() > first_step || run.is_new())
    {
        leave_word(&run, How::Failed, Some(&format!("{error:#}")));
    }
    let outcome = outcome?;
    // A start that made no step leaves the run as it was.
    let begun = outcome == Outcome::Finished || watch.steps() > first_step || !dir.report().exists();
    if begun && outcome != Outcome::Finished {
        // Before the report is written, which says so too.
        leave_word(&run, How::Stopped, None);
    }
    let trained = concluded(&config, dir, outcome, (begin.elapsed().as_secs_f64(), first_step), begun)?;
    if begun && outcome == Outcome::Finished {
        match trained.has_learned() {
            Ok(()) => leave_word(&run, How::Finished, None),
            Err(nothing) => leave_word(&run, How::LearnedNothing, Some(&nothing.to_string())),
        }
    }
    Ok(trained)
}

/// Leaves word of how the run ended, for the page: a table of runs shows what an exit code said.
fn leave_word(run: &OwnedRun, how: How, error: Option<&str>) {
    if let Err(problem) = Ended::new(run.id, how, error).leave(&run.dir) {
        output::tell(format_args!("warning: the run's page will not say how it ended: {problem}"));
    }
}

/// The state of a run at its end: its records and, where this start has added to them, its report written anew.
/// `seconds` is the time that the pair worked, and `first_step` the number of steps before it.
fn concluded(
    config: &TrainConfig,
    dir: RunDir,
    outcome: Outcome,
    (seconds, first_step): (f64, u64),
    begun: bool,
) -> Result<Trained> {
    let records = metrics::read(&dir.metrics())?;
    let report = if begun { report::write(&dir) } else { Ok(dir.report()) };
    let report = report.context("the run is complete, but its report could not be written")?;
    let rewards = summary::first_and_last(&records, metrics::REWARD);
    let recorded = records.last().and_then(|r| r.get(metrics::STEP)).unwrap_or(0.0) as u64;
    let summary = Summary {
        // Records may be lost.
        steps: dir.checkpoints()?.last().copied().unwrap_or(0).max(recorded),
        reward_first: rewards.map(|(first, _)| first),
        reward_last: rewards.map(|(_, last)| last),
        seconds,
        tokens_per_s: summary::tokens_per_second(&records, first_step),
        report: report.display().to_string(),
        best: config.metric_for_best_model.as_ref().map(|_| Best::of(&dir)).transpose()?.flatten(),
        model: dir.chosen_checkpoint().filter(|_| config.load_best_model_at_end).map(|_| dir.model()),
    };
    let nothing = match outcome {
        Outcome::Finished => notices::nothing_learned(&records, &notices::read(&dir.notices())?, config),
        Outcome::Interrupted | Outcome::Killed => None,
    };
    if outcome == Outcome::Finished && config.load_best_model_at_end && summary.model.is_none() {
        let log = dir.log("learner");
        output::tell(format_args!("warning: there is no link to the run's model; {} says why", log.display()));
    }
    output::tell(farewell(outcome, nothing.is_none(), config.max_steps, &summary, &dir));
    Ok(Trained { outcome, summary, records, dir, nothing })
}

/// The step of the checkpoint of a run that has nothing left to do, not even an evaluation.
fn is_done(config: &TrainConfig, dir: &RunDir, checkpoint: Option<&Path>) -> Option<u64> {
    let own = checkpoint.filter(|path| path.parent() == Some(dir.root()) && dir.report().exists());
    let step = own.and_then(directory::step_of)?;
    (config.max_steps.is_some_and(|total| total <= step) && !config.evaluates()).then_some(step)
}

/// The place of the run's versions: shared memory, or the disk with the reason.
fn place_of_versions(config: &TrainConfig, plan: &RunPlan, dir: &RunDir) -> Result<VersionPlace> {
    let shared = plan.versions_in_shared_memory();
    if !shared && config.version_storage == VersionStorage::Auto {
        let room = VersionRoom::of(config, ModelDir::open(&config.model).context("`model`")?.config());
        let reason = room.in_shared_memory(config.version_storage).err();
        let reason = reason.unwrap_or_else(|| "learner and sampler need the memory".into());
        output::tell(format_args!("versions of the weights go to disk: {reason}"));
    }
    VersionPlace::open(dir, shared).context("place of the published versions")
}

/// The sampler's program: another one if workers sample, or if agents ask for completions.
fn sampler(config: &TrainConfig) -> Result<PathBuf> {
    match (&config.listen, &config.agent) {
        (Some(_), _) => binaries::fleet("`listen`"),
        (None, Some(_)) => binaries::find_for(binaries::SERVE, "`agent`"),
        (None, None) => binaries::find("rollout"),
    }
}

fn spec(name: &'static str, program: PathBuf, run: &OwnedRun, smaller: &'static str) -> Spec {
    let id = run.id.to_string();
    let args = ["run".into(), "--run-dir".into(), OsString::from(run.dir.root()), "--run-id".into(), id.into()];
    let log = run.dir.log(name);
    Spec { name, program, args: args.to_vec(), env: vec![run.session.variable()], log, smaller }
}

/// `1 step`, `150 steps`.
fn steps_in_words(steps: u64) -> String {
    format!("{steps} step{}", if steps == 1 { "" } else { "s" })
}

fn farewell(outcome: Outcome, has_learned: bool, total: Option<u64>, summary: &Summary, dir: &RunDir) -> String {
    let resume = "tandem train with the same options and --resume_from_checkpoint latest goes on";
    let newest = dir.checkpoints().ok().and_then(|list| list.last().copied());
    let best = summary.best.as_ref().map(|best| format!("; the best is {best}")).unwrap_or_default();
    let report = format!("report: {}", summary.report);
    match (outcome, newest) {
        (Outcome::Finished, _) if !has_learned => report,
        (Outcome::Finished, _) => match total.filter(|total| summary.steps < *total) {
            Some(total) => format!("ended early, after {} of {}{best}; {report}", summary.steps, steps_in_words(total)),
            None => format!("finished {}{best}; {report}", steps_in_words(summary.steps)),
        },
        (Outcome::Interrupted, Some(step)) => format!("stopped in order at checkpoint-{step}; {resume}"),
        (Outcome::Killed, Some(step)) => format!("killed; the newest checkpoint is checkpoint-{step}; {resume}"),
        (_, None) if directory::is_unused(dir).unwrap_or(false) => {
            "ended before the first step; the next start begins anew".to_owned()
        }
        (_, None) => format!(
            "ended before the first checkpoint: there is nothing to go on from, and {} is not empty; choose another \
             `output_dir`, or move this one away",
            dir.root().display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_shown_with_its_default() {
        let text = every_key(&TrainConfig::default());
        assert_eq!(text.lines().count(), OPTIONS.len());
        assert!(
            text.contains("\nnum_generations = 8\n") && text.contains("\n# max_steps = (absent: as many as "),
            "{text}"
        );
    }
}
