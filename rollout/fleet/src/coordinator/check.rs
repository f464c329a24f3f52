//! Trust, but check: a share of what workers make is made again by another worker, or beside the learner, and compared.
//!
//! Equal packed kernels give equal bits, so there is no tolerance. Two workers that differ are a case, which the engine
//! beside the learner decides by sampling from the same edition. A worker that computes otherwise cannot be compared
//! token by token. That engine then computes the log-probs of its tokens, and the worker's own must be near them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rollout::engine::GroupRequest;
use shared::{PolicyVersion, channel::fleet::Made, generation::rng};

/// Most checks that wait; further ones are not taken on.
const MOST_WAITING: usize = 64;

/// Completions to be made again.
#[derive(Clone)]
pub struct Check {
    /// The request for them.
    pub request: GroupRequest,
    /// The version from which all of them were sampled.
    pub version: PolicyVersion,
    /// The completions that workers have made: of one worker, or of two that differ.
    pub made: Vec<(u64, Vec<Made>)>,
    /// How far log-probs may be from those of the engine beside the learner, where the worker computes otherwise than
    /// that engine.
    pub tolerance: Option<f64>,
    /// Since when it waits.
    since: Instant,
}

/// The finding of the engine beside the learner.
pub enum Found {
    /// The completions that it has made itself.
    Made(Vec<Made>),
    /// The largest distance between the worker's log-probs and its own.
    Apart(f64),
    /// Nothing: the weights are not the newest any more.
    Late,
}

/// The checks and their results.
pub struct Checks {
    share: f64,
    waiting: VecDeque<Check>,
    disputed: Vec<Check>,
    /// Checks of versions before this one are of no use any more.
    oldest: PolicyVersion,
    /// Leases that were made twice with the same result.
    pub agreed: u64,
    /// Leases whose check found a difference.
    pub disputes: u64,
    /// Why the engine beside the learner could not look at the last case.
    pub trouble: Option<String>,
}

/// A worker that a case has shown to be wrong: its number, and what was wrong.
pub type Verdict = (u64, String);

impl Checks {
    /// No checks yet; `share` of the leases will be checked.
    #[must_use]
    pub fn new(share: f64) -> Self {
        let (waiting, disputed, oldest) = (VecDeque::new(), Vec::new(), PolicyVersion(0));
        Self { share, waiting, disputed, oldest, agreed: 0, disputes: 0, trouble: None }
    }

    /// Takes a lease that a worker has made. The seed, the prompt, its epoch and the worker decide whether it is
    /// checked, and nobody tells the worker. With `tolerance`, the worker computes otherwise than the run.
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
        let Some(version) = one_version(&made) else { return };
        if drawn >= self.share || self.waiting.len() >= MOST_WAITING || version < self.oldest {
            return;
        }
        let samples = sorted(&made).iter().map(|made| made.sample).collect();
        let request = GroupRequest { samples, ..request.clone() };
        self.waiting.push_back(Check { request, version, made: vec![(worker, made)], tolerance, since: now });
    }

    /// A check for a worker that has `version` in use and has not made these completions itself.
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

    /// Takes a lease that a second worker has made again. If newer weights were announced meanwhile and it went over to
    /// them, its tokens prove nothing, and the check is dropped.
    pub(super) fn second(&mut self, mut check: Check, worker: u64, made: Vec<Made>, now: Instant) {
        if self.oldest > check.version && one_version(&made) != Some(check.version) {
            return;
        }
        if differs(&check.made[0].1, &made).is_none() {
            self.agreed += 1;
            return;
        }
        self.disputes += 1;
        check.made.push((worker, made));
        check.since = now;
        self.disputed.push(check);
    }

    /// Puts back a check that nobody has made again yet, unless its version was forgotten.
    pub(super) fn again(&mut self, check: Check) {
        if check.version >= self.oldest {
            self.waiting.push_front(check);
        }
    }

    /// Drops checks of versions before this one: workers go over to it, so nobody can make them again.
    pub(super) fn forget_before(&mut self, version: PolicyVersion) {
        self.oldest = version;
        self.waiting.retain(|check| check.version >= version);
    }

    /// Drops all checks and cases: the weights of their versions are made anew, and may be others.
    pub(super) fn forget_all(&mut self) {
        self.waiting.clear();
        self.disputed.clear();
    }

    /// The cases to be decided beside the learner.
    pub(super) fn take_cases(&mut self, alone: bool, patience: Duration, now: Instant) -> Vec<Check> {
        let mut cases = std::mem::take(&mut self.disputed);
        let is_due = |check: &Check| alone || check.tolerance.is_some() || now.duration_since(check.since) > patience;
        let due = self.waiting.iter().position(is_due);
        cases.extend(due.and_then(|at| self.waiting.remove(at)));
        cases
    }

    /// Takes the finding of the engine beside the learner. A worker that differs from it is wrong.
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

/// The version from which all tokens of these completions were sampled; none if they are of several.
fn one_version(made: &[Made]) -> Option<PolicyVersion> {
    let of = |made: &Made| match made.versions[..] {
        [(_, version)] => Some(version),
        _ => None,
    };
    let version = of(made.first()?)?;
    made.iter().all(|made| of(made) == Some(version)).then_some(version)
}

fn sorted(made: &[Made]) -> Vec<&Made> {
    let mut all: Vec<&Made> = made.iter().collect();
    all.sort_unstable_by_key(|made| made.sample);
    all
}

/// The first difference between completions that should be the same, in words.
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
