//! The file of an optimiser's state. It is written and read a block at a time, which takes little memory. Its bytes do
//! not depend on how ranks share the state.

use std::{
    fs::File,
    io::{BufWriter, Write},
    ops::Range,
    path::Path,
};

use memmap2::Mmap;
use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorInfo, TensorView},
};
use shared::files::atomic::named;
use tch::{Device, Kind, Tensor};

use super::AdamW;
use crate::{
    error::LearnerError,
    model::Parameters,
    ranks::{BUCKET_BYTES, Ranks, pieces, shard},
};

/// Name of the number of updates.
const STEP: &str = "step";

/// A moment of a parameter.
struct Entry {
    name: String,
    squares: bool,
    shape: Vec<usize>,
    /// Where it lies in a flat buffer.
    elements: Range<i64>,
}

/// All entries, in the order of the file: by name, as safetensors' own writer has them.
fn entries(parameters: &Parameters) -> Vec<Entry> {
    let of = |squares: bool| {
        parameters.places().map(move |(name, shape, elements)| Entry {
            name: format!("{}.{name}", if squares { "exp_avg_sq" } else { "exp_avg" }),
            squares,
            shape: shape.iter().map(|&size| size as usize).collect(),
            elements,
        })
    };
    let mut entries: Vec<Entry> = of(false).chain(of(true)).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

pub(super) fn save(
    state: &AdamW,
    parameters: &Parameters,
    ranks: &dyn Ranks,
    path: Option<&Path>,
) -> Result<(), LearnerError> {
    let entries = entries(parameters);
    let kind = state.exp_avg.kind();
    let mut file = path.map(|path| create(path, &entries, kind, state.step)).transpose()?;
    let failed = named(path.unwrap_or(Path::new("the optimiser's state")));
    let (length, mut bytes) = (parameters.flat().numel() as i64, Vec::new());
    for entry in &entries {
        for part in pieces(entry.elements.clone(), block(kind)) {
            for (owner, part) in owners(&part, length, state.shards) {
                let values = state.values_of(entry.squares, &part);
                if state.shards > 1 {
                    ranks.copy_of(&values, owner)?;
                }
                if let Some(file) = &mut file {
                    bytes.resize(values.numel() * kind.elt_size_in_bytes(), 0);
                    values.f_copy_data_u8(&mut bytes, values.numel())?;
                    file.write_all(&bytes).map_err(&failed)?;
                }
            }
        }
    }
    file.map_or(Ok(()), |mut file| Ok(file.flush().map_err(failed)?))
}

pub(super) fn restore(
    state: &mut AdamW,
    parameters: &Parameters,
    ranks: &dyn Ranks,
    path: Option<&Path>,
) -> Result<(), LearnerError> {
    let entries = entries(parameters);
    let kind = state.exp_avg.kind();
    let saved = path.map(Saved::open).transpose()?;
    let tensors = saved.as_ref().map(|saved| saved.tensors(&entries)).transpose()?;
    let step = tensors.as_ref().map_or(0, |tensors| tensors.step);
    state.step = ranks.of_first(step as f64)? as u64;
    for (at, entry) in entries.iter().enumerate() {
        for part in pieces(entry.elements.clone(), block(kind)) {
            let values = match &tensors {
                Some(tensors) => tensors.read(at, part.start - entry.elements.start, part.end - part.start, kind)?,
                None => Tensor::empty([part.end - part.start], (kind, Device::Cpu)),
            };
            ranks.copy_of(&values, 0)?;
            state.take(entry.squares, &part, &values);
        }
    }
    Ok(())
}

impl AdamW {
    fn moment(&self, squares: bool) -> &Tensor {
        if squares { &self.exp_avg_sq } else { &self.exp_avg }
    }

    /// Some elements of a moment, on the host. The values have no meaning if the elements are not this rank's.
    fn values_of(&self, squares: bool, part: &Range<i64>) -> Tensor {
        let (moment, size) = (self.moment(squares), part.end - part.start);
        if self.own.start <= part.start && part.end <= self.own.end {
            return moment.narrow(0, part.start - self.own.start, size).to_device(Device::Cpu);
        }
        Tensor::empty([size], (moment.kind(), Device::Cpu))
    }

    /// Takes over this rank's own among some elements of a moment.
    fn take(&mut self, squares: bool, part: &Range<i64>, values: &Tensor) {
        let (start, end) = (part.start.max(self.own.start), part.end.min(self.own.end));
        if start < end {
            let mut own = self.moment(squares).narrow(0, start - self.own.start, end - start);
            own.copy_(&values.narrow(0, start - part.start, end - start));
        }
    }
}

/// Elements of a block.
fn block(kind: Kind) -> i64 {
    BUCKET_BYTES / kind.elt_size_in_bytes() as i64
}

/// The ranks that share some elements of a flat buffer, with the elements of each.
fn owners(part: &Range<i64>, length: i64, count: usize) -> impl Iterator<Item = (usize, Range<i64>)> {
    let (start, end) = (part.start, part.end);
    let of = move |rank: usize| {
        let shard = shard(length, rank, count);
        (rank, shard.start.max(start)..shard.end.min(end))
    };
    (0..count).map(of).filter(|(_, part)| part.start < part.end)
}

/// Creates the file and writes all that comes before the first moment.
fn create(path: &Path, entries: &[Entry], kind: Kind, step: u64) -> Result<BufWriter<File>, LearnerError> {
    let (number, size) = (size_of::<u64>(), kind.elt_size_in_bytes());
    let dtype = if kind == Kind::Double { Dtype::F64 } else { Dtype::F32 };
    let step_info = TensorInfo { dtype: Dtype::I64, shape: vec![1], data_offsets: (0, number) };
    let (mut infos, mut end) = (vec![(STEP.to_owned(), step_info)], number);
    for entry in entries {
        let start = end;
        end += entry.shape.iter().product::<usize>() * size;
        let info = TensorInfo { dtype, shape: entry.shape.clone(), data_offsets: (start, end) };
        infos.push((entry.name.clone(), info));
    }
    let metadata = Metadata::new(None, infos).expect("the tensors follow one another without a gap");
    let mut header = serde_json::to_vec(&metadata).expect("a header is valid JSON");
    header.resize(header.len().next_multiple_of(number), b' ');
    let mut file = BufWriter::new(File::create(path).map_err(named(path))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.write_all(&step.to_le_bytes())?;
    Ok(file)
}

/// A file that is read.
struct Saved {
    path: String,
    map: Mmap,
}

/// Its tensors, checked against the entries that they must have.
struct Tensors<'a> {
    step: u64,
    moments: Vec<TensorView<'a>>,
}

impl Saved {
    fn open(path: &Path) -> Result<Self, LearnerError> {
        let unread = |e: std::io::Error| LearnerError::content(path, format!("cannot be read: {e}"));
        let file = shared_bounds::open(path).map_err(unread)?;
        // SAFETY: the mapping is read-only. Files of a checkpoint are written once and never in place; truncation by a
        // stranger would end the process with SIGBUS.
        let map = unsafe { Mmap::map(&file) }.map_err(unread)?;
        Ok(Self { path: path.display().to_string(), map })
    }

    fn tensors(&self, entries: &[Entry]) -> Result<Tensors<'_>, LearnerError> {
        let damaged = |message: String| LearnerError::Content { path: self.path.clone(), message };
        let all = SafeTensors::deserialize(&self.map).map_err(|e| damaged(format!("cannot be read: {e}")))?;
        let find = |name: &str| {
            all.tensor(name).map_err(|_| LearnerError::Config(format!("the optimiser state has no tensor {name}")))
        };
        let step: Option<[u8; size_of::<i64>()]> = find(STEP)?.data().try_into().ok();
        let step = step.and_then(|bytes| u64::try_from(i64::from_le_bytes(bytes)).ok());
        let step =
            step.ok_or_else(|| LearnerError::Config("the optimiser state's `step` is no number of updates".into()))?;
        let moment = |entry: &Entry| {
            let found = find(&entry.name)?;
            if found.shape() != entry.shape {
                let [expected, found] = [&entry.shape, found.shape()].map(|shape| shape.iter().product());
                return Err(LearnerError::Shape { name: entry.name.clone(), expected, found });
            }
            if !matches!(found.dtype(), Dtype::F32 | Dtype::F64) {
                return Err(damaged(format!("{} has element type {}; supported: F32, F64", entry.name, found.dtype())));
            }
            Ok(found)
        };
        Ok(Tensors { step, moments: entries.iter().map(moment).collect::<Result<_, _>>()? })
    }
}

impl Tensors<'_> {
    /// Some elements of a moment.
    fn read(&self, moment: usize, start: i64, count: i64, kind: Kind) -> Result<Tensor, LearnerError> {
        let moment = &self.moments[moment];
        let saved = if moment.dtype() == Dtype::F64 { Kind::Double } else { Kind::Float };
        let size = saved.elt_size_in_bytes();
        let bytes = &moment.data()[start as usize * size..(start + count) as usize * size];
        Ok(Tensor::f_from_data_size(bytes, &[count], saved)?.to_kind(kind))
    }
}
