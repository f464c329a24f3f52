//! Layers that carry a state from token to token in the place of keys and values.
//!
//! | file | subject |
//! |---|---|
//! | `convolution` | a causal convolution over the last few inputs of each channel, which all kinds of layers have |
//! | `matrix` | sixteen columns of a matrix that take in a token |
//! | [`short_conv`] | the gated short convolution of LFM2 |
//! | [`delta_rule`] | the gated delta rule of Qwen3.5 |
//! | [`mamba`] | the state space of Mamba-2, of Granite 4 |
//!
//! A token is computed from its state alone, in one order of operations. So a sequence has the same bits whether its
//! tokens come in one call or in many, alone or beside others, and on any number of threads.

mod convolution;
pub mod delta_rule;
pub mod mamba;
mod matrix;
pub mod short_conv;

pub use convolution::{Convolution, Taps};

use super::{
    parallel::Shared,
    spans::Span,
    states::{LayerState, States},
};

/// The states of a layer, of which each task writes its own part.
#[derive(Clone, Copy)]
struct LayerStates {
    data: Shared<f32>,
    first: usize,
    stride: usize,
    state: LayerState,
}

impl LayerStates {
    fn of(states: &mut States, layer: usize) -> Self {
        let ((first, stride), state) = (states.place(layer), states.shape().layers[layer]);
        Self { data: Shared::new(states.data()), first, stride, state }
    }

    /// First word of a sequence's state in the layer: the window of its convolution.
    fn window(&self, span: &Span) -> *mut f32 {
        self.data.at(self.first + block(span) * self.stride)
    }

    /// First word of a matrix.
    fn matrix_at(&self, span: &Span, head: usize) -> *mut f32 {
        self.window(span).wrapping_add(self.state.window_len() + head * self.state.matrix_len())
    }

    /// First word of a matrix, which is all zeros where nothing comes before the tokens of the call.
    ///
    /// # Safety
    /// Nobody else may touch the matrix.
    unsafe fn matrix(&self, span: &Span, head: usize) -> *mut f32 {
        let matrix = self.matrix_at(span, head);
        if is_new(span) {
            // SAFETY: the matrix lies within the block of the sequence; for the rest the caller vouches.
            unsafe { std::slice::from_raw_parts_mut(matrix, self.state.matrix_len()) }.fill(0.0);
        }
        matrix
    }
}

fn block(span: &Span) -> usize {
    span.state.expect("every sequence has a state where a layer keeps one") as usize
}

/// Whether nothing comes before the tokens of a call, so that the state is all zeros, whatever its block holds.
fn is_new(span: &Span) -> bool {
    span.prefix_len + span.own_len == 0
}
