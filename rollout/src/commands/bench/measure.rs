//! How long it took, and where the time went.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use shared::Dtype;

use super::workload::Workload;
use crate::engine::{Engine, EngineOptions, Profile, SwapReport, WeightSource};

/// One repeat.
#[derive(Debug, Clone)]
pub(super) struct Measurement {
    seconds: f64,
    /// Of all repeats, ascending.
    all_seconds: Vec<f64>,
    generated_tokens: u64,
    profile: Profile,
    /// Seconds to the first token, one per completion, ascending.
    ttft: Vec<f64>,
    /// Seconds per token after the first, one per completion with more than one token, ascending.
    tpot: Vec<f64>,
}

impl Measurement {
    pub const TABLE_HEADER: &str = "max_num_seqs   seconds  tokens/s  prefill t/s  decode t/s  mean batch  TTFT p50 ms  \
                                    TPOT p50 ms  prefill %  decode %  sampling %  rest %";

    /// Generates the whole workload once.
    pub fn take(engine: &mut Engine, workload: &Workload) -> anyhow::Result<Self> {
        engine.reset_profile();
        let start = Instant::now();
        workload.submit(engine)?;
        let mut finished = Vec::with_capacity(workload.sequences());
        while !engine.is_idle() {
            finished.extend(engine.step()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let rest = |n: usize| (n - 1) as f64;
        let tpot = finished
            .iter()
            .filter(|s| s.token_ids.len() > 1)
            .map(|s| (s.total_seconds - s.ttft_seconds) / rest(s.token_ids.len()));
        Ok(Self {
            seconds,
            all_seconds: vec![seconds],
            generated_tokens: finished.iter().map(|s| s.token_ids.len() as u64).sum(),
            profile: engine.profile(),
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

    fn tokens_per_s(&self) -> f64 {
        self.generated_tokens as f64 / self.seconds
    }

    fn prefill_tokens_per_s(&self) -> f64 {
        rate(self.profile.prefill_tokens, self.profile.prefill.as_secs_f64())
    }

    /// Of the decode steps as a whole, sampling included.
    fn decode_tokens_per_s(&self) -> f64 {
        rate(self.profile.decode_tokens, self.seconds - self.profile.prefill.as_secs_f64())
    }

    pub fn table_row(&self, max_num_seqs: usize) -> String {
        let share = |seconds: f64| 100.0 * seconds / self.seconds;
        let (prefill, decode, sampling) = (
            self.profile.prefill.as_secs_f64(),
            self.profile.decode.as_secs_f64(),
            self.profile.sampling.as_secs_f64(),
        );
        format!(
            "{max_num_seqs:>12} {:>9.3} {:>9.1} {:>12.1} {:>11.1} {:>11.1} {:>12.1} {:>12.2} {:>10.1} {:>9.1} {:>11.2} \
             {:>7.2}",
            self.seconds,
            self.tokens_per_s(),
            self.prefill_tokens_per_s(),
            self.decode_tokens_per_s(),
            self.profile.mean_batch(),
            1e3 * quantile(&self.ttft, 0.5),
            1e3 * quantile(&self.tpot, 0.5),
            share(prefill),
            share(decode),
            share(sampling),
            share(self.seconds - prefill - decode - sampling),
        )
    }

    /// One flat JSON object.
    pub fn record(&self, workload: &Workload, options: &EngineOptions, dtype: Dtype) -> Map<String, Value> {
        let profile = &self.profile;
        let record = json!({
            "num_prompts": workload.prompts.len(),
            "num_generations": workload.num_generations,
            "prompt_length": workload.prompts[0].len(),
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "max_model_len": options.max_model_len,
            "threads": options.threads,
            "device": options.device,
            "kernels": options.kernels,
            "rollout_dtype": options.rollout_dtype,
            "kv_dtype": options.kv_dtype,
            "dtype": dtype,
            "repeats": self.all_seconds.len(),
            "generated_tokens": self.generated_tokens,
            "prefill_tokens": profile.prefill_tokens,
            "seconds": self.seconds,
            "seconds_min": self.all_seconds.first(),
            "seconds_max": self.all_seconds.last(),
            "tokens_per_s": self.tokens_per_s(),
            "prefill_tokens_per_s": self.prefill_tokens_per_s(),
            "decode_tokens_per_s": self.decode_tokens_per_s(),
            "prefill_seconds": profile.prefill.as_secs_f64(),
            "decode_seconds": profile.decode.as_secs_f64(),
            "sampling_seconds": profile.sampling.as_secs_f64(),
            "linear_seconds": profile.linear.as_secs_f64(),
            "head_seconds": profile.head.as_secs_f64(),
            "attention_seconds": profile.attention.as_secs_f64(),
            "kv_copy_seconds": profile.kv_copy.as_secs_f64(),
            "scheduling_seconds": profile.scheduling.as_secs_f64(),
            "decode_steps": profile.decode_steps,
            "mean_batch": profile.mean_batch(),
            "ttft_seconds_p50": quantile(&self.ttft, 0.5),
            "ttft_seconds_p99": quantile(&self.ttft, 0.99),
            "tpot_seconds_p50": quantile(&self.tpot, 0.5),
            "tpot_seconds_p99": quantile(&self.tpot, 0.99),
            "peak_rss_bytes": peak_memory(),
        });
        match record {
            Value::Object(map) => map,
            other => unreachable!("the record is an object, not {other}"),
        }
    }
}

/// Takes the weights into use once more while nothing else runs; the first time, which makes memory for a second set, does
/// not count.
pub(super) fn swap(engine: &mut Engine, weights: &WeightSource) -> anyhow::Result<SwapReport> {
    let mut once = || {
        engine.begin_swap(weights.clone())?;
        while engine.swap_pending() {
            // As training waits: looking for the version between two steps.
            std::thread::sleep(Duration::from_micros(100));
            if let Some(report) = engine.try_swap()? {
                return Ok(report);
            }
        }
        anyhow::bail!("a swap that was begun is neither made nor pending")
    };
    once()?;
    once()
}

fn rate(tokens: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

fn ascending(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The nearest-rank quantile of ascending values; 0 without any.
fn quantile(values: &[f64], q: f64) -> f64 {
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Largest resident set of this process in bytes since [`reset_peak_memory`].
fn peak_memory() -> Option<u64> {
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

    fn measurement(seconds: f64) -> Measurement {
        Measurement {
            seconds,
            all_seconds: vec![seconds],
            generated_tokens: 10,
            profile: Profile::default(),
            ttft: vec![],
            tpot: vec![],
        }
    }

    #[test]
    fn the_median_repeat_keeps_the_spread() {
        let median = Measurement::median([3.0, 1.0, 2.0].map(measurement).to_vec());
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
