//! What the documents tell users to write is what the programs accept.

use std::{fs, path::Path};

use harness::cli;
use shared::{
    config::{layers, option, reference},
    methods::page,
    metrics,
};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The first fenced block of a language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("the document has such a block");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_configuration_of_the_readme_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    fs::write(&file, block(&document("README.md"), "toml")).unwrap();
    let config = layers::load(Some(&file), &Vec::new()).unwrap();
    config.validate().unwrap();
    assert_eq!(config.max_steps, Some(200));
    for function in &config.reward_funcs {
        let listed = cli::run("rollout", ["rewards"]).success().stdout;
        assert!(listed.contains(function), "{function} is not in: {listed}");
    }
}

#[test]
fn the_page_of_options_is_what_the_code_says() {
    let stale = document("docs/configuration.md") != reference::page();
    assert!(!stale, "docs/configuration.md is stale: run `cargo xtask docs` and commit the page");
}

#[test]
fn the_page_of_metrics_is_what_the_code_says() {
    let stale = document("docs/metrics.md") != metrics::page();
    assert!(!stale, "docs/metrics.md is stale: run `cargo xtask docs` and commit the page");
}

#[test]
fn the_page_of_methods_is_what_the_code_says() {
    let stale = document("docs/losses.md") != page::page();
    assert!(!stale, "docs/losses.md is stale: run `cargo xtask docs` and commit the page");
}

/// TRL counts optimiser updates where we count generation batches; who comes from there reads it at the option and in README.
#[test]
fn what_is_counted_otherwise_than_in_trl_is_said() {
    let readme = document("README.md");
    let row = readme.lines().find(|line| line.starts_with("| `max_steps`")).expect("README's table has the counts");
    for key in ["max_steps", "save_steps", "eval_steps", "ref_model_sync_steps"] {
        let doc = option(key).unwrap().doc;
        assert!(doc.contains("generation batches") && doc.contains("TRL") && doc.contains("updates"), "{key}: {doc}");
        assert!(row.contains(&format!("`{key}`")), "{key}: {row}");
    }
    assert!(row.contains("generation batches") && row.contains("optimiser updates"), "{row}");
    assert!(option("warmup_steps").unwrap().doc.contains("Optimiser updates (not steps)"));
}

/// Only an fp32 sampler agrees with the learner; one that rounds does not, synchronous or not.
#[test]
fn the_correction_is_without_effect_for_exact_samplers_only() {
    let readme = document("README.md");
    for line in readme.lines().filter(|line| line.to_lowercase().contains("without effect")) {
        assert!(line.contains("fp32") && line.contains("int8, bf16 or fp16"), "{line}");
    }
}
