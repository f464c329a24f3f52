//! `rollout compare`: whether one model does better than another on the same prompts.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use exporters::Checkpoint;
use serde::Serialize;
use shared::{RunDir, SamplingParams, Scored, files::atomic, metrics::Figure};

use super::{
    complete::{GenerationFlags, Task},
    eval::JudgingFlags,
    flags::RowFlags,
    model::NamedModel,
    print,
    prompts::Prompts,
    rows,
    tools::ToolFlags,
};
use crate::{
    data::Tokenizer,
    evaluation::{
        self,
        paired::{self, Difference, Verdict},
    },
};

/// Flags of `rollout compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model, a checkpoint, or a run, of which the best checkpoint is taken if it has recorded one, else the newest
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// What is compared with it
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// The prompts: rows as `tandem generate --prompts` takes them
    #[arg(long, env = "TANDEM_DATASET", value_name = "FILE")]
    pub dataset: PathBuf,
    /// Seed of B's completions, where they are not greedy [default: --seed; another one shows what chance does]
    #[arg(long, value_name = "N")]
    pub seed_b: Option<u64>,
    /// How prompts are made.
    #[command(flatten)]
    pub rows: RowFlags,
    /// What counts as correct.
    #[command(flatten)]
    pub judging: JudgingFlags,
    /// How they are made and scored.
    #[command(flatten)]
    pub generation: GenerationFlags,
    /// Their tools, where they are conversations.
    #[command(flatten)]
    pub tools: ToolFlags,
}

/// The result that is printed.
#[derive(Debug, Serialize)]
struct Answer {
    a: PathBuf,
    b: PathBuf,
    num_generations: u32,
    temperature: f32,
    seed: u64,
    seed_b: u64,
    /// The difference between the shares of right completions.
    accuracy: Option<Difference>,
    /// The difference between the mean rewards.
    reward: Option<Difference>,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sampling = args.judging.sampling(&args.generation)?;
    let seed_b = args.seed_b.unwrap_or(sampling.seed);
    // Faults of B are found before A has answered everything.
    let opened = |name, at: &Path| opened(at, args).with_context(|| format!("{name} ({})", at.display()));
    let models = [opened("A", &args.a)?, opened("B", &args.b)?];
    let tools = args.tools.of_both(&models, &args.generation.rewards)?;
    let judging = args.judging.judging(&args.generation, tools.as_ref())?;
    let is_guess = args.judging.is_guess(args.generation.rewards.functions(tools.as_ref())?.first());
    let answers = |model: &NamedModel, seed: u64| -> anyhow::Result<Vec<Scored>> {
        shared::tell!("completing the prompts with {}", model.folder().display());
        let sampling = SamplingParams { seed, ..sampling.clone() };
        let functions = args.generation.rewards.functions(tools.as_ref())?;
        let prompts = Prompts::Dataset(&args.dataset, "test");
        let task = Task {
            functions,
            sampling,
            num_generations: args.judging.num_generations,
            correct_at: Some(judging.correct_at),
            keep: None,
            grammar: None,
            tools: tools.as_ref(),
            watch: None,
        };
        let completed = args.generation.complete(model, &args.rows, &prompts, task)?;
        let failures = rows::failures(&completed.groups);
        failures.iter().for_each(|failure| shared::tell!("warning: {failure}"));
        Ok(completed.groups)
    };
    let (a, b) = both(answers(&models[0], sampling.seed)?, answers(&models[1], seed_b)?);
    let failed = [&a, &b].map(|groups| evaluation::failed_prompts(groups, judging)).into_iter().max().unwrap_or(0);
    if failed > 0 {
        shared::tell!("warning: {}", evaluation::in_words(failed, a.len()));
    }
    for (name, groups) in [("A", &a), ("B", &b)] {
        for remark in evaluation::remarks(groups, judging, is_guess) {
            shared::tell!("warning: {name}: {remark}");
        }
    }
    let answer = Answer {
        a: models[0].folder().to_owned(),
        b: models[1].folder().to_owned(),
        num_generations: args.judging.num_generations,
        temperature: sampling.temperature,
        seed: sampling.seed,
        seed_b,
        accuracy: paired::compare(&paired::accuracies(&a, &b, judging)),
        reward: paired::compare(&paired::rewards(&a, &b, judging)),
    };
    let differences = [("accuracy", &answer.accuracy), ("reward", &answer.reward)];
    let sentences: Vec<String> =
        differences.iter().filter_map(|(name, difference)| Some(sentence(name, "B", difference.as_ref()?))).collect();
    sentences.iter().for_each(|sentence| shared::tell!("{sentence}"));
    ensure!(
        answer.accuracy.is_some() || answer.reward.is_some(),
        "no two prompts could be scored with both models, and fewer say nothing"
    );
    let mut answer = serde_json::to_value(answer)?;
    print(&answer)?;
    answer["sentences"] = sentences.into();
    for run in runs_of([models[0].folder(), models[1].folder()]) {
        let path = run.comparisons();
        if let Err(error) = keep(&path, &answer) {
            shared::tell!(
                "warning: {} could not be written, so the run's page does not show this: {error}",
                path.display()
            );
        }
    }
    evaluation::check_failed(failed, a.len())
}

/// The runs that the models are checkpoints of, each once.
fn runs_of(models: [&Path; 2]) -> Vec<RunDir> {
    let mut folders: Vec<&Path> = models.iter().filter_map(|model| model.parent()).collect();
    folders.dedup();
    folders.into_iter().map(RunDir::new).filter(|run| run.config().is_file() && run.metrics().is_file()).collect()
}

/// Adds a line to the comparisons of a run.
fn keep(path: &Path, answer: &serde_json::Value) -> io::Result<()> {
    let mut file = atomic::append(path)?;
    let added = file.write_all(format!("{answer}\n").as_bytes()).and_then(|()| file.sync_data());
    added.map_err(atomic::named(path))
}

/// A model whose tokenizer and weights can be used.
fn opened(named: &Path, args: &Args) -> anyhow::Result<NamedModel> {
    let model = NamedModel::find(named)?;
    model.tell_choice();
    let model = model.with_chat_template(args.rows.template.chat_template.as_deref())?;
    Tokenizer::open(model.dir())?;
    Checkpoint::open(model.dir())?;
    Ok(model)
}

/// The groups of the prompts that both models have answered: one may have left a prompt out for its length.
fn both(a: Vec<Scored>, b: Vec<Scored>) -> (Vec<Scored>, Vec<Scored>) {
    let mut b = b.into_iter().peekable();
    let of_both = |a: Scored| {
        while b.next_if(|group| group.prompt_id < a.prompt_id).is_some() {}
        Some((b.next_if(|group| group.prompt_id == a.prompt_id)?, a))
    };
    a.into_iter().filter_map(of_both).map(|(b, a)| (a, b)).unzip()
}

/// The difference in a figure in words; `second` is the second model.
pub(super) fn sentence(name: &str, second: &str, difference: &Difference) -> String {
    let Difference { prompts, a, b, difference: by, interval: [low, high], p_value, verdict } = difference;
    let (words, chance) = match verdict {
        Verdict::Better => (format!("{second} is better"), "more than chance"),
        Verdict::Worse => (format!("{second} is worse"), "more than chance"),
        Verdict::NoDifference => ("no difference".to_owned(), "no more than chance"),
    };
    let [a, b, by, low, high] = [a, b, by, low, high].map(|figure| Figure(*figure));
    let p = if *p_value < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p_value:.3}") };
    format!(
        "{name}: {words}: {a:.4} -> {b:.4}, by {by:+.4} (95 % interval {low:+.4} to {high:+.4}, {p}) over {prompts} \
         prompts; {chance}"
    )
}

#[cfg(test)]
mod tests {
    use shared::{Group, PromptId, generation::testing};

    use super::*;

    #[test]
    fn prompts_that_one_model_has_left_out_are_left_out() {
        let groups = |ids: &[u64]| -> Vec<Scored> {
            let group = |(prompt_id, position)| {
                let group = testing::group(position, vec![testing::completion(0, vec![1])]);
                Group { prompt_id: PromptId(prompt_id), ..group }.into()
            };
            ids.iter().copied().zip(0..).map(group).collect()
        };
        let (a, b) = both(groups(&[1, 2, 4, 7]), groups(&[0, 2, 3, 4, 9]));
        let ids = |groups: &[Scored]| groups.iter().map(|group| group.prompt_id.0).collect::<Vec<_>>();
        assert_eq!((ids(&a), ids(&b)), (vec![2, 4], vec![2, 4]));
    }

    #[test]
    fn a_sentence_says_what_the_difference_is_worth() {
        let difference = paired::compare(&[(0.0, 0.5), (0.25, 0.75), (0.5, 1.0), (0.25, 0.5)]).unwrap();
        let text = sentence("accuracy", "B", &difference);
        let expected = "accuracy: B is better: 0.2500 -> 0.6875, by +0.4375 (95 % interval +0.2386 to +0.6364, p = \
            0.006) over 4 prompts; more than chance";
        assert_eq!(text, expected);
    }
}
