//! The exported graph against transformers' figures, by the engine's own session and cache.

use std::path::Path;

use exporters::{ExportOptions, export};
use harness::tiny_model;
use ndarray::Array2;
use serde_json::{Value, json};
use shared::{ModelDir, PolicyVersion, SamplingParams, generation::rng::Stream};

use super::{
    EngineOptions, Kernels, WeightSource,
    backend::{Backend, Prefill},
    draft::Drafts,
    open::open,
    sequence::DecodeRow,
    session::read_manifest,
};
use crate::sampling::{Distribution, Scratch, SeenTokens};

/// Bound of the older families.
const TOLERANCE: f64 = 1e-4;
/// Least bound of the newer ones, whose figures state how certain they are.
const LEAST_TOLERANCE: f64 = 5e-5;
const POSITIONS: usize = 256;

fn bound(case: &Value) -> f64 {
    harness::golden_bound(case, LEAST_TOLERANCE, TOLERANCE)
}

/// Tokens that a sequence begins with where the rest is decoded one by one: as few as `fewest`, unless it grows across
/// the length beyond which a model with longrope turns every position otherwise.
fn begin(model: &ModelDir, length: usize, fewest: usize) -> usize {
    model.config().original_length().filter(|&original| length > original).map_or(fewest, |original| original + 1)
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A loaded model with one sequence.
struct Graph {
    backend: Box<dyn Backend>,
    occupied: bool,
    vocab: usize,
    _export: tempfile::TempDir,
}

impl Graph {
    fn open(model: &ModelDir, kernels: Kernels) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("export");
        export(model, &dir, &ExportOptions::default()).unwrap();
        let source = WeightSource { dir, version: PolicyVersion(0) };
        let options = EngineOptions { kernels, max_num_batched_tokens: POSITIONS, ..EngineOptions::new(1, POSITIONS) };
        let manifest = read_manifest(&source, model.config()).unwrap();
        let backend = open(&source, model.config(), &manifest, &options).unwrap();
        assert_eq!(backend.abilities().kernels, kernels);
        Self { backend, occupied: false, vocab: model.config().vocab_size, _export: folder }
    }

    /// Logits after a whole prompt, which the sequence begins with.
    fn prefill(&mut self, prompt: &[u32]) -> Vec<f32> {
        if std::mem::replace(&mut self.occupied, true) {
            self.backend.release(0);
        }
        let mut logits = Array2::from_elem((1, self.vocab), f32::NAN);
        self.backend.prefill(&[Prefill::whole(prompt)], logits.view_mut()).unwrap();
        self.backend.start(0, 0).unwrap();
        logits.into_flat().to_vec()
    }

    /// Logits after one more token.
    fn decode(&mut self, token: u32, position: usize) -> Vec<f32> {
        let mut logits = Array2::from_elem((1, self.vocab), f32::NAN);
        self.backend.decode(&[DecodeRow { token, position }], &Drafts::default(), logits.view_mut()).unwrap();
        logits.into_flat().to_vec()
    }
}

const BOTH: [Kernels; 2] = [Kernels::Packed, Kernels::Stock];

fn assert_close(what: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(g) - e).abs() <= tolerance, "{what}, entry {i}: {g} against {e}");
    }
}

fn cases() -> Vec<(String, ModelDir, Value)> {
    harness::golden_numerics()
        .into_iter()
        .map(|case| {
            assert_eq!(keys(&case), ["expected", "inputs", "name", "params"]);
            assert_eq!(keys(&case["params"]), ["dtype", "model_dir", "n_params", "tied"]);
            assert_eq!(case["params"]["dtype"], "float32");
            let dir = harness::golden_dir().join(case["params"]["model_dir"].as_str().expect("a folder"));
            (case["name"].as_str().expect("a name").to_owned(), ModelDir::open(dir).unwrap(), case)
        })
        .collect()
}

#[test]
fn golden_forward_by_prefill_and_by_decode() {
    for (name, model, case) in cases() {
        let expected = &case["expected"];
        let known = [
            "completion_entropies",
            "completion_logps",
            "completion_logps_after",
            "completion_logps_temperature_0_7",
            "forward",
            "fp32_vs_fp64_deviation",
            "greedy",
            "sha256_model",
            "training",
            "weights_after_file",
        ];
        assert_eq!(keys(expected), known, "{name}");
        let mut graphs = BOTH.map(|kernels| Graph::open(&model, kernels));
        for (f, forward) in expected["forward"].as_array().expect("forward").iter().enumerate() {
            let known = ["argmax", "ids", "logits", "logits_last", "logits_positions", "logsumexp"];
            assert_eq!(keys(forward), known, "{name} forward {f}");
            for (graph, kernels) in graphs.iter_mut().zip(BOTH) {
                let first = begin(&model, ids(&forward["ids"]).len(), 1);
                check_forward(&format!("{name} forward {f}, {kernels:?}"), graph, forward, first, bound(&case));
            }
        }
    }
}

fn check_forward(what: &str, graph: &mut Graph, forward: &Value, first: usize, tolerance: f64) {
    let prompt = ids(&forward["ids"]);
    let positions = ids(&forward["logits_positions"]);
    let argmax = ids(&forward["argmax"]);
    let logsumexp = floats(&forward["logsumexp"]);

    let last = floats(&forward["logits_last"]);
    assert_close(what, &graph.prefill(&prompt), &last, tolerance);
    // From position `first - 1` on.
    let mut decoded = vec![graph.prefill(&prompt[..first])];
    for (position, &token) in prompt.iter().enumerate().skip(first) {
        decoded.push(graph.decode(token, position));
    }
    assert_close(&format!("{what}, decode"), &decoded[prompt.len() - first], &last, tolerance);
    // Long inputs come without the logits of their positions (null).
    let rows = forward["logits"].as_array().map_or(&[][..], Vec::as_slice);
    assert!(rows.len() == positions.len() || forward["logits"].is_null(), "{what}");
    for (p, row) in positions.iter().map(|&p| p as usize).zip(rows) {
        if p + 1 < first {
            continue;
        }
        let row = floats(row);
        assert_close(&format!("{what}, prefill of {p}"), &graph.prefill(&prompt[..=p]), &row, tolerance);
        assert_close(&format!("{what}, decode at {p}"), &decoded[p + 1 - first], &row, tolerance);
    }
    // One entry for every position of the sequence.
    assert_eq!((argmax.len(), logsumexp.len()), (prompt.len(), prompt.len()), "{what}");
    for (p, row) in (first - 1..).zip(&decoded) {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        assert_eq!(best as u32, argmax[p], "{what}, arg-max at {p}");
        let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        assert!((sum.ln() - logsumexp[p]).abs() <= tolerance, "{what}, log-sum-exp at {p}");
    }
}

#[test]
fn golden_completion_log_probs() {
    for ((name, model, case), kernels) in cases().into_iter().flat_map(|c| BOTH.map(|k| (c.clone(), k))) {
        let mut graph = Graph::open(&model, kernels);
        let prompts = case["inputs"]["prompt_ids"].as_array().expect("prompts");
        let completions = case["inputs"]["completion_ids"].as_array().expect("completions");
        let (plain, scaled) =
            (&case["expected"]["completion_logps"], &case["expected"]["completion_logps_temperature_0_7"]);
        assert!(!prompts.is_empty() && prompts.len() == completions.len(), "{name}");
        for row in 0..prompts.len() {
            let (prompt, completion) = (ids(&prompts[row]), ids(&completions[row]));
            if begin(&model, prompt.len() + completion.len(), 0) > prompt.len() {
                continue;
            }
            let (plain, scaled) = (floats(&plain[row]), floats(&scaled[row]));
            assert_eq!((plain.len(), scaled.len()), (completion.len(), completion.len()), "{name}");
            let params = SamplingParams { temperature: 0.7, ..SamplingParams::default() };
            let mut logits = graph.prefill(&prompt);
            for (t, &token) in completion.iter().enumerate() {
                let mut scratch = Scratch::default();
                let distribution = Distribution::new(&logits, &params, &SeenTokens::default(), &mut scratch).unwrap();
                let got = distribution.logprob(token);
                let got = [got.logprob, got.logprob_at_temperature];
                assert_close(&format!("{name}, row {row}, token {t}"), &got, &[plain[t], scaled[t]], bound(&case));
                logits = graph.decode(token, prompt.len() + t);
            }
        }
    }
}

/// Scores that are not scaled multiply what is rounded: at single positions, transformers' own passes in fp32, whole
/// and token by token, are as far from one another. One position of a family with such scores may be so far off.
#[test]
fn golden_models_give_the_same_logits_on_both_kernels() {
    for (name, model, case) in cases() {
        let (is_steep, mut outliers) = (model.config().attention_scale == 1.0, 0);
        let [mut packed, mut stock] = BOTH.map(|kernels| Graph::open(&model, kernels));
        for forward in case["expected"]["forward"].as_array().expect("forward") {
            let prompt = ids(&forward["ids"]);
            let first = begin(&model, prompt.len(), prompt.len().min(5));
            let mut pairs = vec![(packed.prefill(&prompt[..first]), stock.prefill(&prompt[..first]))];
            for (position, &token) in prompt.iter().enumerate().skip(first) {
                pairs.push((packed.decode(token, position), stock.decode(token, position)));
            }
            for (packed, stock) in pairs {
                let scale = stock.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let error = packed.iter().zip(&stock).fold(0.0_f32, |m, (p, s)| m.max((p - s).abs()));
                outliers += usize::from(error > 1e-5 * scale);
                let bound = if is_steep { 1e-4 } else { 1e-5 };
                assert!(error <= bound * scale, "{name}: off by {error} at a scale of {scale}");
            }
        }
        assert!(outliers <= 1, "{name}: {outliers} positions are off");
    }
}

/// Shapes that no figures have: rotary positions that attention turns by itself, of whole heads and of a part of each;
/// long and short convolutions, with biases; values that are wider and narrower than keys, and share them; groups of
/// heads, and no attention at all.
fn shapes_with_states() -> Vec<Value> {
    let sizes = json!({"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512});
    let lfm2 = json!({"model_type": "lfm2", "block_auto_adjust_ff_dim": false, "full_attn_idxs": [1, 3]});
    let qwen3_5 = json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_key_head_dim": 8});
    let granite = json!({"model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 40,
        "residual_multiplier": 0.7, "head_dim": 16});
    let with = |family: &Value, changes: Value| {
        let mut config = sizes.as_object().expect("an object").clone();
        config.extend(family.as_object().expect("an object").clone());
        config.extend(changes.as_object().expect("an object").clone());
        Value::Object(config)
    };
    vec![
        with(&lfm2, json!({"head_dim": 16, "conv_L_cache": 7, "conv_bias": true})),
        with(&lfm2, json!({"head_dim": 24, "conv_L_cache": 2, "tie_embedding": false})),
        with(&qwen3_5, json!({"head_dim": 64, "linear_num_value_heads": 6, "linear_value_head_dim": 24})),
        with(
            &qwen3_5,
            json!({"head_dim": 16, "partial_rotary_factor": 1.0, "linear_num_value_heads": 2,
                "linear_value_head_dim": 5, "full_attention_interval": 2, "linear_conv_kernel_dim": 2}),
        ),
        with(
            &granite,
            json!({"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 20, "mamba_proj_bias": true,
                "layer_types": ["mamba", "attention", "mamba", "mamba"], "position_embedding_type": "rope"}),
        ),
        with(
            &granite,
            json!({"mamba_n_heads": 12, "mamba_n_groups": 4, "mamba_d_state": 5, "mamba_conv_bias": false,
                "mamba_d_conv": 2, "layer_types": ["mamba", "mamba", "mamba", "mamba"]}),
        ),
    ]
}

fn write_model(dir: &Path, config: &Value) -> ModelDir {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let model = ModelDir::open(dir).unwrap();
    let offset = model.config().norm_offset();
    let tensors = model.config().parameters().into_iter().map(|(name, shape)| {
        let seed = name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
        let mut stream = Stream::new(&[seed]);
        let middle = match name.as_str() {
            of_rule if of_rule.ends_with("linear_attn.norm.weight") || of_rule.ends_with("mamba.D") => 1.0,
            norm if norm.ends_with("norm.weight") => 1.0 - offset,
            _ => 0.0,
        };
        let values = (0..shape.iter().product()).map(|_| middle + 0.2 * stream.next_normal() as f32).collect();
        (name, shape, values)
    });
    tiny_model::write_safetensors(dir, tensors);
    model
}

#[test]
fn other_shapes_of_models_with_states_have_the_same_logits_on_both_kernels() {
    let tokens: Vec<u32> = (0..90).map(|i| (i * i * 7 + i * 3 + 1) % 64).collect();
    for config in shapes_with_states() {
        let folder = tempfile::tempdir().unwrap();
        let model = write_model(folder.path(), &config);
        let [mut packed, mut stock] = BOTH.map(|kernels| Graph::open(&model, kernels));
        for first in [1, 67] {
            let mut pairs = vec![(packed.prefill(&tokens[..first]), stock.prefill(&tokens[..first]))];
            for (position, &token) in tokens.iter().enumerate().skip(first) {
                pairs.push((packed.decode(token, position), stock.decode(token, position)));
            }
            for (position, (packed, stock)) in (first..).zip(pairs) {
                let scale = stock.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let error = packed.iter().zip(&stock).fold(0.0_f32, |m, (p, s)| m.max((p - s).abs()));
                assert!(error <= 1e-4 * scale, "{config}, after {position}: off by {error} at a scale of {scale}");
            }
        }
    }
}
