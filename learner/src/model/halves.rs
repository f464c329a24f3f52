//! Passes in bf16 on the CPU that are no products, by the sampler's kernels. libtorch makes a pass over memory for each
//! operation, and another one to float32 and back.

use rollout_kernels::halves::{self, BLOCK, RowNorm, Turn};
use tch::{Device, Kind, Tensor};

use super::kernels::{numbers, with_machine};

/// Whether the kernels compute with tensors like this one.
pub(super) fn take(x: &Tensor) -> bool {
    x.kind() == Kind::BFloat16 && x.device() == Device::Cpu
}

/// `x / sqrt(mean(x²) + ε) · factors` over the last dimension.
pub(super) fn norm(x: &Tensor, factors: &Tensor, eps: f64) -> Tensor {
    let (x, factors) = (x.contiguous(), factors.to_kind(Kind::Float).contiguous());
    let out = x.empty_like();
    // SAFETY: all three are dense, on the CPU, in the kinds that are named, and live until the end of the call; nobody
    // else writes them, or reads the new one.
    let (of, x, to) = unsafe { (row_norm(&factors, eps), numbers(&x), numbers(&out)) };
    with_machine(|machine| halves::norm(of, x, to, machine));
    out
}

/// The way back through [`norm`]: the gradient of `x`, and parts of that of the factors, `[n, width]`.
pub(super) fn norm_backward(x: &Tensor, dy: &Tensor, factors: &Tensor, eps: f64) -> [Tensor; 2] {
    let (x, dy, factors) = (x.contiguous(), dy.contiguous(), factors.to_kind(Kind::Float).contiguous());
    let width = factors.size()[0];
    let rows = x.numel() / width as usize;
    let dx = x.empty_like();
    let of_factors = Tensor::empty([rows.div_ceil(BLOCK) as i64, width], (Kind::Float, Device::Cpu));
    // SAFETY: as in `norm`.
    unsafe {
        let (of, inputs) = (row_norm(&factors, eps), [numbers(&x), numbers(&dy)].map(|x| &*x));
        let (dx, sums) = (numbers(&dx), numbers(&of_factors));
        with_machine(|machine| halves::norm_backward(of, inputs, dx, sums, machine));
    }
    [dx, of_factors]
}

/// Turns heads in place, `[T, heads, entries]`, with tables of `[T, 1, entries]` in float32: `x · cos + roll(x) · sin`.
/// The second halves of the tables are those of a rotation.
pub(super) fn rotate(x_TND: &Tensor, cos: &Tensor, sin: &Tensor) {
    let (cos, sin) = (cos.contiguous(), sin.contiguous());
    let (size, stride) = (x_TND.size(), x_TND.stride());
    assert_eq!(stride[2], 1, "the entries of a head lie side by side");
    // SAFETY: tables as in `norm`; the heads are those of a tensor that nobody else reads or writes meanwhile.
    unsafe {
        let turn = Turn {
            steps: [stride[0] as usize, stride[1] as usize],
            heads: size[1] as usize,
            cos: numbers(&cos),
            sin: numbers(&sin),
            entries: size[2] as usize,
        };
        with_machine(|machine| halves::rotate(turn, x_TND.data_ptr().cast(), machine));
    }
}

/// `silu(gate) · up` of gate and up side by side, `[T, 2 · inner]`.
pub(super) fn swiglu(gate_up: &Tensor) -> Tensor {
    let gate_up = gate_up.contiguous();
    let (out, width) = like_half(&gate_up);
    // SAFETY: as in `norm`.
    let (from, to) = unsafe { (numbers(&gate_up), numbers(&out)) };
    with_machine(|machine| halves::swiglu(width, from, to, machine));
    out
}

/// The gradient of gate and up, given that of [`swiglu`].
pub(super) fn swiglu_backward(gate_up: &Tensor, d_inner: &Tensor) -> Tensor {
    let (gate_up, d_inner) = (gate_up.contiguous(), d_inner.contiguous());
    let (gradient, width) = (gate_up.empty_like(), d_inner.size()[d_inner.dim() - 1] as usize);
    // SAFETY: as in `norm`.
    let (from, above, to) = unsafe { (numbers(&gate_up), numbers(&d_inner), numbers(&gradient)) };
    with_machine(|machine| halves::swiglu_backward(width, from, above, to, machine));
    gradient
}

fn like_half(gate_up: &Tensor) -> (Tensor, usize) {
    let mut size = gate_up.size();
    let last = size.len() - 1;
    size[last] /= 2;
    (Tensor::empty(&size, (Kind::BFloat16, Device::Cpu)), size[last] as usize)
}

/// # Safety
/// As for the numbers of any tensor.
unsafe fn row_norm<'a>(factors: &Tensor, eps: f64) -> RowNorm<'a> {
    // SAFETY: as the caller says.
    RowNorm { factors: unsafe { numbers(factors) }, epsilon: eps as f32 }
}
