//! Folders for ONNX Runtime GenAI: `genai_config.json`, and `model.onnx` with `model.onnx.data`.
//!
//! Such a folder is a graph, which only a runtime runs. So [`verify`] takes the runtime as a [`Reader`], and looks at
//! the rest by itself: the sizes that GenAI reads, the attention of every layer with its rotary tables, and every value
//! of every weight.
//!
//! | file | subject |
//! |---|---|
//! | `graph` | nodes and tensors of `model.onnx` |
//! | `weights` | the parameters, of floats or in blocks |
//! | `rotary` | the tables of cosines and sines |

mod graph;
mod rotary;
mod weights;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    Distance, Mixer, Model, Reader, VerifyError, Weights, compare, compare_tensors,
    file::{Pieces, json},
};

use graph::{Attention, Graph};
use weights::Parameters;

/// A folder that was opened.
pub struct Folder {
    path: PathBuf,
    config: Value,
    graph: Graph,
    data: Pieces,
}

/// Opens a folder.
///
/// # Errors
/// A file that is missing or cannot be understood, by path.
pub fn open(dir: &Path) -> Result<Folder, VerifyError> {
    let config = json(&dir.join("genai_config.json"))?;
    let graph = Graph::open(&dir.join("model.onnx"))?;
    let data = Pieces::open(&dir.join("model.onnx.data"))?;
    Ok(Folder { path: dir.to_owned(), config, graph, data })
}

/// As [`crate::verify`], for a folder that `runtime` runs. The sizes and frequencies are those of `genai_config.json`
/// and of the graph. Without a bound, the runtime may be little further from the model than a plain forward pass with
/// the rounded weights is.
///
/// # Errors
/// The first thing that is not the model's, by name, a file that cannot be read, or what the runtime reports.
pub fn verify(
    source: &mut Model,
    folder: Folder,
    runtime: &mut dyn Reader,
    rows: &[Vec<u32>],
    bound: Option<f64>,
) -> Result<Distance, VerifyError> {
    if let Some(difference) = folder.difference(source)? {
        return Err(VerifyError::Differs(difference));
    }
    // Rows of queries and keys and the norms are as Hugging Face has them, so the architecture is the model's.
    let mut export = Model::new(source.architecture().clone(), folder.into_weights()?);
    compare_tensors(source, &export)?;
    let distance = compare(source, runtime, rows)?;
    match bound {
        Some(bound) => distance.require(bound)?,
        None => require_like(&distance, &compare(source, &mut export, rows)?)?,
    }
    Ok(distance)
}

/// Most that the runtime may add to the mean difference which the rounding of the weights makes: half of it, and in
/// nats, what the rounding of activations to 8 bits makes.
const ADDED: (f64, f64) = (0.5, 0.02);

/// Checks a runtime's distance from the model against that of the same rounded weights without any other rounding.
fn require_like(found: &Distance, of_weights: &Distance) -> Result<(), VerifyError> {
    let most = of_weights.mean * (1.0 + ADDED.0) + ADDED.1;
    if found.mean <= most {
        return Ok(());
    }
    Err(VerifyError::Differs(format!(
        "log-probs differ by {:.3e} on average, and by {:.3e} with the same weights in a plain forward pass, so at \
         most {most:.3e} were expected",
        found.mean, of_weights.mean
    )))
}

impl Folder {
    /// The first size or frequency that is not the model's, in words.
    fn difference(&self, source: &Model) -> Result<Option<String>, VerifyError> {
        let model = source.architecture();
        let positions = self.size("/model/context_length")?;
        let sizes = [
            ("vocabulary", "/model/vocab_size", model.vocab_size),
            ("hidden size", "/model/decoder/hidden_size", model.hidden_size),
            ("number of heads", "/model/decoder/num_attention_heads", model.heads),
            ("number of key and value heads", "/model/decoder/num_key_value_heads", model.kv_heads),
            ("width of a head", "/model/decoder/head_size", model.head_dim),
            ("number of layers", "/model/decoder/num_hidden_layers", model.layers.len()),
        ];
        for (what, key, meant) in sizes {
            let found = self.size(key)?;
            if found != meant {
                return Ok(Some(format!("its {what} is {found}, the model's is {meant}")));
            }
        }
        if positions > model.positions {
            let meant = model.positions;
            return Ok(Some(format!("its longest sequence is {positions}, the model's is {meant}")));
        }
        if let Some(found) = self.graph.epsilons().find(|found| !same(*found, model.epsilon)) {
            return Ok(Some(format!("its epsilon of norms is {found:e}, the model's is {:e}", model.epsilon)));
        }
        let layers = self.graph.attentions();
        let of_model = model.layers.iter().enumerate().filter(|(_, layer)| layer.mixer == Mixer::Attention);
        let of_model: Vec<usize> = of_model.map(|(index, _)| index).collect();
        if layers.len() != of_model.len() {
            let (found, meant) = (layers.len(), of_model.len());
            return Ok(Some(format!("its graph has {found} layers with attention, the model has {meant}")));
        }
        let convolutions = model.layers.iter().filter(|layer| layer.mixer != Mixer::Attention).count();
        if self.graph.count("CausalConvWithState") != convolutions {
            return Ok(Some(format!("its graph has other layers with a state than the model's {convolutions}")));
        }
        for (index, attention) in of_model.into_iter().zip(&layers) {
            if let Some(difference) = self.attention_difference(index, attention, source, positions)? {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    fn attention_difference(
        &self,
        index: usize,
        attention: &Attention,
        source: &Model,
        positions: usize,
    ) -> Result<Option<String>, VerifyError> {
        let (model, layer) = (source.architecture(), &source.architecture().layers[index]);
        let heads = [attention.heads, attention.kv_heads];
        if heads != [model.heads as i64, model.kv_heads as i64] {
            return Ok(Some(format!("layer {index} has {heads:?} heads, the model's are others")));
        }
        if !same(attention.scale, model.attention_scale) {
            let (found, meant) = (attention.scale, model.attention_scale);
            return Ok(Some(format!(
                "the factor on attention scores of layer {index} is {found}, the model's {meant}"
            )));
        }
        // A window as long as the longest sequence is none.
        let window = layer.window.filter(|window| *window < positions);
        if attention.window.filter(|window| *window < positions) != window {
            let found = attention.window;
            return Ok(Some(format!("its window of layer {index} is {found:?}, the model's is {window:?}")));
        }
        let other = |detail: &str| Ok(Some(format!("the rotary positions of layer {index} are others{detail}")));
        match (&layer.frequencies, &attention.tables) {
            (None, None) => Ok(None),
            (Some(frequencies), Some(tables)) => {
                let [cosines, sines] = [&tables[0], &tables[1]].map(|name| self.graph.floats(name, &self.data));
                match rotary::difference(frequencies, model.turn_scale, positions, [&cosines?, &sines?]) {
                    None => Ok(None),
                    Some(detail) => other(&format!(" ({detail})")),
                }
            }
            _ => other(" (one of the two has none)"),
        }
    }

    /// A whole number of `genai_config.json`, by its JSON pointer.
    fn size(&self, key: &str) -> Result<usize, VerifyError> {
        let found = self.config.pointer(key).and_then(Value::as_u64);
        found.map(|size| size as usize).ok_or_else(|| {
            let key = key.trim_start_matches('/').replace('/', ".");
            VerifyError::file(&self.path.join("genai_config.json"), format!("`{key}` is no size"))
        })
    }

    fn into_weights(self) -> Result<Box<dyn Weights>, VerifyError> {
        let width = self.size("/model/decoder/hidden_size")?;
        Ok(Box::new(Parameters::of(self.graph, self.data, width)?))
    }
}

/// Whether two numbers are the same in fp32.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs().max(b.abs())
}
