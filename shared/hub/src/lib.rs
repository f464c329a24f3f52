//! Models and datasets by their names on the Hugging Face Hub: what is wanted of them is downloaded into the cache that
//! Hugging Face's other programs use too, and its folder there takes the name's place.
//!
//! [`locate`] does that for a whole configuration and [`Hub::model`] and [`Hub::dataset`] for one name. Names are told
//! from paths in [`shared::config::on_hub`]; the environment variables that are heeded are those of [`Settings`].
//! Downloads go on where they were cut, and what has arrived is compared with the hashes that the Hub gives.
//!
//! Names are replaced before anything else sees a configuration.

mod attempt;
mod download;
mod error;
mod hub;
mod located;
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
pub use located::{locate, locate_dataset, locate_model};
pub use settings::Settings;
pub use snapshot::Snapshot;
