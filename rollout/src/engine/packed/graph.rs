//! From the published graph to one of packed operators.

use exporters::onnx::{
    builder::{Dim, GraphBuilder, int},
    decoder_graph,
    proto::{DataType, ModelProto, OperatorSetIdProto},
};
use prost::Message;
use shared::{LayerKind, ModelConfig, WeightManifest, model::manifest::MODEL_FILE};

use super::super::{EngineError, WeightSource, session::dtype_of};

/// Most bytes of a graph, as protobuf has it.
const MOST_GRAPH: u64 = 2 << 30;
/// Domain of the packed operators.
pub(super) const DOMAIN: &str = "tandem";
pub(super) const EMBEDDING: &str = "PackedEmbedding";
pub(super) const LINEAR: &str = "PackedLinear";
pub(super) const RESIDUAL: &str = "PackedResidual";
pub(super) const WIDTH_NORM: &str = "PackedWidthNorm";
pub(super) const ATTENTION: &str = "PagedAttention";
pub(super) const SHORT_CONV: &str = "ShortConvolution";
pub(super) const DELTA_RULE: &str = "GatedDeltaRule";
pub(super) const MAMBA: &str = "StateSpace";
pub(super) const EXPERTS: &str = "PackedExperts";
pub(super) const LAYER_INPUTS: &str = "LayerInputs";
pub(super) const OPEN_INPUT: &str = "OpenLayerInput";
/// Which of the packed products, output norms or layers a node stands for.
pub(super) const INDEX: &str = "index";

/// Products of the mixer of a layer: query, key and value, or whatever a layer with a state has in their place; output.
pub(super) const MIXER_LINEARS: usize = 2;
/// Products of an MLP or of an expert: gate and up; down.
pub(super) const MLP_LINEARS: usize = 2;
/// Products of what a layer makes of its own input, where it has one: gate; back.
pub(super) const INPUT_LINEARS: usize = 2;

/// Norms of the results of one layer, where there are any: attention; MLP; own input, where it has one.
pub(super) fn outputs_per_layer(config: &ModelConfig) -> usize {
    2 + usize::from(config.per_layer_input.is_some())
}

/// Number of a layer's first product. After the mixer's, there are those of the MLP, or the router's and those of
/// the experts, and then those of its own input.
pub(super) fn first_linear(config: &ModelConfig, layer: usize) -> usize {
    let of_mlp = |layer| config.experts_of(layer).map_or(MLP_LINEARS, |experts| 1 + MLP_LINEARS * experts.count);
    let of_input = config.per_layer_input.map_or(0, |_| INPUT_LINEARS);
    (0..layer).map(|layer| MIXER_LINEARS + of_mlp(layer) + of_input).sum()
}

/// Whether `model.onnx` computes what [`rewritten`] does: it is node for node what the exporter writes for the model.
pub(super) fn is_known(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
) -> Result<bool, EngineError> {
    let path = manifest.export_dir(&source.dir).join(MODEL_FILE);
    let unreadable = |message: String| EngineError::Weights { path: path.display().to_string(), message };
    let bytes = shared_bounds::read(&path, MOST_GRAPH).map_err(|e| unreadable(e.to_string()))?;
    let found = ModelProto::decode(bytes.as_slice()).map_err(|e| unreadable(format!("no ONNX model: {e}")))?;
    Ok(found == decoder_graph(config, &manifest.tensors, dtype_of(manifest)))
}

/// Adds an operator with a name, inputs and an index to the graph, and returns its output.
type Node<'a> = dyn FnMut(&str, &str, &[&str], usize) -> String + 'a;

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
    // Behind the products of all layers.
    let mut last = first_linear(config, config.num_hidden_layers);
    let inputs_of_layers = config.per_layer_input.map(|_| {
        let projected = node(LINEAR, "inputs.projected", &[&stream], last);
        last += 1;
        node(LAYER_INPUTS, "inputs", &[&projected, "input_ids"], 0)
    });
    for layer in 0..config.num_hidden_layers {
        let name = |what: &str| format!("layers.{layer}.{what}");
        let first = first_linear(config, layer);
        let mut inputs = node(LINEAR, &name("inputs"), &[&stream], first);
        let mixer = match config.layers[layer] {
            LayerKind::Attention(_) => ATTENTION,
            LayerKind::ShortConv(_) => SHORT_CONV,
            LayerKind::DeltaRule(_) => DELTA_RULE,
            LayerKind::Mamba(_) => MAMBA,
        };
        if mixer == ATTENTION && config.width_norms() {
            inputs = node(WIDTH_NORM, &name("inputs.normed"), &[&inputs], layer);
        }
        let mixed = node(mixer, &name("mixed"), &[&inputs], layer);
        // A product adds the residual stream by itself, unless its result is normed first.
        let onto = |node: &mut Node<'_>, stream: &str, what: &str, input: &str, part: usize| {
            let index = first + 1 + 2 * part;
            if !config.output_norms() {
                return node(LINEAR, &name(what), &[input, stream], index);
            }
            let result = node(LINEAR, &name(&format!("{what}.result")), &[input], index);
            node(RESIDUAL, &name(what), &[&result, stream], outputs_per_layer(config) * layer + part)
        };
        let attention = onto(&mut node, &stream, "attention", &mixed, 0);
        if config.experts_of(layer).is_some() {
            stream = node(EXPERTS, &name("experts"), &[&attention], layer);
            continue;
        }
        let inner = node(LINEAR, &name("inner"), &[&attention], first + MIXER_LINEARS);
        stream = onto(&mut node, &attention, "mlp", &inner, 1);
        if let Some(inputs) = &inputs_of_layers {
            let gate = node(LINEAR, &name("input.gate"), &[&stream], first + MIXER_LINEARS + MLP_LINEARS);
            let inner = node(OPEN_INPUT, &name("input.inner"), &[&gate, inputs], layer);
            stream = onto(&mut node, &stream, "input", &inner, 2);
        }
    }
    node(LINEAR, "logits", &[&stream], last);
    let mut model = graph.finish("packed decoder");
    model.opset_import.push(OperatorSetIdProto { domain: DOMAIN.into(), version: 1 });
    for node in model.graph.iter_mut().flat_map(|graph| &mut graph.node) {
        node.domain = DOMAIN.into();
    }
    model.encode_to_vec()
}
