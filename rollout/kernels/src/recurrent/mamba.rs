//! The state space of Mamba-2 (Granite 4, after Dao and Gu 2024, "Transformers are SSMs").
//!
//! Each head has a matrix `S` (`[state_dim, head_dim]`) and takes a token at a time, with the `B` and `C` of its group:
//! `S ← e^(-Δ rate) S + B (Δ x)ᵀ; y = Sᵀ C + D x`. The results of all heads of a group, times `silu(z)`, have one norm.
//! Sixteen columns of `S` never meet the others. They stay in the first cache while they take some tokens, so in a
//! decode step a state is read from memory once and written once.

use super::{
    super::{
        linear::{Norm, inverse_rms},
        parallel::{Claims, Machine, Shared},
        simd::{LANES, Simd, Task, silu, store_up_to},
        spans::{Span, Spans},
        states::{LayerState, States},
    },
    Convolution, LayerStates,
    convolution::{Channels, Piece, part},
    matrix::{steps_and_decays, take_in},
};

/// The part of a layer that does not change from call to call.
#[derive(Debug, Clone, Copy)]
pub struct Mamba<'a> {
    /// The convolution over `x`, `B` and `C`.
    pub convolution: Convolution<'a>,
    /// Heads, each with a matrix.
    pub heads: usize,
    /// Width of the `x` of a head.
    pub head_dim: usize,
    /// Groups of heads, each with one `B` and one `C`; divides the heads.
    pub groups: usize,
    /// Width of a `B` or a `C`.
    pub state_dim: usize,
    /// `e^A_log` of each head.
    pub rates: &'a [f32],
    /// Addends of the `dt` of each head.
    pub dt_bias: &'a [f32],
    /// `D` of each head.
    pub skips: &'a [f32],
    /// Norm of the gated results of a group, with a factor for each entry of all groups.
    pub norm: Norm<'a>,
    /// Layer of the states.
    pub layer: usize,
}

impl Mamba<'_> {
    /// Width of the `x` of a token, and of the result.
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Inputs of the convolution.
    fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_dim
    }

    /// Inputs of a token: the gate `z`; `x`, `B` and `C`; the `dt` of each head.
    #[must_use]
    pub fn width(&self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// Computes `out` (`[tokens, heads * head_dim]`) of `x` (`[tokens, width]`), and moves the states on.
    ///
    /// # Panics
    /// When sizes do not fit each other, or a sequence has no state.
    pub fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let tokens = spans.tokens();
        assert_eq!(x.len(), tokens * self.width(), "the inputs");
        assert_eq!(out.len(), tokens * self.inner(), "the output");
        self.check(states.shape().layers[self.layer]);
        spans.check_states(states.shape().blocks);
        let Machine { isa, threads, scratch } = machine;
        let states = LayerStates::of(states, self.layer);
        let channels = Channels::new(x, [self.width(), self.inner()], self.convolution, scratch);
        let call = Call { layer: self, channels, out: Shared::new(out) };
        let pieces = Piece::<Channels<'_>>::count(&self.convolution);
        let to_convolve = Claims::new(spans.all.len() * pieces);
        let to_mix = Claims::new(spans.all.len() * self.heads);
        let to_norm = Claims::new(tokens);
        threads.run(&|| {
            to_convolve.run_all(|task| {
                let span = &spans.all[task / pieces];
                isa.run(Piece::of(&self.convolution, &call.channels, span, states, task % pieces));
            });
            to_mix.run_all(|task| {
                let (span, head) = (&spans.all[task / self.heads], task % self.heads);
                isa.run(Mix { call: &call, span, states, head });
            });
            to_norm.run_all(|token| isa.run(NormToken { call: &call, token }));
        });
    }

    fn check(&self, state: LayerState) {
        assert!(self.groups > 0 && self.heads.is_multiple_of(self.groups), "heads and their groups");
        assert_eq!(self.convolution.channels, self.channels(), "the channels of the convolution");
        let of_heads = [self.rates.len(), self.dt_bias.len(), self.skips.len()];
        assert_eq!(of_heads, [self.heads; 3], "one number for each head");
        assert_eq!(self.norm.gamma.len(), self.inner(), "the norm of the results");
        let matrix = (self.heads, self.state_dim, self.head_dim);
        assert_eq!((state.heads, state.key_dim, state.value_dim), matrix, "the matrices of the state");
        self.convolution.check(state);
    }
}

struct Call<'a> {
    layer: &'a Mamba<'a>,
    /// `x`, `B` and `C`, behind the gate among the inputs.
    channels: Channels<'a>,
    out: Shared<f32>,
}

/// One head of a sequence.
struct Mix<'a> {
    call: &'a Call<'a>,
    span: &'a Span,
    states: LayerStates,
    head: usize,
}

impl Task for Mix<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let layer = self.call.layer;
        // SAFETY: the matrix is this task's alone.
        let matrix = unsafe { self.states.matrix(self.span, self.head) };
        for first in self.span.tokens.clone().step_by(LANES) {
            let count = LANES.min(self.span.tokens.end - first);
            // SAFETY: the caller vouches for the instruction set; columns are within the matrix.
            unsafe {
                let [steps, decays] = self.steps::<S>(first, count);
                for column in (0..layer.head_dim).step_by(LANES) {
                    let columns = matrix.add(column * layer.state_dim);
                    for token in 0..count {
                        self.token::<S>(columns, first + token, column, steps[token], decays[token]);
                    }
                }
            }
        }
    }
}

impl Mix<'_> {
    /// `Δ` and `e^(-Δ rate)` of `count` tokens from `first` on.
    #[inline(always)]
    unsafe fn steps<S: Simd>(&self, first: usize, count: usize) -> [[f32; LANES]; 2] {
        let layer = self.call.layer;
        let of_dt = layer.inner() + layer.channels() + self.head;
        let mut dt = [0.0; LANES];
        for (token, dt) in dt[..count].iter_mut().enumerate() {
            *dt = self.call.channels.row(first + token)[of_dt];
        }
        // SAFETY: the caller vouches for the instruction set.
        unsafe { steps_and_decays::<S>(&dt, layer.dt_bias[self.head], layer.rates[self.head]) }
    }

    /// Takes a token into sixteen columns of the matrix, and writes its results there times their gates.
    #[inline(always)]
    unsafe fn token<S: Simd>(&self, columns: *mut f32, token: usize, column: usize, time: f32, decay: f32) {
        let layer = self.call.layer;
        let (inner, at) = (layer.inner(), self.head * layer.head_dim + column);
        let count = LANES.min(layer.head_dim - column);
        let row = self.call.channels.results(token);
        let group = self.head * layer.groups / layer.heads;
        // SAFETY: `x`, `B` and `C` lie within the token's channels, which nobody writes any more; the results of a head
        // are written by this task alone. The caller vouches for the columns and the instruction set.
        unsafe {
            let [write, read] = [0, 1].map(|which| {
                let first = inner + (which * layer.groups + group) * layer.state_dim;
                std::slice::from_raw_parts(row.add(first).cast_const(), layer.state_dim)
            });
            let x = part::<S>(row, at, count);
            let found = take_in::<S>(columns, [read, write], decay, S::mul(S::splat(time), x), 1);
            let y = S::fma(S::splat(layer.skips[self.head]), x, found);
            let gate = silu::<S>(part::<S>(self.call.channels.row(token).as_ptr(), at, count));
            store_up_to::<S>(self.call.out.at(token * inner + at), count, S::mul(y, gate));
        }
    }
}

/// The norms of a token's results.
struct NormToken<'a> {
    call: &'a Call<'a>,
    token: usize,
}

impl Task for NormToken<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let layer = self.call.layer;
        let (inner, width) = (layer.inner(), layer.inner() / layer.groups);
        for first in (0..inner).step_by(width) {
            let at = self.call.out.at(self.token * inner + first);
            // SAFETY: all heads of the token are written, and this task alone has them now; the caller vouches for the
            // instruction set.
            unsafe {
                let results = std::slice::from_raw_parts(at.cast_const(), width);
                let inverse = S::splat(inverse_rms::<S>(results, layer.norm.epsilon));
                for column in (0..width).step_by(LANES) {
                    let count = LANES.min(width - column);
                    let factors = part::<S>(layer.norm.gamma.as_ptr(), first + column, count);
                    let x = S::mul(S::mul(part::<S>(at, column, count), inverse), factors);
                    store_up_to::<S>(at.add(column), count, x);
                }
            }
        }
    }
}
