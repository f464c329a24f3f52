//! The learner through its public interface, and its figures against those of PyTorch, transformers, TRL and verl.

// Tensor names end in their dimensions, as in the library.
#![allow(non_snake_case)]

mod checkpoint_state;
mod cli;
mod constrained;
mod critic;
mod given;
mod golden_advantage;
mod golden_head;
mod golden_kl_bias;
mod golden_loss;
mod golden_masked;
mod golden_model;
mod golden_normaliser;
mod golden_objective;
mod guard;
mod invariance;
mod ledger;
mod lora;
mod pair;
mod ranks;
mod recurrent;
mod scorer;
mod step;
mod stories;
mod support;
mod truncated;
