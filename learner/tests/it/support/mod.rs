//! Synthetic groups, and a sampler that lives in a thread.

pub mod figures;

use std::{
    path::PathBuf,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use harness::memory::MemorySampler;
use shared::{
    Completion, Episode, FinishReason, Group, GroupId, Placed, PolicyVersion, PromptId, RewardOutcome, Step,
    TokenLogprob,
    channel::{InFlight, LearnerStatus, Refusal, SamplerEnd, SamplerStatus},
    config::{LrSchedulerType, TrainConfig},
    generation::{rng::Stream, testing},
};

/// Tokens of the golden models.
pub const VOCABULARY: u64 = 512;

/// A small model with tied embeddings.
pub fn model() -> PathBuf {
    harness::golden_dir().join("models/qwen2")
}

/// A synchronous run of 6 steps with 3 groups of 4 completions and two updates per step.
pub fn config(dataset: PathBuf) -> TrainConfig {
    TrainConfig {
        model: model(),
        dataset: dataset.into(),
        reward_funcs: vec!["a".into(), "b".into()],
        num_generations: 4,
        max_completion_length: 12,
        per_device_train_batch_size: 3,
        gradient_accumulation_steps: 2,
        generation_batch_size: Some(12),
        num_iterations: 2,
        max_steps: Some(6),
        micro_batch_tokens: Some(64),
        learning_rate: 1e-3,
        lr_scheduler_type: LrSchedulerType::Cosine,
        warmup_steps: 2,
        save_steps: 2,
        peer_timeout: 30.0,
        learner_threads: Some(1),
        ..TrainConfig::default()
    }
}

/// A group that depends on its place alone.
pub fn group(config: &TrainConfig, step: u64, index: u32, version: u64) -> Placed {
    let mut stream = Stream::new(&[step, u64::from(index)]);
    let mut tokens = |least: u64, most: u64| -> Vec<u32> {
        let count = least + stream.below(most - least + 1);
        (0..count).map(|_| stream.below(VOCABULARY) as u32).collect()
    };
    let prompt_ids = tokens(1, 9);
    let completions = (0..config.num_generations)
        .map(|sample| {
            let token_ids = tokens(1, u64::from(config.max_completion_length));
            let full = token_ids.len() == config.max_completion_length as usize;
            let draw = f64::from(token_ids[0]) / VOCABULARY as f64;
            let logprob = TokenLogprob { logprob: -6.0, logprob_at_temperature: -6.0, ..Default::default() };
            let (logprobs, versions) = (vec![logprob; token_ids.len()], vec![(0, PolicyVersion(version))]);
            let finish = if full { FinishReason::Length } else { FinishReason::Stop };
            Completion {
                episode: Episode::of_one_turn(token_ids, logprobs, versions, finish),
                text: format!("completion {sample}"),
                rewards: vec![
                    RewardOutcome::Score(draw),
                    if draw > 0.8 { RewardOutcome::NotApplicable } else { RewardOutcome::Score(1.0) },
                ],
                ..testing::completion(sample, Vec::new())
            }
        })
        .collect();
    let groups = u64::from(config.groups_per_step());
    let position = step * groups + u64::from(index);
    let group = Group {
        prompt_id: PromptId(position % 10),
        epoch: (position / 10) as u32,
        prompt_ids,
        prompt_text: "a prompt".into(),
        reward_names: vec![("a".into(), 1.0), ("b".into(), 0.5)],
        ..testing::group(position, completions)
    };
    testing::placed(GroupId { step: Step(step), index }, group)
}

/// The groups of a step, made with the version that a synchronous run has then.
pub fn groups(config: &TrainConfig, step: u64) -> Vec<Placed> {
    (0..config.groups_per_step()).map(|index| group(config, step, index, step)).collect()
}

/// How the sampler in the thread behaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manners {
    /// Sends every group twice, the last one first, and the groups of the next step ahead of time.
    pub untidy: bool,
    /// Maps this version for ever.
    pub pinned: Option<u64>,
    /// Refuses this version until it was published again this many times.
    pub refuses: Option<(u64, u64)>,
    /// From this step on, the first reward function fails on everything.
    pub fails_from: Option<u64>,
    /// Every reward function abstains on the first completion of a group, and the first function fails on the second
    /// completion.
    pub speechless: bool,
    /// In the steps from the first to before the second, the log-probs are far from the learner's.
    pub strange: Option<(u64, u64)>,
}

/// A sampler that sends the groups that the learner's status asks for until the run is finished; returns the last
/// status, whose publications are counted from the first one.
pub fn sampler(mut end: MemorySampler, config: TrainConfig, manners: Manners) -> JoinHandle<LearnerStatus> {
    thread::spawn(move || {
        let mut newest = LearnerStatus::default();
        let mut first_publication = None;
        let mut sent: Option<(u64, u64)> = None;
        let started = Instant::now();
        while !newest.finished && started.elapsed() < Duration::from_secs(300) {
            if let Some(status) = end.learner_status().unwrap() {
                first_publication.get_or_insert(status.publication);
                newest = status;
            }
            let again = newest.publication.wrapping_sub(first_publication.unwrap_or(newest.publication));
            let is_refused = |&(version, times): &(u64, u64)| newest.version.0 == version && again < times;
            let refusal = manners.refuses.filter(is_refused).map(|_| Refusal {
                version: newest.version,
                publication: newest.publication,
                reason: "of the test's own making".into(),
            });
            let refused = refusal.is_some();
            let oldest = manners.pinned.unwrap_or(newest.version.0);
            let status = SamplerStatus {
                incarnation: 1,
                version: newest.version,
                oldest_in_use: PolicyVersion(oldest),
                refusal,
                in_flight: newest.saving.then_some(InFlight {
                    learner: newest.incarnation,
                    step: newest.step,
                    blake3: None,
                }),
                ..SamplerStatus::default()
            };
            end.publish_status(&status).unwrap();
            let wanted = (newest.incarnation, newest.step.0);
            if !refused && newest.incarnation != 0 && sent != Some(wanted) && newest.step.0 < newest.total_steps {
                sent = Some(wanted);
                send(&mut end, &config, newest.step.0, manners);
            }
            thread::sleep(Duration::from_millis(2));
        }
        newest.publication = newest.publication.wrapping_sub(first_publication.unwrap_or(newest.publication));
        newest
    })
}

fn send(end: &mut MemorySampler, config: &TrainConfig, step: u64, manners: Manners) {
    let mut list = groups(config, step);
    if manners.fails_from.is_some_and(|first| step >= first) {
        let rewards = list
            .iter_mut()
            .flat_map(|group| &mut group.scored.group.completions)
            .map(|completion| &mut completion.rewards);
        rewards.for_each(|rewards| rewards[0] = RewardOutcome::Failed("Traceback:\n  NameError".into()));
    }
    if manners.strange.is_some_and(|(first, end)| (first..end).contains(&step)) {
        for completion in list.iter_mut().flat_map(|group| &mut group.scored.group.completions) {
            testing::change(completion, |turn| {
                let tokens = turn.logprobs.iter_mut();
                tokens.for_each(|token| (token.logprob, token.logprob_at_temperature) = (-12.0, -12.0));
            });
        }
    }
    if manners.speechless {
        for group in &mut list {
            group.scored.group.completions[0].rewards.fill(RewardOutcome::NotApplicable);
            group.scored.group.completions[1].rewards[0] = RewardOutcome::Failed("of the test's own making".into());
        }
    }
    if manners.untidy {
        list.reverse();
        list.extend(list.clone());
        list.extend(groups(config, step + 1).into_iter().take(1));
        list.swap(0, 1);
    }
    for group in list {
        // The learner may have ended while copies are still under way.
        let _ = end.send_group(&group, Instant::now() + Duration::from_secs(5));
    }
}
