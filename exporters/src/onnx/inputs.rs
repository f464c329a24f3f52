//! The inputs of a graph beside its cache, for each of its users.

use shared::{Head, ModelConfig};

use super::{
    builder::{Dim, GraphBuilder, int},
    decoder::reads_positions,
    proto::DataType,
};

pub(super) const BATCH: Dim<'_> = Dim::Named("batch");
pub(super) const SEQUENCE: Dim<'_> = Dim::Named("sequence");
pub(super) const SCORES: Dim<'_> = Dim::Named("scores");

/// The tokens that reach the head, with the name of the input that says which.
#[derive(Debug, Clone)]
pub(super) enum Asked {
    /// The last token of each row, `last_index`.
    Last(String),
    /// Any tokens, `score_index`, for so many scores each.
    Scored(String, usize),
    /// All.
    All,
}

/// Names of the values that every layer reads.
pub(super) struct Inputs {
    pub input_ids: String,
    pub seqlens_k: String,
    pub total_sequence_length: String,
    pub asked: Asked,
    pub position_ids: Option<String>,
    /// Names of the cache's length before and after a call.
    pub cache_lengths: [&'static str; 2],
}

impl Inputs {
    /// Those of the sampler's engine and of reward models: lengths as the attention wants them.
    pub fn of_engine(config: &ModelConfig, graph: &mut GraphBuilder) -> Self {
        Self {
            input_ids: graph.input("input_ids", DataType::Int64, &[BATCH, SEQUENCE]),
            seqlens_k: graph.input("seqlens_k", DataType::Int32, &[BATCH]),
            total_sequence_length: graph.input("total_sequence_length", DataType::Int32, &[]),
            asked: match config.head {
                Head::LanguageModel => Asked::Last(graph.input("last_index", DataType::Int64, &[BATCH])),
                Head::Score { labels } => Asked::Scored(graph.input("score_index", DataType::Int64, &[SCORES]), labels),
            },
            position_ids: position_ids(config, graph),
            cache_lengths: ["max_sequence"; 2],
        }
    }

    /// Those of ONNX Runtime GenAI: lengths are computed from the attention mask, as in the graphs of its own builder.
    pub fn of_genai(config: &ModelConfig, graph: &mut GraphBuilder) -> Self {
        let input_ids = graph.input("input_ids", DataType::Int64, &[BATCH, SEQUENCE]);
        let mask = graph.input("attention_mask", DataType::Int64, &[BATCH, Dim::Named("total_sequence_length")]);
        let to_int32 = [int("to", DataType::Int32 as i64)];
        // The number 1, the second axis.
        let one = graph.integers("one", &[1]);
        let lengths = graph.node("ReduceSum", "mask.lengths", &[&mask, &one], &[int("keepdims", 0)]);
        let last = graph.node("Sub", "mask.last", &[&lengths, &one], &[]);
        let shape = graph.node("Shape", "mask.shape", &[&mask], &[]);
        let second = graph.integer("axis.second", 1);
        let width = graph.node("Gather", "mask.width", &[&shape, &second], &[int("axis", 0)]);
        Self {
            input_ids,
            seqlens_k: graph.node("Cast", "seqlens_k", &[&last], &to_int32),
            total_sequence_length: graph.node("Cast", "total_length", &[&width], &to_int32),
            asked: Asked::All,
            position_ids: position_ids(config, graph),
            cache_lengths: ["past_sequence_length", "total_sequence_length"],
        }
    }
}

fn position_ids(config: &ModelConfig, graph: &mut GraphBuilder) -> Option<String> {
    reads_positions(config).then(|| graph.input("position_ids", DataType::Int64, &[BATCH, SEQUENCE]))
}
