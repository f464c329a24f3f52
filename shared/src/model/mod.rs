//! Models on disk: the directory with its `config.json`, the manifest of an export's weights, the canaries of a
//! version, and how a base is quantised.

pub mod adapted;
pub mod base_format;
pub mod canaries;
pub mod manifest;
pub mod model_config;
pub mod model_dir;
mod python_json;
