//! Where the time went, and how far the parts are from what the machine can do.

use rollout_kernels::limits::Limits;
use serde_json::{Map, Value, json};
use shared::{Dtype, ModelConfig, run::memory_plan::SamplerPlan};

use super::{measure::Measurement, report};
use crate::engine::{EngineOptions, Kernels, Profile, sizes};

/// The cost of one token, and the memory that is held for all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Work {
    /// Operations of the linear layers for one token, two per multiplication and addition.
    linear: f64,
    /// The same of the language-model head.
    head: f64,
    /// Bytes of weights that a step reads.
    weight_bytes: u64,
    /// Bytes reserved for keys and values.
    kv_bytes: u64,
}

impl Work {
    pub fn of(config: &ModelConfig, dtype: Dtype, options: &EngineOptions) -> Self {
        let matrices = config.parameters().into_iter().filter(|(_, shape)| shape.len() > 1);
        let all: usize = matrices.map(|(_, shape)| shape.iter().product::<usize>()).sum();
        let table = config.vocab_size * config.hidden_size;
        // The embedding is looked up; where it is not tied, the head is a second table.
        let tables = if config.tie_word_embeddings { 1 } else { 2 };
        let SamplerPlan { packed_weights, kv_cache, .. } = sizes(dtype, options).plan(config);
        Self {
            linear: 2.0 * (all - config.idle_parameters() as usize - tables * table) as f64,
            head: 2.0 * table as f64,
            weight_bytes: packed_weights,
            kv_bytes: kv_cache,
        }
    }
}

/// A measurement beside the limits.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub measurement: Measurement,
    pub work: Work,
    pub max_num_seqs: usize,
    pub kernels: Kernels,
    /// Limits of the processor; `None` where something else computes.
    pub limits: Option<Limits>,
}

impl Account {
    fn profile(&self) -> &Profile {
        &self.measurement.profile
    }

    /// Parts of the time by name; they add up to 1. Those of the graph are known with packed kernels only.
    pub fn shares(&self) -> Vec<(&'static str, Option<f64>)> {
        let Profile { prefill, decode, linear, head, attention, kv_copy, sampling, scheduling, .. } = *self.profile();
        let known = self.kernels == Kernels::Packed;
        let graph = (prefill + decode).saturating_sub(linear + head + attention);
        let inside = self.profile().total().as_secs_f64();
        let share = |seconds: f64| seconds / self.measurement.seconds;
        let part = |duration: std::time::Duration| known.then(|| share(duration.as_secs_f64()));
        vec![
            ("linear_share", part(linear)),
            ("head_share", part(head)),
            ("attention_share", part(attention)),
            ("graph_rest_share", Some(share(graph.as_secs_f64()))),
            ("sampling_share", Some(share(sampling.as_secs_f64()))),
            ("scheduling_share", Some(share((scheduling + kv_copy).as_secs_f64()))),
            ("idle_share", Some(share((self.measurement.seconds - inside).max(0.0)))),
        ]
    }

    /// Operations of all matrix products of the model.
    fn operations(&self) -> f64 {
        let decoded = self.profile().decode_rows();
        let rows = (self.profile().prefill_tokens + decoded) as f64;
        // Only the last row of logits of a prompt is computed.
        rows * self.work.linear + (self.profile().prefills + decoded) as f64 * self.work.head
    }

    /// Operations per second while products were computed.
    pub fn gemm_rate(&self) -> Option<f64> {
        let seconds = (self.profile().linear + self.profile().head).as_secs_f64();
        (self.kernels == Kernels::Packed && seconds > 0.0).then(|| self.operations() / seconds)
    }

    pub fn gemm_peak_share(&self) -> Option<f64> {
        Some(self.gemm_rate()? / self.limits?.gemm)
    }

    /// Bytes of weights, keys and values that decode steps read, per second of the graph on them.
    pub fn read_rate(&self) -> Option<f64> {
        let seconds = self.profile().decode.as_secs_f64();
        let bytes = self.profile().decode_steps * self.work.weight_bytes + self.profile().kv_bytes_read;
        (seconds > 0.0).then(|| bytes as f64 / seconds)
    }

    pub fn bandwidth_share(&self) -> Option<f64> {
        Some(self.read_rate()? / self.limits?.read_bandwidth)
    }

    /// Mean share of the places that were taken in a decode step.
    pub fn occupancy(&self) -> f64 {
        self.profile().mean_batch() / self.max_num_seqs as f64
    }

    /// Share of the reserved keys and values that was in use at most.
    pub fn kv_use(&self) -> f64 {
        self.profile().kv_bytes_peak as f64 / self.work.kv_bytes as f64
    }

    /// The figures as fields of a record.
    pub fn fields(&self) -> Map<String, Value> {
        let steps = self.profile().decode_steps.max(1);
        let shares = self.shares().into_iter().map(|(name, share)| (name.to_owned(), share.into()));
        let rest = report::members(json!({
            "gemm_flops_per_s": self.gemm_rate(),
            "gemm_peak_flops_per_s": self.limits.map(|l| l.gemm),
            "gemm_peak_share": self.gemm_peak_share(),
            "read_bytes_per_s": self.read_rate(),
            "read_peak_bytes_per_s": self.limits.map(|l| l.read_bandwidth),
            "bandwidth_share": self.bandwidth_share(),
            "weight_bytes": self.work.weight_bytes,
            "kv_bytes_per_step": self.profile().kv_bytes_read / steps,
            "kv_bytes_peak": self.profile().kv_bytes_peak,
            "kv_bytes_reserved": self.work.kv_bytes,
            "kv_use": self.kv_use(),
            "drafted_tokens": self.profile().drafted_tokens,
            "accepted_tokens": self.profile().accepted_tokens,
            "batch_occupancy": self.occupancy(),
        }));
        shares.chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::commands::flags::BatchingFlags;

    fn config(tied: bool) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
            "tie_word_embeddings": {tied}}}"#
        ))
        .unwrap()
    }

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        batching: BatchingFlags,
    }

    fn options() -> EngineOptions {
        Flags::parse_from(["bench", "--max-num-seqs", "4"]).batching.engine_options(4, 64, 256).unwrap()
    }

    fn profile() -> Profile {
        let ms = Duration::from_millis;
        Profile {
            prefill: ms(100),
            decode: ms(600),
            linear: ms(300),
            head: ms(100),
            attention: ms(200),
            kv_copy: ms(10),
            sampling: ms(50),
            scheduling: ms(40),
            prefill_tokens: 20,
            prefills: 2,
            decode_tokens: 30,
            decode_steps: 10,
            kv_bytes_read: 4000,
            kv_bytes_peak: 500,
            ..Profile::default()
        }
    }

    #[test]
    fn operations_leave_out_the_look_up_of_the_embedding() {
        // Each layer: queries 64 × 64, keys and values 64 × 64, output 64 × 64, and three matrices of the MLP.
        let layers = 2.0 * 2.0 * (3.0 * 64.0 * 64.0 + 3.0 * 64.0 * 128.0);
        for tied in [true, false] {
            let work = Work::of(&config(tied), Dtype::Fp32, &options());
            assert_eq!((work.linear, work.head), (layers, 2.0 * 512.0 * 64.0), "tied: {tied}");
            assert_eq!(work.weight_bytes as f64, (layers / 2.0 + 512.0 * 64.0) * 4.0, "a step reads the head once");
        }
    }

    #[test]
    fn shares_add_up_and_rates_are_held_against_the_limits() {
        let work = Work { linear: 1e6, head: 1e5, weight_bytes: 1000, kv_bytes: 1000 };
        let account = Account {
            measurement: Measurement::of(1.0, profile()),
            work,
            max_num_seqs: 4,
            kernels: Kernels::Packed,
            limits: Some(Limits { gemm: 1e9, read_bandwidth: 1e5 }),
        };
        let shares: f64 = account.shares().iter().filter_map(|(_, share)| *share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        // 50 rows of layers and 32 of the head in 0.4 s.
        assert!((account.gemm_rate().unwrap() - (50e6 + 32e5) / 0.4).abs() < 1.0);
        assert!((account.gemm_peak_share().unwrap() - 0.133).abs() < 1e-9);
        // Ten steps of 1,000 bytes and 4,000 in 0.6 s.
        assert!((account.bandwidth_share().unwrap() - 14_000.0 / 0.6 / 1e5).abs() < 1e-9);
        assert_eq!((account.occupancy(), account.kv_use()), (0.75, 0.5));

        let stock = Account { kernels: Kernels::Stock, limits: None, ..account };
        assert_eq!((stock.gemm_peak_share(), stock.bandwidth_share()), (None, None));
        assert!(stock.fields()["linear_share"].is_null());
    }
}
