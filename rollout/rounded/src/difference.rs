//! The difference between two rounded versions.

use std::path::Path;

use rayon::prelude::*;
use shared::{Canaries, WeightManifest};

use super::{
    RoundedError, Sizes,
    packed::{self, Beside, Packed, Writer},
    planes::{self, Stored},
};

/// Blocks that are at hand at once, so that every core has some.
const AT_ONCE: usize = 256;

/// Writes to `out` a directory that leads from the older to the newer of two whole rounded versions of a model, which
/// [`round`](super::round) has written. A block that is no smaller as a difference is stored as it is in the newer
/// version.
///
/// # Errors
/// Directories of different models or rounded differently; one that is damaged or no whole version; any error of the
/// file system.
pub fn difference(newer: &Path, older: &Path, out: &Path) -> Result<Sizes, RoundedError> {
    let (newer, older) = (Packed::open_whole(newer)?, Packed::open_whole(older)?);
    if !are_alike(&newer.manifest, &older.manifest) {
        return Err(RoundedError::other_model(&newer.dir, &older.dir));
    }
    let graph = newer.graph()?;
    let is_new = newer.manifest.model_blake3 != older.manifest.model_blake3;
    let canaries = Canaries::read(&newer.dir)?;
    packed::write(out, |dir| {
        let mut writer = Writer::new(dir)?;
        let tensors = 0..newer.index.tensors.len();
        let all: Vec<(usize, usize)> =
            tensors.flat_map(|tensor| (0..newer.grid(tensor).blocks()).map(move |block| (tensor, block))).collect();
        let mut begun = 0;
        for some in all.chunks(AT_ONCE) {
            let stored: Vec<_> = some.par_iter().map(|&place| change(&newer, &older, place)).collect();
            for (&(tensor, _), stored) in some.iter().zip(stored) {
                begin(&mut writer, &newer, &mut begun, tensor + 1);
                let (is_difference, stored) = stored?;
                writer.put(is_difference, stored)?;
            }
        }
        begin(&mut writer, &newer, &mut begun, newer.index.tensors.len());
        let graph = graph.as_deref().filter(|_| is_new);
        let beside = Beside { manifest: &newer.manifest, graph, canaries: canaries.as_ref() };
        writer.finish(newer.index.of.clone(), Some(older.manifest.data_blake3.clone()), &beside)?;
        Ok(newer.manifest.data_length)
    })
}

/// Begins all tensors up to `end`, which has a block next. Some of them may have no blocks.
fn begin(writer: &mut Writer, newer: &Packed, begun: &mut usize, end: usize) {
    for tensor in *begun..end {
        writer.begin(newer.index.tensors[tensor].form);
    }
    *begun = end.max(*begun);
}

/// Whether two manifests have the same tensors, by name, shape and place, in the same rounded format.
pub(crate) fn are_alike(a: &WeightManifest, b: &WeightManifest) -> bool {
    let tensors = |manifest: &WeightManifest| -> Vec<_> {
        manifest.tensors.iter().map(|t| (t.name.clone(), t.shape.clone(), t.dtype, t.offset)).collect()
    };
    a.rounded == b.rounded && tensors(a) == tensors(b)
}

/// A block as a difference, if that is smaller, else as it is.
fn change(newer: &Packed, older: &Packed, (tensor, block): (usize, usize)) -> Result<(bool, Stored), RoundedError> {
    let whole = newer.stored(tensor, block)?;
    let form = newer.index.tensors[tensor].form;
    if form != older.index.tensors[tensor].form {
        return Ok((false, whole));
    }
    let grid = newer.grid(tensor);
    let runs = || form.runs(grid.rows_of(block), grid.depth);
    let mut words = newer.decode(tensor, block, &whole)?;
    let before = older.decode(tensor, block, &older.stored(tensor, block)?)?;
    planes::subtract(&mut words, &before, runs());
    let difference = planes::encode(&words, runs())?;
    Ok(if difference.data.len() < whole.data.len() { (true, difference) } else { (false, whole) })
}
