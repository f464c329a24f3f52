//! The head's products with its weight: in float32 at least, or in bfloat16 with float32 logits.

use std::{
    slice,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rollout_kernels::{
    buffer::LargeBuffer,
    element::Format,
    linear::{Activation, Input, Linear},
    packed::{Columns, PackedShape},
    parallel::Machine,
    simd::Isa,
    thread_pool::ThreadPool,
};
use tch::{Device, Kind, Tensor};

use crate::model::kinds::wide;

/// How long a thread without work spins: libtorch's threads want the cores next.
const SPIN: Duration = Duration::from_micros(100);

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
            Self::Rounded(rounded) => Self::Rounded(rounded.another()),
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
    packed: Mutex<Packed>,
}

/// The weight in the layout of the kernels.
struct Packed {
    panels: LargeBuffer,
    /// Whether the model's weight has changed since.
    is_stale: bool,
    scratch: Vec<f32>,
    /// Threads, as many as libtorch had at the last product.
    threads: Option<(i32, ThreadPool)>,
}

impl Rounded {
    /// The weight, where it is in bfloat16 and this processor has an instruction for that.
    fn new(weight_VH: &Tensor) -> Option<Self> {
        let isa = Isa::detect();
        let format = if isa.has_tiles() {
            Format::Bf16
        } else if isa.has_pair_products() {
            Format::Bf16Dot
        } else {
            return None;
        };
        if weight_VH.kind() != Kind::BFloat16 || weight_VH.device() != Device::Cpu {
            return None;
        }
        let [outputs, depth] = weight_VH.size()[..] else { return None };
        let shape = PackedShape { depth: depth as usize, outputs: outputs as usize, columns: Columns::Joined, format };
        Some(Self { weight_VH: weight_VH.shallow_clone(), shape, packed: Mutex::new(Packed::new(shape).ok()?) })
    }

    /// The same weight, packed for itself when it is first used.
    fn another(&self) -> Self {
        let packed = Packed::new(self.shape).expect("an anonymous mapping takes no memory before it is written");
        Self { weight_VH: self.weight_VH.shallow_clone(), shape: self.shape, packed: Mutex::new(packed) }
    }

    fn packed(&self) -> std::sync::MutexGuard<'_, Packed> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn project(&self, hidden_nH: &Tensor, logits_nV: &Tensor) {
        let hidden_nH = hidden_nH.to_kind(Kind::Float).contiguous();
        assert!(logits_nV.is_contiguous() && logits_nV.kind() == Kind::Float, "logits are a dense float32 buffer");
        let Packed { panels, is_stale, scratch, threads } = &mut *self.packed();
        let wanted = tch::get_num_threads();
        let kept = threads.take().filter(|(count, _)| *count == wanted);
        let (_, pool) = threads.insert(kept.unwrap_or_else(|| (wanted, pool(wanted))));
        if *is_stale {
            let weight_VH = self.weight_VH.to_kind(Kind::Float).contiguous();
            // SAFETY: as below.
            let _ = self.shape.pack(&[unsafe { values(&weight_VH) }.into()], panels, pool);
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
        let (out, count) = (logits_nV.data_ptr().cast::<f32>(), logits_nV.numel());
        // SAFETY: both tensors are dense, in float32, on the CPU, and live until the product is done. Nobody else reads
        // or writes the logits meanwhile: the head has given a buffer of its own.
        unsafe {
            let input = Input { x: values(&hidden_nH), rows: None, residual: None };
            let machine = Machine { isa: Isa::detect(), threads: pool, scratch };
            layer.run(input, slice::from_raw_parts_mut(out, count), machine);
        }
    }
}

impl Packed {
    fn new(shape: PackedShape) -> std::io::Result<Self> {
        Ok(Self { panels: LargeBuffer::new(shape.words())?, is_stale: true, scratch: Vec::new(), threads: None })
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

/// Threads for products; this one alone where the system gives no others.
fn pool(threads: i32) -> ThreadPool {
    let pool = ThreadPool::new(usize::try_from(threads).unwrap_or(1), SPIN);
    pool.or_else(|_| ThreadPool::new(1, SPIN)).expect("a pool of the calling thread alone starts none")
}

/// The numbers of a tensor.
///
/// # Safety
/// The tensor is dense, in float32, on the CPU, and not written while they are in use.
unsafe fn values(tensor: &Tensor) -> &[f32] {
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(tensor.data_ptr().cast::<f32>(), tensor.numel()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head in bfloat16 and its figures in double precision, from the rounded numbers.
    fn heads(tokens: i64) -> Option<(Weight, [Tensor; 3])> {
        tch::manual_seed(1);
        let draw = |rows, columns| Tensor::randn([rows, columns], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        let (weight_VH, hidden_nH, gradient_nV) = (draw(77, 40), draw(tokens, 40), draw(tokens, 77));
        let weight = Weight::new(&weight_VH);
        if matches!(weight, Weight::Wide(_)) {
            harness::without_hardware("a head in bfloat16", "this processor multiplies no bfloat16");
            return None;
        }
        Some((weight, [weight_VH, hidden_nH, gradient_nV]))
    }

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        let size = b.abs().max().double_value(&[]);
        (a.to_kind(Kind::Double) - b).abs().max().double_value(&[]) / size
    }

    #[test]
    fn logits_have_the_digits_of_float32_and_gradients_those_of_bfloat16() {
        for tokens in [1, 3, 64] {
            let Some((weight, tensors)) = heads(tokens) else { return };
            let [weight_VH, hidden_nH, gradient_nV] = tensors.each_ref().map(|tensor| tensor.to_kind(Kind::Double));
            let logits_nV = Tensor::empty([tokens, 77], (Kind::Float, Device::Cpu));
            weight.project(&tensors[1].to_kind(Kind::Float), &logits_nV);
            assert!(distance(&logits_nV, &hidden_nH.mm(&weight_VH.tr())) < 1e-6);
            let mut weight_gradient = Tensor::ones([77, 40], (Kind::Float, Device::Cpu));
            let [hidden, gradient] = [1, 2].map(|index| tensors[index].to_kind(Kind::Float));
            let of_hidden = weight.backward(&hidden, &gradient, Some(&mut weight_gradient));
            assert_eq!(of_hidden.kind(), Kind::Float);
            assert!(distance(&of_hidden, &gradient_nV.mm(&weight_VH)) < 4e-3);
            assert!(distance(&(weight_gradient - 1.0), &gradient_nV.tr().mm(&hidden_nH)) < 4e-3);
        }
    }

    #[test]
    fn a_changed_weight_is_taken_over() {
        let Some((weight, [weight_VH, hidden_nH, _])) = heads(2) else { return };
        let logits = |weight: &Weight| {
            let logits_nV = Tensor::empty([2, 77], (Kind::Float, Device::Cpu));
            weight.project(&hidden_nH.to_kind(Kind::Float), &logits_nV);
            logits_nV
        };
        let (before, other) = (logits(&weight), weight.shared());
        let _ = weight_VH.shallow_clone().g_mul_scalar_(2.0);
        weight.follow(&weight_VH);
        assert_eq!(logits(&weight), &before * 2.0);
        assert_eq!(logits(&other), &before * 2.0, "another handle packs it when it is first used");
    }
}
