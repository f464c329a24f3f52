//! The learner's share of a step, measured by its own program, and the cores split between the two halves.

use std::{
    env, fmt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use shared::{ModelDir, config::Device};

use super::{
    Args,
    search::{Search, Setting, TIE},
    work::Task,
};

/// bf16 changes results, so it is recommended only where a step takes at most this part of the time.
const BF16_PAYS: f64 = 0.8;

/// Flags that bring the learner in.
#[derive(Debug, clap::Args)]
pub struct LearnerFlags {
    /// Measure the learner too, on one group of the step: says what a step takes, whether bf16 pays and, with
    /// --max-staleness, how to split the cores
    #[arg(long)]
    pub with_learner: bool,
    /// As in the run: above 0 both halves compute at once, each on cores of its own, and their split is proposed
    #[arg(long, value_name = "N", default_value_t = 0, requires = "with_learner", conflicts_with = "threads")]
    pub max_staleness: u64,
    /// As in the run; without it the learner is measured both ways, which takes twice as long
    #[arg(long, requires = "with_learner")]
    pub bf16: bool,
    /// As in the run, where it takes less memory and more time
    #[arg(long, requires = "with_learner")]
    pub gradient_checkpointing: bool,
    /// The rank of the adapter, in a run with `use_peft`, which takes less memory and time
    #[arg(long, value_name = "R", requires = "with_learner", value_parser = clap::value_parser!(u32).range(1..))]
    pub lora_r: Option<u32>,
}

/// The measurements of the learner.
pub(super) struct Halves {
    /// Seconds of a step of the learner on all cores.
    pub step: f64,
    /// The same in bf16, where that was the question.
    pub bf16_step: Option<f64>,
    /// The splits that were measured, the usual one first; none in a synchronous run.
    pub splits: Vec<Split>,
}

/// Cores of both halves, and what they did with them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Split {
    pub rollout_threads: usize,
    pub learner_threads: usize,
    /// Seconds in which the sampler generates a step.
    pub generation: f64,
    /// Seconds in which the learner learns from it.
    pub learning: f64,
    /// Seconds of a step of the pair.
    pub step: f64,
}

impl Split {
    /// `alone` is the learner's time on all cores, which it has as soon as the sampler waits.
    fn new(threads: [usize; 2], generation: f64, learning: f64, alone: f64) -> Self {
        let left = (1.0 - generation / learning).max(0.0);
        // Where all cores were slower than these, other programs took a part of them.
        let alone = alone.min(learning);
        let [rollout_threads, learner_threads] = threads;
        Self { rollout_threads, learner_threads, generation, learning, step: generation + left * alone }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rollout_threads, learner_threads, generation, learning, step } = self;
        write!(
            f,
            "{rollout_threads} threads generate a step in {generation:.2} s, {learner_threads} learn from one in \
             {learning:.2} s: {step:.2} s a step"
        )
    }
}

impl LearnerFlags {
    /// Refuses what cannot be measured, before anything is.
    pub fn check(&self, args: &Args) -> anyhow::Result<()> {
        ensure!(
            !self.with_learner || args.num_generations > 1,
            "--with-learner: a group of one completion teaches nothing; raise --num-generations"
        );
        ensure!(
            self.max_staleness == 0 || args.batching.device == Device::Cpu,
            "--max-staleness: cores are split where both halves compute on the CPU; leave it out with a GPU"
        );
        Ok(())
    }
}

impl Halves {
    /// Measures what the flags ask for.
    pub fn measure(
        args: &Args,
        model: &ModelDir,
        task: &Task,
        search: &Search<'_>,
        best: Setting,
    ) -> anyhow::Result<Option<Self>> {
        let flags = &args.learner;
        if !flags.with_learner {
            return Ok(None);
        }
        let bench = Bench { args, model, task };
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let step = bench.step(all, flags.bf16)?;
        let bf16_step = if flags.bf16 { None } else { Some(bench.step(all, true)?) };
        let mut splits = Vec::new();
        if flags.max_staleness > 0 {
            for threads in candidates(all) {
                let generation = search.step_seconds(Setting { threads, ..best })?;
                let learning = bench.step(all - threads, flags.bf16)?;
                let split = Split::new([threads, all - threads], generation, learning, step);
                shared::tell!("{split}");
                splits.push(split);
            }
        }
        Ok(Some(Self { step, bf16_step, splits }))
    }

    /// The split with the shortest step: the usual one where another is no better.
    pub fn split(&self) -> Option<&Split> {
        let best = self.splits.iter().map(|split| split.step).fold(f64::INFINITY, f64::min);
        self.splits.iter().find(|split| split.step * TIE <= best)
    }

    /// Whether bf16 is worth its other results, and the words for it.
    pub fn bf16(&self) -> Option<String> {
        let step = self.bf16_step?;
        let verdict = if step <= BF16_PAYS * self.step { "bf16 = true pays here" } else { "bf16 does not pay here" };
        Some(format!("{verdict}: the learner takes {step:.2} s a step with it, {:.2} s without", self.step))
    }
}

/// Threads of the sampler that are tried: half of the cores, as without a proposal, then a quarter and three.
fn candidates(cores: usize) -> Vec<usize> {
    let mut list: Vec<usize> = Vec::new();
    let quarter = cores.div_ceil(4);
    for threads in [cores / 2, quarter, cores - quarter] {
        if (1..cores).contains(&threads) && !list.contains(&threads) {
            list.push(threads);
        }
    }
    list
}

/// `learner bench`, beside this program.
struct Bench<'a> {
    args: &'a Args,
    model: &'a ModelDir,
    task: &'a Task,
}

/// The part of its record that is read.
#[derive(Deserialize)]
struct Record {
    fwd_bwd_s: f64,
    optimizer_s: f64,
}

impl Bench<'_> {
    /// Seconds of a step. One group is measured, and its passes stand for those of all groups of the step.
    fn step(&self, threads: usize, bf16: bool) -> anyhow::Result<f64> {
        let Args { num_prompts, num_generations, learner, .. } = self.args;
        let mean = |sum: u64, count: usize| sum.div_ceil(count as u64).max(1).to_string();
        let prompt_length = mean(self.task.prompt_tokens(), self.task.workload.prompts.len());
        let completion_length = mean(self.task.completion_tokens(), self.task.workload.lengths.len());
        let own = env::current_exe().context("the path of this program")?;
        let program = own.parent().unwrap_or(Path::new(".")).join("learner");
        let mut command = Command::new(&program);
        command.args([
            "bench",
            "--num-prompts",
            "1",
            "--steps",
            "1",
            "--num-generations",
            &num_generations.to_string(),
        ]);
        command.args(["--prompt-length", &prompt_length, "--completion-length", &completion_length]);
        command
            .args(["--threads", &threads.to_string(), "--model"])
            .arg(self.model.adapter().unwrap_or(self.model.path()));
        command.args(bf16.then_some("--bf16"));
        command.args(learner.gradient_checkpointing.then_some("--gradient-checkpointing"));
        command.args(learner.lora_r.map(|r| format!("--lora-r={r}")));
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("--with-learner: {} cannot be started", program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim_end().lines().last().unwrap_or("it said nothing");
            bail!(
                "--with-learner: `learner bench` ended with {}: {}",
                output.status,
                last.trim_start_matches("error: ")
            );
        }
        let stdout = String::from_utf8_lossy(&output.stdout);
        let record: Record = serde_json::from_str(stdout.trim_end().lines().last().unwrap_or_default())
            .context("--with-learner: `learner bench` printed no record; is it of the same version?")?;
        let step = record.fwd_bwd_s * f64::from(*num_prompts) + record.optimizer_s;
        let kind = if bf16 { " in bf16" } else { "" };
        shared::tell!("learner, {threads} threads{kind}: {step:.2} s a step");
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_is_tried_first_and_nobody_is_left_without_one() {
        assert_eq!(candidates(16), [8, 4, 12]);
        assert_eq!(candidates(4), [2, 1, 3]);
        assert_eq!(candidates(3), [1, 2]);
        assert_eq!(candidates(2), [1]);
        assert!(candidates(1).is_empty(), "both halves share the one core");
    }

    #[test]
    fn a_step_ends_with_the_slower_half_and_a_learner_that_is_behind_gets_the_sampler_s_cores() {
        // Generation is the longer half.
        assert_eq!(Split::new([1, 1], 3.0, 2.0, 1.0).step, 3.0);
        // After 2 s half of the learning is left, which all cores do in half of 3 s.
        assert_eq!(Split::new([1, 1], 2.0, 4.0, 3.0).step, 3.5);
    }

    #[test]
    fn the_usual_split_stays_where_another_is_no_better() {
        let splits = |steps: &[f64]| Halves {
            step: 1.0,
            bf16_step: None,
            splits: steps.iter().enumerate().map(|(i, &s)| Split::new([i + 1, 9], s, 1.0, 1.0)).collect(),
        };
        let chosen = |steps: &[f64]| splits(steps).split().map(|split| split.rollout_threads);
        assert_eq!(chosen(&[2.0, 1.99]), Some(1));
        assert_eq!(chosen(&[2.0, 1.5, 3.0]), Some(2));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn bf16_is_recommended_where_it_saves_much() {
        let halves = |bf16_step| Halves { step: 10.0, bf16_step, splits: Vec::new() };
        assert!(halves(Some(2.0)).bf16().unwrap().contains("pays here: the learner takes 2.00 s"));
        assert!(halves(Some(9.0)).bf16().unwrap().contains("does not pay"));
        assert_eq!(halves(None).bf16(), None);
    }
}
