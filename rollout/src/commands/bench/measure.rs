//! The measurement of a repeat: how long it took, and where the time went.

use std::{
    fs,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use shared::FinishReason;

use super::{super::progress::rate, processor::processor_seconds, workload::Workload};
use crate::{
    engine::{Engine, Output, Profile, SwapReport, WeightSource},
    generate,
    trace::{self, Event},
};

/// One repeat.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Measurement {
    pub seconds: f64,
    /// Seconds of all repeats, ascending.
    pub all_seconds: Vec<f64>,
    /// Cores that were busy with this process, on average: fewer than threads where others take their share.
    pub cores: f64,
    pub generated_tokens: u64,
    pub profile: Profile,
    /// Seconds in the queue, one per completion, ascending.
    pub queue: Vec<f64>,
    /// Seconds to the first token after that, likewise.
    pub ttft: Vec<f64>,
    /// Seconds per token after the first, one per completion with more than one token, ascending.
    pub tpot: Vec<f64>,
}

impl Measurement {
    /// Generates the whole workload once. After `limit`, it ends with the tokens that there are.
    pub fn take(engine: &mut Engine, workload: &Workload, limit: Duration) -> anyhow::Result<Self> {
        engine.reset_profile();
        let (start, busy) = (Instant::now(), processor_seconds());
        workload.submit(engine)?;
        let mut finished = Vec::with_capacity(workload.sequences());
        generate::finish(engine, |engine, outputs| {
            finished.extend(outputs.into_iter().filter_map(Output::ended));
            if start.elapsed() > limit {
                finished.extend(engine.abort_all());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let cores = (processor_seconds() - busy) / seconds;
        let generated_tokens = finished.iter().map(|s| s.token_ids.len() as u64).sum();
        trace::span(start, Instant::now(), Event::Generate { tokens: generated_tokens });
        let rest = |n: usize| (n - 1) as f64;
        finished.retain(|s| s.finish_reason != FinishReason::Aborted);
        let tpot = finished
            .iter()
            .filter(|s| s.token_ids.len() > 1)
            .map(|s| (s.total_seconds - s.ttft_seconds) / rest(s.token_ids.len()));
        Ok(Self {
            seconds,
            all_seconds: vec![seconds],
            cores,
            generated_tokens,
            profile: engine.profile(),
            queue: ascending(finished.iter().map(|s| s.queue_seconds).collect()),
            ttft: ascending(finished.iter().map(|s| s.ttft_seconds).collect()),
            tpot: ascending(tpot.collect()),
        })
    }

    /// The repeat with the median time (the upper one of an even number).
    pub fn median(mut repeats: Vec<Self>) -> Self {
        repeats.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let all_seconds = repeats.iter().map(|r| r.seconds).collect();
        let middle = repeats.len() / 2;
        Self { all_seconds, ..repeats.swap_remove(middle) }
    }

    pub fn tokens_per_s(&self) -> f64 {
        self.generated_tokens as f64 / self.seconds
    }

    pub fn prefill_tokens_per_s(&self) -> f64 {
        rate(self.profile.prefill_tokens, self.profile.prefill.as_secs_f64())
    }

    /// Tokens per second of the decode steps as a whole, sampling included.
    pub fn decode_tokens_per_s(&self) -> f64 {
        rate(self.profile.decode_tokens, self.seconds - self.profile.prefill.as_secs_f64())
    }
}

/// Takes the weights into use once more while nothing else runs. A first swap, which makes memory for a second set,
/// does not count. Returns the report, and the seconds from the request to the first token of a prompt that waited for
/// the swap.
pub(super) fn swap(
    engine: &mut Engine,
    weights: &WeightSource,
    workload: &Workload,
) -> anyhow::Result<(SwapReport, f64)> {
    let mut once = || {
        let begin = Instant::now();
        engine.begin_swap(weights.clone())?;
        let report = loop {
            // Training waits in the same way: it looks for the version between two steps.
            std::thread::sleep(Duration::from_micros(100));
            if let Some(report) = engine.try_swap()? {
                break report;
            }
        };
        workload.submit_one_token(engine)?;
        generate::finish(engine, |_, _| Ok(ControlFlow::Continue(())))?;
        anyhow::Ok((report, begin.elapsed().as_secs_f64()))
    };
    once()?;
    once()
}

fn ascending(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The median; of an even number the mean of the two in the middle.
pub(in crate::commands) fn median(values: &[f64]) -> Option<f64> {
    let values = ascending(values.to_vec());
    let upper = *values.get(values.len() / 2)?;
    Some(f64::midpoint(values[(values.len() - 1) / 2], upper))
}

/// The nearest-rank quantile of ascending values; 0 without any.
pub(super) fn quantile(values: &[f64], q: f64) -> f64 {
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Largest resident set of this process in bytes since [`reset_peak_memory`].
pub(super) fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Forgets the peak of what came before (an export, say), where the kernel lets us.
pub(super) fn reset_peak_memory() {
    if let Err(error) = fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!(%error, "the peak of the resident set counts from the start of the process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Measurement {
        /// A repeat of which only this is known.
        pub fn of(seconds: f64, profile: Profile) -> Self {
            let none = Vec::new;
            let (cores, generated_tokens, all_seconds) = (1.0, 10, vec![seconds]);
            Self { seconds, all_seconds, cores, generated_tokens, profile, queue: none(), ttft: none(), tpot: none() }
        }
    }

    #[test]
    fn the_median_repeat_keeps_the_spread() {
        let median =
            Measurement::median([3.0, 1.0, 2.0].map(|seconds| Measurement::of(seconds, Profile::default())).to_vec());
        assert_eq!((median.seconds, median.all_seconds), (2.0, vec![1.0, 2.0, 3.0]));
    }

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99), quantile(&values, 1.0)), (50.0, 99.0, 100.0));
        assert_eq!((quantile(&[4.0], 0.5), quantile(&[], 0.5)), (4.0, 0.0));
    }

    #[test]
    fn the_peak_of_this_process_is_known() {
        reset_peak_memory();
        assert!(peak_memory().unwrap() > 1 << 20);
    }
}
