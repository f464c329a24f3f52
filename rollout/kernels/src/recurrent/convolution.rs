//! A causal convolution of each channel over its last few inputs.

use super::{
    super::{
        parallel::Shared,
        simd::{LANES, Simd, Task, load_up_to, silu, store_up_to},
        spans::Span,
        states::LayerState,
    },
    LayerStates, is_new,
};

/// Taps of every channel: `y_t = bias + Σ_j taps_j u_(t - kernel + 1 + j)`, with zeros before the first input.
#[derive(Debug, Clone, Copy)]
pub struct Convolution<'a> {
    /// `[blocks of channels][kernel][16]`.
    pub taps: &'a [f32],
    /// `[channels]`, in whole blocks.
    pub bias: Option<&'a [f32]>,
    /// Number of taps.
    pub kernel: usize,
    /// Number of channels.
    pub channels: usize,
}

/// Taps of every channel in the layout of the kernels.
#[derive(Debug)]
pub struct Taps {
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    kernel: usize,
    channels: usize,
}

impl Taps {
    /// Takes taps `[channels][1][kernel]` and a bias `[channels]`, as checkpoints have them.
    #[must_use]
    pub fn of(taps: &[f32], bias: Option<&[f32]>, kernel: usize) -> Self {
        let (packed, channels) = (pack_taps(taps, kernel), taps.len() / kernel);
        Self { taps: packed, bias: bias.map(pack_channels), kernel, channels }
    }

    /// The convolution with them.
    #[must_use]
    pub fn convolution(&self) -> Convolution<'_> {
        Convolution { taps: &self.taps, bias: self.bias.as_deref(), kernel: self.kernel, channels: self.channels }
    }
}

/// Taps `[channels][1][kernel]` in the layout of [`Convolution::taps`].
fn pack_taps(taps: &[f32], kernel: usize) -> Vec<f32> {
    let mut packed = vec![0.0; kernel * (taps.len() / kernel).next_multiple_of(LANES)];
    for (channel, taps) in taps.chunks_exact(kernel).enumerate() {
        let (block, lane) = (channel / LANES, channel % LANES);
        for (j, tap) in taps.iter().enumerate() {
            packed[(block * kernel + j) * LANES + lane] = *tap;
        }
    }
    packed
}

/// One number for each channel, in whole blocks.
fn pack_channels(values: &[f32]) -> Vec<f32> {
    let mut packed = values.to_vec();
    packed.resize(values.len().next_multiple_of(LANES), 0.0);
    packed
}

impl Convolution<'_> {
    fn width(&self) -> usize {
        self.channels.next_multiple_of(LANES)
    }

    /// # Panics
    /// When sizes do not fit each other or the state.
    pub(super) fn check(&self, state: LayerState) {
        assert!(self.kernel >= 2, "a kernel of {} taps", self.kernel);
        assert_eq!(self.taps.len(), self.kernel * self.width(), "the taps");
        assert!(self.bias.is_none_or(|bias| bias.len() == self.width()), "the bias");
        assert_eq!((state.kept, state.channels), (self.kernel - 1, self.channels), "the window");
    }
}

/// What goes into a convolution and what is made of its results, for a block of channels.
///
/// # Safety
/// Implementations may touch the channels `channel..channel + count` of one token alone. The instruction set of `S`
/// must be available.
pub(super) unsafe trait Signal {
    unsafe fn input<S: Simd>(&self, token: usize, channel: usize, count: usize) -> S::V;
    unsafe fn output<S: Simd>(&self, token: usize, channel: usize, count: usize, y: S::V);
}

/// A signal whose channels lie within the inputs of a layer, and whose results go through SiLU.
pub(super) struct Channels<'a> {
    /// Inputs of the layer.
    x: &'a [f32],
    /// Inputs of a token, and where its channels begin among them.
    width: usize,
    first: usize,
    channels: usize,
    /// `[tokens, channels]`.
    results: Shared<f32>,
}

impl<'a> Channels<'a> {
    /// Of `x`, rows of `width` inputs, the channels that begin at `first`. `scratch` holds the results.
    pub fn new(
        x: &'a [f32],
        [width, first]: [usize; 2],
        Convolution { channels, .. }: Convolution<'_>,
        scratch: &'a mut Vec<f32>,
    ) -> Self {
        let results = x.len() / width * channels;
        if scratch.len() < results {
            scratch.resize(results, 0.0);
        }
        Self { x, width, first, channels, results: Shared::new(&mut scratch[..results]) }
    }

    /// All inputs of a token.
    pub fn row(&self, token: usize) -> &'a [f32] {
        &self.x[token * self.width..(token + 1) * self.width]
    }

    /// The results of a token.
    pub fn results(&self, token: usize) -> *mut f32 {
        self.results.at(token * self.channels)
    }
}

// SAFETY: only the named channels of the token's inputs and results are touched.
unsafe impl Signal for Channels<'_> {
    #[inline(always)]
    unsafe fn input<S: Simd>(&self, token: usize, channel: usize, count: usize) -> S::V {
        // SAFETY: the caller vouches for the instruction set; the channels are those of the row.
        unsafe { part::<S>(self.row(token)[self.first..].as_ptr(), channel, count) }
    }

    #[inline(always)]
    unsafe fn output<S: Simd>(&self, token: usize, channel: usize, count: usize, y: S::V) {
        // SAFETY: as above; nobody else writes these channels of the token.
        unsafe { store_up_to::<S>(self.results(token).add(channel), count, silu::<S>(y)) };
    }
}

/// Channels of a task.
const CHANNELS: usize = 16 * LANES;

/// Some channels of a sequence.
pub(super) struct Piece<'a, G> {
    convolution: &'a Convolution<'a>,
    signal: &'a G,
    span: &'a Span,
    states: LayerStates,
    first: usize,
}

impl<'a, G: Signal> Piece<'a, G> {
    /// How many pieces the channels of a sequence have.
    pub fn count(convolution: &Convolution<'_>) -> usize {
        convolution.channels.div_ceil(CHANNELS)
    }

    /// The piece of a number.
    pub fn of(
        convolution: &'a Convolution<'a>,
        signal: &'a G,
        span: &'a Span,
        states: LayerStates,
        number: usize,
    ) -> Self {
        Self { convolution, signal, span, states, first: number * CHANNELS }
    }
}

impl<G: Signal> Task for Piece<'_, G> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for channel in (self.first..self.convolution.channels.min(self.first + CHANNELS)).step_by(LANES) {
            // SAFETY: the caller vouches for the instruction set; sizes are checked, and each task has channels or a
            // sequence of its own (`Spans::cut`).
            unsafe { convolve::<S, _>(self.convolution, self.signal, self.span, &self.states, channel) };
        }
    }
}

/// Convolves the channels `channel..channel + 16`, as far as there are so many, of a sequence's tokens.
///
/// The window moves on in place. A local array would be moved by `memmove`, since its length is known only at run time.
///
/// # Safety
/// The instruction set of `S` must be available, sizes be checked, `channel` begin a block, and nobody else touch these
/// channels of the sequence.
#[inline(always)]
pub(super) unsafe fn convolve<S: Simd, G: Signal>(
    convolution: &Convolution<'_>,
    signal: &G,
    span: &Span,
    states: &LayerStates,
    channel: usize,
) {
    let Convolution { taps, bias, kernel, channels } = *convolution;
    let (count, kept) = (LANES.min(channels - channel), kernel - 1);
    let window = states.window(span).wrapping_add(channel * kept);
    // SAFETY: taps, bias and window have whole blocks of channels; for the rest the caller vouches.
    unsafe {
        let zero = S::splat(0.0);
        if is_new(span) {
            for j in 0..kept {
                S::store(window.add(j * LANES), zero);
            }
        }
        let taps = taps.as_ptr().add(channel * kernel);
        let start = match bias {
            Some(bias) => S::load(bias.as_ptr().add(channel)),
            None => zero,
        };
        for token in span.tokens.clone() {
            let newest = signal.input::<S>(token, channel, count);
            let mut y = S::fma(S::load(taps), S::load(window), start);
            for j in 1..kept {
                let input = S::load(window.add(j * LANES));
                S::store(window.add((j - 1) * LANES), input);
                y = S::fma(S::load(taps.add(j * LANES)), input, y);
            }
            S::store(window.add((kept - 1) * LANES), newest);
            y = S::fma(S::load(taps.add(kept * LANES)), newest, y);
            signal.output::<S>(token, channel, count, y);
        }
    }
}

/// Some numbers of a row, zeros behind them.
///
/// # Safety
/// As for [`load_up_to`].
#[inline(always)]
pub(super) unsafe fn part<S: Simd>(row: *const f32, first: usize, count: usize) -> S::V {
    // SAFETY: the caller vouches for all of it.
    unsafe { load_up_to::<S>(row.add(first), count) }
}
