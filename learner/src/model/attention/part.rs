//! Attention of some queries to some keys, and its derivative where the keys are only a part of what was attended to.
//!
//! libtorch's flash attention on the CPU, products of whole matrices elsewhere: its flash kernels for GPUs take no float32.

use tch::{Device, Tensor};

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    /// All.
    None,
    /// Those up to its own place.
    Causal,
}

/// Mixed values, `[B, S, heads, head_dim]`, and log-sum-exps, `[B, S, heads]`.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) out: Tensor,
    pub(super) lse: Tensor,
}

/// Queries, keys and values, each `[B, S, heads, head_dim]`, with grouped heads of keys and values.
pub(super) fn part(qkv: [Tensor; 3], mask: Mask) -> Part {
    let qkv = by_head(&qkv);
    let (out, lse) = if qkv[0].device() == Device::Cpu { flash(&qkv, mask) } else { dense(&qkv, mask) };
    Part { out: out.transpose(1, 2), lse: lse.transpose(1, 2) }
}

/// Gradients of queries, keys and values, each in its shape. `joined` is the output over all keys that the queries see,
/// these among them, and `d_out` its gradient.
pub(super) fn part_backward(qkv: &[Tensor; 3], joined: &Part, d_out: &Tensor, mask: Mask) -> [Tensor; 3] {
    let expanded = by_head(qkv);
    let above = [&joined.out, d_out, &joined.lse].map(|x| x.transpose(1, 2));
    let (dq, dk, dv) = if d_out.device() == Device::Cpu {
        flash_backward(&expanded, &above, mask)
    } else {
        dense_backward(&expanded, &above, mask)
    };
    let [dk, dv] = [dk, dv].map(|x| {
        let (groups, [b, heads, s, d]) = (qkv[1].size()[2], shape(&x));
        x.view([b, groups, heads / groups, s, d]).sum_dim_intlist([2i64].as_slice(), false, None).transpose(1, 2)
    });
    [dq.transpose(1, 2), dk, dv]
}

fn flash([q, k, v]: &[Tensor; 3], mask: Mask) -> (Tensor, Tensor) {
    let causal = mask == Mask::Causal;
    Tensor::internal_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, None::<Tensor>, None)
}

fn flash_backward([q, k, v]: &[Tensor; 3], [out, d_out, lse]: &[Tensor; 3], mask: Mask) -> (Tensor, Tensor, Tensor) {
    let causal = mask == Mask::Causal;
    Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
        d_out,
        q,
        k,
        v,
        out,
        lse,
        0.0,
        causal,
        None::<Tensor>,
        None,
    )
}

fn dense([q, k, v]: &[Tensor; 3], mask: Mask) -> (Tensor, Tensor) {
    let scores = scores(q, k, mask);
    let lse = scores.logsumexp([-1i64].as_slice(), true);
    ((scores - &lse).exp().matmul(v), lse.squeeze_dim(-1))
}

fn dense_backward([q, k, v]: &[Tensor; 3], [out, d_out, lse]: &[Tensor; 3], mask: Mask) -> (Tensor, Tensor, Tensor) {
    let probabilities = (scores(q, k, mask) - lse.unsqueeze(-1)).exp();
    let constant = (d_out * out).sum_dim_intlist([-1i64].as_slice(), true, None);
    let d_scores = (d_out.matmul(&v.mt()) - constant) * &probabilities / (q.size()[3] as f64).sqrt();
    (d_scores.matmul(k), d_scores.mt().matmul(q), probabilities.mt().matmul(d_out))
}

/// `[B, S, heads, head_dim]` to `[B, heads, S, head_dim]`, a head of keys and values for each of queries.
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

fn scores(q: &Tensor, k: &Tensor, mask: Mask) -> Tensor {
    let scores = q.matmul(&k.mt()) / (q.size()[3] as f64).sqrt();
    match mask {
        Mask::None => scores,
        Mask::Causal => {
            let unseen = scores.new_ones(&scores.size()[2..], (tch::Kind::Bool, scores.device())).triu(1);
            scores.masked_fill(&unseen, f64::NEG_INFINITY)
        }
    }
}

fn shape(x: &Tensor) -> [i64; 4] {
    x.size().try_into().expect("batch, heads, positions and width")
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    /// What runs on a GPU gives what the CPU's kernels give, for keys that are all and keys that are a part.
    #[test]
    fn whole_products_and_flash_attention_agree() {
        tch::manual_seed(7);
        let random = |s: i64| Tensor::randn([2, 3, s, 8], (Kind::Double, Device::Cpu));
        for (mask, keys) in [(Mask::Causal, 5), (Mask::None, 9)] {
            let qkv = [random(5), random(keys), random(keys)];
            let close = |a: &Tensor, b: &Tensor| {
                let difference = (a - b).abs().max().double_value(&[]);
                assert!(difference < 1e-12, "{mask:?}: {difference}");
            };
            let ((out, lse), (dense_out, dense_lse)) = (flash(&qkv, mask), dense(&qkv, mask));
            close(&out, &dense_out);
            close(&lse, &dense_lse);
            // As if further keys had been seen: another output and a larger denominator.
            let above = [&out + random(5), random(5), lse + 0.5];
            let (a, b) = (flash_backward(&qkv, &above, mask), dense_backward(&qkv, &above, mask));
            for (a, b) in [(a.0, b.0), (a.1, b.1), (a.2, b.2)] {
                close(&a, &b);
            }
        }
    }
}
