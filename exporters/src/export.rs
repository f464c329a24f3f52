//! Hugging Face directory to ONNX.

use std::{borrow::Cow, path::Path};

use prost::Message;
use shared::{
    BaseFormat, Dtype, ModelConfig, ModelDir, PolicyVersion, TensorEntry, TensorRole, WeightManifest, files::atomic,
};

use crate::{
    Checkpoint, ExportError, TensorSource, VersionDir,
    layout::{self, Values},
    onnx::decoder::{self, HEAD_DIM_MULTIPLE, QUERY_FACTORS, rotary_names},
    version::fill,
};

/// Rows of the rotary tables without [`ExportOptions::max_positions`], unless the model's own limit is lower.
pub const DEFAULT_MAX_POSITIONS: usize = 32_768;

/// How a model is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportOptions {
    /// Element type of weights, activations and KV cache: fp32 or fp16. Logits are fp32 in both cases.
    pub dtype: Dtype,
    /// Rows of the rotary tables, i.e. the longest sequence (prompt and completion) the graph can run; at most the
    /// model's `max_position_embeddings`. None: the lesser of this limit and [`DEFAULT_MAX_POSITIONS`].
    pub max_positions: Option<usize>,
    /// How the matrices of layers are quantised, for the base of an adapter that the learner holds so: the export has
    /// the numbers that the codes stand for. None: not at all.
    pub base: Option<BaseFormat>,
}

impl Default for ExportOptions {
    fn default() -> Self {
        Self { dtype: Dtype::Fp32, max_positions: None, base: None }
    }
}

impl ExportOptions {
    /// Rows of the rotary tables for a model.
    ///
    /// # Errors
    /// More positions than the model has, or none.
    pub fn positions(&self, config: &ModelConfig) -> Result<usize, ExportError> {
        // The attention's lengths are 32-bit integers.
        let limit = config.max_position_embeddings.min(i32::MAX as usize);
        match self.max_positions {
            None => Ok(limit.min(DEFAULT_MAX_POSITIONS)),
            Some(n) if (1..=limit).contains(&n) => Ok(n),
            Some(n) => Err(ExportError::Unsupported {
                key: "max_positions".into(),
                value: n.to_string(),
                hint: format!("from 1 to {limit}, the model's max_position_embeddings"),
            }),
        }
    }
}

/// Exports a model into a new folder: `model.onnx`, `weights.data` and `manifest.json`, as version 0. The same model
/// and options give the same bytes, wherever the folder is. An existing folder is replaced.
///
/// # Errors
/// A model the graph cannot express, broken weights, or an error of the file system; `out` is then as it was.
pub fn export(model: &ModelDir, out: &Path, options: &ExportOptions) -> Result<WeightManifest, ExportError> {
    refuse_unsupported(model.config(), options)?;
    let checkpoint = Checkpoint::open(model)?;
    write_export(model.config(), &checkpoint, out, options)
}

/// As [`export`], of a model of this configuration with the parameters that `read` gives, twice each.
///
/// # Errors
/// As [`export`], or an error of `read`.
pub fn export_values(
    config: &ModelConfig,
    out: &Path,
    options: &ExportOptions,
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    refuse_unsupported(config, options)?;
    let mut read = |name: &str| read(name).map_err(|source| ExportError::Tensor { name: name.to_owned(), source });
    write(config, out, options, &mut read)
}

pub(crate) fn write_export(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    out: &Path,
    options: &ExportOptions,
) -> Result<WeightManifest, ExportError> {
    write(config, out, options, &mut |name| {
        let codes = options.base.map(|format| checkpoint.codes(name, format)).transpose()?.flatten();
        Ok(match codes {
            Some(codes) => codes.values().into(),
            None => checkpoint.read_f32(name)?.into(),
        })
    })
}

/// A [`TensorSource`] whose errors are ours already.
type Parameters<'r, 'v> = &'r mut dyn FnMut(&str) -> Result<Cow<'v, [f32]>, ExportError>;

fn write(
    config: &ModelConfig,
    out: &Path,
    options: &ExportOptions,
    read: Parameters<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    let positions = options.positions(config)?;
    let tensors = layout::tensors(config, options.dtype, positions);
    atomic::require_space(out, layout::data_length(&tensors))?;
    let tables: Vec<(&str, Vec<f32>)> = config
        .rotaries()
        .flat_map(|rotary| {
            let (cos, sin) = config.rotary_tables(rotary, positions);
            rotary_names(rotary).into_iter().zip([cos, sin])
        })
        .chain(config.query_factors(positions).map(|factors| (QUERY_FACTORS, factors)))
        .collect();
    let graph = decoder::decoder(config, &tensors, options.dtype).encode_to_vec();
    let mut manifest = None;
    atomic::write_dir(out, |dir| {
        let give = |tensor: &TensorEntry| {
            Ok(Values::Floats(match tensor.role {
                TensorRole::Parameter => read(&tensor.name)?,
                TensorRole::Constant => {
                    let table = tables.iter().find(|(name, _)| *name == tensor.name);
                    table.expect("the tables are the constants of the layout").1.as_slice().into()
                }
            }))
        };
        manifest = Some(fill(dir, PolicyVersion(0), &tensors, &graph, give)?);
        VersionDir::open(dir)?.require(&mut |name| Ok(read(name)?))
    })?;
    Ok(manifest.expect("a folder that was written has a manifest"))
}

/// Refuses settings that `config.json` allows and the graph does not.
///
/// # Errors
/// The first of them, with its value.
pub fn refuse_unsupported(config: &ModelConfig, options: &ExportOptions) -> Result<(), ExportError> {
    let unsupported =
        |key: &str, value: String, hint: String| Err(ExportError::Unsupported { key: key.into(), value, hint });
    for (key, width) in [("head_dim", Some(config.head_dim)), ("global_head_dim", config.global_head_dim)] {
        if let Some(width) = width.filter(|width| !width.is_multiple_of(HEAD_DIM_MULTIPLE)) {
            let hint = format!(
                "the attention kernel needs a multiple of {HEAD_DIM_MULTIPLE}, so no sampler here runs the model"
            );
            return unsupported(key, width.to_string(), hint);
        }
    }
    if options.dtype == Dtype::Bf16 {
        return unsupported("dtype", "bf16".into(), "supported: fp32, fp16".into());
    }
    options.positions(config).map(|_| ())
}
