//! The gated short convolution (LFM2): `(b, c, u) = in(x)`, `y = c · conv(b · u)`.

use super::{
    super::{
        parallel::{Claims, Machine, Shared},
        simd::{Simd, store_up_to},
        spans::Spans,
        states::States,
    },
    Convolution, LayerStates,
    convolution::{Piece, Signal, part},
};

/// The part of a layer that does not change from call to call.
#[derive(Debug, Clone, Copy)]
pub struct ShortConv<'a> {
    /// The convolution over all channels of the layer.
    pub convolution: Convolution<'a>,
    /// Layer of the states.
    pub layer: usize,
}

impl ShortConv<'_> {
    /// Computes `out` (`[tokens, channels]`) of `x` (`[tokens, 3 channels]`: `b`, `c`, `u`), and moves the states on.
    ///
    /// # Panics
    /// When sizes do not fit each other, or a sequence has no state.
    pub fn run(&self, x: &[f32], spans: &Spans, states: &mut States, out: &mut [f32], machine: Machine<'_>) {
        let channels = self.convolution.channels;
        assert_eq!(x.len(), spans.tokens() * 3 * channels, "three numbers for each channel");
        assert_eq!(out.len(), spans.tokens() * channels, "the output");
        self.convolution.check(states.shape().layers[self.layer]);
        spans.check_states(states.shape().blocks);
        let states = LayerStates::of(states, self.layer);
        let call = Call { layer: self, x, out: Shared::new(out) };
        let pieces = Piece::<Call<'_>>::count(&self.convolution);
        let (isa, claims) = (machine.isa, Claims::new(spans.all.len() * pieces));
        machine.threads.run(&|| {
            claims.run_all(|task| {
                let span = &spans.all[task / pieces];
                isa.run(Piece::of(&self.convolution, &call, span, states, task % pieces));
            });
        });
    }
}

struct Call<'a> {
    layer: &'a ShortConv<'a>,
    x: &'a [f32],
    out: Shared<f32>,
}

// SAFETY: rows have three times the channels, and those of the output once; only the named channels are touched.
unsafe impl Signal for Call<'_> {
    #[inline(always)]
    unsafe fn input<S: Simd>(&self, token: usize, channel: usize, count: usize) -> S::V {
        let channels = self.layer.convolution.channels;
        let row = self.x[token * 3 * channels..].as_ptr();
        // SAFETY: the caller vouches for the instruction set; the channels are those of the row.
        unsafe { S::mul(part::<S>(row, channel, count), part::<S>(row, 2 * channels + channel, count)) }
    }

    #[inline(always)]
    unsafe fn output<S: Simd>(&self, token: usize, channel: usize, count: usize, y: S::V) {
        let channels = self.layer.convolution.channels;
        let row = self.x[token * 3 * channels..].as_ptr();
        // SAFETY: as above; nobody else writes these channels of the token.
        unsafe {
            let y = S::mul(part::<S>(row, channels + channel, count), y);
            store_up_to::<S>(self.out.at(token * channels + channel), count, y);
        }
    }
}
