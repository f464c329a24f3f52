//! Unpacks a packed directory into a version directory.

use std::{io, path::Path};

use exporters::{ExportError, VersionDir, fill_tensors};
use rayon::prelude::*;
use shared::{
    Canaries, TensorEntry, WeightManifest,
    files::atomic,
    system::memory::{self, Size},
};

use super::{RoundedError, difference::are_alike, packed::Packed, planes};

/// Turns a packed directory into the version directory `out`: on its own if it is whole, else on top of the version
/// directory `base`, which this function has made before. This takes at most a few times the memory of the largest
/// tensor.
///
/// # Errors
/// A difference to another version than `base` ([`RoundedError::WrongBase`]: the whole version helps) or to one of
/// another model; files that are damaged, cut or of another format; any error of the file system. `out` does not exist
/// then.
pub fn unpack(packed: &Path, base: Option<&Path>, out: &Path) -> Result<WeightManifest, RoundedError> {
    let packed = Packed::open(packed)?;
    let base = packed.index.base.as_ref().map(|needed| open_base(&packed, needed, base)).transpose()?;
    require_memory(&packed.manifest)?;
    let canaries = Canaries::read(&packed.dir)?;
    let graph = match (packed.graph()?, &base) {
        (Some(graph), _) => graph,
        (None, Some(base)) => base.graph().to_vec(),
        (None, None) => Vec::new(),
    };
    atomic::write_passing_dir(out, |dir| {
        fill(dir, &packed, base.as_ref(), &graph)?;
        packed.manifest.write(dir)?;
        canaries.as_ref().map_or(Ok(()), |canaries| canaries.write(dir))?;
        Ok::<_, RoundedError>(())
    })?;
    Ok(packed.manifest)
}

/// Refuses a version that is larger than memory allows. A plane of zeros takes no bytes, so a tensor may be larger than
/// the bytes that were received for it.
fn require_memory(manifest: &WeightManifest) -> io::Result<()> {
    let largest = Size(manifest.tensors.iter().map(|tensor| tensor.length).max().unwrap_or(0));
    let free = Size(memory::available()?);
    if largest <= free {
        return Ok(());
    }
    let message = format!("a tensor of {largest} does not fit into the {free} of free memory");
    Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
}

/// Opens the version to which a difference is one.
fn open_base(packed: &Packed, needed: &str, base: Option<&Path>) -> Result<VersionDir, RoundedError> {
    let wrong = |found| RoundedError::WrongBase { needed: needed.to_owned(), found };
    let dir = base.ok_or_else(|| wrong(None))?;
    let base = VersionDir::open(dir)?;
    let found = &base.manifest().data_blake3;
    if base.manifest().adapter.is_some() || found != needed {
        return Err(wrong(Some(found.clone())));
    }
    if !are_alike(&packed.manifest, base.manifest()) {
        return Err(RoundedError::other_model(&packed.dir, dir));
    }
    Ok(base)
}

/// Writes graph and tensors, and compares them with the manifest.
fn fill(dir: &Path, packed: &Packed, base: Option<&VersionDir>, graph: &[u8]) -> Result<(), RoundedError> {
    let WeightManifest { version, tensors, model_blake3, .. } = &packed.manifest;
    let mut next = 0..tensors.len();
    let mut read = |_: &str| {
        let tensor = next.next().expect("each tensor is asked for once, in their order");
        Ok(values(packed, base, tensor)?.into())
    };
    let written = match fill_tensors(dir, *version, tensors, graph, &mut read) {
        Err(ExportError::Tensor { name, source }) => {
            return Err(match source.downcast::<RoundedError>() {
                Ok(own) => *own,
                Err(source) => ExportError::Tensor { name, source }.into(),
            });
        }
        written => written?,
    };
    let differs = |(found, meant): &(&TensorEntry, &TensorEntry)| found.blake3 != meant.blake3;
    if let Some((_, entry)) = written.tensors.iter().zip(tensors).find(differs) {
        return Err(RoundedError::damaged(&packed.dir, &entry.name));
    }
    if written.model_blake3 != *model_blake3 {
        return Err(RoundedError::damaged(&packed.dir, "graph"));
    }
    Ok(())
}

/// The numbers of a tensor.
fn values(packed: &Packed, base: Option<&VersionDir>, tensor: usize) -> Result<Vec<f32>, RoundedError> {
    let (grid, form) = (packed.grid(tensor), packed.index.tensors[tensor].form);
    let entry = &packed.manifest.tensors[tensor];
    let old = base.and_then(|base| base.floats(&base.manifest().tensors[tensor]));
    let mut values = vec![0.0; entry.length as usize / size_of::<f32>()];
    let unpack = |(block, values): (usize, &mut [f32])| {
        let mut words = packed.decode(tensor, block, &packed.stored(tensor, block)?)?;
        if packed.index.tensors[tensor].blocks[block].0 {
            let old = old.and_then(|old| form.round(&old[grid.range(block)], grid.depth));
            let old = old.ok_or_else(|| RoundedError::damaged(&packed.dir, &entry.name))?;
            planes::add(&mut words, &old, form.runs(grid.rows_of(block), grid.depth));
        }
        form.widen(&words, grid.depth, values);
        Ok::<_, RoundedError>(())
    };
    values.par_chunks_mut(grid.block_len()).enumerate().try_for_each(unpack)?;
    Ok(values)
}
