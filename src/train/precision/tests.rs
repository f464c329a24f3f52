//! The choice of formats, by tables that are given and without a measurement.

use super::*;

const DEFAULT: ImportanceSamplingMode = ImportanceSamplingMode::SequenceMask;

fn model(hidden_size: usize) -> ModelConfig {
    let text = format!(
        r#"{{"model_type": "qwen2", "vocab_size": 1024, "hidden_size": {hidden_size}, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "tie_word_embeddings": true}}"#
    );
    ModelConfig::from_json(&text).unwrap()
}

fn of(precision: Precision) -> TrainConfig {
    TrainConfig { precision, rollout_threads: Some(1), max_completion_length: 64, ..TrainConfig::default() }
}

#[test]
fn fast_takes_the_fastest_format_and_auto_one_that_gains_a_tenth() {
    let chosen = |precision, rates: &[(RolloutDtype, f64)]| {
        fastest(&Table::of(rates), precision, &of(precision), &model(256)).map(|(format, _)| format)
    };
    let (int8, dot) = (RolloutDtype::Int8, RolloutDtype::Bf16Dot);
    for precision in [Precision::Fast, Precision::Auto] {
        assert_eq!(chosen(precision, &[(int8, 2.0), (dot, 1.5)]), Some(int8));
        assert_eq!(chosen(precision, &[(int8, 1.2), (dot, 1.5)]), Some(dot));
        assert_eq!(chosen(precision, &[(int8, 0.9), (dot, 0.5)]), None, "fp32 is faster");
    }
    let close = [(int8, 1.05), (dot, 1.08)];
    assert_eq!((chosen(Precision::Fast, &close), chosen(Precision::Auto, &close)), (Some(dot), None));
}

/// Attention takes its time whatever the format of the layers.
#[test]
fn a_gain_is_that_of_the_whole_step() {
    let table = Table::of(&[(RolloutDtype::Int8, 3.0)]);
    let gain = |length| {
        let config = TrainConfig { max_completion_length: length, ..of(Precision::Fast) };
        fastest(&table, Precision::Fast, &config, &model(256)).unwrap().1
    };
    // Products: 2 * 3,937,536 operations; attention: 4 * 4 layers * 256 * 32 positions of 64.
    let products = 2.0 * model(256).parameter_count() as f64;
    let share = products / (products + 4.0 * 4.0 * 256.0 * 32.0);
    assert!((gain(64) - 1.0 / (1.0 - share + share / 3.0)).abs() < 1e-12);
    assert!(gain(64) > gain(4096) && gain(4096) > 1.0);
}

#[test]
fn exact_changes_nothing_and_asks_nobody() {
    let mut config = of(Precision::Exact);
    assert_eq!(settle(&mut config, None, &model(256)).unwrap(), None);
    assert_eq!(Formats::of(&config), Formats::of(&TrainConfig::default()));
}

#[test]
fn rounding_is_corrected_token_by_token_whoever_asks_for_it() {
    let mode = |config: TrainConfig| {
        let mut config = TrainConfig { rollout_kernels: Kernels::Stock, ..config };
        settle(&mut config, None, &model(256)).unwrap();
        config.importance_sampling_mode
    };
    let given = || of(Precision::Fast);
    assert_eq!(mode(given()), DEFAULT, "nothing is rounded");
    for rounded in [
        TrainConfig { rollout_dtype: RolloutDtype::Int8, ..given() },
        TrainConfig { kv_dtype: KvDtype::Bf16, ..given() },
        TrainConfig { bf16: true, ..given() },
    ] {
        assert_eq!(mode(rounded), ImportanceSamplingMode::TokenTruncate);
    }
    let asked = ImportanceSamplingMode::TokenMask;
    assert_eq!(mode(TrainConfig { bf16: true, importance_sampling_mode: asked, ..given() }), asked);
    assert_eq!(Formats::new(None, false), Formats::of(&TrainConfig::default()));
}

#[test]
fn options_that_are_given_stay() {
    let formats = Formats {
        rollout_dtype: RolloutDtype::Int8,
        kv_dtype: KvDtype::Int8,
        bf16: true,
        importance_sampling_mode: ImportanceSamplingMode::TokenTruncate,
    };
    let mut config = of(Precision::Fast);
    formats.fill(&mut config);
    assert_eq!(Formats::of(&config), formats);
    let given = TrainConfig {
        rollout_dtype: RolloutDtype::Bf16x3,
        kv_dtype: KvDtype::Bf16,
        importance_sampling_mode: ImportanceSamplingMode::TokenMask,
        ..of(Precision::Fast)
    };
    let mut config = given.clone();
    formats.fill(&mut config);
    assert_eq!(Formats::of(&config), Formats { bf16: true, ..Formats::of(&given) });
}

#[test]
fn a_resumed_run_keeps_its_formats_whatever_the_machine_would_choose() {
    let before = TrainConfig {
        rollout_dtype: RolloutDtype::Bf16,
        kv_dtype: KvDtype::Bf16,
        bf16: true,
        importance_sampling_mode: ImportanceSamplingMode::TokenTruncate,
        ..of(Precision::Fast)
    };
    let mut config = of(Precision::Fast);
    let said = settle(&mut config, Some(&before), &model(256)).unwrap().unwrap();
    assert_eq!(Formats::of(&config), Formats::of(&before));
    assert!(said.contains("as the run began") && said.contains("`rollout_dtype` bf16,"), "{said}");
}

#[test]
fn formats_of_others_are_left_alone() {
    for config in [
        TrainConfig { rollout_device: Device::Cuda, ..of(Precision::Fast) },
        TrainConfig { rollout_kernels: Kernels::Stock, ..of(Precision::Fast) },
        TrainConfig { rollout_dtype: RolloutDtype::Bf16x3, ..of(Precision::Fast) },
    ] {
        assert!(!may_round(&config));
    }
    let mut config = TrainConfig { rollout_kernels: Kernels::Stock, ..of(Precision::Fast) };
    settle(&mut config, None, &model(256)).unwrap();
    assert_eq!((config.rollout_dtype, config.kv_dtype), (RolloutDtype::Auto, KvDtype::Auto));
    assert_eq!(config.importance_sampling_mode, DEFAULT, "nothing is rounded");
}
