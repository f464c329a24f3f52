//! Folders for ONNX Runtime GenAI (`exporters::genai`), run by ONNX Runtime alone: what a folder says of a text, and
//! [`backend`], what it completes prompts with, for a comparison with the model that it was made of.

pub(super) mod backend;

use std::{collections::HashMap, path::Path};

use exporters::genai::{CONFIG_FILE, DATA_FILE};
use half::f16;
use ndarray::{Array1, Array2, ArrayD, Axis};
use ort::{
    session::{Session, SessionInputValue},
    value::{DynValue, Tensor, TensorElementType, ValueType},
};
use shared::{config::Device, model::manifest::MODEL_FILE};

use super::{
    EngineError, runtime,
    session::{self, SessionOptions},
};

/// A folder that was opened.
pub struct GenAiFolder {
    session: Session,
    /// Name, element type and shape of every input of the cache before the first token: `[1, kv_heads, 0, head_dim]` of
    /// keys and values, and all of a state.
    cache: Vec<(String, TensorElementType, Vec<usize>)>,
    wants_positions: bool,
}

/// Keys, values and states of the tokens so far, by the names of the graph's inputs.
type Cache = HashMap<String, DynValue>;

impl GenAiFolder {
    /// Opens a folder, to run on so many threads.
    ///
    /// # Errors
    /// A folder that lacks a file or is another kind of export (by path), or a graph that ONNX Runtime refuses.
    pub fn open(dir: &Path, threads: usize) -> Result<Self, EngineError> {
        if let Some(file) = [CONFIG_FILE, MODEL_FILE, DATA_FILE].iter().find(|file| !dir.join(file).is_file()) {
            let message = format!("has no {file}: it is no folder for onnxruntime-genai");
            return Err(EngineError::Weights { path: dir.display().to_string(), message });
        }
        runtime::environment()?;
        let options =
            SessionOptions { device: Device::Cpu, threads, spinning: false, hot_swap: false, cuda_graphs: false };
        let path = dir.join(MODEL_FILE);
        let doing = format!("cannot load {}", path.display());
        let session = session::load(&path, options, None, Vec::new()).map_err(EngineError::runtime(&doing))?;
        let cache = session.inputs().iter().filter_map(|input| {
            let ValueType::Tensor { ty, shape, .. } = input.dtype() else { return None };
            // Lengths that are not fixed are below 0: the batch's, and that of the tokens so far.
            let mut before: Vec<usize> = shape.iter().map(|&length| length.max(0) as usize).collect();
            *before.first_mut()? = 1;
            input.name().starts_with("past_key_values.").then(|| (input.name().to_owned(), *ty, before))
        });
        let cache = cache.collect();
        let wants_positions = session.inputs().iter().any(|input| input.name() == "position_ids");
        Ok(Self { session, cache, wants_positions })
    }

    /// Logits `[tokens, vocabulary]` after each token of a text, by one pass over all of it.
    ///
    /// # Errors
    /// No tokens, or an error of ONNX Runtime: a token that the model does not have, or more tokens than it has
    /// positions.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Array2<f32>, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Options("a text without tokens has no logits".to_owned()));
        }
        let run = self.empty().and_then(|cache| self.run(tokens, 0, cache));
        run.map(|(logits, _)| logits).map_err(EngineError::runtime("the exported graph failed"))
    }

    /// Keys, values and states of no tokens.
    fn empty(&self) -> ort::Result<Cache> {
        let input = |(name, element, shape): &(String, _, Vec<usize>)| Ok((name.clone(), zeros(*element, shape)?));
        self.cache.iter().map(input).collect()
    }

    /// Logits after each of `tokens`, which follow `before` others, and the cache with them.
    fn run(&mut self, tokens: &[u32], before: usize, cache: Cache) -> ort::Result<(Array2<f32>, Cache)> {
        let after = before + tokens.len();
        let row = |values: Vec<i64>| Tensor::from_array(Array1::from(values).insert_axis(Axis(0)));
        let mut inputs: HashMap<String, SessionInputValue<'_>> = HashMap::from([
            ("input_ids".to_owned(), row(tokens.iter().map(|&token| token.into()).collect())?.into()),
            ("attention_mask".to_owned(), row(vec![1; after])?.into()),
        ]);
        if self.wants_positions {
            inputs.insert("position_ids".to_owned(), row((before as i64..after as i64).collect())?.into());
        }
        inputs.extend(cache.into_iter().map(|(name, value)| (name, value.into())));
        let mut outputs = self.session.run(inputs)?;
        let logits = outputs["logits"].try_extract_array::<f32>()?.index_axis(Axis(0), 0).to_owned();
        let taken = self.cache.iter().filter_map(|(past, ..)| {
            let present = outputs.remove(past.replace("past_key_values", "present"))?;
            Some((past.clone(), present))
        });
        let cache = taken.collect();
        let logits = logits.into_dimensionality().expect("logits of rows are [rows, tokens, vocabulary]");
        Ok((logits, cache))
    }
}

fn zeros(element: TensorElementType, shape: &[usize]) -> ort::Result<DynValue> {
    Ok(match element {
        TensorElementType::Float16 => Tensor::from_array(ArrayD::from_elem(shape, f16::ZERO))?.into_dyn(),
        _ => Tensor::from_array(ArrayD::<f32>::zeros(shape))?.into_dyn(),
    })
}

#[cfg(test)]
mod tests;
