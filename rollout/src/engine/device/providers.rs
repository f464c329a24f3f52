//! The execution providers of ONNX Runtime that sessions on a device are made with.
//!
//! TensorRT compiles its part of a graph, weights included, when a session is made; that takes minutes. Two caches
//! shorten it. Timings of kernels hold for any weights of any model on one kind of GPU, so they are always kept. A
//! compiled engine holds the weights, but ONNX Runtime finds it again by the graph's names alone: engines are therefore
//! kept in a folder for each content of weights, and only where the weights stay as they are, not in training.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
};

use exporters::cache_dir;
use ort::ep::{CUDA, ExecutionProviderDispatch, TensorRT};
use shared::config::Device;

use crate::engine::session::SessionOptions;

/// Those for a model, the first one that takes a node before the others. `weights` is the hash of what its graph was
/// exported from, if it is known.
///
/// # Errors
/// When there is no folder for the caches of TensorRT.
pub(in crate::engine) fn for_model(
    options: SessionOptions,
    weights: Option<&str>,
) -> ort::Result<Vec<ExecutionProviderDispatch>> {
    Ok(match options.device {
        Device::Cpu => Vec::new(),
        Device::Cuda => vec![cuda(options.cuda_graphs)],
        Device::Tensorrt => vec![tensorrt(weights.filter(|_| !options.hot_swap))?, cuda(false)],
    })
}

/// Those for a small graph beside a model. On devices, CUDA runs it: TensorRT would take longer to build it than it
/// ever runs.
pub(in crate::engine) fn for_small_graph(device: Device) -> Vec<ExecutionProviderDispatch> {
    if device == Device::Cpu { Vec::new() } else { vec![cuda(false)] }
}

fn cuda(graphs: bool) -> ExecutionProviderDispatch {
    CUDA::default().with_device_id(0).with_tf32(false).with_cuda_graph(graphs).build().error_on_failure()
}

/// Digits of the hash in the name of a folder of engines.
const DIGITS: usize = 32;

/// Folders that exist.
struct Caches {
    timings: PathBuf,
    engines: Option<PathBuf>,
}

impl Caches {
    fn create(cache: &Path, weights: Option<&str>) -> std::io::Result<Self> {
        let folder = |path: PathBuf| fs::create_dir_all(&path).map(|()| path);
        let base = cache.join("tensorrt");
        let engines = weights.map(|hash| base.join("engines").join(&hash[..hash.len().min(DIGITS)]));
        Ok(Self { timings: folder(base.join("timings"))?, engines: engines.map(folder).transpose()? })
    }
}

/// TensorRT. `weights` is the hash of weights whose engines are worth keeping.
fn tensorrt(weights: Option<&str>) -> ort::Result<ExecutionProviderDispatch> {
    let failed = |e: &dyn Display| ort::Error::new(format!("no folder for the caches of TensorRT: {e}"));
    let cache = cache_dir().map_err(|e| failed(&e))?;
    let caches = Caches::create(&cache, weights).map_err(|e| failed(&e))?;
    let mut provider = TensorRT::default()
        .with_device_id(0)
        // Without it TensorRT refuses networks of half precision.
        .with_fp16(true)
        .with_timing_cache(true)
        .with_timing_cache_path(caches.timings.display());
    if let Some(engines) = caches.engines {
        provider = provider.with_engine_cache(true).with_engine_cache_path(engines.display());
    }
    tracing::info!(cache = %cache.display(), "TensorRT compiles what it can of the graph; this may take minutes");
    Ok(provider.build().error_on_failure())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_kept_for_each_content_of_weights_and_timings_for_all() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |digit: char| String::from(digit).repeat(64);
        let [one, other] = ['a', 'b'].map(|d| Caches::create(folder.path(), Some(&hash(d))).unwrap());
        let none = Caches::create(folder.path(), None).unwrap();
        assert_eq!((&one.timings, &one.timings), (&other.timings, &none.timings));
        assert!(none.engines.is_none() && one.engines != other.engines);
        assert!(one.timings.is_dir() && one.engines.unwrap().is_dir() && other.engines.unwrap().is_dir());
    }
}
