//! Which sequence sits in which slot.
//!
//! Groups wait in the order of arrival. The prompt of the first one is prefilled once, into a place of its own (a
//! prefix slot), and stays there until the last of its samples has started; so a group may be larger than the number of
//! slots. Prompts of the groups behind it may be prefilled in the same call, if places are free for their samples. A
//! finished sequence leaves a hole that the next sample fills; holes that stay are closed by moving the last sequence,
//! so that decoding always runs on the slots `0..n`.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Instant};

use super::{
    history::SharedHistory,
    sequence::{Limits, Sequence},
    types::{FinishedSequence, GroupRequest},
};
use shared::FinishReason;

/// A group with samples that have not started.
struct WaitingGroup {
    request: Arc<GroupRequest>,
    arrived: Instant,
    /// How many samples have started.
    started: usize,
    /// When its prompt, or the first piece of it, began to be computed.
    admitted: Option<Instant>,
    history: Option<SharedHistory>,
}

impl WaitingGroup {
    /// How many have not started.
    fn samples(&self) -> usize {
        self.request.samples.len() - self.started
    }
}

/// What one call computes of waiting prompts.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillLimits {
    /// Most prompts.
    pub prompts: usize,
    /// Most tokens of more than one prompt.
    pub together: usize,
    /// Whether all take as many tokens as the longest.
    pub padded: bool,
}

/// The queue and the slots.
#[derive(Default)]
pub(super) struct Scheduler {
    capacity: usize,
    /// Index = slot; holes only between a finish and [`Scheduler::compact`].
    slots: Vec<Option<Sequence>>,
    occupied: usize,
    waiting: VecDeque<WaitingGroup>,
    /// The prefix slots that hold prompts: of the first waiting group and those behind it.
    prefixes: Range<usize>,
    /// Whether nothing may start.
    closed: bool,
}

impl Scheduler {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub fn push(&mut self, request: GroupRequest, history: Option<SharedHistory>) {
        let (request, arrived) = (Arc::new(request), Instant::now());
        self.waiting.push_back(WaitingGroup { request, arrived, started: 0, admitted: None, history });
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

    /// Number of prompts to be prefilled now, in one call: when a slot is free and the next sample's prompt is in no prefix
    /// slot, those of the first groups whose samples have free slots, within the limits and `budget` tokens. 0 when the
    /// first alone is longer than that, or none is wanted.
    pub fn prompts_to_prefill(&self, limits: PrefillLimits, budget: usize) -> usize {
        let mut free = self.capacity - self.occupied;
        if self.closed || !self.prefixes.is_empty() {
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
        let lengths = self.prompts(count).map(<[u32]>::len);
        if limits.padded { count * lengths.max().unwrap_or(0) } else { lengths.sum() }
    }

    /// The prompts of the first `count` waiting groups.
    pub fn prompts(&self, count: usize) -> impl Iterator<Item = &[u32]> + Clone {
        self.waiting.iter().take(count).map(|group| &*group.request.prompt_ids)
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
        self.prefixes = 0..count;
    }

    /// What is in the prefix slots was computed with weights that are no longer in use.
    pub fn forget_prefixes(&mut self) {
        self.prefixes = 0..0;
    }

    /// Puts the next sample into a free slot, if its prompt is ready and there is one; returns the slot and the prefix slot
    /// of its prompt.
    pub fn start_next(&mut self, limits: &Limits) -> Option<(usize, usize)> {
        if self.closed || self.prefixes.is_empty() || self.occupied == self.capacity {
            return None;
        }
        let prefix = self.prefixes.start;
        let group = self.waiting.front_mut()?;
        let admitted = group.admitted.expect("a prefilled group was admitted");
        let times = [group.arrived, admitted];
        let sample = group.request.samples[group.started];
        let sequence = Sequence::new(&group.request, sample, times, limits, group.history.as_ref());
        group.started += 1;
        if group.samples() == 0 {
            self.waiting.pop_front();
            self.prefixes.start += 1;
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

    /// Ends everything that runs or waits.
    pub fn abort_all(&mut self, limits: &Limits) -> Vec<FinishedSequence> {
        let running = self.slots.drain(..).flatten();
        let mut aborted: Vec<_> = running.map(|sequence| sequence.finish(FinishReason::Aborted)).collect();
        for group in self.waiting.drain(..) {
            let admitted = group.admitted.unwrap_or_else(Instant::now);
            for &sample in &group.request.samples[group.started..] {
                let sequence = Sequence::new(&group.request, sample, [group.arrived, admitted], limits, None);
                aborted.push(sequence.finish(FinishReason::Aborted));
            }
        }
        self.occupied = 0;
        self.forget_prefixes();
        aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shared::{PolicyVersion, PromptId, SamplingParams};
    use std::collections::BTreeSet;

    use crate::sampling::Scratch;

    fn request(tag: u64, samples: u32) -> GroupRequest {
        GroupRequest {
            tag,
            prompt_id: PromptId(tag),
            epoch: 0,
            prompt_ids: Arc::from([1, 2]),
            samples: (0..samples).collect(),
            sampling: Arc::new(SamplingParams::default()),
            lengths: None,
            stop_criterion: None,
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
        scheduler.push(request(0, 3), None);
        scheduler.push(request(1, 1), None);
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
            scheduler.push(GroupRequest { prompt_ids, ..request(tag as u64, samples) }, None);
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
        assert_eq!(scheduler.prompts(3).map(<[u32]>::len).collect::<Vec<_>>(), [5, 2, 7]);
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
    fn only_the_samples_that_are_wanted_start() {
        let mut scheduler = Scheduler::new(4);
        scheduler.push(GroupRequest { samples: Arc::from([1, 4]), ..request(0, 0) }, None);
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
        scheduler.push(request(0, 2), None);
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
                scheduler.push(request(tag as u64, n), None);
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
