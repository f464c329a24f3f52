//! Kernels of the decoder on the CPU: matrix products over packed weights and attention over a paged cache.
//!
//! Every figure that a kernel writes comes of a fixed order of operations that depends on its own row alone: in products of
//! fp32 one chain of fused multiply-adds, in sums of norms and exponentials sixteen lanes and a tree over them. So a row
//! comes out the same to the last bit in any batch, on any number of threads and under every instruction set. Sums of bytes
//! are exact, and sums of bf16 have the order that AMX has wherever they are computed.
//!
//! | file | subject |
//! |---|---|
//! | [`simd`] | sixteen numbers at once: AVX-512, AVX2, plain Rust; tiles of AMX; chosen at run time |
//! | `tile` | the innermost loop of all products |
//! | [`linear`] | norm, product, bias, activation, residual: one linear layer in one pass |
//! | [`packed`] | weights in the layout of the product |
//! | [`attention`], [`plan`] | grouped-query attention, prompts shared by their completions; what is computed together |
//! | [`pages`], [`element`] | where keys and values lie, and as what |
//! | [`buffer`] | large buffers |
//! | [`limits`] | what the machine can do at most |
//! | [`parallel`], [`workers`] | spreading tasks over threads; threads that stay awake |

pub mod attention;
pub mod buffer;
pub mod element;
pub mod limits;
pub mod linear;
pub mod packed;
pub mod pages;
pub mod parallel;
pub mod plan;
pub mod simd;
mod tile;
pub mod workers;

#[cfg(test)]
mod tests;
