//! `tandem iterate`: iterative GRPO as in DeepSeekMath (algorithm 1). Every round trains the reward model further, on
//! fresh comparisons of the policy's completions and a replay of old ones. It then makes the policy the new reference,
//! and trains the policy on the new reward model.
//!
//! A round is a folder with a `tandem train` run in it. Finished parts of a round are not done again, so the command
//! can be repeated after an interruption.

mod comparisons;
mod words;

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::{
    RunDir,
    config::{TrainConfig, layers},
    files::atomic,
};

use crate::{
    programs::tool,
    supervise::Outcome,
    terminal::{output, signals},
    train,
};
use comparisons::Judged;

/// Words of `tandem iterate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration of every round; `model` is where the first one starts, the reward model joins `reward_funcs`
    #[arg(value_name = "RUN.toml")]
    config: PathBuf,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Model directory that the reward model starts from: a sequence classifier, or a language model, which gets a new
    /// head; without it, `model`
    #[arg(long, value_name = "DIR")]
    reward_model: Option<PathBuf>,
    /// Reward function that ranks the completions which are compared
    #[arg(long, value_name = "NAME", required_unless_present = "pairs", conflicts_with = "pairs")]
    judge: Option<String>,
    /// Comparisons instead of a judge: JSONL as for `tandem reward-model`, shared out over the rounds
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Prompts whose completions are compared in a round; each gives at most one comparison
    #[arg(long, value_name = "N", default_value_t = 256)]
    comparisons: usize,
    /// Share of replayed comparisons of earlier rounds in the reward model's training
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    history_share: f64,
    /// Peak learning rate of the reward model
    #[arg(long, value_name = "RATE", default_value_t = 1e-5)]
    reward_learning_rate: f64,
    /// Passes of the reward model over a round's comparisons
    #[arg(long, value_name = "N", default_value_t = 1)]
    reward_epochs: u32,
    /// Options that win over RUN.toml, as for `tandem train`
    #[arg(value_name = "OPTIONS", last = true)]
    overrides: Vec<String>,
}

/// The results of a finished round.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Round {
    round: u32,
    /// Judge's mean reward of the policy's completions before the round.
    judged: Option<f64>,
    /// Fresh comparisons; all comparisons that the reward model trained on in all its passes, and the replayed ones
    /// among them.
    pairs: u64,
    trained: u64,
    replayed: u64,
    /// Share of the comparisons that the reward model ranks right, before and after its training.
    accuracy_before: f64,
    accuracy_after: f64,
    /// Mean reward of the first and the last steps, the reward model's part included.
    reward_first: Option<f64>,
    reward_last: Option<f64>,
    /// The policy at the end of the round, with which the next round and its reference begin.
    policy: PathBuf,
    reward_model: PathBuf,
}

/// Runs `tandem iterate`. The last line on stdout is one JSON object.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!((0.0..1.0).contains(&args.history_share), "--history-share must be in [0, 1), got {}", args.history_share);
    let rate = args.reward_learning_rate;
    ensure!(rate > 0.0 && rate.is_finite(), "--reward-learning-rate must be finite and above 0, got {rate}");
    let overrides = layers::parse_overrides(&args.overrides).map_err(train::explained)?;
    let mut config = layers::load_named(Some(&args.config), &overrides).map_err(train::explained)?;
    ensure!(
        config.structured_outputs_regex.is_none(),
        "`structured_outputs_regex`: the comparisons of a round are completions of `rollout generate`, which would not \
         follow it; leave it out, or train with `tandem train`"
    );
    if config.beta == 0.0 {
        output::tell(
            "warning: `beta` is 0, so there is no reference policy: the policy that a round begins with holds nothing \
             back, unlike in iterative GRPO (DeepSeekMath has 0.04)",
        );
    }
    let root = std::path::absolute(&config.output_dir)?;
    // Resumed rounds keep the commits of the first one.
    let first = layers::load(Some(&RunDir::new(root.join("round-1/run")).config()), &Vec::new()).ok();
    train::locate(&mut config, first.as_ref())?.iter().for_each(output::tell);
    fs::create_dir_all(&root).with_context(|| format!("`output_dir` {}", root.display()))?;
    // A second process would write the same comparisons and reward models.
    let _lock = train::hold(&root.join("iterate.lock"), &root, Duration::ZERO)?;
    let start = args.reward_model.clone().unwrap_or_else(|| config.model.clone());
    let mut job = Job { args, root, policy: config.model.clone(), reward_model: std::path::absolute(start)?, config };
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        let Some(done) = job.round(round)? else {
            return Ok(train::interrupted());
        };
        job.policy.clone_from(&done.policy);
        job.reward_model.clone_from(&done.reward_model);
        rounds.push(done);
    }
    let last = job.sample(args.rounds + 1)?;
    let judged: Vec<Option<f64>> = rounds.iter().map(|r| r.judged).chain([last.and_then(|l| l.reward)]).collect();
    output::print(json!({ "rounds": rounds, "judged": judged, "model": job.policy }));
    Ok(ExitCode::SUCCESS)
}

/// The state between two rounds.
struct Job<'a> {
    args: &'a Args,
    config: TrainConfig,
    root: PathBuf,
    policy: PathBuf,
    reward_model: PathBuf,
}

impl Job<'_> {
    fn path(&self, round: u32, name: &str) -> PathBuf {
        self.root.join(format!("round-{round}")).join(name)
    }

    /// One round; none if it was interrupted.
    fn round(&self, round: u32) -> Result<Option<Round>> {
        signals::check()?;
        let record = self.path(round, "round.json");
        if let Ok(text) = fs::read_to_string(&record) {
            return serde_json::from_str(&text).with_context(|| record.display().to_string()).map(Some);
        }
        output::tell(format_args!("\nround {round} of {}: comparisons", self.args.rounds));
        let judged = self.sample(round)?;
        let fresh = match (&judged, &self.args.pairs) {
            (Some(judged), _) => judged.pairs.clone(),
            (None, Some(file)) => comparisons::share(&comparisons::lines(file)?, round, self.args.rounds)?,
            (None, None) => bail!("name a --judge or a file of --pairs"),
        };
        ensure!(
            !fresh.is_empty(),
            "round {round}: the judge sees no difference between any two completions of a prompt"
        );
        output::tell(format_args!("round {round} of {}: reward model, {} comparisons", self.args.rounds, fresh.len()));
        let learned = self.reward_model(round, &fresh)?;
        output::tell(format_args!("round {round} of {}: policy", self.args.rounds));
        let trained = train::train(self.training(round)?)?;
        trained.has_learned()?;
        if trained.outcome != Outcome::Finished {
            return Ok(None);
        }
        let number = |key| tool::number(&learned, key);
        let done = Round {
            round,
            judged: judged.and_then(|j| j.reward),
            pairs: number("pairs")? as u64,
            trained: number("trained")? as u64,
            replayed: number("replayed")? as u64,
            accuracy_before: number("accuracy_before")?,
            accuracy_after: number("accuracy_after")?,
            reward_first: trained.summary.reward_first,
            reward_last: trained.summary.reward_last,
            policy: trained.model(),
            reward_model: self.path(round, "reward-model"),
        };
        atomic::write(&record, serde_json::to_string_pretty(&done)?.as_bytes())?;
        Ok(Some(done))
    }

    /// Completions of the policy as it is before a round, judged; none if the comparisons come from a file.
    fn sample(&self, round: u32) -> Result<Option<Judged>> {
        let Some(judge) = &self.args.judge else {
            return Ok(None);
        };
        let (prompts, samples) = (self.path(round, "prompts.jsonl"), self.path(round, "samples.jsonl"));
        fs::create_dir_all(self.path(round, ""))?;
        if !samples.exists() {
            let config = &self.config;
            let rows = comparisons::choose_prompts(config, self.args.comparisons, round).context("`dataset`")?;
            comparisons::write(&prompts, &rows)?;
            let words = words::of_sampling(config, &self.policy, &prompts, &samples, judge, round);
            tool::run("rollout", &words, &self.path(round, "samples.log"))?;
        }
        comparisons::judge(&samples).map(Some)
    }

    /// The reward model of a round, trained further from that of the round before; returns the figures of its training.
    fn reward_model(&self, round: u32, fresh: &[String]) -> Result<serde_json::Value> {
        let (output, figures) = (self.path(round, "reward-model"), self.path(round, "reward-model.json"));
        let pairs = self.path(round, "pairs.jsonl");
        if output.exists() && figures.exists() {
            return Ok(serde_json::from_str(&fs::read_to_string(&figures)?)?);
        }
        if output.exists() {
            fs::remove_dir_all(&output)?;
        }
        comparisons::write(&pairs, fresh)?;
        let mut words = words::of_reward_model(&self.config, &self.reward_model, &pairs, &output, round);
        words = words.with("learning-rate", self.args.reward_learning_rate).with("epochs", self.args.reward_epochs);
        if round > 1 {
            let history = self.path(round, "history.jsonl");
            let old = comparisons::history((1..round).map(|r| self.path(r, "pairs.jsonl")))?;
            comparisons::write(&history, &old)?;
            words = words.with("history", history.display()).with("history-share", self.args.history_share);
        }
        let learned = tool::answer("learner", &words, &self.path(round, "reward-model.log"));
        // The learner knows these two by other names.
        let learned = learned.context("the reward model, by --reward-learning-rate and --reward-epochs")?;
        atomic::write(&figures, learned.to_string().as_bytes())?;
        Ok(learned)
    }

    /// The policy's training in a round. The learner takes the run's starting model as reference, which here is the
    /// policy at the end of the last round.
    fn training(&self, round: u32) -> Result<TrainConfig> {
        let mut config = self.config.clone();
        config.model.clone_from(&self.policy);
        config.output_dir = self.path(round, "run");
        // TOML has no larger numbers.
        config.seed = self.config.seed.wrapping_add(u64::from(round)) & i64::MAX as u64;
        // A colon would end the parameter.
        let path = self.path(round, "reward-model").display().to_string().replace(':', "\\:");
        let weights = self.config.weighted_rewards().into_iter().map(|(_, weight)| weight);
        config.reward_weights = [1.0].into_iter().chain(weights).collect();
        config.reward_funcs.insert(0, format!("model:path={path}"));
        // A run that ended before its first checkpoint begins anew.
        let interrupted = train::goes_on(&RunDir::new(&config.output_dir))?;
        config.resume_from_checkpoint = interrupted.then(|| "latest".to_owned());
        Ok(config)
    }
}
