//! Layers with a state: what a sequence carries from token to token has the same size at every length.
//!
//! The passes here compute whole texts. The window of a convolution and the state of a rule begin at 0 with each text.
//! The branches of a [`Tree`](crate::batch::Tree) go on from the stem's end, and their gradients add up there. Sums,
//! decays and states are in float32 at least.

mod convolution;
mod delta;
mod mamba;
mod passes;
mod short_conv;
#[cfg(test)]
mod testing;
mod texts;

pub(super) use self::{
    delta::{DeltaBlock, DeltaTape},
    mamba::{MambaBlock, MambaTape},
    short_conv::{ShortConvBlock, ShortConvTape},
};
