//! The figures of a measurement: tables for people, a record for programs.

use std::time::Duration;

use serde_json::{Map, Value, json};
use shared::Dtype;

use super::{
    account::Account,
    measure::{Measurement, quantile},
    workload::Workload,
};
use crate::engine::{Engine, Kernels};

/// Heading of [`rates`].
pub(super) const RATES: &str = "max_num_seqs   seconds  tokens/s  prefill t/s  decode t/s  occupancy %  TTFT p50 ms  \
                                p99 ms  TPOT p50 ms  p99 ms  cores";
/// Heading of [`shares`].
pub(super) const SHARES: &str = "max_num_seqs  linear %  lm head %  attention %  graph rest %  sampler %  scheduler %  \
                                 idle %  of GEMM peak %  of bandwidth %  KV used %";

/// The line below [`RATES`].
pub(super) fn rates(account: &Account) -> String {
    let m = &account.measurement;
    let ms = |values: &[f64], q: f64| 1e3 * quantile(values, q);
    format!(
        "{:>12} {:>9.3} {:>9.1} {:>12.1} {:>11.1} {:>12.1} {:>12.1} {:>7.1} {:>12.2} {:>7.2} {:>6.2}",
        account.max_num_seqs,
        m.seconds,
        m.tokens_per_s(),
        m.prefill_tokens_per_s(),
        m.decode_tokens_per_s(),
        100.0 * account.occupancy(),
        ms(&m.ttft, 0.5),
        ms(&m.ttft, 0.99),
        ms(&m.tpot, 0.5),
        ms(&m.tpot, 0.99),
        m.cores,
    )
}

/// The line below [`SHARES`].
pub(super) fn shares(account: &Account) -> String {
    let shares = account.shares();
    let share = |name: &str| shares.iter().find(|(n, _)| *n == name).and_then(|(_, share)| *share);
    format!(
        "{:>12} {:>9} {:>10} {:>12} {:>13} {:>10} {:>12} {:>7} {:>15} {:>15} {:>10}",
        account.max_num_seqs,
        percent(share("linear_share")),
        percent(share("head_share")),
        percent(share("attention_share")),
        percent(share("graph_rest_share")),
        percent(share("sampling_share")),
        percent(share("scheduling_share")),
        percent(share("idle_share")),
        percent(account.gemm_peak_share()),
        percent(account.bandwidth_share()),
        percent(Some(account.kv_use())),
    )
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", 100.0 * share))
}

/// One flat JSON object.
pub(super) fn record(
    m: &Measurement,
    workload: &Workload,
    engine: &Engine,
    dtype: Dtype,
    peak_rss_bytes: Option<u64>,
) -> Map<String, Value> {
    let options = engine.options();
    let setting = json!({
        "num_prompts": workload.prompts.len(),
        "num_generations": workload.num_generations,
        "prompt_length": workload.prompts[0].len(),
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_model_len": options.max_model_len,
        "speculative_tokens": options.speculative_tokens,
        "prefill_batch": options.prefill_batch,
        "candidates": options.candidates,
        "cuda_graphs": options.cuda_graphs,
        "threads": options.threads,
        "device": options.device,
        "kernels": engine.kernels(),
        "rollout_dtype": options.rollout_dtype,
        "kv_dtype": options.kv_dtype,
        "instruction_set": engine.instruction_set(),
        "dtype": dtype,
    });
    let profile = &m.profile;
    // The parts of the graph are known with packed kernels only.
    let part = |time: Duration| (engine.kernels() == Kernels::Packed).then_some(time.as_secs_f64());
    // A single token has no time per token after the first.
    let tpot = |q: f64| (!m.tpot.is_empty()).then(|| quantile(&m.tpot, q));
    let figures = json!({
        "repeats": m.all_seconds.len(),
        "generated_tokens": m.generated_tokens,
        "prefill_tokens": profile.prefill_tokens,
        "seconds": m.seconds,
        "seconds_min": m.all_seconds.first(),
        "seconds_max": m.all_seconds.last(),
        "cores": m.cores,
        "tokens_per_s": m.tokens_per_s(),
        "prefill_tokens_per_s": m.prefill_tokens_per_s(),
        "decode_tokens_per_s": m.decode_tokens_per_s(),
        "prefill_seconds": profile.prefill.as_secs_f64(),
        "decode_seconds": profile.decode.as_secs_f64(),
        "sampling_seconds": profile.sampling.as_secs_f64(),
        "linear_seconds": part(profile.linear),
        "head_seconds": part(profile.head),
        "attention_seconds": part(profile.attention),
        "kv_copy_seconds": profile.kv_copy.as_secs_f64(),
        "scheduling_seconds": profile.scheduling.as_secs_f64(),
        "decode_steps": profile.decode_steps,
        "mean_batch": profile.mean_batch(),
        "mean_positions": profile.decode_positions as f64 / profile.decode_rows().max(1) as f64,
        "queue_seconds_p50": quantile(&m.queue, 0.5),
        "queue_seconds_p99": quantile(&m.queue, 0.99),
        "ttft_seconds_p50": quantile(&m.ttft, 0.5),
        "ttft_seconds_p90": quantile(&m.ttft, 0.9),
        "ttft_seconds_p99": quantile(&m.ttft, 0.99),
        "tpot_seconds_p50": tpot(0.5),
        "tpot_seconds_p90": tpot(0.9),
        "tpot_seconds_p99": tpot(0.99),
        "peak_rss_bytes": peak_rss_bytes,
    });
    [setting, figures].into_iter().flat_map(members).collect()
}

/// The members of an object.
pub(super) fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(map) => map,
        other => unreachable!("the record is an object, not {other}"),
    }
}
