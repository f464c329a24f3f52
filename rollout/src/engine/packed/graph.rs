//! From the published graph to one of packed operators.

use std::fs;

use exporters::onnx::{
    decoder_graph,
    proto::{
        AttributeProto, AttributeType, DataType, Dimension, DimensionProto, GraphProto, ModelProto, NodeProto,
        OperatorSetIdProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
    },
};
use prost::Message;
use shared::{ModelConfig, WeightManifest, manifest::MODEL_FILE};

use super::super::{EngineError, WeightSource, session::dtype_of};

/// Domain of the packed operators.
pub(super) const DOMAIN: &str = "tandem";
pub(super) const EMBEDDING: &str = "PackedEmbedding";
pub(super) const LINEAR: &str = "PackedLinear";
pub(super) const ATTENTION: &str = "PagedAttention";
/// Which of the packed products, or which layer, a node stands for.
pub(super) const INDEX: &str = "index";

/// Products of one layer: query, key and value; output; gate and up; down.
pub(super) const LINEARS_PER_LAYER: usize = 4;

/// Whether `model.onnx` computes what [`rewritten`] does: it is node for node what the exporter writes for the model.
pub(super) fn is_known(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
) -> Result<bool, EngineError> {
    let path = source.dir.join(MODEL_FILE);
    let unreadable = |message: String| EngineError::Weights { path: path.display().to_string(), message };
    let bytes = fs::read(&path).map_err(|e| unreadable(e.to_string()))?;
    let found = ModelProto::decode(bytes.as_slice()).map_err(|e| unreadable(format!("no ONNX model: {e}")))?;
    Ok(found == decoder_graph(config, &manifest.tensors, dtype_of(manifest)))
}

/// The decoder in packed operators, serialised. `input_ids` i64 `[tokens]` to `logits` f32 `[rows, vocab]`; which
/// token belongs to which sequence, weights and cache are known to the operators.
pub(super) fn rewritten(config: &ModelConfig) -> Vec<u8> {
    let mut nodes = vec![node(EMBEDDING, "embedding", &["input_ids"], 0)];
    let mut stream = "embedding".to_owned();
    for layer in 0..config.num_hidden_layers {
        let name = |what: &str| format!("layers.{layer}.{what}");
        let [qkv, attended, attention, inner, mlp] = ["qkv", "attended", "attention", "inner", "mlp"].map(name);
        let first = LINEARS_PER_LAYER * layer;
        nodes.push(node(LINEAR, &qkv, &[&stream], first));
        nodes.push(node(ATTENTION, &attended, &[&qkv], layer));
        nodes.push(node(LINEAR, &attention, &[&attended, &stream], first + 1));
        nodes.push(node(LINEAR, &inner, &[&attention], first + 2));
        nodes.push(node(LINEAR, &mlp, &[&inner, &attention], first + 3));
        stream = mlp;
    }
    nodes.push(node(LINEAR, "logits", &[&stream], LINEARS_PER_LAYER * config.num_hidden_layers));
    let graph = GraphProto {
        node: nodes,
        name: "packed decoder".into(),
        initializer: Vec::new(),
        input: vec![value("input_ids", DataType::Int64, &[named("tokens")])],
        output: vec![value("logits", DataType::Float, &[named("rows"), Dimension::DimValue(config.vocab_size as i64)])],
    };
    let set = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    ModelProto {
        ir_version: 10,
        producer_name: "tandem".into(),
        graph: Some(graph),
        opset_import: vec![set("", 21), set(DOMAIN, 1)],
    }
    .encode_to_vec()
}

fn node(op: &str, output: &str, inputs: &[&str], index: usize) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec![output.into()],
        name: output.into(),
        op_type: op.into(),
        attribute: vec![AttributeProto {
            name: INDEX.into(),
            f: None,
            i: Some(index as i64),
            r#type: AttributeType::Int as i32,
        }],
        domain: DOMAIN.into(),
    }
}

fn named(name: &str) -> Dimension {
    Dimension::DimParam(name.into())
}

fn value(name: &str, element: DataType, shape: &[Dimension]) -> ValueInfoProto {
    let dim = shape.iter().map(|d| DimensionProto { value: Some(d.clone()) }).collect();
    let tensor = TensorTypeProto { elem_type: element as i32, shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}
