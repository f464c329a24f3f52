//! States as a graph takes and gives them, for layers that have one in place of keys and values.
//!
//! A state is float32 in graphs of every type: it is summed up over a whole sequence. It may be bound to the same
//! memory at both ends of the graph. The names are those that ONNX Runtime GenAI looks for.

use shared::ModelConfig;

use super::{
    builder::{Dim, GraphBuilder},
    inputs::BATCH,
    proto::DataType,
};

/// A state of every sequence of a batch, `[batch, …]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphState {
    /// Name of the input: the state before a call.
    pub past: String,
    /// Name of the output: the state after it.
    pub present: String,
    /// Shape of one sequence's: `[kernel - 1, channels]` for the last inputs of a convolution, the oldest first;
    /// `[value_heads, key_dim, value_dim]` for the matrices of a delta rule, `[heads, state_dim, head_dim]` for those
    /// of Mamba-2. All zeros before the first token.
    pub shape: Vec<usize>,
}

impl GraphState {
    /// The last inputs of a layer's convolution.
    pub(super) fn window(config: &ModelConfig, layer: usize) -> Option<Self> {
        let [channels, inputs] = config.state_parts(layer).window;
        (channels * inputs > 0).then(|| Self::new(layer, "conv_state", vec![inputs, channels]))
    }

    /// The matrices of a layer's rule.
    pub(super) fn matrix(config: &ModelConfig, layer: usize) -> Option<Self> {
        let shape = config.state_parts(layer).matrix;
        (shape.iter().product::<usize>() > 0).then(|| Self::new(layer, "recurrent_state", shape.to_vec()))
    }

    fn new(layer: usize, kind: &str, shape: Vec<usize>) -> Self {
        let name = |side: &str| format!("{side}.{layer}.{kind}");
        Self { past: name("past_key_values"), present: name("present"), shape }
    }

    pub(super) fn declare(&self, graph: &mut GraphBuilder) {
        let fixed = self.shape.iter().map(|&length| Dim::Fixed(length));
        let shape: Vec<Dim<'_>> = [BATCH].into_iter().chain(fixed).collect();
        graph.input(&self.past, DataType::Float, &shape);
        graph.output(&self.present, DataType::Float, &shape);
    }
}

/// All states of a model: first the windows of its layers, then the matrices.
#[must_use]
pub fn graph_states(config: &ModelConfig) -> Vec<GraphState> {
    let of = |state: fn(&ModelConfig, usize) -> Option<GraphState>| {
        (0..config.num_hidden_layers).filter_map(move |layer| state(config, layer))
    };
    of(GraphState::window).chain(of(GraphState::matrix)).collect()
}
