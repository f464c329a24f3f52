//! `checkpoint-N/`: a Hugging Face directory, an ONNX model and everything that exact resumption needs, in one folder.
//! `batches/step-N/` is the same without the ONNX model, with the groups of the step that came next.

mod open;
mod origin;
mod save;
mod state;
mod step_batch;

pub use open::{Found, find, find_first, open_rank, open_trainer, set_aside};
pub use origin::Origin;
pub use save::{Retention, fill, go_back, help_to_save, save};
pub use shared::run::resume::STATE_FILE;
pub use state::TrainerState;
pub use step_batch::{read_step_batch, save_step_batch};

/// AdamW's moments and step count.
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Folder of the reference policy, where it is not simply the model that the run started from.
const REFERENCE_DIR: &str = "reference";
/// Folder of the critic.
const CRITIC_DIR: &str = "critic";
