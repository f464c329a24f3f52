//! Attention of some queries to some keys, and its derivative where these keys are only a part of the attended ones.
//!
//! In bf16 the sampler's kernels compute it on processors with tiles. Elsewhere on the CPU it is libtorch's flash
//! attention, and products of whole matrices on GPUs: libtorch's flash kernels there take no float32.

use tch::{Device, Kind, Tensor};

#[cfg(target_arch = "x86_64")]
use super::tiles;

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    /// All.
    None,
    /// The keys up to its own place.
    Causal,
    /// The last `window` keys up to its own place. The first query is `shift` places behind the first key.
    Window { shift: i64, window: i64 },
}

impl Mask {
    /// Which keys are hidden, `[queries, keys]`.
    fn hidden(self, queries: &Tensor, keys: &Tensor) -> Option<Tensor> {
        let all = || Tensor::ones([queries.size()[2], keys.size()[2]], (Kind::Bool, queries.device()));
        match self {
            Self::None => None,
            Self::Causal => Some(all().triu(1)),
            Self::Window { shift, window } => Some(all().tril(shift).triu(shift - window + 1).logical_not()),
        }
    }

    /// Arguments of libtorch's own kernels: whether they mask by themselves, and the tensor that is added to the
    /// scores.
    fn for_flash(self, queries: &Tensor, keys: &Tensor) -> (bool, Option<Tensor>) {
        if self == Self::Causal {
            return (true, None);
        }
        let added = |hidden: Tensor| {
            let zeros = Tensor::zeros(hidden.size(), (queries.kind(), queries.device()));
            zeros.masked_fill(&hidden, f64::NEG_INFINITY)
        };
        (false, self.hidden(queries, keys).map(added))
    }
}

/// Mixed values, `[B, S, heads, head_dim]`, and log-sum-exps, `[B, S, heads]`.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) out: Tensor,
    pub(super) lse: Tensor,
}

/// Queries, keys and values, each `[B, S, heads, head_dim]`, with grouped heads of keys and values. Scores are
/// multiplied with `scale`.
pub(super) fn part(qkv: [Tensor; 3], mask: Mask, scale: f64) -> Partial {
    #[cfg(target_arch = "x86_64")]
    if tiles::take(&qkv[0]) {
        return tiles::part(&qkv, mask, scale);
    }
    let qkv = by_head(&qkv);
    let (out, lse) = if qkv[0].device() == Device::Cpu { flash(&qkv, mask, scale) } else { dense(&qkv, mask, scale) };
    Partial { out: out.transpose(1, 2), lse: lse.transpose(1, 2) }
}

/// Largest product of keys and width of a head whose derivative is computed in float32 where the model is in bf16.
/// libtorch multiplies the blocks of a head one by one there, and for few keys a call of its product in bf16 takes
/// longer than the product in float32, conversions included.
const SMALL_HEAD: i64 = 8192;

/// The kind in which gradients are computed, given the keys.
fn kind_of_backward(keys: &Tensor) -> Kind {
    let is_small = keys.size()[1] * keys.size()[3] <= SMALL_HEAD;
    let is_rounded = keys.device() == Device::Cpu && keys.kind() == Kind::BFloat16;
    if is_rounded && is_small { Kind::Float } else { keys.kind() }
}

/// Gradients of queries, keys and values, each in its shape, in float32 or in the model's kind. `joined` is the output
/// over all keys that the queries see, these among them, and `d_out` its gradient.
pub(super) fn part_backward(
    qkv: &[Tensor; 3],
    joined: &Partial,
    d_out: &Tensor,
    mask: Mask,
    scale: f64,
) -> [Tensor; 3] {
    #[cfg(target_arch = "x86_64")]
    if tiles::take(&qkv[0]) {
        return tiles::part_backward(qkv, joined, d_out, mask, scale);
    }
    backward_by_libtorch(qkv, joined, d_out, mask, scale)
}

/// See [`part_backward`].
fn backward_by_libtorch(qkv: &[Tensor; 3], joined: &Partial, d_out: &Tensor, mask: Mask, scale: f64) -> [Tensor; 3] {
    let kind = kind_of_backward(&qkv[1]);
    let qkv = [&qkv[0], &qkv[1], &qkv[2]].map(|x| x.to_kind(kind));
    let expanded = by_head(&qkv);
    let above = [joined.out.to_kind(kind), d_out.to_kind(kind), joined.lse.shallow_clone()].map(|x| x.transpose(1, 2));
    let (dq, dk, dv) = if d_out.device() == Device::Cpu {
        flash_backward(&expanded, &above, mask, scale)
    } else {
        dense_backward(&expanded, &above, mask, scale)
    };
    let [dk, dv] = [dk, dv].map(|x| {
        let (groups, [b, heads, s, d]) = (qkv[1].size()[2], shape(&x));
        x.view([b, groups, heads / groups, s, d]).sum_dim_intlist([2i64].as_slice(), false, None).transpose(1, 2)
    });
    [dq.transpose(1, 2), dk, dv]
}

fn flash([q, k, v]: &[Tensor; 3], mask: Mask, scale: f64) -> (Tensor, Tensor) {
    let (causal, added) = mask.for_flash(q, k);
    Tensor::internal_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, added, scale)
}

type Gradients = (Tensor, Tensor, Tensor);

fn flash_backward([q, k, v]: &[Tensor; 3], [out, d_out, lse]: &[Tensor; 3], mask: Mask, scale: f64) -> Gradients {
    let (causal, added) = mask.for_flash(q, k);
    Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, lse, 0.0, causal, added, scale,
    )
}

fn dense([q, k, v]: &[Tensor; 3], mask: Mask, scale: f64) -> (Tensor, Tensor) {
    let scores = scores(q, k, mask, scale);
    let lse = scores.logsumexp([-1i64].as_slice(), true);
    ((scores - &lse).exp().matmul(v), lse.squeeze_dim(-1))
}

fn dense_backward([q, k, v]: &[Tensor; 3], [out, d_out, lse]: &[Tensor; 3], mask: Mask, scale: f64) -> Gradients {
    let probabilities = (scores(q, k, mask, scale) - lse.unsqueeze(-1)).exp();
    let constant = (d_out * out).sum_dim_intlist([-1i64].as_slice(), true, None);
    let d_scores = (d_out.matmul(&v.mt()) - constant) * &probabilities * scale;
    (d_scores.matmul(k), d_scores.mt().matmul(q), probabilities.mt().matmul(d_out))
}

/// `[B, S, heads, head_dim]` to `[B, heads, S, head_dim]`, with a head of keys and values for each head of queries.
fn by_head(qkv: &[Tensor; 3]) -> [Tensor; 3] {
    let heads = qkv[0].size()[2];
    [&qkv[0], &qkv[1], &qkv[2]].map(|x| {
        let x = x.transpose(1, 2);
        let [b, groups, s, d] = shape(&x);
        if groups == heads {
            return x;
        }
        x.unsqueeze(2).expand([b, groups, heads / groups, s, d], true).reshape([b, heads, s, d])
    })
}

fn scores(q: &Tensor, k: &Tensor, mask: Mask, scale: f64) -> Tensor {
    let scores = q.matmul(&k.mt()) * scale;
    match mask.hidden(q, k) {
        None => scores,
        Some(hidden) => scores.masked_fill(&hidden, f64::NEG_INFINITY),
    }
}

fn shape(x: &Tensor) -> [i64; 4] {
    x.size().try_into().expect("batch, heads, positions and width")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In bf16, few keys have gradients in float32, which are those of the rounded inputs. More keys have them in bf16.
    #[test]
    fn the_derivative_of_few_keys_is_in_float32() {
        tch::manual_seed(9);
        for (keys, kind) in [(SMALL_HEAD / 64, Kind::Float), (SMALL_HEAD / 64 + 1, Kind::BFloat16)] {
            let random =
                |heads: i64| Tensor::randn([2, keys, heads, 64], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
            let (qkv, d_out) = ([random(6), random(2), random(2)], random(6));
            let joined = part(qkv.each_ref().map(Tensor::shallow_clone), Mask::Causal, 0.125);
            let found = backward_by_libtorch(&qkv, &joined, &d_out, Mask::Causal, 0.125);
            let wide = qkv.each_ref().map(|x| x.to_kind(Kind::Double));
            let joined = Partial { out: joined.out.to_kind(Kind::Double), lse: joined.lse.to_kind(Kind::Double) };
            let exact = part_backward(&wide, &joined, &d_out.to_kind(Kind::Double), Mask::Causal, 0.125);
            for (found, exact) in found.iter().zip(&exact) {
                assert_eq!(found.kind(), kind, "{keys} keys");
                let distance = ((found - exact).norm() / exact.norm()).double_value(&[]);
                assert!(distance < if kind == Kind::Float { 1e-5 } else { 2e-2 }, "{keys} keys: {distance}");
            }
        }
    }

    /// In bf16, results and gradients are those of the rounded inputs in float64: by tiles where there are some, by
    /// libtorch elsewhere. Queries, keys and values are views of one tensor, as in a layer.
    #[test]
    fn bf16_is_near_float64_whatever_a_query_sees() {
        tch::manual_seed(11);
        let window = |shift, window| Mask::Window { shift, window };
        for (mask, queries, keys) in
            [(Mask::Causal, 70, 70), (Mask::None, 40, 90), (window(30, 31), 40, 70), (window(5, 64), 40, 45)]
        {
            let random = |places, heads: i64| {
                Tensor::randn([2, places, heads, 40], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16)
            };
            let (q, kv, d_out) = (random(queries, 6), random(keys, 4), random(queries, 6));
            let qkv = [q, kv.narrow(2, 0, 2), kv.narrow(2, 2, 2)];
            let joined = part(qkv.each_ref().map(Tensor::shallow_clone), mask, 0.2);
            let found = part_backward(&qkv, &joined, &d_out, mask, 0.2);
            let wide = qkv.each_ref().map(|x| x.to_kind(Kind::Double));
            let exact = part(wide.each_ref().map(Tensor::shallow_clone), mask, 0.2);
            let gradients = part_backward(&wide, &exact, &d_out.to_kind(Kind::Double), mask, 0.2);
            let mut pairs = vec![(&joined.out, &exact.out), (&joined.lse, &exact.lse)];
            pairs.extend(found.iter().zip(&gradients));
            for (i, (found, exact)) in pairs.into_iter().enumerate() {
                let distance = ((found - exact).norm() / exact.norm()).double_value(&[]);
                assert!(distance < 1e-2, "{mask:?}, tensor {i}: {distance}");
            }
        }
    }

    /// The GPU's products agree with the CPU's kernels for all keys, for a part of the keys, and for windows. The last
    /// window hides whole blocks of keys, in the block size of the CPU's kernels.
    #[test]
    fn whole_products_and_flash_attention_agree() {
        tch::manual_seed(7);
        let random = |s: i64| Tensor::randn([2, 3, s, 8], (Kind::Double, Device::Cpu));
        let window = |shift, window| Mask::Window { shift, window };
        let cases = [
            (Mask::Causal, 5, 5),
            (Mask::None, 5, 9),
            (window(2, 3), 5, 7),
            (window(4, 5), 4, 4),
            (window(699, 700), 700, 1399),
        ];
        for (mask, queries, keys) in cases {
            let qkv = [random(queries), random(keys), random(keys)];
            let close = |a: &Tensor, b: &Tensor| {
                let difference = (a - b).abs().max().double_value(&[]);
                assert!(difference < 1e-12, "{mask:?}: {difference}");
            };
            let ((out, lse), (dense_out, dense_lse)) = (flash(&qkv, mask, 0.3), dense(&qkv, mask, 0.3));
            close(&out, &dense_out);
            close(&lse, &dense_lse);
            // As if further keys had been seen: another output and a larger denominator.
            let above = [&out + random(queries), random(queries), lse + 0.5];
            let (a, b) = (flash_backward(&qkv, &above, mask, 0.3), dense_backward(&qkv, &above, mask, 0.3));
            for (a, b) in [(a.0, b.0), (a.1, b.1), (a.2, b.2)] {
                close(&a, &b);
            }
        }
    }
}
