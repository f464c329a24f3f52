//! Groups in the making: from the engine's sequences to text, rewards and a [`Scored`] group. Training, evaluation and
//! `rollout generate` all assemble their groups here.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use anyhow::{Context, ensure};
use rollout_rewards::{RewardCompletion, RewardPool, ScoredGroup};
use shared::{Completion, Episode, Exchange, Group, Notes, Provenance, RewardOutcome, Routing, SamplingParams, Scored};

use crate::{
    data::{PromptRow, Tokenizer, stop::StopCriterionFactory},
    engine::{Constrained, FinishedSequence, GroupRequest},
    generate::Conversed,
};

/// The functions that score completions.
pub struct Scoring {
    /// The pool that runs them.
    pub pool: RewardPool,
    /// The names of all rewards with their weights: functions, then environments.
    pub names: Vec<(String, f64)>,
    /// Places among the names of the raters, which are asked beside the environments and not by the pool.
    pub raters: Vec<usize>,
}

/// Collects sequences, decodes them, has complete groups scored while the engine goes on, and hands them out.
pub struct Assembly {
    tokenizer: Tokenizer,
    sampling: Arc<SamplingParams>,
    stop_criterion: Option<StopCriterionFactory>,
    constraint: Option<Constrained>,
    num_generations: u32,
    scoring: Option<Scoring>,
    open: HashMap<u64, Open>,
    /// Complete groups that need no scoring, or no more of it.
    complete: VecDeque<u64>,
    next_tag: u64,
}

struct Open {
    group: Group,
    row: PromptRow,
    /// The provenance of the completions that are still to come.
    provenance: Provenance,
    /// Whether the group has the prompt of its first conversation. Before, it has that of the row.
    is_opened: bool,
}

/// A completion that has ended, before its rewards are known.
struct Ended {
    tag: u64,
    sample: u32,
    /// Decoded text of its tokens.
    text: String,
    episode: Episode,
    exchange: Option<Box<Exchange>>,
    routing: Option<Box<Routing>>,
    rewards: Vec<RewardOutcome>,
    seconds: f64,
    is_drawn_again: bool,
}

/// What is wrong with a sequence of no open group.
const UNASKED: &str = "the engine returned a sequence that nobody asked for";

/// A completion as reward functions see it. The text of a conversation is that of the policy's own turns: no words of a
/// tool are taken for the policy's.
pub(crate) fn as_seen(completion: &Completion, tokenizer: &Tokenizer) -> RewardCompletion {
    let seen = RewardCompletion::from(completion);
    if seen.given.is_empty() {
        return seen;
    }
    RewardCompletion { text: own_text(&seen, tokenizer), ..seen }
}

/// The text of the policy's own turns.
pub(crate) fn own_text(seen: &RewardCompletion, tokenizer: &Tokenizer) -> String {
    let turns: Vec<String> = seen.turns().map(|turn| tokenizer.decode(turn).unwrap_or_default()).collect();
    turns.join("\n")
}

/// The outcomes of all reward functions: those of the pool, with those of the raters in their places.
fn with_raters(mut outcomes: Vec<RewardOutcome>, rated: Vec<RewardOutcome>, places: &[usize]) -> Vec<RewardOutcome> {
    let rated = rated.into_iter().chain(std::iter::repeat(RewardOutcome::NotApplicable));
    for (&place, outcome) in places.iter().zip(rated) {
        outcomes.insert(place.min(outcomes.len()), outcome);
    }
    outcomes
}

/// All outcomes of a completion: those of the reward functions, then those of its environment. With an environment that
/// failed, nothing counts.
fn with_environment(mut outcomes: Vec<RewardOutcome>, exchange: Option<&Exchange>) -> Vec<RewardOutcome> {
    let Some(exchange) = exchange else { return outcomes };
    outcomes.extend(exchange.rewards.iter().map(RewardOutcome::in_total));
    match exchange.reason() {
        Some(reason) => vec![RewardOutcome::Failed(reason.to_owned()); outcomes.len()],
        None => outcomes,
    }
}

impl Assembly {
    /// An empty assembly for groups of `num_generations`. Without `scoring` completions have no rewards.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, sampling: SamplingParams, num_generations: u32, scoring: Option<Scoring>) -> Self {
        let stop_criterion = tokenizer.stop_criterion(&sampling.stop);
        Self {
            tokenizer,
            sampling: Arc::new(sampling),
            stop_criterion,
            constraint: None,
            num_generations,
            scoring,
            open: HashMap::new(),
            complete: VecDeque::new(),
            next_tag: 0,
        }
    }

    /// With a constraint for all completions.
    #[must_use]
    pub fn with_constraint(self, constraint: Option<Constrained>) -> Self {
        Self { constraint, ..self }
    }

    /// Begins a group of a prompt drawn in `epoch` that stands at `position` in the order of prompts. Returns the
    /// request for the engine.
    pub fn begin(&mut self, row: &PromptRow, epoch: u32, position: u64) -> GroupRequest {
        let (tag, samples) = (self.open(row, epoch, position, Provenance::New), (0..self.num_generations).collect());
        self.request(tag, row, epoch, samples)
    }

    /// As [`Assembly::begin`], for a group that was begun before and of which `kept` has some completions, each once.
    /// Returns the request for the others; `None` where all are there.
    pub fn go_on(&mut self, row: &PromptRow, epoch: u32, position: u64, kept: Group) -> Option<GroupRequest> {
        let tag = self.open(row, epoch, position, Provenance::MadeAgain);
        let is_there = |sample: &u32| kept.completions.iter().any(|completion| completion.sample == *sample);
        let samples: Arc<[u32]> = (0..self.num_generations).filter(|sample| !is_there(sample)).collect();
        let Open { group, is_opened, .. } = self.open.get_mut(&tag).expect("the group is open");
        if kept.completions.iter().any(|completion| completion.exchange.is_some()) {
            (group.prompt_ids, *is_opened) = (kept.prompt_ids, true);
        }
        for completion in kept.completions {
            self.take_in(tag, completion);
        }
        (!samples.is_empty()).then(|| self.request(tag, row, epoch, samples))
    }

    fn open(&mut self, row: &PromptRow, epoch: u32, position: u64, provenance: Provenance) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let group = Group {
            position,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.to_vec(),
            prompt_text: row.prompt_text.clone(),
            completions: Vec::with_capacity(self.num_generations as usize),
            reward_names: self.scoring.as_ref().map(|scoring| scoring.names.clone()).unwrap_or_default(),
            generation_seconds: 0.0,
            notes: Box::new(Notes::of_row(&row.columns)),
        };
        self.open.insert(tag, Open { group, row: row.clone(), provenance, is_opened: false });
        tag
    }

    fn request(&self, tag: u64, row: &PromptRow, epoch: u32, samples: Arc<[u32]>) -> GroupRequest {
        GroupRequest {
            tag,
            prompt_id: row.prompt_id,
            epoch,
            prompt_ids: row.prompt_ids.clone(),
            samples,
            sampling: self.sampling.clone(),
            lengths: None,
            stop_criterion: self.stop_criterion.clone(),
            constraint: self.constraint.clone(),
        }
    }

    /// Takes a sequence that has ended, with its rewards if it was scored elsewhere. With the last sequence, the group
    /// goes to the reward functions, unless all its completions have rewards.
    ///
    /// # Errors
    /// When the tokens cannot be decoded.
    pub fn add(&mut self, sequence: FinishedSequence, rewards: Vec<RewardOutcome>) -> anyhow::Result<()> {
        let FinishedSequence { tag, sample, token_ids, logprobs, versions, routing, finish_reason, .. } = sequence;
        let text = self.tokenizer.decode(&token_ids)?;
        let episode = Episode::of_one_turn(token_ids, logprobs, versions, finish_reason);
        let (exchange, seconds, is_drawn_again) = (None, sequence.total_seconds, false);
        self.put(Ended { tag, sample, text, episode, exchange, routing, rewards, seconds, is_drawn_again })
    }

    /// As [`Assembly::add`], of a conversation. The prompt of the group is the beginning that the prompts of all its
    /// conversations share, and the rest of each is given first.
    ///
    /// # Errors
    /// When the tokens cannot be decoded.
    pub fn add_conversation(&mut self, conversed: Conversed) -> anyhow::Result<()> {
        let Conversed { tag, sample, prompt_ids, mut episode, exchange, rewards, logged, is_drawn_again } = conversed;
        let text = self.tokenizer.decode(episode.token_ids())?;
        let Open { group, is_opened, .. } = self.open.get_mut(&tag).context(UNASKED)?;
        group.notes.logged.extend(logged);
        if let (Some(prompt_ids), true) = (&prompt_ids, *is_opened) {
            let shared = group.prompt_ids.iter().zip(&**prompt_ids).take_while(|(a, b)| a == b).count();
            ensure!(shared > 0, "the prompts of the conversations of one row do not begin with the same token");
            let lost = group.prompt_ids.split_off(shared);
            for completion in &mut group.completions {
                completion.episode = completion.episode.behind(&lost);
            }
            episode = episode.behind(&prompt_ids[shared..]);
        } else if let Some(prompt_ids) = prompt_ids {
            (group.prompt_ids, *is_opened) = (prompt_ids.to_vec(), true);
        }
        let (seconds, exchange, routing) = (exchange.seconds, Some(Box::new(exchange)), None);
        self.put(Ended { tag, sample, text, episode, exchange, routing, rewards, seconds, is_drawn_again })
    }

    fn put(&mut self, ended: Ended) -> anyhow::Result<()> {
        let Ended { tag, sample, text, episode, exchange, routing, rewards, seconds, is_drawn_again } = ended;
        let Open { group, provenance, .. } = self.open.get_mut(&tag).context(UNASKED)?;
        group.generation_seconds = group.generation_seconds.max(seconds);
        let provenance = if is_drawn_again { Provenance::DrawnAgain } else { *provenance };
        self.take_in(tag, Completion { sample, text, episode, rewards, provenance, exchange, routing });
        Ok(())
    }

    fn take_in(&mut self, tag: u64, completion: Completion) {
        let Open { group, row, .. } = self.open.get_mut(&tag).expect("the group is open");
        group.completions.push(completion);
        if group.completions.len() < self.num_generations as usize {
            return;
        }
        group.completions.sort_unstable_by_key(|completion| completion.sample);
        match &mut self.scoring {
            Some(Scoring { names, .. }) if group.completions.iter().all(|c| c.rewards.len() == names.len()) => {
                self.complete.push_back(tag);
            }
            Some(Scoring { pool, .. }) => {
                let seen = group.completions.iter().map(|completion| as_seen(completion, &self.tokenizer));
                pool.submit(tag, row.reward_input(seen));
            }
            None => self.complete.push_back(tag),
        }
    }

    /// Groups in the making, with the completions that are finished.
    pub fn in_the_making(&self) -> impl Iterator<Item = &Group> {
        self.open.values().map(|open| &open.group)
    }

    /// Where the prompt of an open group stands in the order of prompts.
    ///
    /// # Panics
    /// When no group with this tag is open.
    #[must_use]
    pub fn position(&self, tag: u64) -> u64 {
        self.open[&tag].group.position
    }

    /// A group that is complete, rewards included, if there is one.
    pub fn finished(&mut self) -> Option<Scored> {
        let scored = self.scoring.as_mut().and_then(|scoring| scoring.pool.try_recv());
        self.take(scored)
    }

    /// As [`Assembly::finished`], but waits for groups that are being scored. `None` when no complete group is left.
    pub fn wait(&mut self) -> Option<Scored> {
        let scored = self.scoring.as_mut().and_then(|scoring| scoring.pool.recv());
        self.take(scored)
    }

    fn take(&mut self, scored: Option<ScoredGroup>) -> Option<Scored> {
        let Some(ScoredGroup { tag, outcomes, logged }) = scored else {
            let tag = self.complete.pop_front()?;
            return self.open.remove(&tag).map(|open| open.group.into());
        };
        let mut group = self.open.remove(&tag).expect("the pool returns what was submitted").group;
        let raters = self.scoring.as_ref().map_or(&[][..], |scoring| &scoring.raters);
        for (completion, outcomes) in group.completions.iter_mut().zip(outcomes) {
            let outcomes = with_raters(outcomes, std::mem::take(&mut completion.rewards), raters);
            completion.rewards = with_environment(outcomes, completion.exchange.as_deref());
        }
        group.notes.logged.extend(logged);
        Some(group.into())
    }

    /// Whether nothing is in the engine or being scored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Groups that are being scored.
    #[must_use]
    pub fn scoring(&self) -> usize {
        self.scoring.as_ref().map_or(0, |scoring| scoring.pool.pending())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use shared::{EpisodeEnd, FinishReason, Logged, PromptId, Segment, StepScore, TokenLogprob, Why};

    use super::*;
    use crate::{data::testing::byte_tokenizer, reward};

    fn row(tokenizer: &Tokenizer) -> PromptRow {
        PromptRow {
            prompt_id: PromptId(1),
            prompt_text: "of the row".into(),
            prompt_ids: Arc::from([1, 2]),
            shortened: false,
            prefill: String::new(),
            messages: None,
            question: None,
            columns: Arc::default(),
            tokenizer: tokenizer.clone(),
            beginning: None,
        }
    }

    /// "ab", a reply "7", and "c", after a prompt.
    fn conversed(sample: u32, prompt_ids: Option<&[u32]>, tokenizer: &Tokenizer, end: EpisodeEnd) -> Conversed {
        let ids = |text: &str| tokenizer.encode(text, false).unwrap();
        let mut episode = Episode::default();
        for (text, is_sampled) in [("ab", true), ("7", false), ("c", true)] {
            let (ids, logprobs) = (ids(text), vec![TokenLogprob::default(); text.len()]);
            let (versions, finish) = ([(0, shared::PolicyVersion(0))], FinishReason::Stop);
            episode.push(match is_sampled {
                true => Segment::Sampled { ids: &ids, logprobs: &logprobs, versions: &versions, finish },
                false => Segment::Given { ids: &ids, why: Why::Reply },
            });
        }
        let exchange = Exchange {
            rewards: vec![RewardOutcome::Score(0.5)],
            failure: end.is_failure().then(|| "the maze is gone".to_owned()),
            ..Exchange::new(&[json!({"role": "assistant", "content": "ab"})], end)
        };
        let prompt_ids = prompt_ids.map(Arc::from);
        let (rewards, logged) = (Vec::new(), Logged::default());
        Conversed { tag: 0, sample, prompt_ids, episode, exchange, rewards, logged, is_drawn_again: false }
    }

    fn assembly(tokenizer: &Tokenizer, num_generations: u32) -> Assembly {
        let pool = reward::pool(Vec::new(), 1, Duration::from_secs(60)).unwrap();
        let scoring = Scoring { pool, names: vec![("Maze".to_owned(), 1.0)], raters: Vec::new() };
        Assembly::new(tokenizer.clone(), SamplingParams::default(), num_generations, Some(scoring))
    }

    #[test]
    fn a_conversation_that_is_drawn_again_is_marked_for_the_ledger() {
        let tokenizer = byte_tokenizer(None);
        let mut assembly = assembly(&tokenizer, 2);
        let _ = assembly.begin(&row(&tokenizer), 0, 0);
        for sample in 0..2 {
            let conversed = conversed(sample, Some(&[1, 2]), &tokenizer, EpisodeEnd::Stop);
            let exchange = Exchange { seconds: f64::from(3 - sample), ..conversed.exchange };
            assembly.add_conversation(Conversed { is_drawn_again: sample == 1, exchange, ..conversed }).unwrap();
        }
        let group = assembly.wait().unwrap();
        assert_eq!(group.generation_seconds, 3.0, "as long as its longest one");
        let provenance: Vec<_> = group.completions.iter().map(|completion| completion.provenance).collect();
        assert_eq!(provenance, [Provenance::New, Provenance::DrawnAgain]);
    }

    #[test]
    fn the_prompt_of_a_group_is_what_its_conversations_share_in_whatever_order_they_end() {
        let tokenizer = byte_tokenizer(None);
        let prompts: [Option<&[u32]>; 4] = [Some(&[1, 2, 3, 4]), Some(&[1, 2, 3, 5]), None, Some(&[1, 2, 6])];
        let made = |order: [u32; 4]| {
            let mut assembly = assembly(&tokenizer, 4);
            let _ = assembly.begin(&row(&tokenizer), 0, 0);
            for sample in order {
                let prompt = prompts[sample as usize];
                let mut conversed = conversed(sample, prompt, &tokenizer, EpisodeEnd::Stop);
                if prompt.is_none() {
                    // Its environment was never open.
                    conversed.episode = Episode::default();
                }
                assembly.add_conversation(conversed).unwrap();
            }
            assembly.wait().unwrap()
        };
        let group = made([0, 1, 2, 3]);
        assert_eq!(group.prompt_ids, [1, 2]);
        let begins = |sample: usize| &group.completions[sample].token_ids()[..2];
        assert_eq!((begins(0), begins(1), begins(3)[0]), (&[3, 4][..], &[3, 5][..], 6));
        assert_eq!(group.completions[0].episode.sampled(), 3, "what is given first is nobody's turn");
        for order in [[3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            assert_eq!(made(order), group, "{order:?}");
        }
    }

    #[test]
    fn rules_see_the_policys_turns_and_the_reward_of_the_environment_comes_last() {
        let tokenizer = byte_tokenizer(None);
        let mut assembly = assembly(&tokenizer, 2);
        let _ = assembly.begin(&row(&tokenizer), 0, 0);
        for (sample, end) in [(0, EpisodeEnd::Stop), (1, EpisodeEnd::EnvironmentFailed)] {
            assembly.add_conversation(conversed(sample, Some(&[1]), &tokenizer, end)).unwrap();
        }
        let group = assembly.wait().unwrap();
        assert_eq!(as_seen(&group.completions[0], &tokenizer).text, "ab\nc", "without the reply");
        assert_eq!(group.completions[0].text, "ab7c");
        assert_eq!(group.completions[0].rewards, [RewardOutcome::Score(0.5)]);
        let outcomes = with_environment(vec![RewardOutcome::Score(2.0)], group.completions[0].exchange.as_deref());
        assert_eq!(outcomes, [RewardOutcome::Score(2.0), RewardOutcome::Score(0.5)]);
        let turns = [(0, 0.5), (1, -0.25)].map(|(end, score)| StepScore { end, score });
        let by_turn =
            Exchange { rewards: vec![RewardOutcome::Steps(turns.to_vec())], ..Exchange::new(&[], EpisodeEnd::Stop) };
        assert_eq!(with_environment(Vec::new(), Some(&by_turn)), [RewardOutcome::Score(0.25)], "the sum of the turns");
        let (pool, rated) = ([1.0, 3.0].map(RewardOutcome::Score), [0.0, 2.0].map(RewardOutcome::Score));
        let all = with_raters(pool.to_vec(), rated.to_vec(), &[0, 2]);
        assert_eq!(all, [0.0, 1.0, 2.0, 3.0].map(RewardOutcome::Score), "each rater in its place");
        assert_eq!(group.completions[1].rewards, [RewardOutcome::Failed("the maze is gone".into())]);
        assert!(group.completions[0].is_usable() && !group.completions[1].is_usable());
    }

    #[test]
    fn what_was_kept_of_a_group_goes_on_with_its_prompt() {
        let tokenizer = byte_tokenizer(None);
        let made = |sample, prompt: &[u32]| conversed(sample, Some(prompt), &tokenizer, EpisodeEnd::Stop);
        let mut first = assembly(&tokenizer, 2);
        let _ = first.begin(&row(&tokenizer), 0, 0);
        first.add_conversation(made(0, &[1, 2, 3])).unwrap();
        let kept = first.in_the_making().next().unwrap().clone();
        let mut second = assembly(&tokenizer, 2);
        let request = second.go_on(&row(&tokenizer), 0, 0, kept).unwrap();
        assert_eq!(*request.samples, [1]);
        second.add_conversation(made(1, &[1, 2, 4])).unwrap();
        first.add_conversation(made(1, &[1, 2, 4])).unwrap();
        let (again, undisturbed) = (second.wait().unwrap(), first.wait().unwrap());
        assert_eq!((&again.prompt_ids, &again.prompt_ids), (&undisturbed.prompt_ids, &vec![1, 2]));
        assert_eq!(again.completions[0].episode, undisturbed.completions[0].episode);
    }
}
