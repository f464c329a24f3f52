//! What graphs read and write lies here: in main memory, or in that of the device that computes.

use std::{ffi::c_void, marker::PhantomData, ops::DerefMut};

use ndarray::ArrayViewMut2;
use ort::value::TensorElementType;
use shared::config::Device;

use super::{
    EngineError,
    binding::TensorMemory,
    device::cuda::{BoxCopy, DeviceMemory, PinnedFloats},
};

/// Floats that a run of a graph writes or reads, borrowed for it.
pub(super) struct FloatMemory<'a> {
    data: *mut c_void,
    length: usize,
    on_device: bool,
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> FloatMemory<'a> {
    /// Floats in main memory.
    pub fn new(values: &'a mut [f32]) -> Self {
        Self { data: values.as_mut_ptr().cast(), length: values.len(), on_device: false, borrow: PhantomData }
    }

    /// A whole array in main memory.
    pub fn of(array: ArrayViewMut2<'a, f32>) -> Self {
        Self::new(array.into_slice().expect("arrays of logits are contiguous"))
    }

    /// Number of floats.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The floats as a tensor; `shape` must hold all of them.
    pub fn tensor(&self, shape: &[usize]) -> TensorMemory {
        assert_eq!(shape.iter().product::<usize>(), self.length, "as many floats as the shape says");
        TensorMemory::new(self.data, shape, TensorElementType::Float32, self.on_device)
    }
}

/// Memory of the kind that a graph computes in.
pub(super) enum Storage {
    /// Whole words, so that the allocation is aligned for any element; zeroed pages cost nothing until they are used.
    Host(Vec<u64>),
    Device(DeviceMemory),
}

impl Storage {
    /// So many zeroed bytes.
    pub fn new(bytes: usize, device: Device) -> Result<Self, EngineError> {
        Ok(match device {
            Device::Cpu => Self::Host(vec![0; bytes.div_ceil(size_of::<u64>())]),
            Device::Cuda | Device::Tensorrt => Self::Device(DeviceMemory::new(bytes)?),
        })
    }

    /// Whether addresses are those of a device.
    pub fn on_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Address of a byte.
    pub fn at(&mut self, offset: usize) -> *mut c_void {
        match self {
            Self::Host(words) => bytemuck::cast_slice_mut::<_, u8>(words)[offset..].as_mut_ptr().cast(),
            Self::Device(memory) => memory.at(offset),
        }
    }

    /// The first `length` floats.
    pub fn floats(&mut self, length: usize) -> FloatMemory<'_> {
        // The end is checked too.
        self.at(length * size_of::<f32>());
        FloatMemory { data: self.at(0), length, on_device: self.on_device(), borrow: PhantomData }
    }

    /// Copies floats from the `start`th on to main memory.
    pub fn read(&mut self, start: usize, to: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Self::Host(words) => to.copy_from_slice(&bytemuck::cast_slice(words)[start..start + to.len()]),
            Self::Device(memory) => memory.read(start * size_of::<f32>(), bytemuck::cast_slice_mut(to))?,
        }
        Ok(())
    }

    /// Copies bytes from main memory to the beginning, and waits until they are there.
    pub fn write(&mut self, from: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Host(words) => bytemuck::cast_slice_mut(words)[..from.len()].copy_from_slice(from),
            Self::Device(memory) => memory.write(0, from)?,
        }
        Ok(())
    }

    /// Sets bytes to 0; on a device that is only started.
    pub fn clear(&mut self, offset: usize, bytes: usize) -> Result<(), EngineError> {
        match self {
            Self::Host(words) => bytemuck::cast_slice_mut::<_, u8>(words)[offset..offset + bytes].fill(0),
            Self::Device(memory) => memory.clear(offset, bytes)?,
        }
        Ok(())
    }

    /// Copies between two boxes of rows that do not overlap; on a device the copy is only started.
    pub fn copy_rows(&mut self, copy: BoxCopy) -> Result<(), EngineError> {
        let words = match self {
            Self::Host(words) => words,
            Self::Device(memory) => return memory.copy_rows(copy),
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        for slice in 0..copy.depth {
            for row in 0..copy.height {
                let at = |first: usize| (slice * copy.rows + first + row) * copy.row_bytes;
                let from = at(copy.from_row);
                bytes.copy_within(from..from + copy.width, at(copy.to_row));
            }
        }
        Ok(())
    }

    /// Waits for what was started; to be called before a graph runs on the memory.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(memory) => memory.settle(),
        }
    }
}

/// A buffer of logits in main memory; page-locked for graphs that run on a device.
pub(super) type LogitsBuffer = Box<dyn DerefMut<Target = [f32]> + Send + Sync>;

pub(super) fn logits_buffer(length: usize, device: Device) -> Result<LogitsBuffer, EngineError> {
    Ok(match device {
        Device::Cpu => Box::new(vec![0.0; length]),
        Device::Cuda | Device::Tensorrt => Box::new(PinnedFloats::new(length)?),
    })
}

/// The first rows of `[rows, vocab]`.
pub(super) fn rows_of(buffer: &mut LogitsBuffer, rows: usize, vocab: usize) -> ArrayViewMut2<'_, f32> {
    ArrayViewMut2::from_shape((rows, vocab), &mut buffer[..rows * vocab]).expect("as many floats as the shape says")
}
