//! `precision`: the number formats of sampler and learner, chosen for this processor and the size of the model.

mod table;

use anyhow::Result;
use rollout_kernels::simd::Isa;
use shared::{
    ModelConfig,
    config::{Device, ImportanceSamplingMode, Kernels, KvDtype, Precision, RolloutDtype, TrainConfig},
};

use self::table::Table;
use super::LARGE;

/// What `auto` must gain at least in the sampler: smaller gains are not worth the rounding.
const WORTH: f64 = 1.1;

/// Fills in the formats that `precision` chooses, where the options have their defaults, and says which. A run that
/// goes on with the `precision` of `before` keeps its formats, on any processor.
///
/// # Errors
/// When the formats of this machine cannot be measured.
pub fn settle(config: &mut TrainConfig, before: Option<&TrainConfig>, model: &ModelConfig) -> Result<Option<String>> {
    let precision = config.precision;
    if precision == Precision::Exact {
        return Ok(None);
    }
    if let Some(before) = before.filter(|before| before.precision == precision) {
        Formats::of(before).fill(config);
        let slow = if is_native(config.rollout_dtype) { "" } else { "; this processor has no instruction for it" };
        return Ok(Some(format!("precision {precision}, as the run began: {}{slow}", in_words(config))));
    }
    let rollout = if may_round(config) {
        fastest(&Table::of_machine(config.rollout_threads.unwrap_or(1))?, precision, config, model)
    } else {
        None
    };
    let mut formats = Formats::new(rollout.map(|(format, _)| format), trains_faster_in_bf16(config, model));
    // Options may rule a format out for keys and values, as a very long context does.
    let mut tried = config.clone();
    formats.fill(&mut tried);
    correct(&mut tried);
    if !tried.problems().is_empty() {
        formats.kv_dtype = KvDtype::Auto;
    }
    formats.fill(config);
    correct(config);
    let gain = rollout.filter(|(format, _)| *format == config.rollout_dtype).map(|(_, gain)| gain);
    let gain = gain.map(|gain| format!(" ({gain:.1} times the rate of fp32, by this processor's products)"));
    Ok(Some(format!("precision {precision}: {}{}", in_words(config), gain.unwrap_or_default())))
}

/// Corrects rounding token by token, also where an option asks for it, unless an option says how. Rounding moves the
/// log-prob of each token, and a ratio over a completion would gather that.
fn correct(config: &mut TrainConfig) {
    let exact = Formats::of(&TrainConfig::default());
    let Formats { rollout_dtype, kv_dtype, bf16, importance_sampling_mode } = Formats::of(config);
    let is_rounded = (rollout_dtype, kv_dtype, bf16) != (exact.rollout_dtype, exact.kv_dtype, exact.bf16);
    if is_rounded && importance_sampling_mode == exact.importance_sampling_mode {
        config.importance_sampling_mode = ImportanceSamplingMode::TokenTruncate;
    }
}

/// Whether the sampler's format is still to be chosen, and can be another than fp32.
fn may_round(config: &TrainConfig) -> bool {
    config.rollout_dtype == RolloutDtype::Auto
        && config.rollout_device == Device::Cpu
        && config.rollout_kernels == Kernels::Packed
}

/// Whether this processor has instructions for products in a format.
fn is_native(format: RolloutDtype) -> bool {
    let isa = Isa::detect();
    match format {
        RolloutDtype::Auto => true,
        RolloutDtype::Int8 | RolloutDtype::Int4 => isa.has_byte_products(),
        RolloutDtype::Bf16 | RolloutDtype::Bf16x3 => isa.has_tiles(),
        RolloutDtype::Bf16Dot => isa.has_pair_products(),
    }
}

/// The fastest format of the sampler for a model with its gain over fp32, if one is faster than that.
fn fastest(
    table: &Table,
    precision: Precision,
    config: &TrainConfig,
    model: &ModelConfig,
) -> Option<(RolloutDtype, f64)> {
    let products = product_share(config, model);
    let gains = table.rates(model.hidden_size).map(|(format, rate)| (format, 1.0 / (1.0 - products + products / rate)));
    let least = if precision == Precision::Auto { WORTH } else { 1.0 };
    gains.filter(|(_, gain)| *gain > least).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The share of linear layers in the operations of a decode step; attention over half the longest completion is the
/// rest.
fn product_share(config: &TrainConfig, model: &ModelConfig) -> f64 {
    let embedding = if model.tie_word_embeddings { 0 } else { model.vocab_size * model.hidden_size };
    let products = 2.0 * (model.parameter_count() - model.idle_parameters() - embedding as u64) as f64;
    let width: usize = (0..model.num_hidden_layers).map(|layer| model.head_dim_of(layer)).sum();
    let width = (model.num_attention_heads * width) as f64;
    let attention = 4.0 * width * f64::from(config.max_completion_length) / 2.0;
    products / (products + attention)
}

/// Whether the learner gains by bf16: its processor multiplies it, and products take most of a step.
fn trains_faster_in_bf16(config: &TrainConfig, model: &ModelConfig) -> bool {
    let is_native = config.learner_device != Device::Cpu || Isa::detect().bf16().is_some();
    is_native && model.parameter_count() >= LARGE
}

/// The formats of both halves and the correction between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Formats {
    rollout_dtype: RolloutDtype,
    kv_dtype: KvDtype,
    bf16: bool,
    importance_sampling_mode: ImportanceSamplingMode,
}

impl Formats {
    /// Those that go with a format of the sampler's layers.
    fn new(rollout: Option<RolloutDtype>, bf16: bool) -> Self {
        let kv_dtype = match rollout {
            Some(RolloutDtype::Int8) if is_native(RolloutDtype::Int8) => KvDtype::Int8,
            Some(RolloutDtype::Bf16Dot) if is_native(RolloutDtype::Bf16Dot) => KvDtype::Bf16,
            _ => KvDtype::Auto,
        };
        let exact = Self::of(&TrainConfig::default());
        Self { rollout_dtype: rollout.unwrap_or(exact.rollout_dtype), kv_dtype, bf16, ..exact }
    }

    fn of(config: &TrainConfig) -> Self {
        Self {
            rollout_dtype: config.rollout_dtype,
            kv_dtype: config.kv_dtype,
            bf16: config.bf16,
            importance_sampling_mode: config.importance_sampling_mode,
        }
    }

    /// Puts them in the place of defaults.
    fn fill(self, config: &mut TrainConfig) {
        fn put<T: PartialEq>(option: &mut T, default: &T, value: T) {
            if option == default {
                *option = value;
            }
        }
        let default = Self::of(&TrainConfig::default());
        put(&mut config.rollout_dtype, &default.rollout_dtype, self.rollout_dtype);
        put(&mut config.kv_dtype, &default.kv_dtype, self.kv_dtype);
        put(&mut config.bf16, &default.bf16, self.bf16);
        put(&mut config.importance_sampling_mode, &default.importance_sampling_mode, self.importance_sampling_mode);
    }
}

fn in_words(config: &TrainConfig) -> String {
    let Formats { rollout_dtype, kv_dtype, bf16, importance_sampling_mode } = Formats::of(config);
    format!(
        "`rollout_dtype` {rollout_dtype}, `kv_dtype` {kv_dtype}, `bf16` {bf16}, `importance_sampling_mode` \
         {importance_sampling_mode}"
    )
}

#[cfg(test)]
mod tests;
