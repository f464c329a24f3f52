//! Models on disk: the directory with its `config.json`, the manifest of an export's weights, and the canaries of a
//! version.

pub mod canaries;
pub mod manifest;
pub mod model_config;
pub mod model_dir;
