//! Rounds a version directory.

use std::path::Path;

use exporters::{VersionDir, hash_and_norm_of};
use rayon::prelude::*;
use shared::{Canaries, Dtype, TensorEntry, TensorRole, config::RolloutDtype};

use super::{
    Form, RoundedError, Sizes,
    form::Grid,
    packed::{self, Beside, Writer},
    planes::{self, Stored},
};

/// Writes to `out` the part of a version directory that samplers computing in `dtype` need, as a whole version. The
/// bytes depend on the version and `dtype` alone. This takes at most a few times the memory of the largest tensor.
///
/// # Errors
/// A version that is an adapter, not fp32, or rounded already; one that differs from its manifest or, by the norms
/// beside it, from the learner's parameters; any error of the file system.
pub fn round(version_dir: &Path, dtype: RolloutDtype, out: &Path) -> Result<Sizes, RoundedError> {
    let version = VersionDir::open(version_dir)?;
    let manifest = version.manifest();
    let what = if manifest.adapter.is_some() {
        Some("is an adapter")
    } else if manifest.rounded.is_some() {
        Some("is rounded already")
    } else {
        manifest.tensors.iter().any(|tensor| tensor.dtype != Dtype::Fp32).then_some("is not fp32")
    };
    if let Some(what) = what {
        return Err(RoundedError::as_it_is(version_dir, what));
    }
    let mut canaries = Canaries::read(version_dir)?;
    packed::write(out, |dir| {
        let mut writer = Writer::new(dir)?;
        let (mut tensors, mut unlike) = (Vec::new(), Vec::new());
        for entry in &manifest.tensors {
            let values = version.floats(entry).expect("every tensor is fp32");
            let Tensor { form, before, after, blocks } = Tensor::of(entry, values, dtype)?;
            let norms = canaries.as_mut().filter(|_| entry.role == TensorRole::Parameter);
            let is_the_learners = norms.as_ref().is_none_or(|canaries| canaries.has(&entry.name, before.1, 0.0));
            if before.0 != entry.blake3 || !is_the_learners {
                unlike.push(entry.name.clone());
            }
            if let Some(canaries) = norms {
                canaries.norms.insert(entry.name.clone(), after.1);
            }
            tensors.push(TensorEntry { blake3: after.0, ..entry.clone() });
            writer.begin(form);
            blocks.into_iter().try_for_each(|block| writer.put(false, block))?;
        }
        if !unlike.is_empty() {
            return Err(RoundedError::Unlike { path: version_dir.display().to_string(), tensors: unlike });
        }
        let rounded = match dtype {
            RolloutDtype::Auto => manifest.clone(),
            _ => manifest.clone().with_rounded(tensors, dtype),
        };
        let beside = Beside { manifest: &rounded, graph: Some(version.graph()), canaries: canaries.as_ref() };
        writer.finish(manifest.data_blake3.clone(), None, &beside)?;
        Ok(rounded.data_length)
    })
}

/// A tensor, rounded.
struct Tensor {
    form: Form,
    /// Hash and norm of its values.
    before: (String, f64),
    /// Hash and norm of the values that the rounded tensor stands for.
    after: (String, f64),
    blocks: Vec<Stored>,
}

impl Tensor {
    fn of(entry: &TensorEntry, values: &[f32], dtype: RolloutDtype) -> Result<Self, RoundedError> {
        let grid = Grid::of(entry);
        let wanted = Form::of(&entry.name, &entry.dimensions(), dtype);
        let (form, rounded) = match rounded(values, grid, wanted) {
            Some(rounded) => (wanted, rounded),
            None => (Form::Whole, rounded(values, grid, Form::Whole).expect("numbers can stay what they are")),
        };
        let hashes = || {
            let before = hash_and_norm_of(values);
            let after =
                if form == Form::Whole { before.clone() } else { hash_and_norm_of(&widened(&rounded, grid, form)) };
            (before, after)
        };
        let encode =
            |(block, words): (usize, &Vec<u8>)| planes::encode(words, form.runs(grid.rows_of(block), grid.depth));
        let blocks = || rounded.par_iter().enumerate().map(encode).collect::<Result<_, _>>();
        let ((before, after), blocks) = rayon::join(hashes, blocks);
        Ok(Self { form, before, after, blocks: blocks? })
    }
}

/// The blocks of a tensor, if the form can stand for all of them.
fn rounded(values: &[f32], grid: Grid, form: Form) -> Option<Vec<Vec<u8>>> {
    (0..grid.blocks()).into_par_iter().map(|block| form.round(&values[grid.range(block)], grid.depth)).collect()
}

fn widened(blocks: &[Vec<u8>], grid: Grid, form: Form) -> Vec<f32> {
    let mut values = vec![0.0; blocks.iter().enumerate().map(|(block, _)| grid.range(block).len()).sum()];
    let widen = |(values, words): (&mut [f32], &Vec<u8>)| form.widen(words, grid.depth, values);
    values.par_chunks_mut(grid.block_len()).zip(blocks).for_each(widen);
    values
}
