//! `rollout evaluate`: the evaluation of a run on request. A model answers the prompts of the run greedily, and the
//! run's reward functions score the answers, as between two steps of the run. An export of the model can do the same
//! and be compared with it.

use std::{
    iter,
    ops::ControlFlow,
    path::{Path, PathBuf},
    slice, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rollout_rewards::RewardFunction;
use serde::Serialize;
use serde_json::json;
use shared::{
    PolicyVersion, SamplingParams, Scored,
    config::{TrainConfig, layers},
    metrics,
    process::pace::Waiting,
};
use shared_hub::Hub;

use super::{
    check_rewards::leave_nothing_behind,
    compare::sentence,
    model::{self, NamedModel},
    print, rows,
};
use crate::{
    assembly::Assembly,
    data::{Dataset, Tokenizer},
    engine::{Constrained, Engine, EngineOptions, Output, WeightSource},
    evaluation::{
        self, Judging,
        paired::{self, Difference},
    },
    generate,
    pair::setup::prompt_options,
    reward, structured_outputs,
};

/// Sequences that are decoded at once: beyond this a processor gains little.
const SEQUENCES: usize = 64;

/// Flags of `rollout evaluate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Graph and weights that were read back from an export of the model
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    pub weights: Option<PathBuf>,
    /// An export of the model for ONNX Runtime GenAI
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Longest sequence of the export
    #[arg(long, value_name = "N")]
    pub positions: Option<usize>,
    /// Take only the first N prompts
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    pub rows: usize,
    /// The configuration file, then options as of `tandem train`: `model` is evaluated, on `eval_dataset`, else on
    /// `dataset`
    #[arg(value_name = "RUN.toml", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// What an export changes.
#[derive(Debug, Serialize)]
struct Effect {
    /// The difference between the shares of right answers.
    accuracy: Option<Difference>,
    /// The difference between the mean rewards.
    reward: Option<Difference>,
    /// Share of tokens that are the same in their place, of the longer one of two answers.
    same_tokens: f64,
    /// The differences in words.
    sentences: Vec<String>,
}

/// Runs the subcommand. The answer on stdout is a line of JSON.
///
/// # Errors
/// A configuration, model, dataset or export that cannot be used, and reward functions that cannot be started.
pub fn run(args: &Args) -> anyhow::Result<()> {
    leave_nothing_behind()?;
    let (file, options) = layers::file_and_options(&args.words);
    let mut config = layers::load_named(file, &layers::parse_overrides(options)?)?;
    config.validate()?;
    if config.eval_dataset.is_some() {
        // Nobody needs them, and they may be far away.
        config.dataset = Default::default();
    }
    let located = shared_hub::locate(&mut config, None, &Hub::of_command());
    located.map_err(|(option, error)| anyhow::Error::from(error).context(format!("`{option}`")))?;
    let evaluation = Evaluation::open(config, args)?;
    let (groups, seconds) = evaluation.answers(&mut evaluation.of_model()?)?;
    let record = evaluation::record(&groups, None, evaluation.judging(), seconds);
    if record.get(metrics::EVAL_SCORED_PROMPTS) == Some(0.0) {
        return Err(rows::nothing_judged(&groups, &rows::failures(&groups)));
    }
    let mut answer = json!({
        "dataset": evaluation.option,
        "prompts": evaluation.dataset.len(),
        "model": record.values(),
    });
    if let Some(mut engine) = evaluation.of_export(args)? {
        let (of_export, _) = evaluation.answers(&mut engine)?;
        answer["export"] = serde_json::to_value(effect(&groups, &of_export, evaluation.judging()))?;
    }
    print(&answer)
}

/// Everything that an evaluation takes beside an engine.
struct Evaluation {
    config: TrainConfig,
    /// As the engine computes: for the comparison of an export, as it does without options.
    computing: TrainConfig,
    model: NamedModel,
    tokenizer: Tokenizer,
    constraint: Option<Constrained>,
    functions: Vec<RewardFunction>,
    /// The option that names the dataset.
    option: &'static str,
    dataset: Dataset,
    max_model_len: usize,
    threads: usize,
}

impl Evaluation {
    fn open(config: TrainConfig, args: &Args) -> anyhow::Result<Self> {
        let model = NamedModel::find(&config.model).context("`model`")?;
        let model = model.with_chat_template(config.chat_template.as_deref())?;
        let tokenizer = Tokenizer::open_at(model.dir(), config.template_now())?
            .with_template_kwargs(config.chat_template_kwargs.as_ref());
        let constraint =
            structured_outputs::of_run(&config, model.dir(), &tokenizer).context("`structured_outputs_regex`")?;
        let functions =
            reward::registry().on(config.reward_host()).functions(&config.reward_funcs).context("`reward_funcs`")?;
        let (option, paths, part) = match &config.eval_dataset {
            Some(path) => ("eval_dataset", slice::from_ref(path), config.test_part()),
            None => ("dataset", &config.dataset[..], config.train_part()),
        };
        let named = || format!("`{option}`");
        let options = prompt_options(&config);
        let loaded = Dataset::load_first(paths, part, &tokenizer, &options, args.rows);
        let mut dataset = loaded.with_context(named)?;
        reward::check(&functions, &dataset).context("`reward_funcs`")?;
        let room = [config.max_model_len, args.positions].into_iter().flatten().fold(model::limit(&model)?, usize::min);
        dataset.leave_out_long(room).with_context(named)?;
        let longest = dataset.longest_prompt() + config.max_completion_length as usize;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let is_comparison = args.weights.is_some() || args.folder.is_some();
        Ok(Self {
            computing: if is_comparison { TrainConfig::default() } else { config.clone() },
            max_model_len: room.min(longest),
            threads: config.threads(cores).0,
            config,
            model,
            tokenizer,
            constraint,
            functions,
            option,
            dataset,
        })
    }

    /// How scores are read, as in the evaluations of the run.
    fn judging(&self) -> Judging {
        Judging { correct_at: self.functions[0].reward().correct_at(), failure: self.config.reward_failure }
    }

    fn of_model(&self) -> anyhow::Result<Engine> {
        let dtype = self.computing.rollout_device.export_dtype();
        self.engine(&model::export(&self.model, dtype, self.max_model_len)?)
    }

    /// An engine over the export that is given, if one is.
    fn of_export(&self, args: &Args) -> anyhow::Result<Option<Engine>> {
        match (&args.weights, &args.folder) {
            (Some(weights), _) => self.engine(weights).map(Some),
            (None, Some(folder)) => {
                Ok(Some(Engine::of_folder(folder, self.model.dir(), self.threads, self.max_model_len)?))
            }
            (None, None) => Ok(None),
        }
    }

    fn engine(&self, dir: &Path) -> anyhow::Result<Engine> {
        let sequences = self.dataset.len().min(SEQUENCES);
        let of_config = EngineOptions::computing(&self.computing, sequences, self.max_model_len);
        let mut options = EngineOptions { threads: self.threads, spinning: true, ..of_config };
        options.fit(None, self.model.dir().config(), options.device.export_dtype())?;
        let weights = WeightSource { dir: dir.to_owned(), version: PolicyVersion(0) };
        let _waiting = Waiting::new("loading the model");
        Ok(Engine::new(weights, self.model.dir(), options)?)
    }

    /// The scored answers in the order of the prompts, and the seconds that they took.
    fn answers(&self, engine: &mut Engine) -> anyhow::Result<(Vec<Scored>, f64)> {
        let begin = Instant::now();
        let _waiting = Waiting::new(format!("answering {} prompts", self.dataset.len()));
        let deadline = Duration::from_secs_f64(self.config.reward_timeout);
        let scoring = reward::scoring(&self.functions, self.threads, deadline, self.config.weighted_rewards())
            .context("threads of the reward functions")?;
        let sampling = SamplingParams { temperature: 0.0, ..self.config.sampling() };
        let assembly = Assembly::new(self.tokenizer.clone(), sampling, 1, Some(scoring));
        let mut assembly = assembly.with_constraint(self.constraint.clone());
        for (row, position) in self.dataset.rows().iter().zip(0..) {
            engine.begin(assembly.begin(row, 0, position).into())?;
        }
        let mut groups = Vec::with_capacity(self.dataset.len());
        generate::finish(engine, |_, outputs| {
            for sequence in outputs.into_iter().filter_map(Output::ended) {
                assembly.add(sequence, Vec::new())?;
            }
            groups.extend(iter::from_fn(|| assembly.finished()));
            Ok(ControlFlow::Continue(()))
        })?;
        groups.extend(iter::from_fn(|| assembly.wait()));
        groups.sort_unstable_by_key(|group| group.position);
        rows::failures(&groups).iter().for_each(|failure| shared::tell!("warning: {failure}"));
        Ok((groups, begin.elapsed().as_secs_f64()))
    }
}

/// Compares the answers of an export with those of its model, prompt by prompt.
fn effect(model: &[Scored], export: &[Scored], judging: Judging) -> Effect {
    let accuracy = paired::compare(&paired::accuracies(model, export, judging));
    let reward = paired::compare(&paired::rewards(model, export, judging));
    let named = [("accuracy", &accuracy), ("reward", &reward)];
    let in_words = |(name, found): (&str, &Option<Difference>)| Some(sentence(name, "the export", found.as_ref()?));
    let sentences = named.into_iter().filter_map(in_words).collect();
    Effect { accuracy, reward, same_tokens: same_tokens(model, export), sentences }
}

/// The share of tokens that are the same in their place. Of two answers, the longer one is counted.
fn same_tokens(model: &[Scored], export: &[Scored]) -> f64 {
    let (mut same, mut all) = (0, 0);
    for (a, b) in model.iter().zip(export).flat_map(|(a, b)| a.completions.iter().zip(&b.completions)) {
        let (a, b) = (a.token_ids(), b.token_ids());
        same += a.iter().zip(b).filter(|(a, b)| a == b).count();
        all += a.len().max(b.len());
    }
    same as f64 / (all.max(1)) as f64
}

#[cfg(test)]
mod tests {
    use shared::{Completion, Group, RewardOutcome, config::RewardFailure, generation::testing};

    use super::*;

    /// A group for each answer, with its score.
    fn groups<const N: usize>(answers: [(Vec<u32>, f64); N]) -> Vec<Scored> {
        let group = |((tokens, score), position): ((Vec<u32>, f64), u64)| {
            let rewards = vec![RewardOutcome::Score(score)];
            let completion = Completion { rewards, ..testing::completion(0, tokens) };
            let group = testing::group(position, vec![completion]);
            Scored::from(Group { reward_names: vec![("digits".into(), 1.0)], ..group })
        };
        answers.into_iter().zip(0..).map(group).collect()
    }

    #[test]
    fn an_export_is_compared_answer_by_answer() {
        let model = groups([(vec![1, 2, 3], 1.0), (vec![4], 1.0), (vec![5, 6], 0.0), (vec![7], 1.0)]);
        let export = groups([(vec![1, 2, 9, 9], 0.0), (vec![4], 1.0), (vec![5, 6], 0.0), (vec![8], 0.5)]);
        let judging = Judging { correct_at: 1.0, failure: RewardFailure::Exclude };
        let found = effect(&model, &export, judging);
        // 2 of 4, 1 of 1, 2 of 2 and 0 of 1.
        assert!((found.same_tokens - 5.0 / 8.0).abs() < 1e-12, "{}", found.same_tokens);
        let (accuracy, reward) = (found.accuracy.unwrap(), found.reward.unwrap());
        assert_eq!((accuracy.a, accuracy.b, accuracy.difference), (0.75, 0.25, -0.5));
        assert_eq!((reward.a, reward.b, reward.prompts), (0.75, 0.375, 4));
        assert!(found.sentences[0].starts_with("accuracy: no difference: 0.7500 -> 0.2500, by -0.5000 (95 % interval"));
        assert!(found.sentences[1].starts_with("reward: no difference: 0.7500 -> 0.3750"), "{:?}", found.sentences);
        let same = effect(&model, &model, judging);
        assert!(same.same_tokens == 1.0 && same.accuracy.unwrap().interval == [0.0, 0.0]);
    }
}
