//! Trust, but check: a share of what workers make is made again by another worker, or beside the learner, and compared.
//!
//! Equal packed kernels give equal bits, so there is no tolerance. Two that differ are a case that the engine beside
//! the learner decides, which samples from the same edition. Whoever computes otherwise cannot be compared token by
//! token: that engine says how probable its tokens are, and what the worker has said of them must be near that.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rollout::engine::GroupRequest;
use shared::{PolicyVersion, channel::fleet::Made, rng};

/// Checks that wait at most; more are not taken on.
const MOST_WAITING: usize = 64;

/// Completions to be made again.
#[derive(Clone)]
pub struct Check {
    /// What was asked for.
    pub request: GroupRequest,
    /// The version that all of it was sampled from.
    pub version: PolicyVersion,
    /// Who has made what of it: one worker, or two that differ.
    pub made: Vec<(u64, Vec<Made>)>,
    /// How far log-probs may be from those of the engine beside the learner, where that computes otherwise than the
    /// worker.
    pub tolerance: Option<f64>,
    /// Since when it waits.
    since: Instant,
}

/// What the engine beside the learner finds.
pub enum Found {
    /// What it has made of it.
    Made(Vec<Made>),
    /// How far the worker's log-probs are from its own, at most.
    Apart(f64),
    /// Nothing: the weights are not the newest any more.
    Late,
}

/// What has become of the checks.
pub struct Checks {
    share: f64,
    waiting: VecDeque<Check>,
    disputed: Vec<Check>,
    /// Leases that were made twice with the same result.
    pub agreed: u64,
    /// Those that were not.
    pub disputes: u64,
    /// Why the engine beside the learner could not look at the last of them.
    pub trouble: Option<String>,
}

/// What a case has shown of a worker: its number, and what was wrong.
pub type Verdict = (u64, String);

impl Checks {
    /// Nothing to check yet; `share` of the leases will be.
    #[must_use]
    pub fn new(share: f64) -> Self {
        Self { share, waiting: VecDeque::new(), disputed: Vec::new(), agreed: 0, disputes: 0, trouble: None }
    }

    /// A worker has made a lease. Which are checked hangs on the prompt alone, and no worker knows it before. With
    /// `tolerance`, it is one that computes otherwise than the run.
    pub(super) fn first(
        &mut self,
        request: &GroupRequest,
        worker: u64,
        made: Vec<Made>,
        tolerance: Option<f64>,
        now: Instant,
    ) {
        let seed = request.sampling.seed ^ 0x005e_ed0f_c4ec;
        let drawn = rng::hash(&[seed, request.prompt_id.0, request.epoch.into(), worker]) as f64 / u64::MAX as f64;
        let one_version = |made: &Made| match made.versions[..] {
            [(_, version)] => Some(version),
            _ => None,
        };
        let Some(version) = made.first().and_then(one_version) else { return };
        if drawn >= self.share
            || self.waiting.len() >= MOST_WAITING
            || !made.iter().all(|m| one_version(m) == Some(version))
        {
            return;
        }
        let samples = sorted(&made).iter().map(|made| made.sample).collect();
        let request = GroupRequest { samples, ..request.clone() };
        self.waiting.push_back(Check { request, version, made: vec![(worker, made)], tolerance, since: now });
    }

    /// A check for a worker that has `version` in use and has not made it itself.
    pub(super) fn next_for(&mut self, worker: u64, version: Option<PolicyVersion>, now: Instant) -> Option<Check> {
        let is_for = |check: &Check| {
            check.tolerance.is_none()
                && Some(check.version) == version
                && check.made.iter().all(|(by, _)| *by != worker)
        };
        let at = self.waiting.iter().position(is_for)?;
        let mut check = self.waiting.remove(at)?;
        check.since = now;
        Some(check)
    }

    /// A second worker has made a lease again.
    pub(super) fn second(&mut self, mut check: Check, worker: u64, made: Vec<Made>, now: Instant) {
        if differs(&check.made[0].1, &made).is_none() {
            self.agreed += 1;
            return;
        }
        self.disputes += 1;
        check.made.push((worker, made));
        check.since = now;
        self.disputed.push(check);
    }

    /// Nobody has made it again yet.
    pub(super) fn again(&mut self, check: Check) {
        self.waiting.push_front(check);
    }

    /// Workers go over to a version: nobody can make those of earlier ones again.
    pub(super) fn forget_before(&mut self, version: PolicyVersion) {
        self.waiting.retain(|check| check.version >= version);
    }

    /// What is to be decided beside the learner.
    pub(super) fn take_cases(&mut self, alone: bool, patience: Duration, now: Instant) -> Vec<Check> {
        let mut cases = std::mem::take(&mut self.disputed);
        let is_due = |check: &Check| alone || check.tolerance.is_some() || now.duration_since(check.since) > patience;
        let due = self.waiting.iter().position(is_due);
        cases.extend(due.and_then(|at| self.waiting.remove(at)));
        cases
    }

    /// The engine beside the learner has looked at it too. Whoever differs is wrong.
    pub(super) fn decide(&mut self, check: &Check, verdict: Result<Found, String>) -> Vec<Verdict> {
        let prompt = check.request.prompt_id;
        let wrong: Vec<Verdict> = match (verdict, check.tolerance) {
            (Ok(Found::Made(truth)), _) => {
                let differs = |(worker, made): &(u64, Vec<Made>)| {
                    let what = differs(&truth, made)?;
                    Some((*worker, format!("prompt {prompt}, {what}, made again beside the learner")))
                };
                check.made.iter().filter_map(differs).collect()
            }
            (Ok(Found::Apart(distance)), Some(tolerance)) if distance > tolerance => {
                let what = format!(
                    "prompt {prompt}, log-probs {distance:.1e} from those beside the learner (tolerance \
                     {tolerance:.0e})"
                );
                check.made.iter().map(|(worker, _)| (*worker, what.clone())).collect()
            }
            (Ok(Found::Apart(_)), _) => Vec::new(),
            (Ok(Found::Late), _) => {
                if check.made.len() > 1 {
                    tracing::warn!(
                        "two workers differ in prompt {prompt}, and weights v{} went before it was found out who is \
                         wrong",
                        check.version
                    );
                }
                return Vec::new();
            }
            (Err(reason), _) => {
                tracing::warn!("completions of prompt {prompt} were not checked: {reason}");
                self.trouble = Some(reason);
                return Vec::new();
            }
        };
        self.trouble = None;
        if check.made.len() == 1 {
            *(if wrong.is_empty() { &mut self.agreed } else { &mut self.disputes }) += 1;
        }
        wrong
    }
}

fn sorted(made: &[Made]) -> Vec<&Made> {
    let mut all: Vec<&Made> = made.iter().collect();
    all.sort_unstable_by_key(|made| made.sample);
    all
}

/// The first difference between what should be the same, in words.
fn differs(one: &[Made], other: &[Made]) -> Option<String> {
    let (one, other) = (sorted(one), sorted(other));
    if one.len() != other.len() {
        return Some(format!("{} completions instead of {}", other.len(), one.len()));
    }
    one.iter().zip(&other).find_map(|(a, b)| {
        let sample = a.sample;
        let token =
            (0..a.token_ids.len().max(b.token_ids.len())).find(|&at| a.token_ids.get(at) != b.token_ids.get(at));
        if let Some(token) = token {
            return Some(format!("completion {sample} differs from token {token} on"));
        }
        if a.sample != b.sample || a.finish_reason != b.finish_reason {
            return Some(format!("completion {sample} ends otherwise"));
        }
        let bits = |made: &Made, at: usize| {
            let l = made.logprobs[at];
            (l.logprob.to_bits(), l.logprob_at_temperature.to_bits(), l.log_kept_mass.to_bits(), l.kept_count)
        };
        let at = (0..a.logprobs.len()).find(|&at| bits(a, at) != bits(b, at))?;
        Some(format!("completion {sample} has another log-prob at token {at}"))
    })
}
