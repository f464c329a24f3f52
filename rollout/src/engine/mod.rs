//! Continuous batching over ONNX Runtime: token ids in, sampled completions out.
//!
//! An [`Engine`] owns one version of the weights, the keys and values of its sequences, and a queue of groups. Each
//! [`Engine::step`] admits waiting samples to free slots, prefilling each prompt once for its whole group, and decodes
//! one token for every running sequence, or several where drafts come true. What a completion becomes depends on the
//! weights and on its own key (seed, epoch, prompt id, sample) alone: not on the slots, on its neighbours or on the
//! threads.
//!
//! | file | subject |
//! |---|---|
//! | [`step`] | the engine and its loop |
//! | `scheduler`, `sequence` | which sample sits in which slot; a completion in the making |
//! | `check`, `error` | what is refused; what can go wrong |
//! | `backend` | what computes logits: packed or stock |
//! | `draft` | tokens that are computed ahead on trial |
//! | `packed` | the rewritten graph over [`rollout_kernels`] |
//! | `session`, `kv_cache`, `batch` | the published graph; its keys and values; the small inputs of a call |
//! | `logits`, `cuda` | output of a call; memory of a device |
//! | `candidates`, `captured` | sampling from logits that stay on a device; steps as CUDA graphs |
//! | `binding`, [`runtime`] | the unsafe layer over ONNX Runtime; finding the library |
//! | `placement`, `tensorrt` | which provider runs which nodes; what TensorRT is set to |
//! | `swap` | taking new weights into use |
//! | [`memory`] | the memory plan |
//! | [`profile`] | where the time goes |
//! | [`types`] | requests, results, options |

mod backend;
mod batch;
mod binding;
mod candidates;
mod captured;
mod check;
mod cuda;
mod draft;
mod error;
mod kv_cache;
mod logits;
pub mod memory;
mod packed;
mod placement;
pub mod profile;
pub mod runtime;
mod scheduler;
mod sequence;
mod session;
pub mod step;
mod swap;
mod tensorrt;
pub mod types;

pub(crate) use check::positions_of;
pub use error::EngineError;
pub use memory::{MemoryPlan, auto_max_num_seqs, available_memory, memory_plan, plan_memory};
pub use profile::Profile;
pub(crate) use session::{SessionOptions, load};
pub use step::Engine;
pub use types::{EngineOptions, FinishedSequence, GroupRequest, Kernels, StopWatch, SwapReport, WeightSource};

#[cfg(test)]
mod golden_tests;
