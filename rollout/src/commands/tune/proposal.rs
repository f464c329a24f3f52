//! The results of a search: a table, a TOML file that `tandem train` understands, a record.

use std::{fmt::Write, path::Path, time::Duration};

use anyhow::Context;
use serde_json::{Value, json};
use shared::{config::TrainConfig, files::atomic};

use super::{
    super::flags::BatchingFlags,
    learner::Halves,
    search::{Search, Trial},
    work::Task,
};
use crate::engine::EngineOptions;

/// How the file begins.
pub(super) const TITLE: &str = "# Proposed by `tandem tune`";

/// The best setting beside the usual one.
pub(super) struct Proposal<'a> {
    search: &'a Search<'a>,
    task: &'a Task,
    /// The settings that the flags ask for.
    asked: TrainConfig,
    usual: &'a Trial,
    best: &'a Trial,
    halves: Option<&'a Halves>,
    seconds: f64,
}

impl<'a> Proposal<'a> {
    /// `usual` and `best` as the search has measured them.
    pub fn new(
        search: &'a Search<'a>,
        task: &'a Task,
        asked: &BatchingFlags,
        [usual, best]: [&'a Trial; 2],
        took: Duration,
    ) -> Self {
        Self { search, task, asked: asked.config(), usual, best, halves: None, seconds: took.as_secs_f64() }
    }

    /// Adds the measurements of the learner.
    pub fn with_learner(self, halves: Option<&'a Halves>) -> Self {
        Self { halves, ..self }
    }

    /// Threads of the sampler.
    fn threads(&self) -> usize {
        let split = self.halves.and_then(Halves::split);
        split.map_or(self.best.setting.threads, |split| split.rollout_threads)
    }

    fn options(&self) -> &EngineOptions {
        &self.search.options
    }

    /// Everything that was measured.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |args: std::fmt::Arguments<'_>| writeln!(text, "{args}").expect("writing to a String");
        line(format_args!(
            "{:>8} {:>7} {:>12} {:>22} {:>10} {:>7} {:>8}",
            "kernels", "threads", "max_num_seqs", "max_num_batched_tokens", "tokens/s", "rounds", "KV MiB"
        ));
        for (stage, trials) in &self.search.stages {
            line(format_args!("{stage}:"));
            for trial in trials {
                let setting = trial.setting;
                let rate = match (trial.rates.is_empty(), trial.projected) {
                    (true, _) => "no time".to_owned(),
                    (false, true) => format!("~{:.0}", trial.rate()),
                    (false, false) => format!("{:.0}", trial.rate()),
                };
                line(format_args!(
                    "{:>8} {:>7} {:>12} {:>22} {rate:>10} {:>7} {:>8.1}{}",
                    setting.kernels.to_string(),
                    setting.threads,
                    setting.max_num_seqs,
                    setting.max_num_batched_tokens,
                    trial.rates.len(),
                    trial.kv_bytes as f64 / f64::from(1 << 20),
                    if setting == self.best.setting { "  <" } else { "" }
                ));
            }
        }
        text
    }

    /// The keys, and how they were found as comments.
    fn toml(&self) -> String {
        let (setting, options) = (self.best.setting, self.options());
        let mut text = format!("{TITLE}; append it to run.toml.\n");
        let mut line = |args: std::fmt::Arguments<'_>| writeln!(text, "{args}").expect("writing to a String");
        line(format_args!("# Work: {}.", self.task.source));
        if self.best.setting == self.usual.setting {
            let text = "what is used without flags; nothing was found to be better";
            line(format_args!("# {:.0} tokens/s: {text}; measured in {:.0} s.", self.best.rate(), self.seconds));
        } else {
            line(format_args!(
                "# {:.0} tokens/s, against {:.0} without flags ({}); measured in {:.0} s.",
                self.best.rate(),
                self.usual.rate(),
                self.usual.setting,
                self.seconds
            ));
        }
        self.table().lines().for_each(|row| line(format_args!("# {row}")));
        if let Some(halves) = self.halves {
            halves.splits.iter().for_each(|split| line(format_args!("# {split}")));
            halves.bf16().into_iter().for_each(|words| line(format_args!("# {words}")));
        }
        line(format_args!("rollout_threads = {}", self.threads()));
        if let Some(split) = self.halves.and_then(Halves::split) {
            line(format_args!("learner_threads = {}", split.learner_threads));
        }
        line(format_args!("rollout_kernels = \"{}\"", setting.kernels));
        for (option, value) in self.given() {
            line(format_args!("{option} = {value}"));
        }
        line(format_args!("max_num_seqs = {}", setting.max_num_seqs));
        line(format_args!("max_num_batched_tokens = {}", setting.max_num_batched_tokens));
        if self.task.real_prompts {
            line(format_args!("# Longest prompt plus longest completion: what would be longer is cut off."));
            line(format_args!("max_model_len = {}", options.max_model_len));
        } else {
            line(format_args!("# No max_model_len: the prompts were made up (--dataset names real ones)."));
        }
        text
    }

    /// The same as flags of `generate`, `bench` and `eval`.
    pub fn flags(&self) -> String {
        let setting = self.best.setting;
        let mut text = format!(
            " --threads {} --kernels {} --max-num-seqs {} --max-num-batched-tokens {} --max-model-len {}",
            self.threads(),
            setting.kernels,
            setting.max_num_seqs,
            setting.max_num_batched_tokens,
            self.options().max_model_len
        );
        for (option, value) in self.given() {
            // As `--rollout-dtype`, which is called so everywhere.
            let flag = option.strip_prefix("rollout_").filter(|&rest| rest != "dtype").unwrap_or(option);
            let value = Some(value.trim_matches('"')).filter(|&value| value != "true");
            text += &format!(" --{}", flag.replace('_', "-"));
            text.extend(value.map(|value| format!(" {value}")));
        }
        text
    }

    /// Options that the user asked for beside the tuned ones: key and value, as in TOML.
    fn given(&self) -> Vec<(&'static str, String)> {
        const TUNED: &[&str] = &["rollout_kernels", "max_num_batched_tokens"];
        let given = self.asked.given().into_iter().filter(|(option, _)| !TUNED.contains(&option.key));
        given.map(|(option, value)| (option.key, value.to_string())).collect()
    }

    /// Writes the file in one visible step.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        atomic::write_output(path, self.toml().as_bytes()).context("--output")
    }

    /// The record for programs.
    pub fn record(&self) -> Value {
        let setting = self.best.setting;
        json!({
            "rollout_threads": self.threads(),
            "learner_threads": self.halves.and_then(Halves::split).map(|split| split.learner_threads),
            "learner_step_s": self.halves.map(|halves| halves.step),
            "learner_bf16_step_s": self.halves.and_then(|halves| halves.bf16_step),
            "step_s": self.halves.and_then(Halves::split).map(|split| split.step),
            "rollout_kernels": setting.kernels,
            "max_num_seqs": setting.max_num_seqs,
            "max_num_batched_tokens": setting.max_num_batched_tokens,
            "max_model_len": self.options().max_model_len,
            "tokens_per_s": self.best.rate(),
            "usual_tokens_per_s": self.usual.rate(),
            "projected": self.best.projected,
            "trials": self.search.stages.iter().map(|(_, trials)| trials.len()).sum::<usize>(),
            "seconds": self.seconds,
        })
    }
}
