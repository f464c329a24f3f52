//! The engine on real models: agreement with transformers, independence of the batch, swaps of weights.

mod adapters;
mod batching;
mod bounds;
mod cancel;
mod constrained;
mod gate;
mod loaded_adapters;
mod reference;
mod rounded;
mod schedules;
mod states;
mod support;
mod swaps;
mod top_logprobs;
mod ways;
mod world;
