//! Kernels of the decoder on the CPU: matrix products over packed weights and attention over a paged cache.
//!
//! A row comes out the same to the last bit in any batch, on any number of threads and under every instruction set. For
//! that, every figure has a fixed order of operations, which depends on its own row alone. A product of fp32 is one
//! chain of fused multiply-adds. Sums of norms and exponentials have sixteen lanes and a tree over them. Sums of bytes
//! are exact. Sums of bf16 have the order of AMX or that of `vdpbf16ps`, as their format says, wherever they are
//! computed.
//!
//! Weights are packed as fp32, int8, bf16 (with one order of sums or the other), or bf16x3, which is two bf16 for each
//! number. int8, bf16 and bf16x3 use the tiles of AMX where the machine has them, and bf16dot uses AVX512_BF16.
//!
//! A learner in bf16 has kernels of its own here, beside the products of libtorch: attention over whole rows with its
//! derivative, the softmax of its head, and the passes between products.
//!
//! | file | subject |
//! |---|---|
//! | [`simd`] | sixteen numbers at once: AVX-512, AVX2, plain Rust; tiles of AMX; chosen at run time |
//! | `tile` | the innermost loop of all products |
//! | [`linear`] | norm, product, bias, activation, residual: one linear layer in one pass |
//! | [`experts`] | experts in the place of an MLP, where there are any |
//! | [`residual`] | norm of a block's result, where there is one |
//! | [`per_layer`] | inputs of each layer's own, where there are any |
//! | [`cap`] | bounds of logits, where there are any |
//! | [`logits`] | log-probs and entropies by logits, and the gradient of logits, for a learner |
//! | [`width_norm`] | norms of queries and keys over their whole width, where there are any |
//! | [`packed`] | weights in the layout of the product |
//! | [`attention`] | grouped-query attention, with prompts shared by their completions |
//! | [`halves`] | norms, rotary positions and gated units of numbers in bf16, for a learner |
//! | `flash` | attention over whole rows and its derivative, for a learner; with tiles only |
//! | [`spans`] | which sequences a call computes, and what is computed together |
//! | [`pages`] | where keys and values lie |
//! | [`recurrent`] | layers that carry a state in the place of keys and values |
//! | [`states`] | where these states lie |
//! | [`element`] | what weights, keys and values are stored as |
//! | [`rounded`] | what is left of weights in a format, to be stored or sent |
//! | [`buffer`] | large buffers |
//! | [`limits`] | what the machine can do at most |
//! | [`thread_pool`], [`parallel`] | threads that stay awake; how they share the tasks of a kernel |

pub mod attention;
pub mod buffer;
pub mod cap;
pub mod element;
pub mod experts;
#[cfg(target_arch = "x86_64")]
pub mod flash;
pub mod halves;
pub mod limits;
pub mod linear;
pub mod logits;
pub mod packed;
pub mod pages;
pub mod parallel;
pub mod per_layer;
pub mod recurrent;
pub mod residual;
pub mod rounded;
pub mod simd;
pub mod spans;
pub mod states;
pub mod thread_pool;
mod tile;
pub mod width_norm;

#[cfg(test)]
mod tests;
