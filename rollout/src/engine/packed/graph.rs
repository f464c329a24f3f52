//! From the published graph to one of packed operators.

use std::fs;

use exporters::onnx::{
    builder::{Dim, GraphBuilder, int},
    decoder_graph,
    proto::{DataType, ModelProto, OperatorSetIdProto},
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
    let path = manifest.export_dir(&source.dir).join(MODEL_FILE);
    let unreadable = |message: String| EngineError::Weights { path: path.display().to_string(), message };
    let bytes = fs::read(&path).map_err(|e| unreadable(e.to_string()))?;
    let found = ModelProto::decode(bytes.as_slice()).map_err(|e| unreadable(format!("no ONNX model: {e}")))?;
    Ok(found == decoder_graph(config, &manifest.tensors, dtype_of(manifest)))
}

/// The decoder in packed operators, serialised. `input_ids` i64 `[tokens]` to `logits` f32 `[rows, vocab]`; which
/// token belongs to which sequence, weights and cache are known to the operators.
pub(super) fn rewritten(config: &ModelConfig) -> Vec<u8> {
    let mut graph = GraphBuilder::default();
    graph.input("input_ids", DataType::Int64, &[Dim::Named("tokens")]);
    graph.output("logits", DataType::Float, &[Dim::Named("rows"), Dim::Fixed(config.vocab_size)]);
    let mut node = |operator: &str, name: &str, inputs: &[&str], index: usize| {
        graph.node(operator, name, inputs, &[int(INDEX, index as i64)])
    };
    let mut stream = node(EMBEDDING, "embedding", &["input_ids"], 0);
    for layer in 0..config.num_hidden_layers {
        let name = |what: &str| format!("layers.{layer}.{what}");
        let first = LINEARS_PER_LAYER * layer;
        let qkv = node(LINEAR, &name("qkv"), &[&stream], first);
        let attended = node(ATTENTION, &name("attended"), &[&qkv], layer);
        let attention = node(LINEAR, &name("attention"), &[&attended, &stream], first + 1);
        let inner = node(LINEAR, &name("inner"), &[&attention], first + 2);
        stream = node(LINEAR, &name("mlp"), &[&inner, &attention], first + 3);
    }
    node(LINEAR, "logits", &[&stream], LINEARS_PER_LAYER * config.num_hidden_layers);
    let mut model = graph.finish("packed decoder");
    model.opset_import.push(OperatorSetIdProto { domain: DOMAIN.into(), version: 1 });
    for node in model.graph.iter_mut().flat_map(|graph| &mut graph.node) {
        node.domain = DOMAIN.into();
    }
    model.encode_to_vec()
}
