//! The completions that workers send: examined before they are believed, and counted once.

use std::{ops::RangeInclusive, time::Instant};

use rollout::engine::{Constrained, FinishedSequence, GroupRequest, tolerance_between};
use shared::{PolicyVersion, RewardOutcome, channel::fleet::Made, config::Kernels};

use super::{Lease, Scheduler};

/// Weight of the newest lease in the usual time of a lease.
const NEWEST_SHARE: f64 = 0.1;

impl Scheduler {
    /// Takes a completion.
    pub(super) fn take(&mut self, number: u64, made: &Made, now: Instant) {
        let worker = self.workers.get_mut(&number).expect("it was noted");
        let Some(lease) = self.leases.get_mut(&made.lease) else {
            // The lease is gone: others have made its samples meanwhile, or it was answered before.
            worker.twice += 1;
            return;
        };
        if lease.worker != number || !lease.samples.contains(&made.sample) {
            worker.failures += 1;
            return;
        }
        if lease.made.iter().any(|known| known.sample == made.sample) {
            return;
        }
        let (request, oldest) = match (&lease.check, self.requests.get(&lease.request)) {
            (Some(check), _) => (&check.request, check.version),
            (None, Some(request)) => (&request.request, request.version),
            (None, None) => return,
        };
        let possible = is_possible(made, request, oldest..=self.newest, self.options.vocab_size);
        if let Err(problem) = possible.and_then(|()| are_rewards(&made.rewards, self.options.rewards)) {
            let prompt = request.prompt_id;
            self.drop_worker(number, format!("a completion of prompt {prompt} that cannot be: {problem}"), true);
            return;
        }
        worker.progressed(now);
        lease.made.push(made.clone());
        let complete = lease.made.len() == lease.samples.len();
        let of = lease.check.is_none().then_some(lease.request);
        if of.is_some() {
            worker.made((request.prompt_id, request.epoch));
            self.finish(number, made);
        }
        if complete {
            self.complete(made.lease, now);
        }
        if let Some(request) = of {
            self.retire(request);
        }
    }

    /// Finishes a sample, unless it was finished before.
    fn finish(&mut self, number: u64, made: &Made) {
        let id = self.leases[&made.lease].request;
        let request = self.requests.get_mut(&id).expect("a lease has an open request");
        if !request.open.remove(&made.sample) {
            self.workers.get_mut(&number).expect("it was noted").twice += 1;
            return;
        }
        self.waiting.remove(&(id, made.sample));
        self.workers.get_mut(&number).expect("it was noted").completions += 1;
        let sequence = FinishedSequence {
            tag: request.request.tag,
            sample: made.sample,
            token_ids: made.token_ids.clone(),
            logprobs: made.logprobs.clone(),
            top_logprobs: Vec::new(),
            versions: made.versions.clone(),
            routing: None,
            finish_reason: made.finish_reason,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: made.seconds,
        };
        self.finished.push((sequence, made.rewards.clone()));
    }

    /// Takes a complete lease: it is compared, or may be chosen for a check.
    fn complete(&mut self, id: u64, now: Instant) {
        let lease = self.leases.remove(&id).expect("it was just looked at");
        if let Some(check) = lease.check {
            self.checks.second(check, lease.worker, lease.made, now);
            return;
        }
        let seconds = now.duration_since(lease.given).as_secs_f64();
        self.usual_s = Some(self.usual_s.map_or(seconds, |usual| usual + NEWEST_SHARE * (seconds - usual)));
        let worker = &self.workers[&lease.worker];
        // A check knows weights by their version alone.
        let can_be_checked = !lease.is_of_old_weights && worker.has_weights_of(&self.edition);
        if let Some(class) = worker.class.filter(|_| can_be_checked) {
            let own = self.options.class;
            // Only the packed kernels make the same bits whatever else they have to do.
            let is_exact = class == own && class.kernels == Kernels::Packed;
            let tolerance = (!is_exact).then(|| tolerance_between(class, own));
            self.checks.first(&self.requests[&lease.request].request, lease.worker, lease.made, tolerance, now);
        }
    }

    /// Drops the leases of a request of which nothing is wanted any more, and the request once all of it is there.
    pub(super) fn retire(&mut self, id: u64) {
        let open = &self.requests[&id].open;
        let is_of_use =
            |lease: &Lease| lease.check.is_some() || lease.request != id || !lease.samples.is_disjoint(open);
        self.leases.retain(|_, lease| is_of_use(lease));
        if open.is_empty() {
            self.requests.remove(&id);
        }
    }
}

/// Whether a completion can be one that a request asked for. It comes from another host, so nothing about it is sure.
fn is_possible(
    made: &Made,
    request: &GroupRequest,
    wanted: RangeInclusive<PolicyVersion>,
    vocab_size: usize,
) -> Result<(), String> {
    let length = made.token_ids.len();
    if length == 0 || length > request.sampling.max_completion_length as usize {
        return Err(format!("{length} tokens"));
    }
    if let Some(token) = made.token_ids.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(format!("token {token} of a vocabulary of {vocab_size}"));
    }
    if let Some(constraint) = request.constraint.as_ref().filter(|constraint| !follows(constraint, &made.token_ids)) {
        return Err(format!("tokens that `{}` does not let come", constraint.name()));
    }
    if made.logprobs.len() != length {
        return Err(format!("{} log-probs for {length} tokens", made.logprobs.len()));
    }
    let is_logprob = |value: f32| value.is_finite() && value <= 1e-3;
    if !made.logprobs.iter().all(|l| is_logprob(l.logprob) && is_logprob(l.logprob_at_temperature)) {
        return Err("a log-prob above 0 or not finite".into());
    }
    let runs = &made.versions;
    let begins = runs.first().is_some_and(|(first, _)| *first == 0);
    let ascend = runs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
    let inside = runs.iter().all(|(at, version)| (*at as usize) < length && wanted.contains(version));
    if !(begins && ascend && inside) {
        let (oldest, newest) = wanted.into_inner();
        return Err(format!("weights {runs:?}, asked for v{oldest} to v{newest}"));
    }
    Ok(())
}

/// Whether a constraint lets these tokens come.
fn follows(constraint: &Constrained, token_ids: &[u32]) -> bool {
    let mut completion = constraint.begin();
    let last = token_ids.len() - 1;
    token_ids.iter().enumerate().all(|(at, &token)| completion.push(token).is_ok_and(|ended| !ended || at == last))
}

/// Whether these can be the rewards of a completion by the `count` reward functions of a run; there may be none.
fn are_rewards(rewards: &[RewardOutcome], count: usize) -> Result<(), String> {
    if !rewards.is_empty() && rewards.len() != count {
        return Err(format!("{} rewards of {count} functions", rewards.len()));
    }
    let is_finite = |outcome: &RewardOutcome| match outcome {
        RewardOutcome::Score(score) => score.is_finite(),
        RewardOutcome::Steps(steps) => steps.iter().all(|step| step.score.is_finite()),
        RewardOutcome::NotApplicable | RewardOutcome::Failed(_) => true,
    };
    if rewards.iter().all(is_finite) { Ok(()) } else { Err("a reward that is not finite".into()) }
}
