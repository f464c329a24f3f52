//! From a run directory to a running sampler.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow};
use rollout_rewards::{RewardFunction, filter::FilterMetric};
use shared::{
    ModelDir, PolicyVersion, RunDir, SamplingParams, WeightManifest, WeightReceiver,
    channel::{LearnerStatus, RunId, SamplerStatus, incarnation, iox::IoxSampler, weights::SwapReport},
    config::TrainConfig,
    process::{
        heartbeat::{self, Deadlines, Phase},
        session, signals,
    },
    run::prompts::LongPrompts,
};
use shared_data::Columns;

use super::{
    evaluation::Evaluation,
    factory::{GeneratorFactory, RunParts},
    in_flight::{Keeper, Kept},
    link::Link,
    order::{PromptOrder, Share},
    plan::{DynamicSampling, Plan, PlanOptions},
    step_loop::{Ended, StepLoop},
    weights::DirectoryReceiver,
};
use crate::{
    assembly::Assembly,
    data::{Dataset, DatasetError, PromptOptions, Tokenizer},
    engine::{Constrained, EngineOptions, positions_of},
    evaluation::Judging,
    generate::{PairGenerator, follower::WeightFollower},
    reward, structured_outputs, trace,
    turns::Conversations,
};

/// Memory for groups that were trained on and whose checkpoint is still to come. Groups that do not fit are made again
/// if the learner falls back.
const KEPT_BYTES: usize = 256 << 20;

/// Runs the sampler of a run directory until the learner says that the run is over, or a signal asks for the end.
/// `given` is the id of the run that the launcher has given it, and `factory` makes the generator.
///
/// # Errors
/// With context for the user: a bad configuration, model or dataset, a silent learner, an engine or channel that fails.
pub fn run(run_dir: &RunDir, given: Option<RunId>, factory: &dyn GeneratorFactory) -> anyhow::Result<Ended> {
    heartbeat::start()?;
    let run = RunId::join(run_dir, given)?;
    let config = session::config(run_dir)?;
    config.validate()?;
    factory.check(&config)?;
    let deadlines = Deadlines::of(&config);
    let stop = signals::listen(deadlines).context("signal handler")?;
    let model = ModelDir::of_run(&config).context("`model`")?;
    let inputs = Inputs::load(&config, &model)?;

    let end = IoxSampler::open(run_dir, run)?;
    let status = SamplerStatus { incarnation: incarnation(), ..SamplerStatus::default() };
    let link = Link::start(end, status, deadlines.silence_of_peer(), (run_dir.clone(), run))
        .context("thread of the channel")?;
    tracing::info!("waiting for the learner");
    let Some(first) = link.next_status(&stop, |_| true)? else {
        return Ok(Ended::BySignal);
    };
    heartbeat::beat(Phase::Load);
    if first.finished && config.eval_steps.is_none() {
        return Ok(Ended::RunOver);
    }
    if config.rollout_trace {
        trace::start();
    }
    let Some((mut step_loop, mut generator)) =
        inputs.step_loop(run_dir, &config, &model, (link, first), stop, factory)?
    else {
        return Ok(Ended::BySignal);
    };
    let result = step_loop.run(&mut *generator);
    if matches!(result, Ok(Ended::RunOver)) {
        generator.close();
    }
    trace::write(&run_dir.trace()).context("trace of the sampler")?;
    result
}

/// Everything that is read before the learner is asked for anything.
struct Inputs {
    tokenizer: Tokenizer,
    constraint: Option<Constrained>,
    dataset: Dataset,
    rewards: Vec<RewardFunction>,
    eval_dataset: Option<Dataset>,
    /// In a run with tools.
    conversations: Option<Conversations>,
}

impl Inputs {
    fn load(config: &TrainConfig, model: &ModelDir) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::open_at(model, config.template_now())?
            .with_template_kwargs(config.chat_template_kwargs.as_ref());
        let constraint = structured_outputs::of_run(config, model, &tokenizer).context("`structured_outputs_regex`")?;
        let options = prompt_options(config);
        let rewards =
            reward::registry().on(config.reward_host()).functions(&config.reward_funcs).context("`reward_funcs`")?;
        let conversations = Conversations::of(config, model, &tokenizer, reward::names_of_raters(&rewards))?;
        let load = |paths: &[PathBuf], part: (&str, Option<&str>)| -> anyhow::Result<Dataset> {
            let mut dataset = Dataset::load(paths, part, &tokenizer, &options)?;
            if let Some(conversations) = &conversations {
                conversations.add_tools(&mut dataset)?;
            }
            reward::check(&rewards, &dataset).context("`reward_funcs`")?;
            Ok(dataset)
        };
        let dataset = load(&config.dataset, config.train_part()).context("`dataset`")?;
        let wanted = config.eval_dataset.as_ref().filter(|_| config.evaluates());
        let load_held_out = |path| load(std::slice::from_ref(path), config.test_part());
        let eval_dataset = wanted.map(load_held_out).transpose().context("`eval_dataset`")?;
        Ok(Self { tokenizer, constraint, dataset, rewards, eval_dataset, conversations })
    }

    /// Leaves out the prompts that fill `room`. Reports them and the oddities of prompts to the launcher.
    fn leave_out_long(&mut self, run_dir: &RunDir, config: &TrainConfig, room: usize) -> anyhow::Result<()> {
        let look = |dataset: &mut Dataset, trained: Option<&Dataset>| {
            look_over(dataset, trained, &self.tokenizer, &self.rewards, config, room)
        };
        let mut prompts = look(&mut self.dataset, None).context("`dataset`")?;
        prompts.remarks.splice(..0, self.tokenizer.remarks().iter().cloned());
        let mut found = vec![prompts];
        if let Some(dataset) = &mut self.eval_dataset {
            found.push(look(dataset, Some(&self.dataset)).context("`eval_dataset`")?);
        }
        found.iter().flat_map(LongPrompts::lines).for_each(|line| tracing::warn!("{line}"));
        LongPrompts::write(&run_dir.prompts(), &found).context("prompts.json")
    }

    fn step_loop(
        mut self,
        run_dir: &RunDir,
        config: &TrainConfig,
        model: &ModelDir,
        (link, mut first): (Link, LearnerStatus),
        stop: Arc<AtomicBool>,
        factory: &dyn GeneratorFactory,
    ) -> anyhow::Result<Option<(StepLoop, Box<dyn PairGenerator>)>> {
        let mut receiver = DirectoryReceiver::new(run_dir.clone(), &first, link.status());
        let manifest = WeightManifest::read(&receiver.published().source.dir)?;
        let room = room(config, model.config().max_position_embeddings, positions_of(&manifest, model.config()));
        self.leave_out_long(run_dir, config, room)?;
        let options = self.engine_options(config, model, room);
        self.refuse_growth(config, model, options.max_model_len)?;
        let parts = RunParts {
            run_dir,
            config,
            model,
            tokenizer: &self.tokenizer,
            options: options.clone(),
            learner: &mut first,
            receiver: &mut receiver,
            link: &link,
            stop: &stop,
        };
        let Some(generator) = factory.generator(parts)? else { return Ok(None) };
        let generator = match self.conversations.take() {
            Some(conversations) => conversations.around(generator, &options),
            None => generator,
        };
        receiver.taken(&SwapReport::of_first(first.version));
        tracing::info!("groups kept for a restart of the learner: at most {} MiB", KEPT_BYTES >> 20);
        // A synchronous run makes lost versions again as they were, unless it is resumed with other options. Where
        // results decide about checkpoints, versions that are made again are evaluated again.
        let repeats = config.max_staleness == 0 && config.metric_for_best_model.is_none();
        let newest = if repeats { PolicyVersion(u64::MAX) } else { first.version };
        let evaluation = self.evaluation(run_dir, config, first.total_steps, newest)?;
        let mut plan = Plan::new(PlanOptions {
            groups_per_step: config.groups_per_step(),
            max_staleness: config.max_staleness,
            max_unsent: config.groups_per_step() as usize,
            kept_bytes: KEPT_BYTES,
            dynamic_sampling: self.dynamic_sampling(config)?,
        });
        let kept = Kept::open(run_dir, &first, config.num_generations);
        plan.observe(first);
        let step_loop = StepLoop {
            plan,
            kept,
            keeper: Keeper::new(run_dir.clone()),
            order: self.order(config)?,
            num_generations: config.num_generations,
            assembly: self.assembly(config, config.sampling(), config.num_generations)?,
            evaluation,
            dataset: self.dataset,
            weights: WeightFollower::of(config),
            receiver,
            link,
            stop,
        };
        Ok(Some((step_loop, generator)))
    }

    fn order(&self, config: &TrainConfig) -> anyhow::Result<PromptOrder> {
        let seed = config.shuffle_dataset.then_some(config.seed);
        let shares = shares(&self.dataset, config).map_err(|problem| anyhow!("`dataset_weights`: {problem}"))?;
        let Some(shares) = shares else {
            return Ok(PromptOrder::new(self.dataset.len(), seed));
        };
        for (path, share) in config.dataset.iter().zip(&shares) {
            tracing::info!(
                "{} of {} prompts of an epoch are from {}",
                share.drawn(),
                self.dataset.len(),
                path.display()
            );
        }
        Ok(PromptOrder::mixture(shares, seed))
    }

    fn dynamic_sampling(&self, config: &TrainConfig) -> anyhow::Result<Option<DynamicSampling>> {
        if !config.dynamic_sampling {
            return Ok(None);
        }
        let metric = filter_metric(config).map_err(|problem| anyhow!("`filter_groups_metric`: {problem}"))?;
        tracing::info!("dynamic sampling keeps {}", metric.describe(&config.reward_funcs));
        let contrast = metric.contrast(&self.rewards, config.contrast());
        Ok(Some(DynamicSampling {
            max_attempts: config.dynamic_sampling_max_attempts,
            contrast,
            failure: config.reward_failure,
        }))
    }

    fn engine_options(&self, config: &TrainConfig, model: &ModelDir, room: usize) -> EngineOptions {
        let datasets = self.eval_dataset.iter().chain([&self.dataset]);
        let longest = datasets.map(Dataset::longest_prompt).max().unwrap_or(0);
        if let Some(cut) = cut_short(config, longest, room, model.config().max_position_embeddings) {
            tracing::warn!("{cut}");
        }
        EngineOptions::of(config, model.config(), max_model_len(config, longest, room))
    }

    /// Refuses prompts whose completions would grow across the original length of a model with longrope.
    fn refuse_growth(&self, config: &TrainConfig, model: &ModelDir, max_model_len: usize) -> anyhow::Result<()> {
        let Some(original) = model.config().original_length() else { return Ok(()) };
        let completion = config.max_completion_length as usize;
        for dataset in self.eval_dataset.iter().chain([&self.dataset]) {
            if let Some((row, tokens)) = dataset.first_across(original, completion, max_model_len) {
                anyhow::bail!(
                    "{}: prompt {row} has {tokens} tokens, and with `max_completion_length` {completion} it would grow \
                     across {original} tokens (`original_max_position_embeddings`), where longrope turns every \
                     position otherwise; set `max_model_len` to {original}, lower `max_completion_length`, or leave \
                     such prompts out",
                    dataset.name()
                );
            }
        }
        Ok(())
    }

    fn assembly(
        &self,
        config: &TrainConfig,
        sampling: SamplingParams,
        num_generations: u32,
    ) -> anyhow::Result<Assembly> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let deadline = Duration::from_secs_f64(config.reward_timeout);
        let scoring = reward::scoring(&self.rewards, cores, deadline, config.weighted_rewards())
            .context("threads of the reward functions")?;
        let assembly = Assembly::new(self.tokenizer.clone(), sampling, num_generations, Some(scoring));
        Ok(assembly.with_constraint(self.constraint.clone()))
    }

    fn evaluation(
        &self,
        run_dir: &RunDir,
        config: &TrainConfig,
        total_steps: u64,
        newest: PolicyVersion,
    ) -> anyhow::Result<Option<Evaluation>> {
        let (Some(dataset), Some(every)) = (&self.eval_dataset, config.eval_steps) else {
            return Ok(None);
        };
        let assembly = self.assembly(config, SamplingParams { temperature: 0.0, ..config.sampling() }, 1)?;
        // An environment that alone gives rewards calls an episode right with 1.
        let correct_at = self.rewards.first().map_or(1.0, |function| function.reward().correct_at());
        let judging = Judging { correct_at, failure: config.reward_failure };
        Evaluation::new(run_dir, dataset.clone(), assembly, judging, every, total_steps, newest).map(Some)
    }
}

/// How the rows of a run become prompts.
pub(crate) fn prompt_options(config: &TrainConfig) -> PromptOptions {
    PromptOptions {
        system_prompt: config.system_prompt.clone(),
        max_prompt_length: config.max_prompt_length,
        columns: Columns {
            prompt: config.prompt_column.clone(),
            answer: config.answer_column.clone(),
            may_lack_prompt: config.environment_factory.is_some(),
        },
        with_tools: config.has_tools(),
    }
}

/// Leaves out the prompts of a dataset that fill `room`, and returns remarks on the others and on their answers. With
/// an evaluation dataset, `trained` are the prompts of the training.
pub(super) fn look_over(
    dataset: &mut Dataset,
    trained: Option<&Dataset>,
    tokenizer: &Tokenizer,
    rewards: &[RewardFunction],
    config: &TrainConfig,
    room: usize,
) -> Result<LongPrompts, DatasetError> {
    let is_held_out = trained.is_some();
    let remarks = dataset.remarks(tokenizer, &prompt_options(config));
    let long = dataset.leave_out_long(room)?;
    let mut prompts = dataset.count_crowded(long, room, config.max_completion_length as usize);
    // The prompts of environments may all be the same: the rows differ in what environments make of them.
    let trained = trained.filter(|_| config.environment_factory.is_none());
    prompts.remarks.extend(trained.and_then(|trained| dataset.overlap(trained)));
    prompts.remarks.extend(remarks);
    let of = if is_held_out { "`eval_dataset`: " } else { "" };
    prompts.remarks.extend(reward::unreadable(rewards, dataset).iter().map(|line| format!("{of}{line}")));
    Ok(prompts)
}

/// The share of each source in an epoch, where sources have weights.
pub(super) fn shares(dataset: &Dataset, config: &TrainConfig) -> Result<Option<Vec<Share>>, String> {
    let nothing =
        |index: usize| format!("{} gets no prompt of an epoch; give it more", config.dataset[index].display());
    Share::of(&dataset.sizes(), &config.dataset_weights).map_err(nothing)
}

/// The test by which dynamic sampling keeps a group.
fn filter_metric(config: &TrainConfig) -> Result<FilterMetric, String> {
    FilterMetric::choose(config.filter_groups_metric.as_deref(), &config.reward_funcs, config.contrast())
}

/// Tokens that prompt and completion may have together, for a model with `limit` positions of which `rows` are
/// exported.
pub(super) fn room(config: &TrainConfig, limit: usize, rows: usize) -> usize {
    config.max_model_len.unwrap_or(limit.min(rows))
}

/// Longest sequence of a run whose longest prompt has `longest` tokens, within `room`.
fn max_model_len(config: &TrainConfig, longest: usize, room: usize) -> usize {
    config.max_model_len.unwrap_or(room.min(longest + config.room_behind_prompts()))
}

/// The message for a run that cuts completions of the longest prompt although the model, with `limit` positions, has
/// more room.
fn cut_short(config: &TrainConfig, longest: usize, room: usize, limit: usize) -> Option<String> {
    let wanted = longest + config.max_completion_length as usize;
    (config.max_model_len.is_none() && room < wanted && room < limit).then(|| {
        format!(
            "the longest prompt has {longest} tokens and `max_completion_length` is {}, and the learner has exported \
             {room} positions: completions of such prompts are cut; set `max_model_len` to {}, or to less with \
             shorter prompts (`max_prompt_length`, which runs with tools do not take)",
            config.max_completion_length,
            wanted.min(limit)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::byte_tokenizer;

    /// A run and its dry run look at the same things.
    #[test]
    fn prompts_without_room_and_answers_that_no_rule_reads_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = byte_tokenizer(None);
        let load = |name: &str, rows: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, rows).unwrap();
            Dataset::load(&[path], ("train", None), &tokenizer, &PromptOptions::default()).unwrap()
        };
        let mut trained = load(
            "a.jsonl",
            "{\"prompt\": \"2+3=\", \"answer\": \"5\"}\n{\"prompt\": \"2+3+4+5+6=\", \"answer\": {\"x\": 20}}",
        );
        let config = TrainConfig { max_completion_length: 4, ..TrainConfig::default() };
        let rewards = vec![reward::registry().function("accuracy").unwrap()];
        let told = |dataset: &mut Dataset, trained: Option<&Dataset>| {
            look_over(dataset, trained, &tokenizer, &rewards, &config, 12).unwrap().lines()
        };
        let lines = told(&mut trained, None);
        assert!(lines[0].contains("of 2 prompts 1 with room for fewer than the 4 tokens"), "{lines:?}");
        assert!(
            lines[1].starts_with("reward function `accuracy`: column `answer` holds mappings in 1 of 2"),
            "{lines:?}"
        );
        let mut held_out = load("b.jsonl", "{\"prompt\": \"2+3=\", \"answer\": {\"x\": 5}}");
        let lines = told(&mut held_out, Some(&trained));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].starts_with("`eval_dataset`: reward function `accuracy`: column `answer`"), "{lines:?}");
    }

    #[test]
    fn sequences_longer_than_the_export_are_cut_with_the_option_that_makes_it_longer() {
        let of = |longest, max_completion_length, given| {
            let config = TrainConfig { max_completion_length, max_model_len: given, ..TrainConfig::default() };
            let room = room(&config, 131_072, 32_768);
            (max_model_len(&config, longest, room), cut_short(&config, longest, room, 131_072))
        };
        assert_eq!(of(100, 512, None), (612, None));
        assert_eq!(of(100, 512, Some(300)), (300, None));
        assert_eq!(of(40_000, 512, Some(40_100)), (40_100, None), "the learner exports what the option says");
        let (length, cut) = of(32_700, 512, None);
        let cut = cut.unwrap();
        assert_eq!(length, 32_768);
        assert!(cut.contains("`max_model_len` to 33212") && cut.contains("32768 positions"), "{cut}");
    }
}
