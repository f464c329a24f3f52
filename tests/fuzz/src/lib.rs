//! A fuzz target for everything that is parsed: a parser, the conditions that it must keep besides not panicking, and
//! seeds.
//!
//! `tests/targets.rs` runs each for ten seconds as part of the suite, with [`harness::fuzz`]; `cargo xtask fuzz` runs a
//! single target for as long as the user asks, with libFuzzer and coverage. An input that once failed lies in `found/`,
//! in the folder of its target, and is tried first. Tests beside the code do the same for parsers that no other crate
//! can call: answers of reward programs, foreign configurations, requests over HTTP, and the state of a trainer.

mod data;
mod files;
mod models;
mod words;

use std::{fs, path::Path};

/// A parser to try.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Parses an input and checks the result.
    pub parse: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 18] = [
    Target { name: "frames", seeds: files::frame_seeds, parse: files::frame },
    Target { name: "fleet_frames", seeds: files::fleet_seeds, parse: files::fleet },
    Target { name: "endpoint", seeds: files::endpoint_seeds, parse: files::endpoint },
    Target { name: "manifest", seeds: files::manifest_seeds, parse: files::manifest },
    Target { name: "rounded", seeds: files::rounded_seeds, parse: files::rounded },
    Target { name: "graph", seeds: files::graph_seeds, parse: files::graph },
    Target { name: "safetensors", seeds: files::safetensors_seeds, parse: files::safetensors },
    Target { name: "index", seeds: files::index_seeds, parse: files::index },
    Target { name: "store_index", seeds: files::store_index_seeds, parse: files::store_index },
    Target { name: "config_json", seeds: models::config_seeds, parse: models::config },
    Target { name: "model_directory", seeds: models::directory_seeds, parse: models::directory },
    Target { name: "tokenizer", seeds: models::tokenizer_seeds, parse: models::tokenizer },
    Target { name: "template", seeds: models::template_seeds, parse: models::template },
    Target { name: "dataset", seeds: data::dataset_seeds, parse: data::dataset },
    Target { name: "dataset_card", seeds: data::card_seeds, parse: data::card },
    Target { name: "run_toml", seeds: words::run_toml_seeds, parse: words::run_toml },
    Target { name: "answers", seeds: words::answer_seeds, parse: words::answer },
    Target { name: "tool_calls", seeds: words::tool_calls_seeds, parse: words::tool_calls },
];

/// Inputs of a target: inputs that once failed, then its seeds.
///
/// # Panics
/// When a file of `found/` cannot be read.
#[must_use]
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("found").join(target.name);
    let files = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = files.map(|entry| entry.expect("an entry of a folder").path()).collect();
    paths.sort();
    let found = paths.iter().map(|path| fs::read(path).expect("a readable file"));
    found.chain((target.seeds)()).collect()
}

/// Bytes as a parser of text gets them.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}
