//! Rotary positions: keys, and tables of divisors, which are tensors.

use shared::{Architecture, ModelConfig, RopeScaling, Rotary};

use super::{
    metadata::{Metadata, Value},
    refused,
};
use crate::ExportError;

/// Families in which llama.cpp computes YaRN in all layers with rotary positions.
const YARN: [Architecture; 8] = [
    Architecture::Llama,
    Architecture::Qwen2,
    Architecture::Qwen3,
    Architecture::Qwen3Moe,
    Architecture::SmolLm3,
    Architecture::Olmo2,
    Architecture::GraniteMoeHybrid,
    Architecture::Ministral3,
];

/// Types of positions that are the same in every family.
const OTHERS: &str = "none, linear and dynamic";

/// llama.cpp's divisor of the frequency of a pair that is not turned.
const NOT_TURNED: f32 = 1e30;

/// Adds the keys.
pub(super) fn add(config: &ModelConfig, family: &str, metadata: &mut Metadata) {
    let key = |name: &str| format!("{family}.rope.{name}");
    metadata.size(key("dimension_count"), config.rotary_dim);
    metadata.number(key("freq_base"), config.rope_theta);
    let factor = match &config.rope_scaling {
        // Such scalings are tables.
        _ if config.architecture == Architecture::Gemma4 => 1.0,
        Some(RopeScaling::Linear { factor }) => {
            metadata.text(key("scaling.type"), "linear");
            metadata.number(key("scaling.factor"), *factor);
            1.0
        }
        Some(RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_position_embeddings: original,
            attention_factor,
            ..
        }) => {
            metadata.text(key("scaling.type"), "yarn");
            metadata.number(key("scaling.factor"), *factor);
            metadata.size(key("scaling.original_context_length"), *original as usize);
            if config.architecture == Architecture::Ministral3 {
                metadata.number(key("scaling.yarn_beta_fast"), *beta_fast);
                metadata.number(key("scaling.yarn_beta_slow"), *beta_slow);
                // With this, llama.cpp's own factor on cosines and sines is 1.
                metadata.number(key("scaling.yarn_log_multiplier"), 1.0);
                *attention_factor
            } else {
                let own = if *factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                attention_factor / own
            }
        }
        Some(RopeScaling::LongRope { original_max_position_embeddings: original, attention_factor, .. }) => {
            metadata.text(key("scaling.type"), "longrope");
            metadata.size(key("scaling.original_context_length"), *original);
            *attention_factor
        }
        // `dynamic` changes nothing within the context length that is written.
        None | Some(RopeScaling::Dynamic { .. } | RopeScaling::Llama3 { .. } | RopeScaling::Proportional { .. }) => 1.0,
    };
    if factor != 1.0 {
        metadata.number(key("scaling.attn_factor"), factor);
    }
    if let Some(scaling) = config.query_scaling {
        metadata.number(format!("{family}.attention.temperature_scale"), scaling.beta);
        if !matches!(config.rope_scaling, Some(RopeScaling::Yarn { .. })) {
            metadata.size(key("scaling.original_context_length"), scaling.original_max_position_embeddings);
        }
    }
    if config.architecture == Architecture::GraniteMoeHybrid {
        // The family's key for whether attention has rotary positions at all.
        let turns = config.attention_layers().any(|(_, kind)| kind.rotary.is_some());
        metadata.add(key("scaling.finetuned"), Value::Bool(turns));
    }
    if config.architecture == Architecture::Qwen3_5 {
        metadata.add(key("dimension_sections"), Value::Integers(sections(config.rotary_dim / 2)));
    }
}

/// Pairs that turn by each of the three coordinates of an image, which go round, and by a fourth one. A text has the
/// same position in all of the three, and none in the fourth.
fn sections(pairs: usize) -> Vec<i32> {
    let of = |coordinate: usize| (pairs + 2 - coordinate) / 3;
    [of(0), of(1), of(2), 0].map(|pairs| pairs as i32).to_vec()
}

/// Tables of divisors of the rotary frequencies, by their names: where a scaling has more than one divisor, llama.cpp
/// reads them as a tensor.
pub(super) fn divisors(config: &ModelConfig) -> Vec<(&'static str, Vec<f32>)> {
    match &config.rope_scaling {
        Some(RopeScaling::LongRope { short_factor, long_factor, .. }) => {
            let rounded = |factors: &[f64]| factors.iter().map(|factor| *factor as f32).collect();
            vec![
                ("rope_factors_long.weight", rounded(long_factor)),
                ("rope_factors_short.weight", rounded(short_factor)),
            ]
        }
        Some(RopeScaling::Llama3 { .. }) => vec![("rope_freqs.weight", quotients(config))],
        // Gemma 4 has the table in any case.
        _ if config.architecture == Architecture::Gemma4 => vec![("rope_freqs.weight", quotients(config))],
        _ => Vec::new(),
    }
}

/// Unscaled frequencies over the scaled ones.
fn quotients(config: &ModelConfig) -> Vec<f32> {
    let plain = ModelConfig { rope_scaling: None, ..config.clone() }.inverse_frequencies(Rotary::Global);
    let scaled = config.inverse_frequencies(Rotary::Global);
    let quotient = |(plain, scaled): (&f64, &f64)| if *scaled == 0.0 { NOT_TURNED } else { (plain / scaled) as f32 };
    plain.iter().zip(&scaled).map(quotient).collect()
}

/// Refuses scalings that llama.cpp computes otherwise in a family.
pub(super) fn refuse(config: &ModelConfig) -> Result<(), ExportError> {
    match config.rope_scaling {
        Some(RopeScaling::Llama3 { .. })
            if !matches!(config.architecture, Architecture::Llama | Architecture::Gemma4) =>
        {
            let others = if YARN.contains(&config.architecture) { "none, linear, dynamic and yarn" } else { OTHERS };
            Err(refused("rope_type", "\"llama3\"", &format!("for this family, {others}")))
        }
        Some(RopeScaling::Yarn { .. }) if !YARN.contains(&config.architecture) => {
            Err(refused("rope_type", "\"yarn\"", &format!("for this family, {OTHERS}")))
        }
        Some(RopeScaling::Yarn { beta_fast, beta_slow, .. })
            if config.architecture != Architecture::Ministral3 && (beta_fast, beta_slow) != (32.0, 1.0) =>
        {
            let found = format!("[{beta_fast}, {beta_slow}]");
            Err(refused("beta_fast and beta_slow", found, "for this family, 32 and 1"))
        }
        Some(RopeScaling::Yarn { truncate: false, .. }) => Err(refused("truncate", false, "true")),
        Some(RopeScaling::Yarn { original_max_position_embeddings: original, .. }) if original.fract() != 0.0 => {
            Err(refused("original_max_position_embeddings", original, "whole numbers"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn config(name: &str, change: impl Fn(&mut Json)) -> ModelConfig {
        let path = harness::golden_model_dir(name).join("config.json");
        let mut json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut json);
        ModelConfig::from_json(&json.to_string()).unwrap()
    }

    fn keys(config: &ModelConfig) -> Metadata {
        let mut metadata = Metadata::default();
        add(config, "x", &mut metadata);
        metadata
    }

    #[test]
    fn the_divisors_of_llama_3_are_one_for_fast_pairs_and_the_factor_for_slow_ones() {
        let llama = config("llama", |json| {
            json["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        });
        let tables = divisors(&llama);
        let [(name, divisors)] = &tables[..] else { panic!("{tables:?}") };
        assert_eq!((*name, divisors.len(), divisors[0], divisors[7]), ("rope_freqs.weight", 8, 1.0, 8.0));
        assert!(divisors.is_sorted(), "{divisors:?}");
        assert!(super::divisors(&config("llama", |_| ())).is_empty());
    }

    #[test]
    fn gemma_4_turns_the_first_pairs_of_a_wide_head_alone() {
        let tables = divisors(&config("gemma4", |_| ()));
        let expected = [[1.0; 4].as_slice(), &[NOT_TURNED; 12]].concat();
        assert_eq!(tables, [("rope_freqs.weight", expected)]);
    }

    #[test]
    fn longrope_has_two_tables_and_yarn_none() {
        let tables = divisors(&config("phi3", |_| ()));
        assert_eq!(
            tables.iter().map(|(name, table)| (*name, table.len())).collect::<Vec<_>>(),
            [("rope_factors_long.weight", 6), ("rope_factors_short.weight", 6)]
        );
        assert_eq!((tables[0].1[0], tables[1].1[5]), (1.623, 1.1));
        assert!(divisors(&config("ministral3", |_| ())).is_empty());
        let yarn = keys(&config("ministral3", |json| json["rope_parameters"]["attention_factor"] = json!(1.5)));
        for (key, number) in [
            ("x.rope.scaling.factor", 16.0),
            ("x.rope.scaling.yarn_log_multiplier", 1.0),
            ("x.rope.scaling.attn_factor", 1.5),
            ("x.attention.temperature_scale", 0.1),
        ] {
            assert_eq!(yarn.get(key), Some(&Value::F32(number)), "{key}");
        }
        assert_eq!(yarn.get("x.rope.scaling.original_context_length"), Some(&Value::U32(16)));
    }

    #[test]
    fn coordinates_of_images_share_the_pairs_of_a_head() {
        assert_eq!(sections(32), [11, 11, 10, 0], "those of the published models");
        assert_eq!(sections(4), [2, 1, 1, 0]);
    }

    #[test]
    fn other_families_have_the_factor_on_cosines_beside_llama_cpps_own() {
        let yarn = |changes: Json| {
            config("llama", move |json| {
                json["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
                json["rope_scaling"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            })
        };
        let plain = keys(&yarn(json!({})));
        assert_eq!(plain.get("x.rope.scaling.type"), Some(&Value::Text("yarn".into())));
        for key in ["attn_factor", "yarn_log_multiplier", "yarn_beta_fast"] {
            assert_eq!(plain.get(&format!("x.rope.scaling.{key}")), None, "{key}");
        }
        let louder = keys(&yarn(json!({"attention_factor": 1.5})));
        let expected = 1.5 / (0.1 * 4.0_f64.ln() + 1.0);
        assert_eq!(louder.get("x.rope.scaling.attn_factor"), Some(&Value::F32(expected as f32)));
    }

    #[test]
    fn yarn_that_llama_cpp_computes_otherwise_is_refused() {
        let yarn = |changes: Json| {
            move |json: &mut Json| {
                json["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
                json["rope_scaling"].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            }
        };
        for (refused, words) in [
            (config("ministral3", |json| json["rope_parameters"]["truncate"] = json!(false)), "`truncate` = false"),
            (config("llama", yarn(json!({"beta_fast": 16.0}))), "`beta_fast and beta_slow` = [16, 1]"),
            (config("lfm2", yarn(json!({}))), "`rope_type` = \"yarn\""),
        ] {
            let error = refuse(&refused).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        refuse(&config("llama", yarn(json!({})))).unwrap();
    }
}
