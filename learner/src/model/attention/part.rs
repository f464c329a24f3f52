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
    let [q, k, v] = by_head(&qkv);
    let (out, lse) = if q.device() == Device::Cpu {
        Tensor::internal_scaled_dot_product_flash_attention_for_cpu(
            &q,
            &k,
            &v,
            0.0,
            mask == Mask::Causal,
            None::<Tensor>,
            None,
        )
    } else {
        let scores = scores(&q, &k, mask);
        let lse = scores.logsumexp([-1i64].as_slice(), true);
        ((scores - &lse).exp().matmul(&v), lse.squeeze_dim(-1))
    };
    Part { out: out.transpose(1, 2), lse: lse.transpose(1, 2) }
}

/// Gradients of queries, keys and values, each in its shape. `joined` is the output over all keys that the queries see,
/// these among them, and `d_out` its gradient.
pub(super) fn part_backward(qkv: &[Tensor; 3], joined: &Part, d_out: &Tensor, mask: Mask) -> [Tensor; 3] {
    let [q, k, v] = by_head(qkv);
    let [out, d_out, lse] = [&joined.out, d_out, &joined.lse].map(|x| x.transpose(1, 2));
    let (dq, dk, dv) = if q.device() == Device::Cpu {
        Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &d_out,
            &q,
            &k,
            &v,
            &out,
            &lse,
            0.0,
            mask == Mask::Causal,
            None::<Tensor>,
            None,
        )
    } else {
        let probabilities = (scores(&q, &k, mask) - lse.unsqueeze(-1)).exp();
        let constant = (&d_out * &out).sum_dim_intlist([-1i64].as_slice(), true, None);
        let d_scores = (d_out.matmul(&v.mt()) - constant) * &probabilities / (q.size()[3] as f64).sqrt();
        (d_scores.matmul(&k), d_scores.mt().matmul(&q), probabilities.mt().matmul(&d_out))
    };
    let [dk, dv] = [dk, dv].map(|x| {
        let (groups, [b, heads, s, d]) = (qkv[1].size()[2], shape(&x));
        x.view([b, groups, heads / groups, s, d]).sum_dim_intlist([2i64].as_slice(), false, None).transpose(1, 2)
    });
    [dq.transpose(1, 2), dk, dv]
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
