//! A directory with rounded weights, written and opened.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use shared::{
    Canaries, WeightManifest,
    files::atomic::{self, named},
    model::manifest::MODEL_FILE,
};

use super::{
    Form, Index, RoundedError,
    form::Grid,
    index::{Block, FORMAT, PackedTensor},
    planes::{self, Stored},
};

/// File name of the tensors.
pub const DATA_FILE: &str = "rounded.bin";
/// File name of their index.
pub const INDEX_FILE: &str = "rounded.json";

/// Bytes of a version on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of all files of the directory.
    pub packed: u64,
    /// Bytes of the weights of the unpacked version.
    pub unpacked: u64,
}

/// The files beside the tensors.
pub(crate) struct Beside<'a> {
    /// The manifest of the unpacked version.
    pub manifest: &'a WeightManifest,
    /// The graph, unless the base of a difference has it.
    pub graph: Option<&'a [u8]>,
    pub canaries: Option<&'a Canaries>,
}

/// Writes the tensors of a directory that is not visible yet.
pub(crate) struct Writer {
    path: PathBuf,
    file: File,
    tensors: Vec<PackedTensor>,
}

impl Writer {
    pub fn new(dir: &Path) -> Result<Self, RoundedError> {
        let path = dir.join(DATA_FILE);
        let file = File::create(&path).map_err(named(&path))?;
        Ok(Self { path, file, tensors: Vec::new() })
    }

    /// Begins a tensor.
    pub fn begin(&mut self, form: Form) {
        self.tensors.push(PackedTensor { form, blocks: Vec::new() });
    }

    /// Appends a block to the tensor that was begun last.
    pub fn put(&mut self, is_difference: bool, stored: Stored) -> Result<(), RoundedError> {
        self.file.write_all(&stored.data).map_err(named(&self.path))?;
        let tensor = self.tensors.last_mut().expect("a tensor was begun");
        tensor.blocks.push(Block(is_difference, stored.lengths));
        Ok(())
    }

    /// Writes the other files.
    pub fn finish(self, of: String, base: Option<String>, beside: &Beside<'_>) -> Result<(), RoundedError> {
        let dir = self.path.parent().expect("the file is in a folder");
        let index = Index { format: FORMAT, of, base, tensors: self.tensors };
        let text = serde_json::to_vec(&index).expect("an index is always valid JSON");
        let graph = beside.graph.map(|graph| (MODEL_FILE, graph));
        for (name, bytes) in [(INDEX_FILE, &text[..])].into_iter().chain(graph) {
            let path = dir.join(name);
            fs::write(&path, bytes).map_err(named(&path))?;
        }
        beside.manifest.write(dir)?;
        beside.canaries.map_or(Ok(()), |canaries| canaries.write(dir))?;
        Ok(())
    }
}

/// Writes a directory as a whole and says how large it is.
pub(crate) fn write(out: &Path, fill: impl FnOnce(&Path) -> Result<u64, RoundedError>) -> Result<Sizes, RoundedError> {
    let mut sizes = Sizes { packed: 0, unpacked: 0 };
    atomic::write_passing_dir(out, |dir| {
        sizes.unpacked = fill(dir)?;
        for entry in fs::read_dir(dir).map_err(named(dir))? {
            sizes.packed += entry.and_then(|entry| entry.metadata()).map_err(named(dir))?.len();
        }
        Ok::<_, RoundedError>(())
    })?;
    Ok(sizes)
}

/// A directory that was opened.
pub(crate) struct Packed {
    pub dir: PathBuf,
    pub manifest: WeightManifest,
    pub index: Index,
    file: File,
    /// Where the blocks of each tensor begin.
    places: Vec<Vec<u64>>,
}

impl Packed {
    /// Opens a directory and checks that its parts belong together; the tensors are not read.
    pub fn open(dir: &Path) -> Result<Self, RoundedError> {
        let manifest = WeightManifest::read_alone(dir)?;
        if manifest.adapter.is_some() {
            return Err(RoundedError::as_it_is(dir, "is an adapter"));
        }
        let index = Index::read(&dir.join(INDEX_FILE), &manifest)?;
        let path = dir.join(DATA_FILE);
        let file = File::open(&path).map_err(named(&path))?;
        let (found, needed) = (file.metadata().map_err(named(&path))?.len(), index.data_length());
        if found != needed {
            return Err(RoundedError::Truncated { path: path.display().to_string(), found, needed });
        }
        let mut end = 0;
        let mut place = |block: &Block| {
            let start = end;
            end += block.len();
            start
        };
        let places = index.tensors.iter().map(|tensor| tensor.blocks.iter().map(&mut place).collect()).collect();
        Ok(Self { dir: dir.to_path_buf(), manifest, index, file, places })
    }

    /// Opens the directory of a whole version.
    pub fn open_whole(dir: &Path) -> Result<Self, RoundedError> {
        let packed = Self::open(dir)?;
        match packed.index.base {
            None => Ok(packed),
            Some(_) => Err(RoundedError::NotWhole { path: dir.display().to_string() }),
        }
    }

    pub fn grid(&self, tensor: usize) -> Grid {
        Grid::of(&self.manifest.tensors[tensor])
    }

    /// A block as it is stored.
    pub fn stored(&self, tensor: usize, block: usize) -> Result<Stored, RoundedError> {
        let of_index = &self.index.tensors[tensor].blocks[block];
        let mut data = vec![0; of_index.len() as usize];
        let path = self.dir.join(DATA_FILE);
        self.file.read_exact_at(&mut data, self.places[tensor][block]).map_err(named(&path))?;
        Ok(Stored { lengths: of_index.1.clone(), data })
    }

    /// The bytes from which a stored block of a tensor was made.
    pub fn decode(&self, tensor: usize, block: usize, stored: &Stored) -> Result<Vec<u8>, RoundedError> {
        let grid = self.grid(tensor);
        let runs = self.index.tensors[tensor].form.runs(grid.rows_of(block), grid.depth);
        let words = planes::decode(&stored.lengths, &stored.data, runs);
        words.ok_or_else(|| RoundedError::damaged(&self.dir, &self.manifest.tensors[tensor].name))
    }

    /// The graph, where there is one.
    pub fn graph(&self) -> Result<Option<Vec<u8>>, RoundedError> {
        let path = self.dir.join(MODEL_FILE);
        match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(read.map_err(named(&path))?)),
        }
    }
}
