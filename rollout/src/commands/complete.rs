//! Completing every prompt of a dataset: what `generate`, `eval` and `compare` have in common.

use std::{
    collections::HashSet,
    fs, iter,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, ensure};
use rollout_rewards::RewardFunction;
use serde_json::{Map, Value, json};
use shared::{
    ModelDir, SamplingParams, Scored,
    config::TrainConfig,
    model::manifest::WeightManifest,
    process::{command_line::tell_warnings, pace::Waiting},
};

use super::{
    constraint::Wanted,
    flags::{BatchingFlags, RewardFlags, RowFlags, SamplingFlags, TraceFlags},
    journal::Journal,
    model::{self, NamedModel},
    progress::Progress,
    prompts::Prompts,
    tools,
};
use crate::{
    assembly::{Assembly, Scoring},
    data::{Dataset, PromptRow, Tokenizer},
    engine::{Constrained, Engine, EngineOptions, Output, Request},
    evaluation,
    generate::{self, PairGenerator},
    reward,
    trace::{self, Event},
    turns::Conversations,
};

/// Conversations that are begun at once, each with an environment, where the engine does not decode more: enough to
/// keep it busy while others wait for their tools.
const CONVERSATIONS: usize = 256;

/// Every completion of a dataset.
pub struct Completed {
    /// The prompts.
    pub dataset: Dataset,
    /// One group per row, in order.
    pub groups: Vec<Scored>,
    /// Sampled tokens.
    pub tokens: u64,
    /// Seconds of generation, those of interrupted sessions included; export and start of the engine are not counted.
    pub seconds: f64,
    /// The journal that has kept the groups, if one was asked for.
    pub journal: Option<Journal>,
    /// Why completions were given up: their constraint could not go on.
    pub given_up: Option<String>,
}

/// The work that is done for each prompt.
pub struct Task<'a> {
    /// The functions that score the completions.
    pub functions: Vec<RewardFunction>,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Completions of each prompt.
    pub num_generations: u32,
    /// The first function's score from which a completion counts as correct, where progress is to show their share.
    pub correct_at: Option<f64>,
    /// The output beside which finished groups are kept. Groups that are kept there are not made again.
    pub keep: Option<&'a Path>,
    /// The grammar that completions follow.
    pub grammar: Option<Wanted<'a>>,
    /// The configuration of tools and environments, where completions are conversations with them.
    pub tools: Option<&'a TrainConfig>,
    /// Whoever sees completions as they are made.
    pub watch: Option<&'a mut dyn Watch>,
}

/// Sees completions as they are made. A completion is known by the position of its prompt among those that are
/// completed and by its index there.
pub trait Watch {
    /// These prompts will be completed.
    fn begin(&mut self, rows: &[PromptRow], tokenizer: &Tokenizer);

    /// Whether it wants tokens as they come.
    fn streams(&self) -> bool;

    /// Whether progress may be shown on stderr meanwhile.
    fn leaves_room(&self) -> bool;

    /// The next token of a completion, where tokens are wanted.
    ///
    /// # Errors
    /// What ends the generation.
    fn token(&mut self, position: u64, sample: u32, id: u32) -> anyhow::Result<()>;

    /// A completion has ended.
    ///
    /// # Errors
    /// What ends the generation.
    fn ended(&mut self, position: u64, sample: u32) -> anyhow::Result<()>;

    /// All completions of a prompt are there, and scored.
    ///
    /// # Errors
    /// What ends the generation.
    fn group(&mut self, group: &Scored) -> anyhow::Result<()>;
}

/// Flags of the commands that complete a dataset.
#[derive(Debug, clap::Args)]
pub struct GenerationFlags {
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
    /// Reward functions.
    #[command(flatten)]
    pub rewards: RewardFlags,
    /// The timeline.
    #[command(flatten)]
    pub trace: TraceFlags,
}

impl GenerationFlags {
    /// Completes every prompt and has the functions score the completions.
    ///
    /// # Errors
    /// A model, tokenizer or dataset that cannot be used, flags out of range, too little memory, what the engine
    /// reports.
    pub fn complete(
        &self,
        model: &NamedModel,
        rows: &RowFlags,
        prompts: &Prompts<'_>,
        Task { functions, sampling, num_generations, correct_at, keep, grammar, tools, watch }: Task<'_>,
    ) -> anyhow::Result<Completed> {
        let waiting = Waiting::new("reading tokenizer and dataset");
        let tokenizer = rows.tokenizer(model.dir())?;
        let mut dataset = rows.dataset_for(prompts, &tokenizer, tools)?;
        drop(waiting);
        tell_warnings(model.dir().remarks_on_generation());
        let held = tools.map(|tools| tools::held(tools, &self.rewards, &functions, sampling.max_completion_length));
        let conversations = match &held {
            Some(held) => {
                // The processes of the run's environments start in another folder.
                let raters = reward::names_of_raters(&functions);
                let raters = raters.iter().map(|rater| tools::found_from_here(rater)).collect();
                Conversations::of(held, model.dir(), &tokenizer, raters)?
            }
            None => None,
        };
        if let Some(conversations) = &conversations {
            conversations.add_tools(&mut dataset)?;
        }
        let scoring = self.rewards.scoring(functions, &dataset, self.batching.threads()?, held.as_ref())?;
        let is_asked = self.sampling.max_completion_length.is_some();
        let compile = |Wanted { name, grammar, by }| by.compile(name, &grammar, &tokenizer, model.dir());
        let constraint = grammar.map(compile).transpose()?;
        let mut generation = Generation { dataset, sampling, constraint, is_asked, num_generations, correct_at, held };
        self.trace.start()?;
        let (engine, export) = generation.engine(model, &self.batching)?;
        let kept = keep.map(|output| {
            let rewards = scoring.as_ref().map(|scoring| scoring.names.as_slice()).unwrap_or_default();
            Journal::open(output, &generation.identity(model.dir(), &export, engine.options(), rewards)?)
        });
        let kept = kept.transpose()?;
        let options = engine.options().clone();
        let mut generator: Box<dyn PairGenerator> = match conversations {
            Some(conversations) => conversations.around(Box::new(engine), &options),
            None => Box::new(engine),
        };
        let completed =
            generation.complete((&mut *generator, options.max_num_seqs), tokenizer, scoring, kept, watch)?;
        self.trace.write()?;
        Ok(completed)
    }
}

/// A dataset to complete, and how.
struct Generation {
    dataset: Dataset,
    sampling: SamplingParams,
    constraint: Option<Constrained>,
    /// Whether the user has asked for that many tokens of a completion.
    is_asked: bool,
    num_generations: u32,
    correct_at: Option<f64>,
    /// The configuration of conversations, where completions are some.
    held: Option<TrainConfig>,
}

impl Generation {
    /// Exports the model if need be and starts an engine that fits.
    fn engine(&mut self, model: &NamedModel, batching: &BatchingFlags) -> anyhow::Result<(Engine, PathBuf)> {
        let sequences = self.dataset.len() * self.num_generations as usize;
        let completion = self.sampling.max_completion_length as usize;
        let has_opening = self.held.as_ref().is_some_and(|held| held.environment_factory.is_some());
        // The first words of an environment are not known before they come.
        let longest = self.dataset.longest_prompt() + completion + if has_opening { completion } else { 0 };
        let options = batching.engine_options(sequences, longest, model::limit(model)?)?;
        let kept_states = self.held.as_ref().map_or(0, |held| held.kept_states(options.max_num_seqs));
        let options = EngineOptions { kept_states, ..options };
        let mut long = self.dataset.leave_out_long(options.max_model_len)?;
        if self.is_asked {
            let wanted = self.sampling.max_completion_length as usize;
            long = self.dataset.count_crowded(long, options.max_model_len, wanted);
        }
        tell_warnings((!long.is_empty()).then_some(long));
        batching.engine(model, options)
    }

    /// Everything that the completions depend on, by name: two generations with the same identity make the same
    /// completions.
    fn identity(
        &self,
        model: &ModelDir,
        export: &Path,
        options: &EngineOptions,
        rewards: &[(String, f64)],
    ) -> anyhow::Result<Map<String, Value>> {
        let manifest = WeightManifest::read(export)?;
        let mut weights = blake3::Hasher::new();
        for part in [&manifest.data_blake3, &manifest.model_blake3] {
            weights.update(part.as_bytes());
        }
        // These files say what ends a completion.
        for file in ["config.json", "generation_config.json"] {
            weights.update(&fs::read(model.path().join(file)).unwrap_or_default());
        }
        let ends = &model.generation().eos_token_ids;
        let mut prompts = blake3::Hasher::new();
        for row in self.dataset.rows() {
            let seen = json!([row.prompt_id, row.prompt_text, &row.prompt_ids[..], row.prefill, *row.columns]);
            prompts.update(seen.to_string().as_bytes());
        }
        let identity = json!({
            "tandem": env!("CARGO_PKG_VERSION"),
            "model": weights.finalize().to_hex().as_str(),
            "dataset": prompts.finalize().to_hex().as_str(),
            "prompts": self.dataset.len(),
            "eos_token_ids": ends,
            "num_generations": self.num_generations,
            "reward_funcs": rewards,
            "device": format!("{:?}", options.device),
            "kernels": format!("{:?}", options.kernels),
            "rollout_dtype": format!("{:?}", options.rollout_dtype),
            "kv_dtype": format!("{:?}", options.kv_dtype),
            "max_model_len": options.max_model_len,
            "speculative_tokens": options.speculative_tokens,
            "candidates": options.candidates,
        });
        let sampling = serde_json::to_value(&self.sampling)?;
        let of_held = |held: &TrainConfig| -> anyhow::Result<Value> {
            let templates = format!("{:?}", model.chat_templates()?);
            Ok(json!({
                "tools": held.tools,
                "environment_factory": held.environment_factory,
                "max_tool_calling_iterations": held.max_tool_calling_iterations,
                "environment_timeout": held.environment_timeout,
                "episode_timeout": held.episode_timeout,
                // Replies are rendered later than prompts.
                "chat_template": blake3::hash(templates.as_bytes()).to_hex().as_str(),
            }))
        };
        let tools = self.held.as_ref().map(of_held).transpose()?;
        let parts = [identity, sampling].into_iter().chain(tools).filter_map(|part| part.as_object().cloned());
        Ok(parts.flatten().collect())
    }

    /// Generates, and scores beside it.
    fn complete(
        self,
        (generator, max_num_seqs): (&mut dyn PairGenerator, usize),
        tokenizer: Tokenizer,
        scoring: Option<Scoring>,
        kept: Option<(Journal, Vec<Scored>)>,
        mut watch: Option<&mut dyn Watch>,
    ) -> anyhow::Result<Completed> {
        let (mut journal, mut groups) = kept.map_or((None, Vec::new()), |(journal, groups)| (Some(journal), groups));
        let done: HashSet<u64> = groups.iter().map(|group| group.position).collect();
        let rows = self.dataset.rows();
        if let Some(watch) = &mut watch {
            watch.begin(rows, &tokenizer);
        }
        let stream = watch.as_ref().is_some_and(|watch| watch.streams());
        let is_shown = watch.as_ref().is_none_or(|watch| watch.leaves_room());
        let mut assembly = Assembly::new(tokenizer, self.sampling.clone(), self.num_generations, scoring)
            .with_constraint(self.constraint.clone());
        let mut left = rows.iter().zip(0..).filter(|(_, position)| !done.contains(position));
        let most = if self.held.is_some() { CONVERSATIONS.max(2 * max_num_seqs) } else { usize::MAX };
        let mut begin_more = |generator: &mut dyn PairGenerator, assembly: &mut Assembly| {
            while generator.running() + generator.waiting() < most
                && let Some((row, position)) = left.next()
            {
                let request = Request { stream, ..assembly.begin(row, 0, position).into() };
                generator
                    .begin_row(request, row)
                    .with_context(|| format!("{}: prompt {}", self.dataset.name(), row.prompt_id))?;
            }
            anyhow::Ok(())
        };
        begin_more(generator, &mut assembly)?;
        let begin = Instant::now();
        let mut progress =
            Progress::new((rows.len() - done.len()) * self.num_generations as usize, rows.len(), is_shown);
        let accuracy = |group: &Scored| evaluation::accuracy(group, self.correct_at?);
        groups.iter().for_each(|group| progress.prompt(accuracy(group)));
        let mut take = |progress: &mut Progress, watch: &mut Option<&mut dyn Watch>, group: Scored| {
            progress.prompt(accuracy(&group));
            if let Some(watch) = watch {
                watch.group(&group)?;
            }
            if let Some(journal) = &mut journal {
                journal.append(&group, begin.elapsed().as_secs_f64())?;
            }
            groups.push(group);
            anyhow::Ok(())
        };
        generate::finish(generator, |generator, outputs| {
            for output in outputs {
                match (output, &mut watch) {
                    (Output::Token { tag, sample, id, .. }, Some(watch)) => {
                        watch.token(assembly.position(tag), sample, id)?;
                    }
                    (Output::Token { .. }, None) => {}
                    (Output::Ended { sequence, .. }, watch) => {
                        if let Some(watch) = watch {
                            watch.ended(assembly.position(sequence.tag), sequence.sample)?;
                        }
                        progress.completed(sequence.token_ids.len());
                        match generator.take_conversation(&sequence) {
                            Some(conversed) => assembly.add_conversation(conversed)?,
                            None => assembly.add(sequence, Vec::new())?,
                        }
                    }
                }
            }
            progress.tick();
            iter::from_fn(|| assembly.finished()).try_for_each(|group| take(&mut progress, &mut watch, group))?;
            begin_more(generator, &mut assembly)?;
            Ok(ControlFlow::Continue(()))
        })?;
        let generated = progress.seconds();
        while let Some(group) = assembly.wait() {
            take(&mut progress, &mut watch, group)?;
            progress.tick();
        }
        let tokens = progress.finish();
        let seconds = generated + journal.as_ref().map_or(0.0, Journal::seconds);
        ensure!(groups.len() == rows.len(), "the engine stopped with {} groups missing", rows.len() - groups.len());
        groups.sort_unstable_by_key(|group| group.position);
        trace::span(begin, Instant::now(), Event::Generate { tokens });
        let failure = self
            .constraint
            .as_ref()
            .and_then(|constraint| constraint.failure().map(|reason| format!("{}: {reason}", constraint.name())));
        Ok(Completed { dataset: self.dataset, groups, tokens, seconds, journal, given_up: failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{PromptOptions, testing::byte_tokenizer},
        generate::{Generate, testing::Scripted},
    };

    /// No engine is needed: `generate`, `eval` and `compare` know a generator by its trait.
    #[test]
    fn a_dataset_is_completed_by_whatever_generates() {
        let (folder, tokenizer) = (tempfile::tempdir().unwrap(), byte_tokenizer(None));
        let path = folder.path().join("prompts.jsonl");
        fs::write(&path, "{\"prompt\": \"ab\"}\n{\"prompt\": \"abcd\"}\n{\"prompt\": \"a\"}\n").unwrap();
        let dataset = Dataset::load(&[path], ("train", None), &tokenizer, &PromptOptions::default()).unwrap();
        let sampling = SamplingParams { max_completion_length: 5, ..SamplingParams::default() };
        let (constraint, correct_at, held) = (None, None, None);
        let generation =
            Generation { dataset, sampling, constraint, is_asked: false, num_generations: 3, correct_at, held };
        let mut generator = Scripted::new(2, |prompt, sample| vec![70 + sample; prompt.len() + sample as usize]);
        let completed = generation.complete((&mut generator, 2), tokenizer.clone(), None, None, None).unwrap();
        assert!(generator.is_idle());
        assert_eq!(completed.groups.len(), 3);
        let mut tokens = 0;
        for (group, row) in completed.groups.iter().zip(completed.dataset.rows()) {
            assert_eq!((group.prompt_id, &group.prompt_ids[..]), (row.prompt_id, &row.prompt_ids[..]));
            for (completion, sample) in group.completions.iter().zip(0..) {
                let length = (row.prompt_ids.len() + sample as usize).min(5);
                assert_eq!((completion.sample, completion.token_ids()), (sample, &vec![70 + sample; length][..]));
                assert_eq!(completion.text, tokenizer.decode(completion.token_ids()).unwrap());
                tokens += length as u64;
            }
            assert_eq!(group.completions.len(), 3);
        }
        assert_eq!(completed.tokens, tokens);
    }
}
