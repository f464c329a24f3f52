//! Continuous batching over ONNX Runtime: token ids in, sampled completions out.
//!
//! An [`Engine`] owns one version of the weights, the keys and values of its sequences, and a queue of groups. Each
//! [`Engine::advance`] admits waiting samples to free slots, prefilling each prompt once for its whole group, and
//! decodes one token for every running sequence, or several where drafts come true. What a completion becomes depends
//! on the weights and on its own key (seed, epoch, prompt id, sample) alone: not on the slots, on its neighbours or on
//! the threads.
//!
//! Before a version is installed, at the start as well, the gate compares hashes, norms and log-probs with those that
//! the learner has left. Norms of equal values are equal to the last bits, because both sides add them up in one order.
//! Log-probs may differ by a tolerance for each number format.
//!
//! | file | subject |
//! |---|---|
//! | [`step`] | the engine and its loop |
//! | `scheduler`, `sequence` | which sample sits in which slot; a completion in the making |
//! | `state` | what a completion leaves to go on from |
//! | `constraint` | the seam for constrained decoding |
//! | `check`, `error` | what is refused; what can go wrong |
//! | `draft`, `history` | tokens that are computed ahead on trial; what a group has written so far |
//! | `backend`, `open` | what computes logits; which of the next two does |
//! | `packed` | the rewritten graph over [`rollout_kernels`] |
//! | `stock` | the published graph, on any device |
//! | `device` | what only a device needs: its memory, execution providers, levers of decode steps |
//! | `genai` | folders for ONNX Runtime GenAI, in the place of a version |
//! | `storage` | memory that graphs read and write |
//! | `session`, `binding`, [`runtime`] | making sessions; the unsafe layer over ONNX Runtime; finding the library |
//! | `swap`, `gate` | taking new weights into use; whether they are what the learner published |
//! | [`memory`] | the memory plan |
//! | [`profile`] | where the time goes |
//! | [`types`] | requests, results, options |

mod backend;
mod binding;
mod check;
mod constraint;
mod device;
mod draft;
mod error;
mod gate;
mod genai;
mod history;
pub mod memory;
mod open;
mod packed;
pub mod profile;
pub mod runtime;
mod scheduler;
mod sequence;
mod session;
mod state;
pub mod step;
mod stock;
mod storage;
mod swap;
#[cfg(test)]
pub(crate) mod testing;
pub mod types;

pub(crate) use check::{export_options, positions_of};
pub use constraint::{Constrained, Constraint, ConstraintFactory};
pub use error::EngineError;
pub use gate::{distance_of, examine, tolerance_between};
pub use genai::GenAiFolder;
pub use memory::{available_memory, machine, plan_memory, sizes};
pub use open::check_model;
pub use packed::{AdapterLoader, LoadedAdapter, adapter_bytes};
pub use profile::Profile;
pub(crate) use session::{SessionOptions, load};
pub use state::State;
pub use step::Engine;
pub use types::{
    EngineOptions, FinishedSequence, GivenLogprob, GroupRequest, Kernels, MOST_TOP_LOGPROBS, Output, Request,
    StopCriterion, SwapReport, TopLogprob, WeightSource,
};

#[cfg(test)]
mod golden_tests;
