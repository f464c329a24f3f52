//! Attention in bf16 by the sampler's kernels, on processors with tiles.

use std::sync::{Mutex, PoisonError};

use rollout_kernels::flash::{self, Known, Memory, Places, Shape, Sight, Workshop};
use tch::{Device, Kind, Tensor};

use super::part::{Mask, Partial};
use crate::model::kernels::{self, numbers};

/// Whether the kernels compute with tensors like this one.
pub(super) fn take(x: &Tensor) -> bool {
    x.kind() == Kind::BFloat16 && x.device() == Device::Cpu && flash::is_available()
}

/// See [`super::part::part`].
pub(super) fn part(qkv: &[Tensor; 3], mask: Mask, scale: f64) -> Partial {
    let shape = shape(qkv);
    let size = [shape.texts, shape.queries, shape.heads, shape.width].map(|x| x as i64);
    let out = Tensor::empty(size, (Kind::BFloat16, Device::Cpu));
    let lse = Tensor::empty(&size[..3], (Kind::Float, Device::Cpu));
    let qkv = qkv.each_ref().map(dense);
    with_workshop(|workshop| {
        // SAFETY: all tensors are on the CPU, of the kinds that are asked for, with dense rows, and live until the end
        // of the call; the two new ones are dense and nobody else's.
        unsafe {
            let (out, lse) = (numbers(&out), numbers(&lse));
            flash::forward(shape, qkv.each_ref().map(places), sight(mask, scale), out, lse, workshop);
        }
    });
    Partial { out, lse }
}

/// See [`super::part::part_backward`]; gradients are in float32.
pub(super) fn part_backward(
    qkv: &[Tensor; 3],
    joined: &Partial,
    d_out: &Tensor,
    mask: Mask,
    scale: f64,
) -> [Tensor; 3] {
    let shape = shape(qkv);
    let gradients = qkv.each_ref().map(|x| Tensor::empty(x.size(), (Kind::Float, Device::Cpu)));
    let qkv = qkv.each_ref().map(dense);
    let [out, d_out] = [&joined.out, d_out].map(|x| dense(&x.to_kind(Kind::BFloat16)));
    let lse = joined.lse.to_kind(Kind::Float);
    with_workshop(|workshop| {
        // SAFETY: as in `part`.
        unsafe {
            let known =
                Known { qkv: qkv.each_ref().map(places), out: places(&out), lse: places(&lse), d_out: places(&d_out) };
            let gradients = gradients.each_ref().map(|x| numbers(x));
            flash::backward(shape, known, sight(mask, scale), gradients, workshop);
        }
    });
    gradients
}

fn shape([q, k, _]: &[Tensor; 3]) -> Shape {
    let [texts, queries, heads, width] = sizes(q);
    let [_, keys, kv_heads, _] = sizes(k);
    Shape { texts, queries, keys, heads, kv_heads, width }
}

fn sizes(x: &Tensor) -> [usize; 4] {
    let sizes: [i64; 4] = x.size().try_into().expect("texts, places, heads and width");
    sizes.map(|size| size as usize)
}

fn sight(mask: Mask, scale: f64) -> Sight {
    let (shift, window) = match mask {
        Mask::None => (None, usize::MAX),
        Mask::Causal => (Some(0), usize::MAX),
        Mask::Window { shift, window } => (Some(shift as usize), window as usize),
    };
    Sight { shift, window, scale: scale as f32 }
}

/// The tensor, with the entries of its last dimension side by side.
fn dense(x: &Tensor) -> Tensor {
    if x.stride().last() == Some(&1) { x.shallow_clone() } else { x.contiguous() }
}

/// Where the numbers of `[texts, places, heads, ..]` lie.
fn places<T>(x: &Tensor) -> Places<T> {
    let steps = x.stride();
    Places { first: x.data_ptr().cast(), steps: [0, 1, 2].map(|i| steps[i] as usize) }
}

fn with_workshop(work: impl FnOnce(&mut Workshop<'_>)) {
    static MEMORY: Mutex<Option<Memory>> = Mutex::new(None);
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = memory.get_or_insert_default();
    work(&mut Workshop { threads: &kernels::threads(), memory });
}
