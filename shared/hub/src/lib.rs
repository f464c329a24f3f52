//! Models and datasets by their names on the Hugging Face Hub: the files that are needed are downloaded into the cache
//! of Hugging Face's other programs, and the folder there replaces the name.
//!
//! [`locate`] does that for a whole configuration and [`Hub::model`] and [`Hub::dataset`] for one name.
//! [`shared::config::on_hub`] tells names from paths; [`Settings`] has the environment variables that count. Downloads
//! resume after a cut, and arrived bytes are compared with the hashes that the Hub gives.
//!
//! [`Hub::push`] is the way back: files become one commit of a repository. It runs for the command alone that asks for
//! it.
//!
//! [`NamedModel`] is the model that a command line names: by path or name, or as a run or a version of one.
//!
//! Names are replaced before any other code sees a configuration.

mod attempt;
mod download;
mod error;
mod hub;
mod located;
mod named_model;
mod push;
mod repository;
mod request;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;
mod verify;
mod wanted;

pub use error::HubError;
pub use hub::Hub;
pub use located::{locate, locate_dataset, locate_model, name_in_cache};
pub use named_model::{NamedAdapter, NamedModel, NamedModelError};
pub use push::{PushError, PushFile, PushOrder, Pushed, check_names};
pub use settings::Settings;
pub use snapshot::Snapshot;
