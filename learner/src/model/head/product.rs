//! The head's products with its weight: in float32 at least, or of numbers rounded to bfloat16, with sums and logits in
//! float32.

use std::sync::{Arc, Mutex, PoisonError};

use rollout_kernels::{
    buffer::LargeBuffer,
    linear::{Activation, Input, Linear},
    packed::{Columns, PackedShape},
    parallel::Machine,
    simd::Isa,
    thread_pool::ThreadPool,
};
use tch::{Device, Kind, Tensor};

use crate::model::{
    kernels::{self, numbers},
    kinds::wide,
};

/// Rows that are packed at once: whole panels, so that strips lie in them one after the other.
const STRIP: usize = 4096;

/// The weight of a head, `[V, H]`.
#[derive(Debug)]
pub(super) enum Weight {
    /// In float32 at least: the model's own, or a copy of its 16-bit weight.
    Wide(Tensor),
    /// In bfloat16.
    Rounded(Rounded),
}

impl Weight {
    /// The weight of a model. A 16-bit one stays so where this processor multiplies it; elsewhere, and on a GPU, it is
    /// copied to float32.
    pub(super) fn new(weight_VH: &Tensor) -> Self {
        match Rounded::new(weight_VH) {
            Some(rounded) => Self::Rounded(rounded),
            None => Self::Wide(wide(weight_VH)),
        }
    }

    /// Takes over the changed weight of the model, if it has a copy of its own.
    pub(super) fn follow(&self, weight_VH: &Tensor) {
        match self {
            Self::Wide(own) if own.kind() != weight_VH.kind() => own.shallow_clone().copy_(weight_VH),
            Self::Wide(_) => {}
            Self::Rounded(rounded) => rounded.packed().is_stale = true,
        }
    }

    /// The same weight under another handle.
    pub(super) fn shared(&self) -> Self {
        match self {
            Self::Wide(weight_VH) => Self::Wide(weight_VH.shallow_clone()),
            Self::Rounded(rounded) => Self::Rounded(rounded.shared()),
        }
    }

    /// Entries of the vocabulary.
    pub(super) fn vocabulary(&self) -> i64 {
        let (Self::Wide(weight_VH) | Self::Rounded(Rounded { weight_VH, .. })) = self;
        weight_VH.size()[0]
    }

    /// Element type of logits.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Wide(weight_VH) => weight_VH.kind(),
            Self::Rounded(_) => Kind::Float,
        }
    }

    /// Element type in which gradients of logits are multiplied.
    pub(super) fn kind_of_gradients(&self) -> Kind {
        match self {
            Self::Wide(weight_VH) => weight_VH.kind(),
            Self::Rounded(_) => Kind::BFloat16,
        }
    }

    /// Device of logits.
    pub(super) fn device(&self) -> Device {
        let (Self::Wide(weight_VH) | Self::Rounded(Rounded { weight_VH, .. })) = self;
        weight_VH.device()
    }

    /// Writes logits, `[n, V]`, of hidden states, `[n, H]`.
    pub(super) fn project(&self, hidden_nH: &Tensor, logits_nV: &Tensor) {
        match self {
            Self::Wide(weight_VH) => drop(hidden_nH.linear_out(logits_nV, weight_VH, None::<Tensor>)),
            Self::Rounded(rounded) => rounded.project(hidden_nH, logits_nV),
        }
    }

    /// The gradient of hidden states, `[n, H]`, given that of logits, `[n, V]`. Adds that of the weight, if asked for.
    pub(super) fn backward(
        &self,
        hidden_nH: &Tensor,
        gradient_nV: &Tensor,
        weight_gradient_VH: Option<&mut Tensor>,
    ) -> Tensor {
        match self {
            Self::Wide(weight_VH) => {
                if let Some(weight_gradient_VH) = weight_gradient_VH {
                    let _ = weight_gradient_VH.addmm_(&gradient_nV.tr(), hidden_nH);
                }
                gradient_nV.mm(weight_VH)
            }
            Self::Rounded(Rounded { weight_VH, .. }) => {
                // As in the layers: products of bfloat16, whose results are gathered in float32.
                let rounded_nV = gradient_nV.to_kind(Kind::BFloat16);
                if let Some(weight_gradient_VH) = weight_gradient_VH {
                    *weight_gradient_VH += rounded_nV.tr().mm(&hidden_nH.to_kind(Kind::BFloat16));
                }
                rounded_nV.mm(weight_VH).to_kind(Kind::Float)
            }
        }
    }
}

/// A weight in bfloat16 on the CPU. libtorch rounds the results of its products to bfloat16, which is too coarse for
/// log-probs, so logits are computed by the sampler's kernels.
pub(super) struct Rounded {
    /// The model's own.
    weight_VH: Tensor,
    shape: PackedShape,
    /// What all handles of the weight have together, as they have the buffers of logits.
    packed: Arc<Mutex<Packed>>,
}

/// The weight in the layout of the kernels.
struct Packed {
    panels: LargeBuffer,
    /// Whether the model's weight has changed since.
    is_stale: bool,
    scratch: Vec<f32>,
}

impl Rounded {
    /// The weight, where it is in bfloat16 and this processor has an instruction for that.
    fn new(weight_VH: &Tensor) -> Option<Self> {
        let format = Isa::detect().bf16()?;
        if weight_VH.kind() != Kind::BFloat16 || weight_VH.device() != Device::Cpu {
            return None;
        }
        let [outputs, depth] = weight_VH.size()[..] else { return None };
        let shape = PackedShape { depth: depth as usize, outputs: outputs as usize, columns: Columns::Joined, format };
        let packed = Arc::new(Mutex::new(Packed::new(shape).ok()?));
        Some(Self { weight_VH: weight_VH.shallow_clone(), shape, packed })
    }

    /// The same weight under another handle.
    fn shared(&self) -> Self {
        Self { weight_VH: self.weight_VH.shallow_clone(), shape: self.shape, packed: Arc::clone(&self.packed) }
    }

    fn packed(&self) -> std::sync::MutexGuard<'_, Packed> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn project(&self, hidden_nH: &Tensor, logits_nV: &Tensor) {
        let hidden_nH = hidden_nH.to_kind(Kind::Float).contiguous();
        assert!(logits_nV.is_contiguous() && logits_nV.kind() == Kind::Float, "logits are a dense float32 buffer");
        let Packed { panels, is_stale, scratch } = &mut *self.packed();
        let pool = kernels::threads();
        if *is_stale {
            self.pack(panels, &pool);
            *is_stale = false;
        }
        let layer = Linear {
            shape: self.shape,
            panels,
            quantized: None,
            bias: None,
            norm: None,
            activation: Activation::Silu,
            factor: 1.0,
        };
        // SAFETY: both tensors are dense, in float32, on the CPU, and live until the product is done. Nobody else reads
        // or writes the logits meanwhile: the head has given a buffer of its own.
        unsafe {
            let input = Input { x: numbers(&hidden_nH), rows: None, residual: None };
            let machine = Machine { isa: Isa::detect(), threads: &pool, scratch };
            layer.run(input, numbers(logits_nV), machine);
        }
    }
}

impl Rounded {
    /// Packs the weight in strips: a float32 copy of all of it would take twice its memory beside the panels.
    fn pack(&self, panels: &mut [f32], pool: &ThreadPool) {
        let (mut row, mut word) = (0, 0);
        while row < self.shape.outputs {
            let rows = STRIP.min(self.shape.outputs - row);
            let strip = self.weight_VH.narrow(0, row as i64, rows as i64).to_kind(Kind::Float).contiguous();
            let shape = PackedShape { outputs: rows, ..self.shape };
            let end = word + shape.words();
            // SAFETY: the strip is dense, in float32, on the CPU, and nobody else's.
            let _ = shape.pack(&[unsafe { &*numbers(&strip) }.into()], &mut panels[word..end], pool);
            (row, word) = (row + rows, end);
        }
    }
}

impl Packed {
    fn new(shape: PackedShape) -> std::io::Result<Self> {
        Ok(Self { panels: LargeBuffer::new(shape.words())?, is_stale: true, scratch: Vec::new() })
    }
}

impl std::fmt::Debug for Rounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rounded")
            .field("weight_VH", &self.weight_VH)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head in bfloat16, of more rows than are packed at once: the weight, hidden states as a trunk gives them, and a
    /// gradient.
    fn heads(tokens: i64) -> Option<(Weight, [Tensor; 3])> {
        tch::manual_seed(1);
        let draw = |rows, columns| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu));
        let weight_VH = draw(ROWS, 40).to_kind(Kind::BFloat16);
        let weight = Weight::new(&weight_VH);
        if matches!(weight, Weight::Wide(_)) {
            harness::without_hardware("a head in bfloat16", "this processor multiplies no bfloat16");
            return None;
        }
        Some((weight, [weight_VH, draw(tokens, 40), draw(tokens, ROWS)]))
    }

    const ROWS: i64 = 2 * STRIP as i64 + 77;
    /// Largest relative error of one rounding to bfloat16.
    const ROUNDING: f64 = 1.0 / 256.0;

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        let size = b.abs().max().double_value(&[]);
        (a.to_kind(Kind::Double) - b).abs().max().double_value(&[]) / size
    }

    #[test]
    fn logits_of_rounded_numbers_have_the_digits_of_float32_and_gradients_those_of_bfloat16() {
        for tokens in [1, 3, 64] {
            let Some((weight, tensors)) = heads(tokens) else { return };
            // Whatever comes in is rounded, and so are gradients that come out.
            let rounded = |tensor: &Tensor| tensor.to_kind(Kind::BFloat16).to_kind(Kind::Double);
            let [weight_VH, hidden_nH, gradient_nV] = tensors.each_ref().map(rounded);
            let logits_nV = Tensor::empty([tokens, ROWS], (Kind::Float, Device::Cpu));
            weight.project(&tensors[1], &logits_nV);
            assert!(distance(&logits_nV, &hidden_nH.mm(&weight_VH.tr())) < 1e-6);
            let mut weight_gradient = Tensor::ones([ROWS, 40], (Kind::Float, Device::Cpu));
            let of_hidden = weight.backward(&tensors[1], &tensors[2], Some(&mut weight_gradient));
            assert_eq!(of_hidden.kind(), Kind::Float);
            let of_hidden = distance(&of_hidden, &gradient_nV.mm(&weight_VH));
            let of_weight = distance(&(weight_gradient - 1.0), &gradient_nV.tr().mm(&hidden_nH));
            assert!(of_hidden < ROUNDING && of_weight < ROUNDING, "{of_hidden}, {of_weight} with {tokens} tokens");
        }
    }

    #[test]
    fn a_changed_weight_is_taken_over() {
        let Some((weight, [weight_VH, hidden_nH, _])) = heads(2) else { return };
        let logits = |weight: &Weight| {
            let logits_nV = Tensor::empty([2, ROWS], (Kind::Float, Device::Cpu));
            weight.project(&hidden_nH, &logits_nV);
            logits_nV
        };
        let (before, other) = (logits(&weight), weight.shared());
        let _ = weight_VH.shallow_clone().g_mul_scalar_(2.0);
        weight.follow(&weight_VH);
        assert_eq!(logits(&weight), &before * 2.0);
        assert_eq!(logits(&other), &before * 2.0, "another handle has the same panels");
    }
}
