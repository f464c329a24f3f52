//! Rotary positions: frequencies, factors and tables.

use serde_json::{Value, json};

use super::{rope, tests::config_with, *};

/// Pairs of a head of 128 entries with the base 1e6, and what YaRN with factor 4 and 32,768 tokens multiplies their
/// frequencies with.
const YARN_SHARES: [(usize, f64); 7] = [
    (0, 1.0),
    (23, 1.0),
    (24, 0.955_882_352_941),
    (31, 0.647_058_823_529),
    (39, 0.294_117_647_059),
    (40, 0.25),
    (63, 0.25),
];

#[test]
fn llama3_scaling_has_its_three_bands() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let change = json!({"head_dim": 128, "rope_theta": 5e5, "rope_scaling": scaling});
    let scaled = config_with(&change).unwrap().inverse_frequencies(Rotary::Global);
    let plain = config_with(&json!({"head_dim": 128, "rope_theta": 5e5})).unwrap().inverse_frequencies(Rotary::Global);
    assert_eq!(scaled.len(), 64);
    // Llama 3.1's own figures: wavelengths up to 2048 are kept, those from 8192 on divided by 8.
    for (i, (scaled, plain)) in scaled.iter().zip(&plain).enumerate() {
        let wavelength = std::f64::consts::TAU / plain;
        let ratio = scaled / plain;
        match i {
            0..=28 => assert!(wavelength < 2048.0 && ratio == 1.0, "{i}"),
            29..=34 => assert!((2048.0..8192.0).contains(&wavelength) && ratio < 1.0 && ratio > 0.125, "{i}"),
            _ => assert!(wavelength > 8192.0 && ratio == 0.125, "{i}"),
        }
    }
    // Halfway between the bands (at 8192 / wavelength = 2.5), the result is the mean of both ends.
    let half = 2.5 * std::f64::consts::TAU / 8192.0;
    let scaling = config_with(&change).unwrap().rope_scaling.unwrap();
    let rope = rope::Rope { dim: 128, theta: 5e5 };
    assert!((scaling.apply(0, half, rope, false) / half - (0.5 / 8.0 + 0.5)).abs() < 1e-12);
}

#[test]
fn rotary_tables_are_the_cosines_and_sines_of_the_angles() {
    let config = config_with(&json!({"head_dim": 4, "rope_theta": 100.0})).unwrap();
    assert_eq!(config.inverse_frequencies(Rotary::Global), [1.0, 0.1]);
    let (cos, sin) = config.rotary_tables(Rotary::Global, 3);
    let angles = [0.0_f64, 0.0, 1.0, 0.1, 2.0, 0.2];
    assert_eq!(cos, angles.map(|a| a.cos() as f32));
    assert_eq!(sin, angles.map(|a| a.sin() as f32));
}

#[test]
fn longrope_outside_phi_says_how_to_do_without_it() {
    let told = |changes: Value| config_with(&changes).unwrap_err();
    let longrope = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]});
    let text = told(json!({"original_max_position_embeddings": 2048, "rope_scaling": longrope}));
    assert!(text.contains("only where every `short_factor` is 1") && text.contains("to 2048"), "{text}");
    assert!(text.contains("remove `rope_scaling` in"), "{text}");
    let text = told(json!({"rope_parameters": longrope}));
    assert!(text.contains("let `rope_parameters.rope_type` be \"default\" in"), "{text}");
    assert!(text.contains("within the original `original_max_position_embeddings` tokens"), "{text}");
}

/// By transformers' `_compute_yarn_parameters`, for the published sizes of Qwen2.5-7B (a head of 128, base 1e6) and the
/// YaRN of its model card.
#[test]
fn yarn_in_any_family_has_the_frequencies_of_transformers() {
    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let of = |changes: Value| {
        let mut config = json!({"head_dim": 128, "rope_theta": 1e6});
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config_with(&config).unwrap()
    };
    let plain = of(json!({})).inverse_frequencies(Rotary::Global);
    for changes in [
        json!({"rope_scaling": yarn}),
        json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
            "original_max_position_embeddings": 32768}),
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 32768}),
    ] {
        let config = of(changes);
        let scaled = config.inverse_frequencies(Rotary::Global);
        for (pair, share) in YARN_SHARES {
            assert!((scaled[pair] / plain[pair] - share).abs() < 1e-9, "pair {pair}: {}", scaled[pair] / plain[pair]);
        }
        assert!((config.rotary_factor(Rotary::Global) - 1.138_629_436_111_989_2).abs() < 1e-15);
    }
    let factor = json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "attention_factor": 1.0}});
    assert_eq!(of(factor).rotary_factor(Rotary::Global), 1.0);
}

#[test]
fn dynamic_changes_nothing_within_the_length_of_the_model() {
    let config = config_with(&json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}})).unwrap();
    let plain = config_with(&json!({})).unwrap();
    assert_eq!(config.rope_scaling, Some(RopeScaling::Dynamic { factor: 2.0 }));
    assert_eq!(config.rotary_tables(Rotary::Global, 9), plain.rotary_tables(Rotary::Global, 9));
}
