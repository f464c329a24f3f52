//! Folders that ONNX Runtime GenAI opens.
//!
//! [`export`] writes `model.onnx`, `model.onnx.data`, `genai_config.json` and the tokenizer's files. Plain ONNX Runtime
//! runs the graph too: nothing in it is GenAI's own. The folder has no `manifest.json`: to GenAI, this is the name of
//! the manifest of a package of models, and to Tandem, of a version with other inputs.
//!
//! | file | subject |
//! |---|---|
//! | `layout` | the tensors of `model.onnx.data`, their places, writing them |
//! | `rounding` | values in blocks of 4 or 8 bits |
//! | `config` | `genai_config.json` |
//! | `tokenizer` | which tokenizers GenAI reads |

mod config;
mod layout;
mod rounding;
mod tokenizer;

use std::path::Path;

use prost::Message;
use serde::{Deserialize, Serialize};
use shared::{Dtype, Head, ModelConfig, ModelDir, files::atomic, model::manifest::MODEL_FILE};

use crate::{
    Checkpoint, ExportError, ExportOptions, TensorSource,
    export::refuse_unsupported,
    hf::copy_all_but_config,
    onnx::{builder::GraphBuilder, decoder},
};

use layout::Layout;

/// Name of the file that describes the model to GenAI.
pub const CONFIG_FILE: &str = "genai_config.json";
/// Name of the file of tensors.
pub const DATA_FILE: &str = "model.onnx.data";

/// Number format of the weights.
///
/// The integer formats have a scale for each 32 values of a row, as `MatMulNBits` takes them. Norms and biases stay in
/// fp32, and so do activations, keys and values. Embedding and language-model head have 8 bits in both integer formats:
/// they touch every token, and errors of the head are errors of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats.
    Fp32,
    /// 16-bit floats, for activations, keys and values too. Logits are fp32.
    Fp16,
    /// 8 bits.
    Int8,
    /// 4 bits; embedding and head 8 bits.
    Int4,
}

impl Precision {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Fp32, Self::Fp16, Self::Int8, Self::Int4];

    /// Type of what is not in blocks: norms, activations, keys and values.
    fn floats(self) -> Dtype {
        if self == Self::Fp16 { Dtype::Fp16 } else { Dtype::Fp32 }
    }
}

/// How a model is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GenAiOptions {
    /// Number format of the weights.
    pub precision: Precision,
    /// As [`ExportOptions::max_positions`]; GenAI calls it `context_length`.
    pub max_positions: Option<usize>,
}

impl GenAiOptions {
    /// The options of the graph: what is not in blocks.
    fn onnx(&self) -> ExportOptions {
        ExportOptions { dtype: self.precision.floats(), max_positions: self.max_positions, base: None }
    }
}

/// A folder that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenAiExport {
    /// Longest sequence, prompt and completion.
    pub context_length: usize,
    /// Bytes of [`DATA_FILE`].
    pub data_bytes: u64,
}

/// Exports a model, or an adapter merged with its base, into a new folder. The same model and options give the same
/// bytes, wherever the folder is. An existing folder is replaced.
///
/// # Errors
/// A model that the graph or GenAI cannot express, broken weights, or an error of the file system; `out` is then as it
/// was.
pub fn export(model: &ModelDir, out: &Path, options: &GenAiOptions) -> Result<GenAiExport, ExportError> {
    refuse(model, &options.onnx())?;
    let checkpoint = Checkpoint::open(model)?;
    let mut written = None;
    atomic::write_dir(out, |dir| {
        written = Some(fill(model, dir, options, &mut |name| Ok(checkpoint.read_f32(name)?.into()))?);
        Ok::<_, ExportError>(())
    })?;
    Ok(written.expect("a folder that was written was filled"))
}

/// As [`export`], into an existing folder, with the parameters that `read` gives: one part of a larger
/// [`atomic::write_dir`].
///
/// # Errors
/// As [`export`], or an error of `read`; the folder may then have some of the files.
pub fn fill(
    model: &ModelDir,
    dir: &Path,
    options: &GenAiOptions,
    read: TensorSource<'_, '_>,
) -> Result<GenAiExport, ExportError> {
    let (config, onnx_options) = (model.config(), options.onnx());
    refuse(model, &onnx_options)?;
    let context_length = onnx_options.positions(config)?;
    let layout = Layout::new(config, options.precision, context_length);
    atomic::require_space(dir, layout.bytes())?;
    copy_all_but_config(model, dir)?;
    layout.write(&dir.join(DATA_FILE), config, context_length, read)?;
    atomic::write(&dir.join(MODEL_FILE), &graph(config, onnx_options.dtype, &layout))?;
    let genai_config = config::genai_config(model, context_length)?;
    atomic::write(&dir.join(CONFIG_FILE), format!("{genai_config:#}\n").as_bytes())?;
    Ok(GenAiExport { context_length, data_bytes: layout.bytes() })
}

/// `model.onnx`.
fn graph(config: &ModelConfig, floats: Dtype, layout: &Layout) -> Vec<u8> {
    let mut graph = GraphBuilder::default();
    layout.declare(&mut graph);
    decoder::genai_decoder(config, floats, &layout.blocked(), graph).encode_to_vec()
}

/// Refuses a model that the graph or GenAI cannot express.
fn refuse(model: &ModelDir, options: &ExportOptions) -> Result<(), ExportError> {
    if let Head::Score { .. } = model.config().head {
        return Err(ExportError::Unsupported {
            key: "architectures".into(),
            value: "...ForSequenceClassification".into(),
            hint: "onnxruntime-genai generates text, for which a model needs a language-model head".into(),
        });
    }
    config::model_type(model.config().architecture)?;
    refuse_unsupported(model.config(), options)?;
    tokenizer::check(model)
}
