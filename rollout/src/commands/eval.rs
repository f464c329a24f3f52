//! `tandem eval`: avg@k, pass@k and maj@k on a dataset.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use rollout_rewards::RewardFunction;
use serde_json::{Map, Value};
use shared::{
    SamplingParams,
    config::{RewardFailure, TrainConfig},
    files::atomic,
    metrics::{self, Figure},
};

use super::{
    complete::{GenerationFlags, Task},
    flags::PromptFlags,
    journal::{self, Journal},
    print,
    prompts::Prompts,
    rows,
    tools::ToolFlags,
};
use crate::evaluation::{self, Judging};

/// Flags of `tandem eval`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// The dataset: rows as `tandem generate --prompts` takes them
    #[arg(long, env = "TANDEM_DATASET", value_name = "FILE")]
    pub dataset: PathBuf,
    /// What counts as correct.
    #[command(flatten)]
    pub judging: JudgingFlags,
    /// Also write the completions, as `tandem generate` does: some kilobytes each. Until all are made, they are kept in
    /// FILE.partial
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Go on with an evaluation that was interrupted, given the same flags: only the prompts that were not done take
    /// time
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// How they are made and scored.
    #[command(flatten)]
    pub generation: GenerationFlags,
    /// Their tools, where they are conversations.
    #[command(flatten)]
    pub tools: ToolFlags,
}

/// How often a model tries, and what counts as correct.
#[derive(Debug, clap::Args)]
pub struct JudgingFlags {
    /// Completions per prompt (k of avg@k): more give a firmer figure and cost time. With one, tokens are chosen
    /// greedily unless --temperature says otherwise; with more, they are drawn at temperature 1
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "K", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// A completion is correct when the first reward function gives at least this, or without functions the environment
    /// of its row [default: 1.5 for correctness (the right number, however written), the full score of the other
    /// built-in functions, 1 for a function of your own and for an environment]
    #[arg(long, env = "TANDEM_CORRECT_AT", value_name = "SCORE", allow_negative_numbers = true)]
    pub correct_at: Option<f64>,
}

impl JudgingFlags {
    /// How tokens are drawn.
    ///
    /// # Errors
    /// A value out of range, several completions that would all be the same, unknown reward functions, and a threshold
    /// that is no number.
    pub fn sampling(&self, generation: &GenerationFlags) -> anyhow::Result<SamplingParams> {
        let greedy = self.num_generations == 1;
        let sampling = generation.sampling.params(if greedy { 0.0 } else { SamplingParams::default().temperature })?;
        ensure!(
            greedy || !sampling.greedy(),
            "--temperature 0 makes all {} completions of a prompt the same; leave --num-generations at 1",
            self.num_generations
        );
        if let Some(correct_at) = self.correct_at {
            ensure!(correct_at.is_finite(), "--correct-at must be a number, got {correct_at}");
        }
        // Unknown functions are found before a model is fetched.
        generation.rewards.functions(None)?;
        Ok(sampling)
    }

    /// How scores are read, where completions may be conversations with tools.
    ///
    /// # Errors
    /// Missing reward functions.
    pub fn judging(&self, generation: &GenerationFlags, tools: Option<&TrainConfig>) -> anyhow::Result<Judging> {
        let functions = generation.rewards.functions(tools)?;
        let of_first = match functions.first() {
            Some(first) => first.reward().correct_at(),
            // An environment that alone gives rewards calls a conversation right with 1.
            None if tools.is_some_and(|tools| tools.environment_factory.is_some()) => 1.0,
            None => bail!("--reward-funcs is missing: `tandem rewards` lists the functions"),
        };
        let correct_at = self.correct_at.unwrap_or(of_first);
        Ok(Judging { correct_at, failure: RewardFailure::Exclude })
    }

    /// Whether the score from which on a completion counts as correct is a guess: neither a flag nor the first function
    /// names it.
    pub fn is_guess(&self, first: Option<&RewardFunction>) -> bool {
        self.correct_at.is_none() && first.is_none_or(|first| first.reward().stated_correct_at().is_none())
    }
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sampling = args.judging.sampling(&args.generation)?;
    let (temperature, seed) = (sampling.temperature, sampling.seed);
    if let Some(output) = &args.output {
        rows::check_output(output, "--dataset", &args.dataset)?;
        journal::check(output, args.resume)?;
    }
    let model = args.prompt.model()?;
    let tools = args.tools.of(&model, &args.generation.rewards)?;
    let judging = args.judging.judging(&args.generation, tools.as_ref())?;
    let functions = args.generation.rewards.functions(tools.as_ref())?;
    let first = functions.first().cloned();
    let completed = args.generation.complete(
        &model,
        &args.prompt.rows,
        &Prompts::Dataset(&args.dataset, "test"),
        Task {
            functions,
            sampling,
            num_generations: args.judging.num_generations,
            correct_at: Some(judging.correct_at),
            keep: args.output.as_deref().filter(|output| !atomic::is_special(output)),
            grammar: None,
            tools: tools.as_ref(),
            watch: None,
        },
    )?;
    if let Some(output) = &args.output {
        rows::write(output, &completed.groups)?;
    }
    let answers_of = |first: &RewardFunction| {
        evaluation::answers(first.reward().as_ref(), completed.dataset.rows(), &completed.groups)
    };
    let answers = first.as_ref().and_then(answers_of);
    let record = evaluation::record(&completed.groups, answers.as_ref(), judging, completed.seconds);
    let mut answer = record.values().clone();
    answer.insert("num_generations".into(), args.judging.num_generations.into());
    answer.insert("temperature".into(), temperature.into());
    answer.insert("seed".into(), seed.into());
    let failures = rows::failures(&completed.groups);
    failures.iter().for_each(|failure| shared::tell!("warning: {failure}"));
    let (failed, prompts) = (evaluation::failed_prompts(&completed.groups, judging), completed.groups.len());
    if failed > 0 {
        shared::tell!("warning: {}", evaluation::in_words(failed, prompts));
    }
    let remarks = evaluation::remarks(&completed.groups, judging, args.judging.is_guess(first.as_ref()));
    remarks.iter().for_each(|remark| shared::tell!("warning: {remark}"));
    if let (None, Some(first)) = (&answers, &first) {
        shared::tell!(
            "no maj@{}: `{}` does not extract an answer that completions could agree on",
            args.judging.num_generations,
            first.name()
        );
    }
    shared::tell!("{}", table(&answer).trim_end());
    print(&answer.into())?;
    completed.journal.map(Journal::finish).transpose()?;
    if record.get(metrics::EVAL_SCORED_PROMPTS) == Some(0.0) {
        return Err(rows::nothing_judged(&completed.groups, &failures));
    }
    evaluation::check_failed(failed, prompts)
}

/// The metrics as an aligned table, a line each; an interval stands in the line of its figure.
fn table(values: &Map<String, Value>) -> String {
    const ENDS: [&str; 2] = ["_ci95_low@", "_ci95_high@"];
    let shown = || values.iter().filter(|(key, _)| !ENDS.iter().any(|end| key.contains(end)));
    let width = shown().map(|(key, _)| key.len()).max().unwrap_or(0);
    let interval = |key: &str| {
        let (name, k) = key.split_once('@')?;
        let [low, high] = ENDS.map(|end| values.get(&format!("{name}{end}{k}")).and_then(Value::as_f64));
        Some(format!("  95 % interval {:.4} to {:.4}", Figure(low?), Figure(high?)))
    };
    let line = |(key, value): (&String, &Value)| match value.as_f64() {
        Some(number) if value.is_f64() => {
            format!("{key:width$}  {:.4}{}\n", Figure(number), interval(key).unwrap_or_default())
        }
        Some(_) => format!("{key:width$}  {value}\n"),
        None => format!("{key:width$}  -\n"),
    };
    shown().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned() {
        let values = serde_json::json!({
            "pass@2": 0.5, "pass_ci95_low@2": 0.25, "pass_ci95_high@2": 0.75, "eval_prompts": 3, "eval_reward": null,
            "eval_seconds": 2.0, "eval_high": 1e300
        });
        let table = table(values.as_object().unwrap());
        let lines: std::collections::BTreeSet<&str> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "pass@2        0.5000  95 % interval 0.2500 to 0.7500",
                "eval_high     1.0000e300",
                "eval_prompts  3",
                "eval_reward   -",
                "eval_seconds  2.0000"
            ]
            .into()
        );
    }
}
