//! Which sequence sits in which slot.
//!
//! Groups wait in the order of arrival. The prompt of the first one is prefilled once, into a place of its own (a
//! prefix slot), and stays there until the last of its samples has started; so a group may be larger than the number of
//! slots. Prompts of the groups behind it may be prefilled in the same call, if places are free for their samples. A
//! finished sequence leaves a hole that the next sample fills; holes that stay are closed by moving the last sequence,
//! so that decoding always runs on the slots `0..n`.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Instant,
};

use super::{
    backend::{Prefill, PrefillLimits},
    history::SharedHistory,
    packed::LoadedAdapter,
    sequence::{Limits, Sequence, Wish},
    state::State,
    types::{FinishedSequence, GroupRequest},
};
use shared::FinishReason;

/// A group with samples that have not started.
struct WaitingGroup {
    request: Arc<GroupRequest>,
    wish: Wish,
    /// What it goes on from.
    from: Option<State>,
    /// Tokens of its prompt whose keys and values are held for that state.
    cached: usize,
    adapter: Option<LoadedAdapter>,
    arrived: Instant,
    /// Samples that have not started.
    left: VecDeque<u32>,
    /// The prefix slot that holds its prompt.
    prefix: Option<usize>,
    /// When its prompt, or the first piece of it, began to be computed.
    admitted: Option<Instant>,
    history: Option<SharedHistory>,
    /// Its one sample, where that has begun: it goes on when its context was computed again.
    sent_back: Option<Box<Sequence>>,
}

impl WaitingGroup {
    /// How many have not started.
    fn samples(&self) -> usize {
        self.left.len()
    }

    /// Tokens of its prompt that are to be computed.
    fn tokens(&self) -> usize {
        self.request.prompt_ids.len() - self.cached
    }

    /// Its prompt, of which nothing was computed beside what is held.
    fn prefill(&self) -> Prefill<'_> {
        Prefill {
            prompt: self.wish.past.prompt,
            held: self.held(),
            adapter: self.adapter.as_ref(),
            ..Prefill::whole(&self.request.prompt_ids)
        }
    }

    /// What is held of the state that it goes on from.
    fn held(&self) -> Option<u64> {
        self.from.as_ref().and_then(State::held).filter(|_| self.cached > 0)
    }

    /// A sequence that has begun, as a group of its own.
    fn sent_back(sequence: Sequence) -> Self {
        let (request, wish) = sequence.context();
        let left = request.samples.iter().copied().collect();
        Self {
            request: Arc::new(request),
            wish,
            from: None,
            cached: 0,
            adapter: None,
            arrived: Instant::now(),
            left,
            prefix: None,
            admitted: None,
            history: None,
            sent_back: Some(Box::new(sequence)),
        }
    }

    /// One of its samples.
    fn sequence(&mut self, sample: u32, limits: &Limits) -> Sequence {
        if let Some(sequence) = self.sent_back.take() {
            return *sequence;
        }
        let times = [self.arrived, self.admitted.unwrap_or_else(Instant::now)];
        Sequence::new(&self.request, self.wish, sample, times, limits, self.history.as_ref())
    }
}

/// What ends when somebody does not want it any more.
#[derive(Default)]
pub(super) struct Cancelled {
    /// Completions, with what there is of them.
    pub sequences: Vec<FinishedSequence>,
    /// Their slots, of those that ran.
    pub slots: Vec<usize>,
    /// Prefix slots that nothing will start from any more.
    pub prefixes: Vec<usize>,
    /// The first waiting group is gone, of whose prompt a piece may have been computed.
    pub first: bool,
}

/// The queue and the slots.
#[derive(Default)]
pub(super) struct Scheduler {
    capacity: usize,
    /// Index = slot; holes only between a finish and [`Scheduler::compact`].
    slots: Vec<Option<Sequence>>,
    occupied: usize,
    /// Those whose prompts are in prefix slots come first.
    waiting: VecDeque<WaitingGroup>,
    /// Whether nothing may start.
    closed: bool,
}

impl Scheduler {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Queues a group. Where it goes on from a state, keys and values of its first `cached` tokens are held.
    pub fn push(
        &mut self,
        request: GroupRequest,
        wish: Wish,
        from: Option<State>,
        cached: usize,
        history: Option<SharedHistory>,
        adapter: Option<LoadedAdapter>,
    ) {
        let (left, arrived) = (request.samples.iter().copied().collect(), Instant::now());
        let (request, prefix, admitted, sent_back) = (Arc::new(request), None, None, None);
        self.waiting.push_back(WaitingGroup {
            request,
            wish,
            from,
            cached,
            adapter,
            arrived,
            left,
            prefix,
            admitted,
            history,
            sent_back,
        });
    }

    /// Takes all sequences out of their slots, and returns these. Each goes on when its context was computed again,
    /// before anything that waits.
    pub fn send_back(&mut self) -> Vec<usize> {
        let mut slots = Vec::new();
        for (slot, sequence) in mem::take(&mut self.slots).into_iter().enumerate().rev() {
            if let Some(sequence) = sequence {
                self.waiting.push_front(WaitingGroup::sent_back(sequence));
                slots.push(slot);
            }
        }
        self.occupied = 0;
        slots
    }

    /// Numbers of what is held for states that waiting groups go on from.
    pub fn held(&self) -> BTreeSet<u64> {
        self.waiting.iter().filter_map(WaitingGroup::held).collect()
    }

    pub fn running(&self) -> usize {
        self.occupied
    }

    pub fn waiting(&self) -> usize {
        self.waiting.iter().map(WaitingGroup::samples).sum()
    }

    pub fn set_admission(&mut self, admit: bool) {
        self.closed = !admit;
    }

    /// Number of prompts to be prefilled now, in one call: when a slot is free and the next sample's prompt is in no
    /// prefix slot, those of the first groups whose samples have free slots, within the limits and `budget` tokens. 0
    /// when the first alone is longer than that, or none is wanted.
    pub fn prompts_to_prefill(&self, limits: PrefillLimits, budget: usize) -> usize {
        let mut free = self.capacity - self.occupied;
        if self.closed || self.next_prefix().is_some() {
            return 0;
        }
        let mut count = 0;
        for group in self.waiting.iter().take(limits.prompts) {
            let tokens = self.tokens_to_prefill(limits, count + 1);
            if free == 0 || tokens > budget || (count > 0 && tokens > limits.together) {
                break;
            }
            count += 1;
            free = free.saturating_sub(group.samples());
        }
        count
    }

    /// Tokens that a call over the first `count` prompts computes.
    pub fn tokens_to_prefill(&self, limits: PrefillLimits, count: usize) -> usize {
        let lengths = self.waiting.iter().take(count).map(WaitingGroup::tokens);
        if limits.padded { count * lengths.max().unwrap_or(0) } else { lengths.sum() }
    }

    /// Tokens of the first `count` prompts that are to be computed.
    pub fn tokens(&self, count: usize) -> usize {
        self.waiting.iter().take(count).map(WaitingGroup::tokens).sum()
    }

    /// The prompts of the first `count` waiting groups.
    pub fn prompts(&self, count: usize) -> impl Iterator<Item = Prefill<'_>> {
        self.waiting.iter().take(count).map(WaitingGroup::prefill)
    }

    /// The prompts of the first `count` waiting groups are computed from now on.
    pub fn admit(&mut self, count: usize) {
        let now = Instant::now();
        for group in self.waiting.iter_mut().take(count) {
            group.admitted.get_or_insert(now);
        }
    }

    /// Those prompts are in the prefix slots from the first on now.
    pub fn prefixes_are_ready(&mut self, count: usize) {
        for (prefix, group) in self.waiting.iter_mut().take(count).enumerate() {
            group.prefix = Some(prefix);
            // Its keys and values are the prompt's as well now.
            group.from.iter_mut().for_each(State::let_go);
        }
    }

    /// What is in the prefix slots, and what is held for states, was computed with weights that are no longer in use.
    pub fn forget_prefixes(&mut self) {
        for group in &mut self.waiting {
            (group.prefix, group.cached) = (None, 0);
            group.from.iter_mut().for_each(State::let_go);
        }
    }

    /// The prefix slot of the next prompt.
    pub fn next_prefix(&self) -> Option<usize> {
        self.waiting.front()?.prefix
    }

    /// Puts the next sample into a free slot, if its prompt is ready and there is one; returns the slot and the prefix
    /// slot of its prompt.
    pub fn start_next(&mut self, limits: &Limits) -> Option<(usize, usize)> {
        if self.closed || self.occupied == self.capacity {
            return None;
        }
        let prefix = self.next_prefix()?;
        let group = self.waiting.front_mut()?;
        let sample = group.left.pop_front().expect("a group without samples does not wait");
        let sequence = group.sequence(sample, limits);
        if group.samples() == 0 {
            self.waiting.pop_front();
        }
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(sequence);
        self.occupied += 1;
        Some((slot, prefix))
    }

    /// The sequence in a slot.
    pub fn sequence(&mut self, slot: usize) -> &mut Sequence {
        self.slots[slot].as_mut().expect("the slot is occupied")
    }

    /// Takes a sequence out of its slot.
    pub fn release(&mut self, slot: usize) -> Sequence {
        self.occupied -= 1;
        self.slots[slot].take().expect("the slot is occupied")
    }

    /// Closes the holes; `moved(from, to, used)` is told of each move with the number of cached positions.
    ///
    /// # Errors
    /// What `moved` reports.
    pub fn compact<E>(&mut self, mut moved: impl FnMut(usize, usize, usize) -> Result<(), E>) -> Result<(), E> {
        let mut hole = 0;
        loop {
            while self.slots.last().is_some_and(Option::is_none) {
                self.slots.pop();
            }
            while hole < self.slots.len() && self.slots[hole].is_some() {
                hole += 1;
            }
            if hole >= self.slots.len() {
                return Ok(());
            }
            let last = self.slots.len() - 1;
            let used = self.sequence(last).cached();
            self.slots.swap(hole, last);
            moved(last, hole, used)?;
        }
    }

    /// The sequences of the slots `0..n`, which must be dense.
    pub fn dense(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().map(|slot| slot.as_mut().expect("decoding runs on slots without holes"))
    }

    /// All slots, as a slice for the sampling threads; without holes where [`Scheduler::dense`] may be called.
    pub fn slots(&mut self) -> &mut [Option<Sequence>] {
        &mut self.slots
    }

    /// Ends a completion of the groups with a tag, or all.
    pub fn cancel(&mut self, tag: u64, sample: Option<u32>, limits: &Limits) -> Cancelled {
        let mut cancelled = Cancelled::default();
        for (slot, place) in self.slots.iter_mut().enumerate() {
            if let Some(sequence) = place.take_if(|sequence| sequence.is(tag, sample)) {
                cancelled.slots.push(slot);
                cancelled.sequences.push(sequence.finish(FinishReason::Aborted));
            }
        }
        self.occupied -= cancelled.slots.len();
        for group in self.waiting.iter_mut().filter(|group| group.request.tag == tag) {
            let is_wanted = |index: &u32| sample.is_some_and(|sample| sample != *index);
            let (left, ended): (VecDeque<u32>, VecDeque<u32>) = group.left.iter().partition(|index| is_wanted(index));
            group.left = left;
            let ended = ended.into_iter().map(|sample| group.sequence(sample, limits).finish(FinishReason::Aborted));
            cancelled.sequences.extend(ended);
        }
        cancelled.first = self.waiting.front().is_some_and(|group| group.left.is_empty());
        self.waiting.retain(|group| {
            let is_over = group.left.is_empty();
            cancelled.prefixes.extend(group.prefix.filter(|_| is_over));
            !is_over
        });
        cancelled
    }

    /// Ends everything that runs or waits.
    pub fn abort_all(&mut self, limits: &Limits) -> Vec<FinishedSequence> {
        let running = self.slots.drain(..).flatten();
        let mut aborted: Vec<_> = running.map(|sequence| sequence.finish(FinishReason::Aborted)).collect();
        for mut group in self.waiting.drain(..) {
            let ended = mem::take(&mut group.left).into_iter().map(|sample| group.sequence(sample, limits));
            aborted.extend(ended.map(|sequence| sequence.finish(FinishReason::Aborted)));
        }
        self.occupied = 0;
        aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shared::PolicyVersion;
    use std::collections::BTreeSet;

    use crate::{engine::testing::group, sampling::Scratch};

    impl Scheduler {
        /// A group of which nothing but its completions is wanted.
        fn push_group(&mut self, group: GroupRequest) {
            let wish = Wish::of(&group.clone().into());
            self.push(group, wish, None, 0, None, None);
        }
    }

    fn limits() -> Limits {
        Limits { eos_token_ids: Vec::new(), max_model_len: 1000 }
    }

    fn padded(prompts: usize) -> PrefillLimits {
        PrefillLimits { prompts, together: usize::MAX, padded: true }
    }

    /// Gives every sequence without tokens its first one, as the engine does after a prefill.
    fn first_tokens(scheduler: &mut Scheduler, slot: usize) {
        let sequence = scheduler.sequence(slot);
        sequence.draw(&[0.0, 1.0], &mut Scratch::default());
        sequence.accept(PolicyVersion(0), &limits()).unwrap();
    }

    fn identity(sequence: Sequence) -> (u64, u32) {
        let finished = sequence.finish(FinishReason::Length);
        (finished.tag, finished.sample)
    }

    #[test]
    fn a_group_larger_than_the_slots_keeps_its_prefix_until_the_last_sample() {
        let mut scheduler = Scheduler::new(1);
        scheduler.push_group(group(0, 3));
        scheduler.push_group(group(1, 1));
        for _ in 0..3 {
            if scheduler.prompts_to_prefill(padded(1), 2) == 1 {
                scheduler.admit(1);
                scheduler.prefixes_are_ready(1);
            }
            assert_eq!(scheduler.start_next(&limits()), Some((0, 0)));
            assert_eq!(scheduler.start_next(&limits()), None, "no second slot");
            assert_eq!(scheduler.prompts_to_prefill(padded(1), 2), 0, "nothing is prefilled without a free slot");
            first_tokens(&mut scheduler, 0);
            assert_eq!(identity(scheduler.release(0)).0, 0);
        }
        assert_eq!(scheduler.start_next(&limits()), None, "the next prompt is not prefilled");
        assert_eq!(scheduler.prompts_to_prefill(padded(1), 2), 1);
    }

    #[test]
    fn prompts_are_prefilled_together_as_far_as_slots_and_budget_go() {
        let mut scheduler = Scheduler::new(6);
        for (tag, (samples, length)) in [(2, 5), (3, 2), (4, 7), (1, 1)].into_iter().enumerate() {
            let prompt_ids = vec![1; length].into();
            scheduler.push_group(GroupRequest { prompt_ids, ..group(tag as u64, samples) });
        }
        assert_eq!(scheduler.prompts_to_prefill(padded(8), 100), 3, "the third group begins in the last free slot");
        assert_eq!(scheduler.prompts_to_prefill(padded(2), 100), 2);
        assert_eq!(scheduler.prompts_to_prefill(padded(8), 20), 2, "three rows of seven are too many");
        let whole = PrefillLimits { padded: false, ..padded(8) };
        assert_eq!(scheduler.prompts_to_prefill(whole, 14), 3, "where nothing is padded they are fourteen tokens");
        assert_eq!(scheduler.prompts_to_prefill(PrefillLimits { together: 7, ..whole }, 14), 2);
        assert_eq!(
            scheduler.prompts_to_prefill(PrefillLimits { together: 4, ..whole }, 14),
            1,
            "one alone may be longer"
        );
        assert_eq!(scheduler.prompts_to_prefill(padded(8), 4), 0);
        assert_eq!(scheduler.prompts(3).map(|prompt| prompt.tokens.len()).collect::<Vec<_>>(), [5, 2, 7]);
        scheduler.admit(3);
        scheduler.prefixes_are_ready(3);
        let started: Vec<_> = std::iter::from_fn(|| scheduler.start_next(&limits())).collect();
        assert_eq!(started, [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 2)]);
        assert_eq!(
            scheduler.prompts_to_prefill(padded(8), 100),
            0,
            "the rest of the third group waits with its prompt"
        );
        for slot in 0..4 {
            first_tokens(&mut scheduler, slot);
            scheduler.release(slot);
        }
        let started: Vec<_> = std::iter::from_fn(|| scheduler.start_next(&limits())).collect();
        assert_eq!(started, [(0, 2), (1, 2), (2, 2)]);
        assert_eq!(scheduler.prompts_to_prefill(padded(8), 100), 1);
    }

    #[test]
    fn what_goes_on_from_states_is_prefilled_together_and_counts_without_what_is_held() {
        let (wish, mut scheduler) = (Wish::of(&group(9, 1).into()), Scheduler::new(4));
        let state = State::after(&group(9, 1), wish.past, &[5; 7]);
        let long = || GroupRequest { prompt_ids: [1; 12].into(), ..group(9, 1) };
        (0..2).for_each(|_| scheduler.push(long(), wish, Some(state.clone()), 8, None, None));
        scheduler.push_group(group(2, 1));
        let limits = PrefillLimits { prompts: 8, together: 10, padded: false };
        assert_eq!((scheduler.prompts_to_prefill(limits, 10), scheduler.tokens(3)), (3, 4 + 4 + 2));
        assert!(scheduler.prompts(3).map(|of| (of.tokens.len(), of.prompt)).eq([(12, 2), (12, 2), (2, 2)]));
        scheduler.forget_prefixes();
        assert_eq!((scheduler.prompts_to_prefill(limits, 20), scheduler.tokens(3)), (1, 12 + 12 + 2));
    }

    #[test]
    fn only_the_samples_that_are_wanted_start() {
        let mut scheduler = Scheduler::new(4);
        scheduler.push_group(GroupRequest { samples: Arc::from([1, 4]), ..group(0, 0) });
        assert_eq!(scheduler.waiting(), 2);
        scheduler.admit(1);
        scheduler.prefixes_are_ready(1);
        while scheduler.start_next(&limits()).is_some() {}
        let started: Vec<_> = scheduler.abort_all(&limits()).iter().map(|sequence| sequence.sample).collect();
        assert_eq!(started, [1, 4]);
    }

    #[test]
    fn nothing_starts_while_admission_is_off_and_a_forgotten_prefix_is_prefilled_again() {
        let mut scheduler = Scheduler::new(4);
        scheduler.push_group(group(0, 2));
        scheduler.set_admission(false);
        assert_eq!(scheduler.prompts_to_prefill(padded(1), 2), 0);
        scheduler.set_admission(true);
        scheduler.admit(1);
        scheduler.prefixes_are_ready(1);
        assert!(scheduler.start_next(&limits()).is_some());
        scheduler.forget_prefixes();
        assert_eq!(scheduler.start_next(&limits()), None);
        assert_eq!(scheduler.prompts_to_prefill(padded(1), 2), 1);
        assert_eq!(scheduler.abort_all(&limits()).len(), 2);
        assert_eq!((scheduler.running(), scheduler.waiting()), (0, 0));
    }

    #[test]
    fn what_is_sent_back_goes_on_first_with_all_that_it_has() {
        let mut scheduler = Scheduler::new(3);
        scheduler.push_group(group(0, 3));
        scheduler.push_group(group(1, 1));
        scheduler.admit(1);
        scheduler.prefixes_are_ready(1);
        for slot in 0..3 {
            assert_eq!(scheduler.start_next(&limits()), Some((slot, 0)));
            first_tokens(&mut scheduler, slot);
        }
        identity(scheduler.release(1));
        let [first, last] = [0, 2].map(|slot| scheduler.sequence(slot).newest().unwrap());
        assert_eq!(scheduler.send_back(), [2, 0]);
        assert_eq!((scheduler.running(), scheduler.waiting()), (0, 3));
        // A prompt of two tokens, and the one that was drawn.
        assert!(scheduler.prompts(3).map(|of| (of.tokens.len(), of.prompt)).eq([(3, 2), (3, 2), (2, 2)]));
        assert_eq!(scheduler.cancel(0, Some(0), &limits()).sequences[0].token_ids, [first]);
        assert_eq!(scheduler.prompts_to_prefill(padded(1), 3), 1);
        scheduler.admit(1);
        scheduler.prefixes_are_ready(1);
        assert_eq!(scheduler.start_next(&limits()), Some((0, 0)));
        first_tokens(&mut scheduler, 0);
        let sequence = scheduler.release(0).finish(FinishReason::Length);
        assert_eq!((sequence.tag, sequence.sample, sequence.token_ids.len()), (0, 2, 2));
        assert_eq!(sequence.token_ids[0], last, "it has what it had");
        assert_eq!(scheduler.abort_all(&limits()).len(), 1);
    }

    #[test]
    fn what_is_cancelled_leaves_slots_queue_and_prefix_slots() {
        let mut scheduler = Scheduler::new(3);
        for (tag, samples) in [(0, 2), (1, 3), (2, 1), (3, 1)] {
            scheduler.push_group(group(tag, samples));
        }
        scheduler.admit(3);
        scheduler.prefixes_are_ready(3);
        let started: Vec<_> = std::iter::from_fn(|| scheduler.start_next(&limits())).collect();
        assert_eq!(started, [(0, 0), (1, 0), (2, 1)]);
        let mut cancel = |tag, sample| {
            let Cancelled { sequences, slots, prefixes, first } = scheduler.cancel(tag, sample, &limits());
            (sequences.iter().map(|sequence| sequence.sample).collect::<Vec<_>>(), slots, prefixes, first)
        };
        assert_eq!(cancel(1, Some(2)), (vec![2], vec![], vec![], false), "another of its samples waits");
        assert_eq!(cancel(1, None), (vec![0, 1], vec![2], vec![1], true));
        assert_eq!(cancel(3, None), (vec![0], vec![], vec![], false), "its prompt was not computed");
        assert_eq!(cancel(7, None), (vec![], vec![], vec![], false));
        assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
        assert_eq!(scheduler.start_next(&limits()), Some((2, 2)), "the next prompt is where it was");
    }

    proptest! {
        /// Random arrivals and departures: every sample runs exactly once, slots are dense after compaction, and a
        /// model of the cache (one value per slot) always belongs to the sequence in that slot.
        #[test]
        fn every_sample_runs_once_with_its_own_cache(
            capacity in 1usize..6,
            prefill_batch in 1usize..4,
            groups in prop::collection::vec(1u32..5, 1..6),
            departures in prop::collection::vec(any::<u8>(), 64),
        ) {
            let mut scheduler = Scheduler::new(capacity);
            let mut expected = BTreeSet::new();
            for (tag, &n) in groups.iter().enumerate() {
                scheduler.push_group(group(tag as u64, n));
                expected.extend((0..n).map(|s| (tag as u64, s)));
            }
            let mut cache = vec![None; capacity];
            let mut prefixes = Vec::new();
            let mut seen = BTreeSet::new();
            let mut departures = departures.into_iter().cycle();
            while scheduler.running() + scheduler.waiting() > 0 {
                let prompts = scheduler.prompts_to_prefill(padded(prefill_batch), 100);
                if prompts > 0 {
                    scheduler.admit(prompts);
                    scheduler.prefixes_are_ready(prompts);
                    prefixes = scheduler.waiting.iter().take(prompts).map(|g| g.request.prompt_id.0).collect();
                }
                while let Some((slot, prefix)) = scheduler.start_next(&limits()) {
                    first_tokens(&mut scheduler, slot);
                    let sequence = scheduler.sequence(slot);
                    prop_assert_eq!(sequence.identity().0, prefixes[prefix]);
                    cache[slot] = Some(sequence.identity());
                }
                scheduler.compact(|from, to, used| {
                    assert!(from > to && used == 2);
                    cache[to] = cache[from].take();
                    Ok::<_, std::convert::Infallible>(())
                }).unwrap();
                let here: Vec<_> = scheduler.dense().map(|s| Some(s.identity())).collect();
                prop_assert_eq!(&here[..], &cache[..here.len()]);
                prop_assert_eq!(here.len(), scheduler.running());
                for slot in 0..here.len() {
                    if departures.next().unwrap() % 2 == 0 {
                        prop_assert!(seen.insert(identity(scheduler.release(slot))));
                    }
                }
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
