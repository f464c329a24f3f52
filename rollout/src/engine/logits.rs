//! Where the graph writes logits and tokens are drawn from them: main memory, or that of the device that computed them.

use std::{
    ffi::c_void,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use ndarray::ArrayViewMut2;
use ort::value::TensorElementType;
use shared::config::Device;

use super::{
    EngineError,
    binding::TensorMemory,
    device::cuda::{DeviceMemory, PinnedFloats},
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
    pub fn tensor(&self, shape: &'a [i64]) -> TensorMemory<'a> {
        assert_eq!(shape.iter().product::<i64>(), self.length as i64, "as many floats as the shape says");
        TensorMemory {
            data: self.data,
            bytes: self.length * size_of::<f32>(),
            shape,
            element: TensorElementType::Float32,
            on_device: self.on_device,
        }
    }
}

/// Logits that stay where the graph computed them.
pub(super) enum DeviceLogits {
    Host(Vec<f32>),
    Device(DeviceMemory),
}

impl DeviceLogits {
    pub fn new(length: usize, device: Device) -> Result<Self, EngineError> {
        Ok(match device {
            Device::Cpu => Self::Host(vec![0.0; length]),
            Device::Cuda | Device::Tensorrt => Self::Device(DeviceMemory::new(length * size_of::<f32>())?),
        })
    }

    /// The first `length` of them.
    pub fn first(&mut self, length: usize) -> FloatMemory<'_> {
        match self {
            Self::Host(values) => FloatMemory::new(&mut values[..length]),
            Self::Device(memory) => {
                // The end is checked too.
                memory.at(length * size_of::<f32>());
                FloatMemory { data: memory.at(0), length, on_device: true, borrow: PhantomData }
            }
        }
    }

    /// Copies those from `start` on to main memory.
    pub fn read(&mut self, start: usize, to: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Self::Host(values) => to.copy_from_slice(&values[start..start + to.len()]),
            Self::Device(memory) => memory.read(start * size_of::<f32>(), bytemuck::cast_slice_mut(to))?,
        }
        Ok(())
    }

    /// Waits for what was started on the memory.
    pub fn settle(&mut self) -> Result<(), EngineError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(memory) => memory.settle(),
        }
    }
}

/// A buffer of logits in main memory.
pub(super) enum LogitsBuffer {
    Plain(Vec<f32>),
    /// Page-locked, for graphs that run on a device.
    Pinned(PinnedFloats),
}

impl LogitsBuffer {
    pub fn new(length: usize, device: Device) -> Result<Self, EngineError> {
        Ok(match device {
            Device::Cpu => Self::Plain(vec![0.0; length]),
            Device::Cuda | Device::Tensorrt => Self::Pinned(PinnedFloats::new(length)?),
        })
    }

    /// The first rows of `[rows, vocab]`.
    pub fn rows(&mut self, rows: usize, vocab: usize) -> ArrayViewMut2<'_, f32> {
        let floats = &mut self[..rows * vocab];
        ArrayViewMut2::from_shape((rows, vocab), floats).expect("as many floats as the shape says")
    }
}

impl Deref for LogitsBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Plain(values) => values,
            Self::Pinned(values) => values,
        }
    }
}

impl DerefMut for LogitsBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Plain(values) => values,
            Self::Pinned(values) => values,
        }
    }
}
