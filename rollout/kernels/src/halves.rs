//! Passes over numbers in bf16 that are no products, for a learner: norms, rotary positions and gated units. Each is
//! one pass, where a library of tensors makes one for each operation. All is computed in fp32 and rounded once.
//!
//! A row depends on itself alone, bit for bit, on any number of threads and under every instruction set.

use std::ops::Range;

use super::{
    element::{from_bf16, to_bf16},
    parallel::{Claims, Machine, Shared},
    simd::{LANES, Simd, Task, load_up_to, sigmoid, store_up_to},
};

/// Rows of a task, and of a sum of [`norm_backward`].
pub const BLOCK: usize = 32;

/// Sixteen numbers of bf16, or fewer with zeros behind them.
///
/// # Safety
/// See [`Simd`]; only `count` numbers need be there.
#[inline(always)]
unsafe fn load<S: Simd>(from: *const u16, count: usize) -> S::V {
    // SAFETY: the caller vouches for the numbers, and the array is a block.
    unsafe {
        let mut halves = [0_u16; LANES];
        if count >= LANES {
            halves = from.cast::<[u16; LANES]>().read_unaligned();
        } else {
            halves.as_mut_ptr().copy_from_nonoverlapping(from, count);
        }
        let floats = halves.map(from_bf16);
        S::load(floats.as_ptr())
    }
}

/// Rounds and stores up to sixteen numbers.
///
/// # Safety
/// See [`Simd`]; only `count` numbers need be there.
#[inline(always)]
unsafe fn store<S: Simd>(to: *mut u16, count: usize, v: S::V) {
    // SAFETY: the caller vouches for the numbers, and the array is a block.
    unsafe {
        let mut floats = [0.0_f32; LANES];
        S::store(floats.as_mut_ptr(), v);
        let halves = floats.map(to_bf16);
        if count >= LANES {
            to.cast::<[u16; LANES]>().write_unaligned(halves);
        } else {
            to.copy_from_nonoverlapping(halves.as_ptr(), count);
        }
    }
}

/// Runs a task for each block of rows.
fn for_blocks<T>(rows: usize, machine: Machine<'_>, task: impl Fn(Range<usize>) -> T + Sync)
where
    T: Task<Output = ()>,
{
    let (isa, claims) = (machine.isa, Claims::new(rows.div_ceil(BLOCK)));
    machine.threads.run(&|| claims.run_all(|i| isa.run(task(i * BLOCK..rows.min((i + 1) * BLOCK)))));
}

/// A root-mean-square norm with its factors.
#[derive(Debug, Clone, Copy)]
pub struct RowNorm<'a> {
    /// A factor for each entry of a row.
    pub factors: &'a [f32],
    /// Is added to the mean of the squares.
    pub epsilon: f32,
}

/// `x / sqrt(mean(x²) + ε) · factors`, `[rows, width]`.
///
/// # Panics
/// When sizes do not fit each other.
pub fn norm(norm: RowNorm<'_>, x: &[u16], out: &mut [u16], machine: Machine<'_>) {
    let rows = x.len() / norm.factors.len();
    assert_eq!([x.len(), out.len()], [rows * norm.factors.len(); 2], "whole rows, and a place for each");
    let out = Shared::new(out);
    for_blocks(rows, machine, |rows| Forward { norm, x, out, rows });
}

struct Forward<'a> {
    norm: RowNorm<'a>,
    x: &'a [u16],
    out: Shared<u16>,
    rows: Range<usize>,
}

impl Task for Forward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.factors.len();
        for row in self.rows {
            let x = &self.x[row * width..][..width];
            // SAFETY: the row is there and this task's alone; the caller vouches for the instruction set.
            unsafe {
                let inverse = S::splat(inverse::<S>(x, self.norm.epsilon));
                for first in (0..width).step_by(LANES) {
                    let count = LANES.min(width - first);
                    let factors = load_up_to::<S>(self.norm.factors.as_ptr().add(first), count);
                    let y = S::mul(S::mul(load::<S>(x.as_ptr().add(first), count), inverse), factors);
                    store::<S>(self.out.at(row * width + first), count, y);
                }
            }
        }
    }
}

/// `1 / sqrt(mean(x²) + ε)`.
///
/// # Safety
/// See [`Simd`].
#[inline(always)]
unsafe fn inverse<S: Simd>(x: &[u16], epsilon: f32) -> f32 {
    // SAFETY: so many numbers are there; the caller vouches for the instruction set.
    let squares = unsafe {
        let mut sums = S::splat(0.0);
        for first in (0..x.len()).step_by(LANES) {
            let v = load::<S>(x.as_ptr().add(first), LANES.min(x.len() - first));
            sums = S::fma(v, v, sums);
        }
        S::sum(sums)
    };
    1.0 / (squares / x.len() as f32 + epsilon).sqrt()
}

/// The way back through [`norm`]: the gradient of `x`, and for each [`BLOCK`] of rows that of the factors, `[blocks,
/// width]`.
///
/// With x̂ = x · scale and g = dy · factors: `dx = scale · (g − x̂ · mean(g · x̂))`.
///
/// # Panics
/// When sizes do not fit each other.
pub fn norm_backward(
    norm: RowNorm<'_>,
    [x, dy]: [&[u16]; 2],
    dx: &mut [u16],
    of_factors: &mut [f32],
    machine: Machine<'_>,
) {
    let width = norm.factors.len();
    let rows = x.len() / width;
    assert_eq!([x.len(), dy.len(), dx.len()], [rows * width; 3], "whole rows, and a place for each");
    assert_eq!(of_factors.len(), rows.div_ceil(BLOCK) * width, "a sum for each block and factor");
    let (dx, of_factors) = (Shared::new(dx), Shared::new(of_factors));
    for_blocks(rows, machine, |rows| Backward { norm, x, dy, dx, of_factors, rows });
}

struct Backward<'a> {
    norm: RowNorm<'a>,
    x: &'a [u16],
    dy: &'a [u16],
    dx: Shared<u16>,
    of_factors: Shared<f32>,
    rows: Range<usize>,
}

impl Task for Backward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.norm.factors.len();
        // SAFETY: rows and sums are there and this task's alone; the caller vouches for the instruction set.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(self.of_factors.at(self.rows.start / BLOCK * width), width);
            sums.fill(0.0);
            for row in self.rows {
                let (x, dy) = (&self.x[row * width..][..width], &self.dy[row * width..][..width]);
                let scale = inverse::<S>(x, self.norm.epsilon);
                let scales = S::splat(scale);
                let mut products = S::splat(0.0);
                for first in (0..width).step_by(LANES) {
                    let count = LANES.min(width - first);
                    let [x, dy] = [x, dy].map(|row| load::<S>(row.as_ptr().add(first), count));
                    let product = S::mul(S::mul(x, scales), dy);
                    let factors = load_up_to::<S>(self.norm.factors.as_ptr().add(first), count);
                    products = S::fma(product, factors, products);
                    let to = sums.as_mut_ptr().add(first);
                    let sum = S::add(load_up_to::<S>(to, count), product);
                    store_up_to::<S>(to, count, sum);
                }
                let mean = S::splat(-S::sum(products) / width as f32);
                for first in (0..width).step_by(LANES) {
                    let count = LANES.min(width - first);
                    let [x, dy] = [x, dy].map(|row| load::<S>(row.as_ptr().add(first), count));
                    let factors = load_up_to::<S>(self.norm.factors.as_ptr().add(first), count);
                    let change = S::fma(S::mul(x, scales), mean, S::mul(dy, factors));
                    store::<S>(self.dx.at(row * width + first), count, S::mul(change, scales));
                }
            }
        }
    }
}

/// Heads of tokens somewhere in a larger array, and how their positions turn them.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Numbers from one token to the next, and from one head to the next.
    pub steps: [usize; 2],
    /// Heads of a token.
    pub heads: usize,
    /// Cosines, `[tokens, entries]`, of which the first half counts.
    pub cos: &'a [f32],
    /// Sines, likewise.
    pub sin: &'a [f32],
    /// Entries of a head that are turned, from the first on: the first half against the second.
    pub entries: usize,
}

/// Turns heads in place: `low · cos + high · sin`, and `high · cos − low · sin`. The sines of a rotation are negated in
/// the first half of its table.
///
/// # Safety
/// The heads of all tokens of the tables are there, and nobody else reads or writes them meanwhile.
///
/// # Panics
/// When sizes do not fit each other.
pub unsafe fn rotate(turn: Turn<'_>, first: *mut u16, machine: Machine<'_>) {
    let tokens = turn.cos.len() / turn.entries.max(1);
    assert!(turn.entries.is_multiple_of(2), "two halves");
    assert_eq!([turn.cos.len(), turn.sin.len()], [tokens * turn.entries; 2], "a row of tables for each token");
    if tokens == 0 {
        return;
    }
    let last = (tokens - 1) * turn.steps[0] + (turn.heads - 1) * turn.steps[1] + turn.entries;
    // SAFETY: the caller vouches for all heads, the last of which ends here.
    let heads = Shared::new(unsafe { std::slice::from_raw_parts_mut(first, last) });
    for_blocks(tokens, machine, |tokens| Rotate { turn, heads, tokens });
}

struct Rotate<'a> {
    turn: Turn<'a>,
    heads: Shared<u16>,
    tokens: Range<usize>,
}

impl Task for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Turn { steps, heads, cos, sin, entries } = self.turn;
        let half = entries / 2;
        for token in self.tokens {
            let (cos, sin) = (&cos[token * entries..][..half], &sin[token * entries..][..half]);
            for head in 0..heads {
                let low = self.heads.at(token * steps[0] + head * steps[1]);
                for first in (0..half).step_by(LANES) {
                    let count = LANES.min(half - first);
                    // SAFETY: the head is there and this task's alone; the caller vouches for the instruction set.
                    unsafe {
                        let (at_low, at_high) = (low.add(first), low.add(half + first));
                        let (x, y) = (load::<S>(at_low, count), load::<S>(at_high, count));
                        let cos = load_up_to::<S>(cos.as_ptr().add(first), count);
                        let sin = load_up_to::<S>(sin.as_ptr().add(first), count);
                        let minus = S::mul(sin, S::splat(-1.0));
                        store::<S>(at_low, count, S::fma(y, sin, S::mul(x, cos)));
                        store::<S>(at_high, count, S::fma(x, minus, S::mul(y, cos)));
                    }
                }
            }
        }
    }
}

/// `silu(gate) · up` of rows of gate and up side by side, `[rows, 2 · width]` to `[rows, width]`.
///
/// # Panics
/// When sizes do not fit each other.
pub fn swiglu(width: usize, gate_up: &[u16], out: &mut [u16], machine: Machine<'_>) {
    let rows = out.len() / width;
    assert_eq!([out.len(), gate_up.len()], [rows * width, 2 * rows * width], "whole rows");
    let out = Shared::new(out);
    for_blocks(rows, machine, |rows| Gated { width, gate_up, of_out: None, out, rows });
}

/// The way back through [`swiglu`]: the gradient of gate and up, `[rows, 2 · width]`, given that of the result.
///
/// # Panics
/// When sizes do not fit each other.
pub fn swiglu_backward(width: usize, gate_up: &[u16], of_out: &[u16], gradient: &mut [u16], machine: Machine<'_>) {
    let rows = of_out.len() / width;
    let sizes = [of_out.len(), gate_up.len(), gradient.len()];
    assert_eq!(sizes, [rows * width, 2 * rows * width, 2 * rows * width], "whole rows");
    let out = Shared::new(gradient);
    for_blocks(rows, machine, |rows| Gated { width, gate_up, of_out: Some(of_out), out, rows });
}

struct Gated<'a> {
    width: usize,
    gate_up: &'a [u16],
    /// The gradient of the result; absent on the way forward.
    of_out: Option<&'a [u16]>,
    out: Shared<u16>,
    rows: Range<usize>,
}

impl Task for Gated<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.width;
        for row in self.rows {
            let (gate, up) = self.gate_up[2 * row * width..][..2 * width].split_at(width);
            let of_out = self.of_out.map(|all| &all[row * width..][..width]);
            for first in (0..width).step_by(LANES) {
                let count = LANES.min(width - first);
                // SAFETY: the row is there and this task's alone; the caller vouches for the instruction set.
                unsafe {
                    let [gate, up] = [gate, up].map(|half| load::<S>(half.as_ptr().add(first), count));
                    let open = sigmoid::<S>(gate);
                    let active = S::mul(gate, open);
                    let Some(of_out) = of_out else {
                        store::<S>(self.out.at(row * width + first), count, S::mul(active, up));
                        continue;
                    };
                    let d = load::<S>(of_out.as_ptr().add(first), count);
                    // silu' = σ (1 + x (1 − σ)) = σ + silu (1 − σ).
                    let slope = S::fma(active, S::fma(open, S::splat(-1.0), S::splat(1.0)), open);
                    let at = self.out.at(2 * row * width + first);
                    store::<S>(at, count, S::mul(S::mul(d, up), slope));
                    store::<S>(at.add(width), count, S::mul(d, active));
                }
            }
        }
    }
}
