//! Small models made on the spot.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

use exporters::onnx::proto::{DataType, Dimension, GraphProto, ModelProto, ValueInfoProto};
use half::{bf16, f16};
use prost::Message;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use shared::{ModelConfig, ModelDir};
use tempfile::TempDir;

/// A Hugging Face directory that is removed with the test.
pub struct TestModel {
    pub dir: TempDir,
}

impl TestModel {
    /// A Llama of two layers with some keys of its configuration replaced, its weights stored as `dtype`.
    pub fn new(changes: &Value, dtype: Dtype) -> Self {
        let model = Self { dir: tempfile::tempdir().unwrap() };
        model.write_config(changes);
        model.write_weights(&model.parameters(), dtype);
        model
    }

    pub fn write_config(&self, changes: &Value) {
        fs::write(self.path().join("config.json"), Self::config_json(changes)).unwrap();
    }

    /// The `config.json` of [`Self::new`].
    pub fn config_json(changes: &Value) -> String {
        let mut config = json!({
            "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
        });
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        serde_json::to_string_pretty(&config).unwrap()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn open(&self) -> ModelDir {
        ModelDir::open(self.path()).unwrap()
    }

    pub fn config(&self) -> ModelConfig {
        self.open().config().clone()
    }

    /// The parameters the configuration asks for.
    pub fn parameters(&self) -> Tensors {
        self.config().parameters().into_iter().collect()
    }

    pub fn write_weights(&self, tensors: &Tensors, dtype: Dtype) {
        write_safetensors(&self.path().join("model.safetensors"), tensors, dtype);
    }
}

/// Shapes by name.
pub type Tensors = BTreeMap<String, Vec<usize>>;

/// The values of a test tensor: multiples of 1/64 (exact in every element type) that depend on name and position.
pub fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let seed: usize = name.bytes().map(usize::from).sum();
    (0..shape.iter().product()).map(|i| ((seed * 31 + i * 7) % 127) as f32 / 64.0 - 1.0).collect()
}

pub fn write_safetensors(path: &Path, tensors: &Tensors, dtype: Dtype) {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> =
        tensors.iter().map(|(name, shape)| (name, shape, encode(&values(name, shape), dtype))).collect();
    let views = bytes.iter().map(|(name, shape, b)| (*name, TensorView::new(dtype, (*shape).clone(), b).unwrap()));
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize_to_file(views, Some(format), path).unwrap();
}

fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&v| match dtype {
            Dtype::F32 => v.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
            Dtype::F64 => f64::from(v).to_le_bytes().to_vec(),
            other => panic!("no test needs {other}"),
        })
        .collect()
}

/// The graph of an export.
pub fn graph(dir: &Path) -> GraphProto {
    let bytes = fs::read(dir.join("model.onnx")).unwrap();
    ModelProto::decode(bytes.as_slice()).unwrap().graph.unwrap()
}

/// Fails unless every value is made once, and before it is read, and every input and constant is read.
pub fn assert_well_formed(graph: &GraphProto, what: &str) {
    let mut made: BTreeSet<&str> = graph.input.iter().map(|i| i.name.as_str()).collect();
    for tensor in &graph.initializer {
        assert!(made.insert(&tensor.name), "{what}: two values are named {}", tensor.name);
    }
    let mut names = BTreeSet::new();
    for node in &graph.node {
        assert!(names.insert(&node.name), "{what}: two nodes are named {}", node.name);
        for input in node.input.iter().filter(|i| !i.is_empty()) {
            assert!(made.contains(input.as_str()), "{what}: {} reads {input} too early", node.name);
        }
        for output in node.output.iter().filter(|o| !o.is_empty()) {
            assert!(made.insert(output), "{what}: {output} is made twice");
        }
    }
    for output in &graph.output {
        assert!(made.contains(output.name.as_str()), "{what}: nobody makes {}", output.name);
    }
    let read: BTreeSet<&String> = graph.node.iter().flat_map(|n| &n.input).collect();
    for tensor in graph.initializer.iter().map(|t| &t.name).chain(graph.input.iter().map(|i| &i.name)) {
        assert!(read.contains(tensor), "{what}: nobody reads {tensor}");
    }
}

/// Name, element type and shape of an input or output, as `logits: Float [batch, 32]`.
pub fn described(value: &ValueInfoProto) -> String {
    let tensor = value.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
    let dim = |value: &Option<Dimension>| match value {
        Some(Dimension::DimValue(n)) => n.to_string(),
        Some(Dimension::DimParam(name)) => name.clone(),
        None => "?".into(),
    };
    let dims: Vec<String> = tensor.shape.as_ref().unwrap().dim.iter().map(|d| dim(&d.value)).collect();
    let element = DataType::try_from(tensor.elem_type).unwrap();
    format!("{}: {element:?} [{}]", value.name, dims.join(", "))
}

/// Names and contents of the files in a folder.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}
