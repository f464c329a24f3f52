//! Where the graph writes logits and the sampler reads them: main memory in any case.

use std::ops::{Deref, DerefMut};

use shared::config::Device;

use super::{EngineError, cuda::PinnedFloats};

/// A buffer of logits.
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
