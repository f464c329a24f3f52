//! Exports kept for the next start, keyed by the content that they were made of.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use prost::Message as _;
use shared::{
    ModelDir, TensorRole,
    files::atomic,
    model::manifest::{MANIFEST_FILE, MODEL_FILE},
    run::disk_room,
};

use crate::{
    Checkpoint, ExportError, ExportOptions, VersionDir,
    export::{refuse_unsupported, write_export},
    layout::stored_as,
    onnx::{decoder::ROTARY_COS, decoder_graph},
    values,
};

/// Part of the key; raised with every change of the graph or the file layout.
const REVISION: u32 = 2;

/// A folder with the model's export: the model directory itself if it has one that fits (a checkpoint, say), else a
/// folder of the cache ([`cache_dir`]), which is made on first use.
///
/// # Errors
/// As [`ensure_export_in`], or no folder for the cache.
pub fn ensure_export(model: &ModelDir, options: &ExportOptions) -> Result<PathBuf, ExportError> {
    ensure_export_in(&cache_dir()?, model, options)
}

/// As [`ensure_export`], with the folder of the cache given. The key is the content of `config.json` and of the weight
/// files, and of an adapter to them, together with the options. Processes that do this at the same time do not disturb
/// one another.
///
/// # Errors
/// As [`export`](crate::export()).
pub fn ensure_export_in(cache: &Path, model: &ModelDir, options: &ExportOptions) -> Result<PathBuf, ExportError> {
    refuse_unsupported(model.config(), options)?;
    if model.adapter().is_none() && options.base.is_none() && has_export(model.path()) {
        match check_own_export(model, options) {
            Ok(()) => return Ok(model.path().to_path_buf()),
            Err(Unfit::Other(reason)) if model.has_weights() => {
                tracing::debug!("the export in the model directory is for another use: {reason}");
            }
            Err(Unfit::Wrong(reason)) if model.has_weights() => {
                tracing::warn!("the export in the model directory is not used: {reason}");
            }
            Err(Unfit::Other(reason) | Unfit::Wrong(reason)) => return Err(reason),
        }
    }
    let checkpoint = Checkpoint::open(model)?;
    let exports = cache.join("exports");
    let folder = exports.join(key(model, &checkpoint, options)?);
    if VersionDir::open(&folder).is_ok() {
        disk_room::hold(&folder);
        return Ok(folder);
    }
    tracing::info!(model = %model.path().display(), export = %folder.display(), "exporting to ONNX, once per model");
    fs::create_dir_all(&exports).map_err(|e| ExportError::io(&exports, e))?;
    atomic::remove_abandoned(&exports)?;
    for unused in disk_room::make_in_cache(&exports, room(model, options))? {
        tracing::info!("the disk is short: removed {}, which was not used for a day", unused.display());
    }
    let written = write_export(model.config(), &checkpoint, &folder, options);
    disk_room::hold(&folder);
    match written {
        // Another process may have put the same export there between the look at the folder and the renaming.
        Err(_) if VersionDir::open(&folder).is_ok() => Ok(folder),
        written => written.map(|_| folder),
    }
}

/// Free bytes that an export needs: twice the size of its weights, for the run that goes on with it.
fn room(model: &ModelDir, options: &ExportOptions) -> u64 {
    2 * model.config().parameter_count() * options.dtype.size() as u64
}

/// As [`ensure_export`], for an export that may be damaged: an export of the cache whose tensors have changed since is
/// made again.
///
/// # Errors
/// As [`ensure_export`], or a damaged export in the model directory, with the names of its tensors.
pub fn renew_export(model: &ModelDir, options: &ExportOptions) -> Result<PathBuf, ExportError> {
    let folder = ensure_export(model, options)?;
    let export = VersionDir::open(&folder)?;
    let damaged: Vec<&str> = export.damaged().collect();
    if damaged.is_empty() {
        return Ok(folder);
    }
    let message = format!("is not what was exported: {}", damaged.join(", "));
    if folder == model.path() {
        return Err(ExportError::content(&folder, message + "; remove its model.onnx, weights.data and manifest.json"));
    }
    tracing::warn!("{}: {message}; it is made again", folder.display());
    atomic::remove_dir(&folder)?;
    ensure_export(model, options)
}

fn has_export(dir: &Path) -> bool {
    dir.join(MODEL_FILE).is_file() && dir.join(MANIFEST_FILE).is_file()
}

/// Why the export inside a model directory is not used.
enum Unfit {
    /// It is sound, but for something else: another device, longer sequences, or passes in bfloat16. A new export is
    /// made.
    Other(ExportError),
    /// It is damaged, or not of this model.
    Wrong(ExportError),
}

impl From<ExportError> for Unfit {
    fn from(error: ExportError) -> Self {
        Self::Wrong(error)
    }
}

/// The export inside a model directory must be whole, of this model, with these options, and of the same weights as
/// the safetensors beside it (if there are any).
fn check_own_export(model: &ModelDir, options: &ExportOptions) -> Result<(), Unfit> {
    let export = VersionDir::open(model.path())?;
    let error = |message: String| ExportError::content(model.path(), message);
    let tensors = &export.manifest().tensors;
    if !export.manifest().is_of(model.config()) {
        return Err(error("the export has other parameters than config.json asks for".into()).into());
    }
    if let Some(other) = tensors.iter().find(|t| t.dtype != stored_as(&t.name, options.dtype)) {
        return Err(Unfit::Other(error(format!("the export is {}, not {}", other.dtype, options.dtype))));
    }
    // ONNX Runtime gets no graph of another program: its parser and its kernels trust the graph.
    if *export.graph() != *decoder_graph(model.config(), tensors, options.dtype).encode_to_vec() {
        let message =
            format!("the export's {MODEL_FILE} is not the graph that this program writes; export the model again");
        return Err(error(message).into());
    }
    let rows = export.manifest().tensor(ROTARY_COS).map_or(0, |table| table.shape[0] as usize);
    let (rows, needed) = (model.config().rotary_positions(rows), options.positions(model.config())?);
    if rows < needed {
        return Err(Unfit::Other(error(format!("the export is for sequences up to {rows} tokens, not {needed}"))));
    }
    if !model.has_weights() {
        return Ok(());
    }
    let checkpoint = Checkpoint::open(model)?;
    let mut rounded = None;
    for tensor in tensors.iter().filter(|t| t.role == TensorRole::Parameter) {
        let mut values = checkpoint.read_f32(&tensor.name)?;
        if *values::encode(&tensor.name, &values, tensor.dtype)? == *export.bytes(tensor) {
            continue;
        }
        // Exports in checkpoints of runs in bfloat16 once had rounded values.
        values::round_to_bf16(&mut values);
        if *values::encode(&tensor.name, &values, tensor.dtype)? != *export.bytes(tensor) {
            return Err(error(format!("the export's {} is not that of the safetensors", tensor.name)).into());
        }
        rounded = rounded.or(Some(&tensor.name));
    }
    match rounded {
        None => Ok(()),
        Some(name) => Err(Unfit::Other(error(format!("the export's {name} is that of the safetensors in bfloat16")))),
    }
}

fn key(model: &ModelDir, checkpoint: &Checkpoint, options: &ExportOptions) -> Result<String, ExportError> {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    let config = model.path().join("config.json");
    part(&REVISION.to_le_bytes());
    part(&fs::read(&config).map_err(|e| ExportError::io(&config, e))?);
    part(&options.positions(model.config())?.to_le_bytes());
    part(options.dtype.to_string().as_bytes());
    part(checkpoint.weights_blake3().as_bytes());
    if let Some(format) = options.base {
        part(format.to_string().as_bytes());
    }
    if let Some(adapter) = checkpoint.adapter() {
        part(adapter.blake3().as_bytes());
        part(&adapter.config().scaling().to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_string())
}

/// The folder for files that can be made again: `TANDEM_CACHE_DIR`, else `$XDG_CACHE_HOME/tandem`, else
/// `~/.cache/tandem`.
///
/// # Errors
/// When none of the three variables is set.
pub fn cache_dir() -> Result<PathBuf, ExportError> {
    let folder = |key: &str| env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
    folder("TANDEM_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|d| d.join("tandem")))
        .or_else(|| folder("HOME").map(|d| d.join(".cache/tandem")))
        .ok_or_else(|| {
            std::io::Error::new(std::io::ErrorKind::NotFound, "no folder for the cache; set TANDEM_CACHE_DIR (or HOME)")
                .into()
        })
}
