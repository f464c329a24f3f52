//! Schedulers with workers of a few lines: leases that are given, lost, late, wrong and checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;
use rollout::engine::{Constrained, Constraint};
use shared::{
    FinishReason, SamplingParams, StepScore, TokenLogprob,
    channel::{
        Refusal,
        fleet::{Lease as LeaseMessage, Unfetched, Work},
    },
    config::{Device, Kernels, KvDtype, RolloutDtype},
    generation::rng,
};

use super::{pool::MOST_REASONS, *};

mod checks;

const VOCAB: u32 = 50;
const COORDINATOR: u64 = 77;

fn class() -> KernelClass {
    KernelClass {
        device: Device::Cpu,
        kernels: Kernels::Packed,
        rollout_dtype: RolloutDtype::Auto,
        kv_dtype: KvDtype::Auto,
    }
}

pub fn scheduler(share: f64) -> Scheduler {
    Scheduler::new(SchedulerOptions {
        coordinator: COORDINATOR,
        facts: RunFacts {
            config: String::new(),
            model: [0; 32],
            max_model_len: 64,
            store: String::new(),
            run_dir: None,
        },
        class: class(),
        accept_other_kernels: false,
        lease_timeout: Duration::from_secs(60),
        vocab_size: VOCAB as usize,
        rewards: 2,
        checks: Checks::new(share),
    })
}

pub fn edition(version: u64) -> Edition {
    let (rounded, differences) = (false, Vec::new());
    let blake3 = [version as u8; 32];
    Edition { version: PolicyVersion(version), publication: version, blake3, base: None, rounded, differences }
}

pub fn request(tag: u64, samples: u32) -> GroupRequest {
    GroupRequest {
        tag,
        prompt_id: PromptId(tag),
        epoch: 0,
        prompt_ids: Arc::from([1, 2]),
        samples: (0..samples).collect(),
        sampling: Arc::new(SamplingParams { max_completion_length: 8, ..SamplingParams::default() }),
        lengths: None,
        stop_criterion: None,
        constraint: None,
    }
}

/// The completion that every honest worker makes of a sample.
pub fn completion(lease: u64, prompt: PromptId, sample: u32, version: PolicyVersion) -> Made {
    let drawn = rng::hash(&[prompt.0, sample.into(), version.0]);
    let token_ids: Vec<u32> =
        (0..1 + drawn % 8).map(|at| (rng::hash(&[drawn, at]) % u64::from(VOCAB)) as u32).collect();
    Made {
        lease,
        sample,
        logprobs: token_ids.iter().map(|&t| TokenLogprob { logprob: -(t as f32), ..TokenLogprob::default() }).collect(),
        token_ids,
        versions: vec![(0, version)],
        finish_reason: FinishReason::Stop,
        seconds: 1.0,
        rewards: Vec::new(),
    }
}

/// A worker as the scheduler sees it.
pub struct Fake {
    report: Report,
    pub held: BTreeMap<u64, LeaseMessage>,
    done: BTreeSet<(u64, u32)>,
    lies: bool,
}

impl Fake {
    pub fn new(number: u64) -> Self {
        let report = Report {
            worker: number,
            name: format!("w{number}"),
            build: env!("CARGO_PKG_VERSION").into(),
            class: Some(class()),
            max_num_seqs: 4,
            ..Report::default()
        };
        Self { report, held: BTreeMap::new(), done: BTreeSet::new(), lies: false }
    }

    /// Calls; `answered` is whether the answer arrives.
    pub fn call(&mut self, scheduler: &mut Scheduler, now: Instant, answered: bool) -> Orders {
        self.report.held = self.held.keys().copied().collect();
        let orders = scheduler.call(&self.report, now);
        if answered {
            self.report.made.clear();
            if self.report.coordinator != orders.coordinator {
                self.report.coordinator = orders.coordinator;
                self.held.clear();
            }
            self.report.edition.clone_from(&orders.edition);
            self.held.retain(|id, _| orders.leases.contains(id));
            for lease in &orders.granted {
                self.held.entry(lease.id).or_insert_with(|| lease.clone());
            }
        }
        orders
    }

    /// Makes the next completion of the leases that it holds.
    pub fn work(&mut self) {
        let Some((&id, lease)) = self.held.iter().next() else { return };
        let version = self.report.edition.as_ref().expect("leases come with an edition").version;
        let sample = lease.samples.iter().copied().find(|&sample| !self.done.contains(&(id, sample)));
        if let Some(sample) = sample {
            let mut made = completion(id, lease.prompt_id, sample, version);
            if self.lies {
                made.logprobs[0].logprob -= 1.0;
            }
            self.report.work =
                Work { tokens: self.report.work.tokens + 1, busy_s: self.report.work.busy_s + 0.1, ..Work::default() };
            self.report.made.push(made);
            self.done.insert((id, sample));
        }
        if self.held[&id].samples.iter().all(|&sample| self.done.contains(&(id, sample))) {
            self.held.remove(&id);
        }
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn samples_are_shared_out_by_rate_and_each_is_finished_once() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    let mut fakes = [Fake::new(1), Fake::new(2)];
    scheduler.announce(edition(0));
    for fake in &mut fakes {
        assert!(fake.call(&mut scheduler, now, true).facts.is_some(), "it does not know the run");
        fake.call(&mut scheduler, now, true);
    }
    assert!(scheduler.is_in_use());
    (0..2).for_each(|tag| scheduler.add(request(tag, 4), PolicyVersion(0), None));
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    let held = |fake: &Fake| fake.held.values().map(|lease| lease.samples.len()).sum::<usize>();
    assert_eq!(fakes.each_ref().map(held), [4, 4], "half each");
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 8));
    for _ in 0..4 {
        fakes.iter_mut().for_each(Fake::work);
    }
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 8), "until they are taken");
    let mut finished: Vec<(u64, u32)> =
        scheduler.take_finished().iter().map(|(made, _)| (made.tag, made.sample)).collect();
    finished.sort_unstable();
    assert_eq!(finished, (0..2).flat_map(|tag| (0..4).map(move |sample| (tag, sample))).collect::<Vec<_>>());
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 0));
}

#[test]
fn what_a_lost_or_stuck_worker_had_is_given_to_others_and_its_late_completions_count() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut lost = Fake::new(1);
    lost.call(&mut scheduler, now, true);
    lost.call(&mut scheduler, now, true);
    scheduler.add(request(0, 4), PolicyVersion(0), None);
    lost.call(&mut scheduler, now, true);
    lost.work();
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 4));
    scheduler.tick(now + seconds(59));
    assert_eq!(scheduler.waiting(), 0, "it may be slow");
    scheduler.tick(now + seconds(61));
    assert_eq!(scheduler.waiting(), 4);
    let mut other = Fake::new(2);
    let later = now + seconds(62);
    other.call(&mut scheduler, later, true);
    other.call(&mut scheduler, later, true);
    other.call(&mut scheduler, later, true);
    assert_eq!(scheduler.waiting(), 0, "the other has them");
    // The first is back with one of them.
    lost.call(&mut scheduler, later, true);
    assert!(lost.held.is_empty() && scheduler.take_finished().len() == 1);
    while scheduler.leased() > 0 {
        other.work();
        other.call(&mut scheduler, later, true);
    }
    assert_eq!(scheduler.take_finished().len(), 3);
    assert_eq!(scheduler.workers().map(|(_, worker)| worker.twice).collect::<Vec<_>>(), [0, 1], "one was made twice");
}

#[test]
fn what_is_cancelled_is_leased_to_nobody_and_passed_over_when_it_comes() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut fake = Fake::new(1);
    fake.call(&mut scheduler, now, true);
    fake.call(&mut scheduler, now, true);
    (0..3).for_each(|tag| scheduler.add(request(tag, 2), PolicyVersion(0), None));
    fake.call(&mut scheduler, now, true);
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 6));
    fake.work();
    let cancelled = |scheduler: &mut Scheduler, tag, sample| -> Vec<u32> {
        let cancelled = scheduler.cancel(tag, sample);
        assert!(cancelled.iter().all(|sequence| sequence.finish_reason == FinishReason::Aborted));
        cancelled.iter().map(|sequence| sequence.sample).collect()
    };
    assert_eq!(cancelled(&mut scheduler, 0, Some(0)), [0], "it is made, but has not come");
    assert_eq!(cancelled(&mut scheduler, 1, None), [0, 1]);
    assert_eq!(cancelled(&mut scheduler, 1, None), [0; 0], "once");
    scheduler.add(request(3, 1), PolicyVersion(0), None);
    assert_eq!(cancelled(&mut scheduler, 3, None), [0], "what waits as well");
    let orders = fake.call(&mut scheduler, now, true);
    assert_eq!((orders.leases.len(), scheduler.running()), (2, 3));
    for _ in 0..3 {
        fake.work();
        fake.call(&mut scheduler, now, true);
    }
    let finished = scheduler.take_finished();
    assert_eq!(finished.iter().map(|(made, _)| (made.tag, made.sample)).collect::<Vec<_>>(), [(0, 1), (2, 0), (2, 1)]);
    assert_eq!((scheduler.waiting(), scheduler.running()), (0, 0));
}

#[test]
fn what_has_come_and_was_not_taken_is_cancelled_as_it_is() {
    let (mut scheduler, mut fakes, now) = two_with_a_lease_each();
    (0..2).for_each(|_| fakes[0].work());
    fakes[1].work();
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    assert_eq!((scheduler.running(), scheduler.leased()), (4, 1), "three have come");
    let cancel = |scheduler: &mut Scheduler, tag, sample| -> Vec<(u32, FinishReason, Vec<u32>)> {
        let cancelled = scheduler.cancel(tag, sample);
        cancelled.into_iter().map(|made| (made.sample, made.finish_reason, made.token_ids)).collect()
    };
    let come = |tag, sample| {
        let made = completion(0, PromptId(tag), sample, PolicyVersion(0));
        (sample, made.finish_reason, made.token_ids)
    };
    assert_eq!(cancel(&mut scheduler, 0, Some(1)), [come(0, 1)]);
    assert!(cancel(&mut scheduler, 0, Some(1)).is_empty(), "once");
    assert_eq!(cancel(&mut scheduler, 1, None), [come(1, 0), (1, FinishReason::Aborted, Vec::new())]);
    assert_eq!((scheduler.running(), scheduler.leases.len(), scheduler.requests.len()), (1, 0, 0));
    let finished = scheduler.take_finished();
    assert_eq!(finished.iter().map(|(made, _)| (made.tag, made.sample)).collect::<Vec<_>>(), [(0, 0)]);
}

#[test]
fn what_was_made_of_a_version_that_the_learner_has_lost_is_no_lie() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(4));
    let mut fake = Fake::new(1);
    (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    scheduler.add(request(0, 1), PolicyVersion(4), None);
    fake.call(&mut scheduler, now, true);
    fake.work();
    scheduler.announce(edition(0));
    assert_eq!(fake.call(&mut scheduler, now, true).refused, None);
    assert_eq!(scheduler.take_finished().len(), 1, "the plan knows what it is worth");
}

#[test]
fn a_connection_that_is_cut_for_a_moment_costs_nothing() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut fake = Fake::new(1);
    (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    scheduler.add(request(0, 4), PolicyVersion(0), None);
    fake.call(&mut scheduler, now, true);
    scheduler.gone(1, now);
    scheduler.tick(now + seconds(4));
    assert_eq!(scheduler.waiting(), 0);
    scheduler.tick(now + seconds(6));
    assert_eq!(scheduler.waiting(), 4, "it does not come back");
}

/// Two workers, each of which was given a request of two samples.
fn two_with_a_lease_each() -> (Scheduler, [Fake; 2], Instant) {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut fakes = [Fake::new(1), Fake::new(2)];
    for fake in &mut fakes {
        (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    }
    (0..2).for_each(|tag| scheduler.add(request(tag, 2), PolicyVersion(0), None));
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    (scheduler, fakes, now)
}

#[test]
fn what_a_slow_worker_is_late_with_is_made_by_one_without_anything_to_do_as_well() {
    let (mut scheduler, mut fakes, now) = two_with_a_lease_each();
    // The second takes two seconds for its lease, the first goes on and on.
    (0..2).for_each(|_| fakes[1].work());
    for (later, has_both) in [(2, false), (5, false), (7, true)] {
        fakes[1].call(&mut scheduler, now + seconds(later), true);
        assert_eq!(!fakes[1].held.is_empty(), has_both, "after {later} s");
    }
    fakes[1].work();
    fakes[1].call(&mut scheduler, now + seconds(8), true);
    // The first is told to leave the other one alone once both are there.
    fakes[1].work();
    fakes[1].call(&mut scheduler, now + seconds(8), true);
    fakes[0].call(&mut scheduler, now + seconds(8), true);
    assert!(fakes[0].held.is_empty() && scheduler.take_finished().len() == 4 && scheduler.running() == 0);
}

#[test]
fn of_a_lease_that_two_have_made_together_nothing_is_left() {
    let (mut scheduler, mut fakes, now) = two_with_a_lease_each();
    // The second is done in two seconds, and is given samples that the first has not even begun.
    (0..2).for_each(|_| fakes[1].work());
    fakes[1].call(&mut scheduler, now + seconds(2), true);
    fakes[1].call(&mut scheduler, now + seconds(9), true);
    assert_eq!(scheduler.leases.len(), 2);
    let (&id, lease) = fakes[1].held.first_key_value().expect("it was given both");
    assert_eq!(lease.samples, [0, 1]);
    fakes[1].done.insert((id, 0));
    fakes.iter_mut().for_each(Fake::work);
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now + seconds(10), true)));
    assert_eq!((scheduler.take_finished().len(), scheduler.leases.len(), scheduler.requests.len()), (4, 0, 0));
}

#[test]
fn weights_that_one_of_several_workers_refuses_or_finds_damaged() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(3));
    let mut fakes = [Fake::new(1), Fake::new(2)];
    fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    assert_eq!(scheduler.damage(), None);
    let refusal = |publication| Refusal { version: PolicyVersion(3), publication, reason: "norms".into() };
    let unfetched = |publication, is_damage| Some(Unfetched { publication, is_damage, reason: "cut short".into() });
    fakes[0].report.edition = None;
    for (publication, is_damage, found) in [(2, true, false), (3, false, false), (3, true, true)] {
        fakes[0].report.unfetched = unfetched(publication, is_damage);
        scheduler.call(&fakes[0].report, now);
        assert_eq!(scheduler.damage().is_some(), found, "publication {publication}, damage {is_damage}");
    }
    assert!(scheduler.damage().unwrap().1.contains("w1: cut short"));
    fakes[0].report.refusal = Some(refusal(2));
    scheduler.call(&fakes[0].report, now);
    assert!(scheduler.take_refusals().is_empty(), "that was another publication");
    fakes[0].report.refusal = Some(refusal(3));
    scheduler.call(&fakes[0].report, now);
    assert_eq!(scheduler.take_refusals(), ["worker w1: norms"]);
    assert!(!scheduler.is_in_use());
    scheduler.call(&fakes[1].report, now);
    assert!(scheduler.is_in_use() && scheduler.take_refusals().is_empty());
    let reason = scheduler.call(&fakes[0].report, now).refused.unwrap();
    assert!(reason.contains("that others have in use"), "{reason}");
}

#[test]
fn a_worker_that_cannot_be_of_use_is_told_why() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    let mut old = Fake::new(1);
    old.report.build = "0.0.9".into();
    let reason = old.call(&mut scheduler, now, true).refused.unwrap();
    assert!(reason.contains("version 0.0.9") && reason.contains(env!("CARGO_PKG_VERSION")), "{reason}");
    let mut stock = Fake::new(2);
    stock.report.class = Some(KernelClass { kernels: Kernels::Stock, ..class() });
    let reason = stock.call(&mut scheduler, now, true).refused.unwrap();
    assert!(reason.contains("stock kernels") && reason.contains("accept_other_kernels"), "{reason}");
    let told: Vec<Option<&str>> = scheduler.workers().map(|(_, worker)| worker.dropped()).collect();
    assert!(told.len() == 2 && told[0].unwrap().contains("version 0.0.9") && told[1] == Some(&*reason), "{told:?}");
    let mut asks = Fake::new(3);
    (asks.report.name, asks.report.build) = (String::new(), "0.0.9".into());
    assert!(asks.call(&mut scheduler, now, true).refused.is_some());
    assert_eq!(scheduler.workers().count(), 2, "whoever only asks is no worker");
    scheduler.options.accept_other_kernels = true;
    let mut other = Fake { report: Report { worker: 4, ..stock.report }, ..Fake::new(4) };
    assert_eq!(other.call(&mut scheduler, now, true).refused, None);
}

#[test]
fn refused_calls_are_counted_by_the_first_few_reasons() {
    let mut scheduler = scheduler(0.0);
    (0..3).for_each(|_| scheduler.refused("no token".into()));
    (0..2 * MOST_REASONS).for_each(|number| scheduler.refused(format!("reason {number}")));
    let (all, by_reason) = scheduler.refused_calls();
    assert_eq!((all, by_reason["no token"], by_reason.len()), (3 + 2 * MOST_REASONS as u64, 3, MOST_REASONS));
}

#[test]
fn completions_that_cannot_be_drop_their_worker() {
    type Spoil = fn(&mut Made);
    let spoils: [(Spoil, &str); 9] = [
        (|made| made.token_ids[0] = VOCAB, "of a vocabulary of 50"),
        (|made| made.token_ids.clear(), "0 tokens"),
        (|made| made.token_ids = vec![1; 9], "9 tokens"),
        (|made| made.logprobs.clear(), "0 log-probs"),
        (|made| made.logprobs[0].logprob = f32::NAN, "not finite"),
        (|made| made.versions = vec![(0, PolicyVersion(9))], "asked for v0 to v0"),
        (|made| made.rewards = vec![RewardOutcome::Score(1.0)], "1 rewards of 2 functions"),
        (|made| made.rewards = vec![RewardOutcome::NotApplicable, RewardOutcome::Score(f64::NAN)], "not finite"),
        (
            |made| {
                let step = StepScore { score: f64::INFINITY, end: 1 };
                made.rewards = vec![RewardOutcome::Score(0.5), RewardOutcome::Steps(vec![step])];
            },
            "not finite",
        ),
    ];
    for (spoil, words) in spoils {
        let mut scheduler = scheduler(0.0);
        let now = Instant::now();
        scheduler.announce(edition(0));
        let mut fake = Fake::new(1);
        (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
        scheduler.add(request(0, 1), PolicyVersion(0), None);
        fake.call(&mut scheduler, now, true);
        fake.work();
        spoil(&mut fake.report.made[0]);
        let reason = fake.call(&mut scheduler, now, true).refused.unwrap();
        assert!(reason.contains(words), "{reason}");
        assert_eq!((scheduler.waiting(), scheduler.take_finished().len()), (1, 0), "it is made by somebody else");
        let mut again = Fake::new(2);
        again.report.name = "w1".into();
        assert!(
            again.call(&mut scheduler, now, true).refused.unwrap().contains("was dropped"),
            "under no other number either"
        );
    }
}

/// Lets no token come.
struct Nothing;

impl Constraint for Nothing {
    fn allowed(&mut self) -> Result<&[u32], String> {
        Ok(&[])
    }

    fn push(&mut self, token: u32) -> Result<bool, String> {
        Err(format!("not {token}"))
    }
}

#[test]
fn tokens_that_the_expression_of_a_run_does_not_let_come_drop_their_worker() {
    let constraint = Some(Constrained::new("structured_outputs_regex", Arc::new(|| Box::new(Nothing))));
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut fake = Fake::new(1);
    (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    scheduler.add(GroupRequest { constraint, ..request(0, 1) }, PolicyVersion(0), None);
    fake.call(&mut scheduler, now, true);
    fake.work();
    let reason = fake.call(&mut scheduler, now, true).refused.unwrap();
    assert!(reason.contains("tokens that `structured_outputs_regex` does not let come"), "{reason}");
    assert_eq!((scheduler.waiting(), scheduler.take_finished().len()), (1, 0), "it is made by somebody else");
}

#[test]
fn who_was_dropped_for_wrong_completions_is_refused_on_the_same_host() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let named = |number: u64, name: &str| {
        let mut fake = Fake::new(number);
        fake.report.name = name.into();
        fake
    };
    let (mut wrong, mut beside) = (named(1, "node/10"), named(2, "node/11"));
    for fake in [&mut wrong, &mut beside] {
        (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    }
    scheduler.drop_worker(1, "bad memory".into(), true);
    assert!(wrong.call(&mut scheduler, now, true).refused.is_some());
    assert_eq!(beside.call(&mut scheduler, now, true).refused, None, "it was at work before");
    let names = [("node/12", true), ("node-2/10", false), ("mended", false), ("node", false), ("node/", false)];
    for (number, (name, is_refused)) in (3..).zip(names) {
        let refused = named(number, name).call(&mut scheduler, now, true).refused;
        assert_eq!(refused.is_some(), is_refused, "{name}: {refused:?}");
        assert!(refused.is_none_or(|why| why.contains("on node was dropped: bad memory") && why.contains("--name")));
    }
}

#[test]
fn the_reason_why_a_worker_is_dropped_names_the_steps_that_were_given_its_completions() {
    let mut scheduler = scheduler(0.0);
    let now = Instant::now();
    scheduler.announce(edition(0));
    let mut fake = Fake::new(1);
    (0..2).for_each(|_| drop(fake.call(&mut scheduler, now, true)));
    (0..5).for_each(|tag| scheduler.add(request(tag, 1), PolicyVersion(0), None));
    fake.call(&mut scheduler, now, true);
    (0..5).for_each(|_| fake.work());
    fake.call(&mut scheduler, now, true);
    assert_eq!(scheduler.take_finished().len(), 5);
    (0..4).zip([2, 3, 4, 6]).for_each(|(prompt, step)| scheduler.handed_over(PromptId(prompt), 0, step));
    scheduler.drop_worker(1, "bad memory".into(), true);
    let told: Vec<Option<&str>> = scheduler.workers().map(|(_, worker)| worker.dropped()).collect();
    assert_eq!(told, [Some("bad memory; steps that were given its completions: 3 to 5, 7")]);
}

proptest! {
    /// Whatever is lost, killed, late or said twice, each sample of each request is finished exactly once.
    #[test]
    fn nothing_is_lost_and_nothing_counts_twice(
        events in prop::collection::vec((0..6u8, 0..4usize, any::<bool>()), 50..400),
        share in prop::sample::select(vec![0.0, 0.5]),
    ) {
        let mut scheduler = scheduler(share);
        let mut now = Instant::now();
        scheduler.announce(edition(1));
        let mut fakes: Vec<Fake> = (1..=4).map(Fake::new).collect();
        let (mut next, mut wanted) = (5, 0);
        let mut finished = BTreeMap::new();
        let mut note = |scheduler: &mut Scheduler| {
            for (made, _) in scheduler.take_finished() {
                let right = completion(0, PromptId(made.tag), made.sample, PolicyVersion(1));
                assert_eq!(made.token_ids, right.token_ids);
                assert_eq!(finished.insert((made.tag, made.sample), ()), None, "twice");
            }
            finished.len()
        };
        for (what, who, answered) in events {
            match what {
                0 => { scheduler.add(request(wanted, 3), PolicyVersion(1), None); wanted += 1; }
                1 | 2 => drop(fakes[who].call(&mut scheduler, now, answered)),
                3 => fakes[who].work(),
                4 => { now += seconds(20); scheduler.tick(now); }
                _ => {
                    if answered { scheduler.gone(fakes[who].report.worker, now); }
                    fakes[who] = Fake::new(next);
                    next += 1;
                }
            }
            note(&mut scheduler);
        }
        for _ in 0..400 {
            now += seconds(2);
            for fake in &mut fakes {
                fake.work();
                fake.call(&mut scheduler, now, true);
            }
            scheduler.tick(now);
        }
        prop_assert_eq!(note(&mut scheduler), wanted as usize * 3);
        prop_assert_eq!((scheduler.waiting(), scheduler.running()), (0, 0));
    }
}
