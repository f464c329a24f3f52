//! The tensors of `model.onnx.data`: their places, and writing them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use shared::{Dtype, ModelConfig, Rotary};

use super::{DATA_FILE, Precision, rounding};
use crate::{
    ExportError, TensorSource,
    layout::stored_as,
    onnx::{
        blocked::{Bits, Blocked, BlockedWeight},
        builder::{External, GraphBuilder, data_type},
        decoder::{EMBEDDING, LM_HEAD, rotary_names},
        proto::DataType,
    },
    values,
};

/// Offsets are multiples of a memory page: ONNX Runtime maps tensors that begin at one, and copies others.
const PAGE: u64 = 4096;

/// Bytes of the file.
#[derive(Debug, Clone, Copy)]
struct Region {
    offset: u64,
    length: u64,
}

/// Where the values of a tensor come from, and how they are stored.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// A parameter as floats.
    Floats,
    /// A parameter in blocks; the scales lie at a place of their own.
    Blocks(BlockedWeight, Region),
    /// Cosines of a rotary table.
    Cosines(Rotary),
    /// Sines of a rotary table.
    Sines(Rotary),
}

/// A tensor.
#[derive(Debug)]
struct Stored {
    name: String,
    shape: Vec<u64>,
    form: Form,
    region: Region,
}

/// All tensors, in the order of the file.
pub(super) struct Layout {
    tensors: Vec<Stored>,
    floats: Dtype,
    bytes: u64,
    /// Whether the embedding is the head too.
    tied: bool,
}

impl Layout {
    /// The parameters in the model's order, then the rotary tables.
    pub fn new(config: &ModelConfig, precision: Precision, positions: usize) -> Self {
        let floats = precision.floats();
        let mut layout = Self { tensors: Vec::new(), floats, bytes: 0, tied: config.tie_word_embeddings };
        for (name, shape) in config.parameters() {
            match bits(&name, &shape, precision) {
                Some(bits) => {
                    let form = BlockedWeight { bits, rows: shape[0], columns: shape[1] };
                    let blocks = form.rows * form.blocks();
                    let region = layout.take(blocks * bits.block_bytes());
                    let scales = layout.take(blocks * size_of::<f32>());
                    layout.push(name, &shape, Form::Blocks(form, scales), region);
                }
                None => layout.add(name, &shape, Form::Floats),
            }
        }
        let shape = [positions, config.rotary_dim / 2];
        for rotary in config.rotaries() {
            let [cosines, sines] = rotary_names(rotary);
            layout.add(cosines.into(), &shape, Form::Cosines(rotary));
            layout.add(sines.into(), &shape, Form::Sines(rotary));
        }
        layout
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The weights that are in blocks.
    pub fn blocked(&self) -> Blocked {
        let blocked = |tensor: &Stored| match tensor.form {
            Form::Blocks(form, _) => Some((tensor.name.clone(), form)),
            _ => None,
        };
        Blocked(self.tensors.iter().filter_map(blocked).collect::<BTreeMap<_, _>>())
    }

    /// Declares all tensors in a graph.
    pub fn declare(&self, graph: &mut GraphBuilder) {
        let mut declare = |name: &str, element, shape: &[u64], region: Region| {
            let Region { offset, length } = region;
            graph.external(&External { name, element, shape, file: DATA_FILE, offset, length });
        };
        for Stored { name, shape, form, region } in &self.tensors {
            let Form::Blocks(form, scales) = form else {
                declare(name, data_type(stored_as(name, self.floats)), shape, *region);
                continue;
            };
            let [rows, blocks, bytes] = [form.rows, form.blocks(), form.bits.block_bytes()].map(|n| n as u64);
            if name != EMBEDDING || self.tied {
                declare(&Blocked::codes_name(name), DataType::Uint8, &[rows, blocks, bytes], *region);
            }
            if name == EMBEDDING {
                declare(&Blocked::rows_name(name), DataType::Uint8, &[rows, blocks * bytes], *region);
            }
            declare(&Blocked::scales_name(name), DataType::Float, &[rows, blocks], *scales);
        }
    }

    /// Writes the file, with the parameters that `read` gives. The file is then opened and must hold them, bit for bit.
    ///
    /// # Errors
    /// An error of `read`, values that do not fit their shape or their type, by the name of the tensor, or an error of
    /// the file system.
    pub fn write(
        &self,
        path: &Path,
        config: &ModelConfig,
        positions: usize,
        read: TensorSource<'_, '_>,
    ) -> Result<(), ExportError> {
        let mut writer = Writer::create(path)?;
        for tensor in &self.tensors {
            let name = tensor.name.as_str();
            let values: Cow<'_, [f32]> = match tensor.form {
                Form::Floats | Form::Blocks(..) => {
                    read(name).map_err(|source| ExportError::Tensor { name: name.into(), source })?
                }
                Form::Cosines(rotary) => config.rotary_tables(rotary, positions).0.into(),
                Form::Sines(rotary) => config.rotary_tables(rotary, positions).1.into(),
            };
            values::check_length(name, &tensor.shape, tensor.shape.iter().product(), values.len())?;
            if let Form::Blocks(form, scales) = tensor.form {
                let blocks = rounding::round(&values, &form);
                writer.put(name, tensor.region, &blocks.codes)?;
                writer.put(name, scales, bytemuck::cast_slice(&blocks.scales))?;
            } else {
                writer.put(name, tensor.region, &values::encode(name, &values, stored_as(name, self.floats))?)?;
            }
        }
        writer.finish()
    }

    fn add(&mut self, name: String, shape: &[usize], form: Form) {
        let region = self.take(shape.iter().product::<usize>() * stored_as(&name, self.floats).size());
        self.push(name, shape, form, region);
    }

    fn push(&mut self, name: String, shape: &[usize], form: Form, region: Region) {
        let shape = shape.iter().map(|&n| n as u64).collect();
        self.tensors.push(Stored { name, shape, form, region });
    }

    /// The next bytes of the file.
    fn take(&mut self, bytes: usize) -> Region {
        let region = Region { offset: self.bytes.next_multiple_of(PAGE), length: bytes as u64 };
        self.bytes = region.offset + region.length;
        region
    }
}

/// Bits of a parameter; none if it stays in floats.
fn bits(name: &str, shape: &[usize], precision: Precision) -> Option<Bits> {
    // What decides how fast a state decays is small, and its error grows with every token.
    let of_gate = [".in_proj_a.weight", ".in_proj_b.weight"].iter().any(|end| name.ends_with(end));
    let is_matrix = shape.len() == 2 && !of_gate;
    match precision {
        Precision::Fp32 | Precision::Fp16 => None,
        Precision::Int8 | Precision::Int4 if [EMBEDDING, LM_HEAD].contains(&name) => Some(Bits::Eight),
        Precision::Int8 => is_matrix.then_some(Bits::Eight),
        Precision::Int4 => is_matrix.then_some(Bits::Four),
    }
}

/// A file that is written from front to back.
struct Writer<'a> {
    file: File,
    path: &'a Path,
    end: u64,
    /// Name of the tensor, place and hash of everything that was written.
    written: Vec<(String, Region, blake3::Hash)>,
}

impl<'a> Writer<'a> {
    fn create(path: &'a Path) -> Result<Self, ExportError> {
        let file = File::create_new(path).map_err(|e| ExportError::io(path, e))?;
        Ok(Self { file, path, end: 0, written: Vec::new() })
    }

    fn put(&mut self, name: &str, region: Region, bytes: &[u8]) -> Result<(), ExportError> {
        assert_eq!(region.length, bytes.len() as u64, "as many bytes as the layout has");
        let padding = vec![0; (region.offset - self.end) as usize];
        self.end = region.offset + region.length;
        let written = self.file.write_all(&padding).and_then(|()| self.file.write_all(bytes));
        written.map_err(|e| ExportError::io(self.path, e))?;
        self.written.push((name.into(), region, hash(bytes)));
        Ok(())
    }

    /// Reads everything again.
    fn finish(self) -> Result<(), ExportError> {
        let mut file = File::open(self.path).map_err(|e| ExportError::io(self.path, e))?;
        for (name, region, meant) in self.written {
            let bytes = read_region(&mut file, region).map_err(|e| ExportError::io(self.path, e))?;
            if hash(&bytes) != meant {
                return Err(ExportError::unlike(&name));
            }
        }
        Ok(())
    }
}

fn read_region(file: &mut File, region: Region) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; region.length as usize];
    file.seek(SeekFrom::Start(region.offset))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn hash(bytes: &[u8]) -> blake3::Hash {
    blake3::Hasher::new().update_rayon(bytes).finalize()
}
