//! Support for tests: paths of the golden figures, of the optional data folder and of the built binaries; running a
//! binary; damaged inputs, a model made on the spot, and a channel within one process.
//!
//! The tests of the package run the built binaries through their command lines. Its folder `golden` has reference
//! figures, which its README explains.

#![forbid(unsafe_code)]

pub mod bench;
pub mod browser;
pub mod certificates;
pub mod cli;
pub mod fleet;
pub mod fuzz;
pub mod golden;
pub mod hub;
pub mod json_schema;
pub mod line;
pub mod load;
pub mod memory;
pub mod processes;
pub mod proxy;
pub mod s3;
pub mod timeline;
pub mod tiny_model;
pub mod training;

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

/// The golden figures: `TANDEM_GOLDEN_DIR`, else the copy in this package.
#[must_use]
pub fn golden_dir() -> PathBuf {
    std::env::var_os("TANDEM_GOLDEN_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("golden"), PathBuf::from)
}

/// Figures that this project makes itself: golden figures from elsewhere may lack them.
const OWN: [&str; 2] = ["adapter.json", "schedules.json"];

/// The folder of golden figures with `file` and its companions: this package's, if `TANDEM_GOLDEN_DIR` lacks a file
/// that this project makes itself.
#[must_use]
pub fn golden_dir_of(file: &str) -> PathBuf {
    let dir = golden_dir();
    let lacks = OWN.contains(&file) && !dir.join(file).exists();
    if lacks { Path::new(env!("CARGO_MANIFEST_DIR")).join("golden") } else { dir }
}

/// Folders of the tiny models among the golden figures. Golden figures from elsewhere may lack the second one.
const MODELS: [&str; 2] = ["models", "models-2026"];

/// Names of the tiny models among the golden figures, one of each family.
///
/// # Panics
/// When the folder of the first ones cannot be read.
pub fn golden_models() -> Vec<String> {
    let mut names: Vec<String> = MODELS.iter().flat_map(|folder| golden_models_in(folder)).collect();
    names.sort();
    names
}

/// Whether a tiny model is among the golden figures. Those from elsewhere may lack some.
///
/// # Panics
/// When this project's own figures lack it.
#[must_use]
pub fn has_golden_model(name: &str) -> bool {
    let found = golden_models().iter().any(|known| known == name);
    assert!(found || std::env::var_os("TANDEM_GOLDEN_DIR").is_some(), "{name} is not among the golden figures");
    found
}

/// As [`golden_models`], in one of the folders: `models`, whose families every format of exports knows, or
/// `models-2026`.
///
/// # Panics
/// When `models` cannot be read.
pub fn golden_models_in(folder: &str) -> Vec<String> {
    let path = golden_dir().join(folder);
    if folder != MODELS[0] && !path.exists() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry of a folder").file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The folder of one of the [`golden_models`].
pub fn golden_model_dir(name: &str) -> PathBuf {
    let folders = MODELS.iter().map(|folder| golden_dir().join(folder).join(name));
    folders.into_iter().find(|path| path.is_dir()).unwrap_or_else(|| golden_dir().join("models").join(name))
}

/// Figures of the tiny models: the cases of `model_numerics.json`, and those of `model_numerics_2026.json`.
///
/// # Panics
/// When the first file is missing or one of them is no such file.
#[must_use]
pub fn golden_numerics() -> Vec<serde_json::Value> {
    const NEWER: &str = "model_numerics_2026.json";
    let cases = |file: &str| {
        let golden = golden(file);
        assert_eq!(golden["kind"], "model_numerics", "{file}");
        golden["cases"].as_array().expect("a list of cases").clone()
    };
    let newer = if golden_dir().join(NEWER).exists() { cases(NEWER) } else { Vec::new() };
    let all: Vec<_> = cases("model_numerics.json").into_iter().chain(newer).collect();
    assert!(!all.is_empty());
    all
}

/// How far log-probs and logits of a case may be from its figures: more for families whose figures are themselves less
/// certain in fp32. `usual` is the bound of the older families; a case of the newer ones has `bound` at least.
///
/// # Panics
/// When the case has no deviation.
#[must_use]
pub fn golden_bound(case: &serde_json::Value, bound: f64, usual: f64) -> f64 {
    let deviation = &case["expected"]["fp32_vs_fp64_deviation"];
    let Some(logits) = deviation["logits"].as_f64() else { return usual };
    let logps = deviation["logps"].as_array().expect("deviations of log-probs");
    let largest = logps.iter().map(|value| value.as_f64().expect("a number")).fold(logits, f64::max);
    (3.0 * largest).max(bound)
}

/// One file of the golden figures, parsed.
///
/// # Panics
/// When the file is missing or no JSON: a missing file must fail a test, never skip it.
#[must_use]
pub fn golden(file: &str) -> serde_json::Value {
    let path = golden_dir_of(file).join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The data folder (GSM8K, tokenizers, a pretrained model) from `TANDEM_DATA_DIR`; without it, one visible line says
/// that the named test is skipped.
///
/// # Panics
/// When it is missing and `TANDEM_REQUIRE_DATA` is set.
#[must_use]
pub fn data_dir(test: &str) -> Option<PathBuf> {
    let found = std::env::var_os("TANDEM_DATA_DIR").map(PathBuf::from).filter(|p| p.is_dir());
    if found.is_none() {
        let required = std::env::var_os("TANDEM_REQUIRE_DATA").is_some();
        assert!(!required, "TANDEM_REQUIRE_DATA is set and TANDEM_DATA_DIR does not name a folder");
        skipped(test, "TANDEM_DATA_DIR does not name a folder");
    }
    found
}

/// Prints one visible line with the name of a skipped test and the reason: the machine lacks a tool or a right that it
/// could have.
///
/// # Panics
/// When `TANDEM_REQUIRE_TOOLS` is set, as in continuous integration, which installs every such tool.
pub fn skipped(test: &str, reason: &str) {
    let required = std::env::var_os("TANDEM_REQUIRE_TOOLS").is_some();
    assert!(!required, "TANDEM_REQUIRE_TOOLS is set and {test} would be skipped: {reason}");
    without_hardware(test, reason);
}

/// As [`skipped`], for things that no continuous integration has: a GPU, a Docker engine.
///
/// # Panics
/// When the file that `TANDEM_SKIPPED_FILE` names cannot be written: `cargo xtask test` takes its list from there.
pub fn without_hardware(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    // Not `eprintln!`, whose output the test harness hides when a test passes.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("TANDEM_SKIPPED_FILE") {
        let file = File::options().append(true).create(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Copies a folder with everything in it, into another one that is made if it is not there.
///
/// # Panics
/// At an error of the file system.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    let entries = std::fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    for entry in entries.map(|entry| entry.expect("an entry of a folder")) {
        let target = to.join(entry.file_name());
        if entry.file_type().expect("its type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
        }
    }
}

/// A binary of the workspace, built beside the running test.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let dir = exe.parent().and_then(Path::parent).expect("tests run from target/<profile>/deps");
    let path = dir.join(name);
    assert!(
        path.is_file(),
        "{} is not built; run `cargo build --workspace` with the same profile first",
        path.display()
    );
    path
}
