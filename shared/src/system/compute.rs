//! What the halves of a run compute with: where, by which kernels, and in which element types. Options choose among
//! these values ([`crate::config`]); manifests of versions and frames of workers name them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::declare::choices;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit float.
    Fp32,
    /// 16-bit IEEE float.
    Fp16,
    /// 16-bit brain float.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        })
    }
}

choices! {
    /// Number format of products in the sampler's linear layers.
    RolloutDtype {
        /// The element type of the export: fp32 on the CPU, fp16 on CUDA.
        Auto = "auto",
        /// Bytes, with a scale for each output and, from call to call, for each row of the input; every version is
        /// rounded anew when it is loaded. Log-probs are those of the rounded model. On the CPU, with the packed
        /// kernels.
        Int8 = "int8",
        /// Four bits in the layers, in blocks of 32 with a scale each, as GGUF's Q4_0 rounds them; the head and the
        /// inputs as with `int8`. A seventh of the layers' bytes, for few sequences at once, where reading weights
        /// takes the time. On the CPU, with the packed kernels.
        Int4 = "int4",
        /// Weights and inputs rounded to bf16, sums in fp32; the rest of the model stays fp32. Sums have the order of
        /// AMX, so this is the bf16 for processors with AMX. On the CPU, with the packed kernels.
        Bf16 = "bf16",
        /// As `bf16`, with sums in the order of AVX512_BF16 (`vdpbf16ps`): the bf16 for processors without AMX.
        Bf16Dot = "bf16dot",
        /// Weights and inputs as sums of two bf16, sums in fp32: close to fp32, and faster with AMX. On the CPU, with
        /// the packed kernels.
        Bf16x3 = "bf16x3",
    }

    /// Number format in which the sampler stores keys and values.
    KvDtype {
        /// The element type of the export.
        Auto = "auto",
        /// Bytes, with a scale for each position and head, rounded once when a position is stored: a quarter of the
        /// memory, and of what a step reads. Log-probs are those of attention over the rounded keys and values. On the
        /// CPU, with the packed kernels.
        Int8 = "int8",
        /// bf16: half the memory, and half of what a step reads. Queries and the weights of attention are rounded to
        /// bf16 as well, and sums are fp32 in the order of `bf16dot`. On the CPU, with the packed kernels.
        Bf16 = "bf16",
    }

    /// Number formats of both halves, where the options of each are not given.
    Precision {
        /// fp32: sampler and learner agree to the last digits.
        Exact = "exact",
        /// The formats that are fastest on this processor.
        Fast = "fast",
        /// As `fast`, where the sampler gains a tenth or more; else as `exact`.
        Auto = "auto",
    }

    /// Kernels that compute the sampler's model on the CPU.
    Kernels {
        /// This program's operators over packed weights and paged keys and values, for fp32 on the CPU; elsewhere as
        /// `stock`.
        Packed = "packed",
        /// ONNX Runtime's operators on the published graph: slower, and a check on the others.
        Stock = "stock",
    }

    /// Where a process computes.
    Device {
        /// Processor cores, in fp32: bit for bit the same everywhere.
        Cpu = "cpu",
        /// The first CUDA device; needs the CUDA build of the library.
        Cuda = "cuda",
        /// TensorRT where it can take the graph, which takes minutes for new weights, CUDA for the rest (not in
        /// training; not yet run on a GPU).
        Tensorrt = "tensorrt",
    }
}

impl Device {
    /// The element type that the sampler's graph is exported in: single precision on the CPU, whose kernels support
    /// nothing else; half precision elsewhere, because GroupQueryAttention on CUDA (ONNX Runtime 1.31) decodes wrongly
    /// in single precision when the cache is extended in place.
    #[must_use]
    pub fn export_dtype(self) -> Dtype {
        match self {
            Self::Cpu => Dtype::Fp32,
            Self::Cuda | Self::Tensorrt => Dtype::Fp16,
        }
    }
}
