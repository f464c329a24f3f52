//! Folders for GenAI against the figures of transformers, and against the weights that they hold.

use std::{collections::BTreeMap, fs, sync::Arc};

use exporters::{
    genai::{GenAiOptions, Precision, export},
    onnx::proto::{GraphProto, ModelProto},
};
use harness::tiny_model::{self, Qwen2};
use prost::Message;
use serde_json::Value;
use shared::{FinishReason, ModelDir, SamplingParams};

use super::*;
use crate::engine::{Engine, GroupRequest, Output, testing};

/// A copy of a model directory with a tokenizer, and an export of it.
struct Exported {
    folder: tempfile::TempDir,
    model: ModelDir,
}

impl Exported {
    fn of(model: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("model");
        fs::create_dir(&copy).unwrap();
        tiny_model::write_tokenizer(&copy);
        for file in ["config.json", "model.safetensors"] {
            fs::copy(model.join(file), copy.join(file)).unwrap();
        }
        Self { folder, model: ModelDir::open(copy).unwrap() }
    }

    fn export(&self, precision: Precision) -> GenAiFolder {
        let out = self.folder.path().join("genai");
        export(&self.model, &out, &GenAiOptions { precision, max_positions: None }).unwrap();
        GenAiFolder::open(&out, 1).unwrap()
    }

    /// The last export, without rounding of activations in products.
    fn with_exact_activations(&self) -> GenAiFolder {
        let path = self.folder.path().join("genai/model.onnx");
        let mut onnx = ModelProto::decode(fs::read(&path).unwrap().as_slice()).unwrap();
        let nodes = onnx.graph.as_mut().unwrap().node.iter_mut().filter(|node| node.op_type == "MatMulNBits");
        nodes.flat_map(|n| &mut n.attribute).filter(|a| a.name == "accuracy_level").for_each(|a| a.i = Some(0));
        fs::write(&path, onnx.encode_to_vec()).unwrap();
        GenAiFolder::open(path.parent().unwrap(), 1).unwrap()
    }

    /// The model that an export holds: its weights as floats, rounded.
    fn held(&self, precision: Precision) -> Self {
        let out = self.folder.path().join("held");
        export(&self.model, &out, &GenAiOptions { precision, max_positions: None }).unwrap();
        let graph = ModelProto::decode(fs::read(out.join("model.onnx")).unwrap().as_slice()).unwrap().graph.unwrap();
        let data = fs::read(out.join("model.onnx.data")).unwrap();
        let held = Self::of(self.model.path());
        let tensors = self.model.config().parameters().into_iter().map(|(name, shape)| {
            let values = values(&graph, &data, &name, &shape);
            (name, shape, values)
        });
        tiny_model::write_safetensors(held.model.path(), tensors);
        held
    }
}

/// The values of a parameter in an export.
fn values(graph: &GraphProto, data: &[u8], name: &str, shape: &[usize]) -> Vec<f32> {
    let bytes = |name: &str| {
        let tensor = graph.initializer.iter().find(|t| t.name == name)?;
        let of = |key| tensor.external_data.iter().find(|e| e.key == key).unwrap().value.parse::<usize>().unwrap();
        Some(&data[of("offset")..of("offset") + of("length")])
    };
    let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>();
    let Some(scales) = bytes(&format!("{name}.scales")).map(floats) else {
        return floats(bytes(name).unwrap());
    };
    let codes = bytes(&format!("{name}.codes")).or_else(|| bytes(&format!("{name}.rows"))).unwrap();
    let (columns, padded) = (shape[1], shape[1].next_multiple_of(32));
    let (wide, middle) = if codes.len() == shape[0] * padded {
        (codes.to_vec(), 128.0)
    } else {
        (codes.iter().flat_map(|code| [code & 15, code >> 4]).collect(), 8.0)
    };
    let value = |(i, &code): (usize, &u8)| (f32::from(code) - middle) * scales[i / 32];
    let values: Vec<f32> = wide.iter().enumerate().map(value).collect();
    values.chunks(padded).flat_map(|row| &row[..columns]).copied().collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Largest difference of two arrays.
fn distance(found: &Array2<f32>, expected: &Array2<f32>) -> f32 {
    assert_eq!(found.shape(), expected.shape());
    found.iter().zip(expected).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

fn largest(values: &Array2<f32>) -> f32 {
    values.iter().fold(0.0, |most, v| most.max(v.abs()))
}

/// One call for each token, with the keys and values of those before.
fn decoded(folder: &mut GenAiFolder, tokens: &[u32]) -> Array2<f32> {
    let mut cache = folder.empty().unwrap();
    let mut rows = Vec::new();
    for (before, &token) in tokens.iter().enumerate() {
        let (logits, after) = folder.run(&[token], before, cache).unwrap();
        rows.extend(logits);
        cache = after;
    }
    Array2::from_shape_vec((tokens.len(), rows.len() / tokens.len()), rows).unwrap()
}

/// The model's name and the forward passes of its figures.
fn cases() -> BTreeMap<String, Vec<Value>> {
    const NEWER: [&str; 2] = ["models-2026/lfm2", "models-2026/qwen3_5"];
    let dir = |case: &Value| case["params"]["model_dir"].as_str().expect("a folder").to_owned();
    let cases = harness::golden_numerics().into_iter();
    let cases = cases.filter(|case| dir(case).starts_with("models/") || NEWER.contains(&&*dir(case)));
    cases.map(|case| (dir(&case), case["expected"]["forward"].as_array().expect("passes").clone())).collect()
}

#[test]
fn golden_logits_of_every_family_in_floats() {
    for (dir, passes) in cases() {
        let model = Exported::of(&harness::golden_dir().join(&dir));
        for precision in [Precision::Fp32, Precision::Fp16] {
            let mut folder = model.export(precision);
            for pass in &passes {
                let tokens = ids(&pass["ids"]);
                let logits = folder.logits(&tokens).unwrap();
                let tolerance = match precision {
                    Precision::Fp32 => 1e-4,
                    // fp16 rounds what is larger by more. A delta rule norms what it reads, which may be next to
                    // nothing: the rounding of the weights alone changes some of these logits by hundredths.
                    _ if dir.ends_with("qwen3_5") => 5e-2 * f64::from(largest(&logits)),
                    _ => 5e-3 * f64::from(largest(&logits)),
                };
                let mut rows: Vec<(usize, &Value)> = vec![(tokens.len() - 1, &pass["logits_last"])];
                let positions = ids(&pass["logits_positions"]).into_iter().map(|p| p as usize);
                rows.extend(positions.zip(pass["logits"].as_array().map_or(&[][..], Vec::as_slice)));
                for (position, expected) in rows {
                    let expected = expected.as_array().expect("logits");
                    assert_eq!(expected.len(), logits.ncols(), "{dir}");
                    for (found, expected) in logits.row(position).iter().zip(expected) {
                        let difference = (f64::from(*found) - expected.as_f64().expect("a logit")).abs();
                        assert!(difference <= tolerance, "{dir}, {precision:?}, at {position}: {difference}");
                    }
                }
                let step_by_step = distance(&decoded(&mut folder, &tokens), &logits);
                assert!(f64::from(step_by_step) <= tolerance, "{dir}, {precision:?}, token by token: {step_by_step}");
            }
        }
    }
}

/// What an engine over a folder completes is what the likeliest tokens of whole passes are, for every sample.
#[test]
fn an_engine_over_a_folder_draws_from_its_logits() {
    let model = Exported::of(&harness::golden_dir().join("models/llama"));
    let mut folder = model.export(Precision::Fp32);
    let path = model.folder.path().join("genai");
    let mut engine = Engine::of_folder(&path, &model.model, 1, 32).unwrap();
    let prompts = [vec![5, 9, 31], vec![7]];
    let sampling = Arc::new(SamplingParams { temperature: 0.0, max_completion_length: 6, ..SamplingParams::default() });
    for (tag, prompt) in prompts.iter().enumerate() {
        let group = testing::group(tag as u64, 2);
        let asked = GroupRequest { prompt_ids: prompt.as_slice().into(), sampling: sampling.clone(), ..group };
        engine.begin(asked.into()).unwrap();
    }
    let mut ended = Vec::new();
    while !engine.is_idle() {
        ended.extend(engine.advance().unwrap().into_iter().filter_map(Output::ended));
    }
    assert_eq!(ended.len(), 4);
    for sequence in ended {
        let prompt = &prompts[sequence.tag as usize];
        let mut tokens = prompt.clone();
        for &found in &sequence.token_ids {
            let logits = folder.logits(&tokens).unwrap();
            let last = logits.row(logits.nrows() - 1);
            let likeliest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
            assert_eq!(found as usize, likeliest, "{tokens:?}");
            tokens.push(found);
        }
        let stops = sequence.finish_reason == FinishReason::Stop;
        assert!(stops || tokens.len() == prompt.len() + 6, "{tokens:?}");
    }
}

/// A model whose rows end within a block, with biases.
const UNEVEN: Qwen2 = Qwen2 {
    hidden_size: 48,
    intermediate_size: 40,
    num_attention_heads: 2,
    num_key_value_heads: 1,
    ..tiny_model::SMALL
};

#[test]
fn a_folder_of_integers_says_what_its_rounded_weights_say() {
    let uneven = tempfile::tempdir().unwrap();
    UNEVEN.write(uneven.path(), 3);
    let golden = harness::golden_models_in("models")
        .into_iter()
        .chain(harness::golden_models_in("models-2026").into_iter().filter(|name| name == "lfm2"));
    let golden = golden.map(|name| harness::golden_model_dir(&name));
    let tokens: Vec<u32> = (0..24).map(|i| (i * i * 7 + 3) % 97).collect();
    for dir in golden.chain([uneven.path().to_owned()]) {
        let model = Exported::of(&dir);
        let exact = model.export(Precision::Fp32).logits(&tokens).unwrap();
        let scale = largest(&exact);
        let mut errors = Vec::new();
        for precision in [Precision::Int8, Precision::Int4] {
            let what = format!("{}, {precision:?}", dir.display());
            let mut folder = model.export(precision);
            let logits = folder.logits(&tokens).unwrap();
            let of_rounded = model.held(precision).export(Precision::Fp32).logits(&tokens).unwrap();
            let of_activations = distance(&logits, &of_rounded) / scale;
            assert!(of_activations <= 0.1, "{what}: {of_activations} by rounded activations");
            let step_by_step = distance(&decoded(&mut folder, &tokens), &logits) / scale;
            assert!(step_by_step <= 0.1, "{what}, token by token: {step_by_step}");
            let with_exact_activations = model.with_exact_activations().logits(&tokens).unwrap();
            let of_graph = distance(&with_exact_activations, &of_rounded) / scale;
            assert!(of_graph <= 1e-4, "{what}: {of_graph} with activations as they are");
            errors.push(distance(&with_exact_activations, &exact) / scale);
        }
        assert!(errors[0] < errors[1], "{}: 8 bits are nearer to the model than 4: {errors:?}", dir.display());
    }
}

#[test]
fn a_folder_that_is_something_else_is_refused_by_name() {
    let model = Exported::of(&harness::golden_dir().join("models/llama"));
    let out = model.folder.path().join("genai");
    drop(model.export(Precision::Int4));
    fs::remove_file(out.join("genai_config.json")).unwrap();
    let error = GenAiFolder::open(&out, 1).err().expect("no folder for GenAI").to_string();
    assert!(error.contains("genai_config.json") && error.contains(&out.display().to_string()), "{error}");
}

#[test]
fn tokens_that_the_model_cannot_take_are_an_error_of_one_line() {
    let model = Exported::of(&harness::golden_dir().join("models/llama"));
    let mut folder = model.export(Precision::Fp32);
    for tokens in [&[][..], &[100_000]] {
        let error = folder.logits(tokens).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(folder.logits(&[1, 2]).is_ok(), "the folder stays usable");
}
