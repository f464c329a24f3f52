//! The example of `docs/extending.md`: its patch applies to the tree as it is, builds, and the new loss trains.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    cli,
    tiny_model::{self, SMALL},
    training::json_lines,
};
use serde_json::Value;

const PATCH: &str = "docs/extending/topr.patch";

/// Folders that are no sources.
const OUTPUTS: &[&str] = &["target", ".git", ".native", "runs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Crates of the workspace. The patched ones are compiled without optimisation, which is soon done, over dependencies
/// that are already there.
fn crates() -> Vec<String> {
    let manifest = |folder: &str| -> toml::Table {
        fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap().parse().unwrap()
    };
    let members = &manifest(".")["workspace"]["members"];
    let name =
        |member: &toml::Value| manifest(member.as_str().unwrap())["package"]["name"].as_str().unwrap().to_owned();
    members.as_array().unwrap().iter().map(name).collect()
}

fn copy(from: &Path, to: &Path, put: &dyn Fn(&Path, &Path) -> io::Result<()>, wanted: &dyn Fn(&str) -> bool) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if !wanted(&entry.file_name().to_string_lossy()) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target, put, wanted);
        } else {
            put(&entry.path(), &target).unwrap_or_else(|e| panic!("{}: {e}", target.display()));
        }
    }
}

/// A copy of the sources with the patch of the page applied.
fn patched(place: &Path) -> PathBuf {
    let tree = place.join("tree");
    let put = |from: &Path, to: &Path| fs::copy(from, to).map(|_| ());
    copy(&root(), &tree, &put, &|name| !OUTPUTS.contains(&name));
    std::os::unix::fs::symlink(root().join(".native"), tree.join(".native")).unwrap();
    let mut apply = Command::new("git");
    apply.args(["apply", "--whitespace=error"]).arg(root().join(PATCH)).current_dir(&tree);
    // Not as a part of the repository that the copy lies in.
    apply.env("GIT_CEILING_DIRECTORIES", place);
    let _ = cli::finish(apply).success();
    tree
}

/// Builds the programs of the copy, and returns the folder that they are in. What was compiled of other people's crates
/// comes from the folder of this test.
fn built(place: &Path, tree: &Path) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let name = profile.file_name().unwrap().to_str().unwrap();
    let target = place.join("target");
    let crates = crates();
    let foreign = |file: &str| {
        let bare = file.strip_prefix("lib").unwrap_or(file).replace('_', "-");
        !crates.iter().any(|krate| bare.strip_prefix(krate.as_str()).is_some_and(|rest| rest.starts_with(['-', '.'])))
    };
    copy(&profile.join("deps"), &target.join(name).join("deps"), &|from, to| fs::hard_link(from, to), &foreign);
    // Cargo writes into these, and goes by their times.
    for folder in [".fingerprint", "build"] {
        let to = target.join(name).join(folder);
        fs::create_dir_all(&to).unwrap();
        let entries = fs::read_dir(profile.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut cp = Command::new("cp");
        cp.arg("-Rp").args(entries.filter(|entry| foreign(&entry.file_name().unwrap().to_string_lossy()))).arg(to);
        let _ = cli::finish(cp).success();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--offline", "--locked", "--workspace"]);
    cargo.args(["--bin", "tandem", "--bin", "rollout", "--bin", "learner"]);
    cargo.args(if name == "debug" { &[][..] } else { &["--release"] });
    for krate in &crates {
        cargo
            .arg("--config")
            .arg(format!("profile.{}.package.{krate}.opt-level=0", if name == "debug" { "dev" } else { name }));
    }
    // As from a shell: build scripts look at what cargo tells of the package of this test.
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR";
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        cargo.env_remove(name);
    }
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", &target);
    let built = cli::finish(cargo).success();
    let others: Vec<&str> =
        built.stderr.lines().filter(|line| line.contains("Compiling") && !line.contains(" (/")).collect();
    assert!(others.is_empty(), "compiled anew: {others:#?}");
    target.join(name)
}

#[test]
fn the_example_loss_of_the_page_is_added_in_four_files_and_trains() {
    let patch = fs::read_to_string(root().join(PATCH)).unwrap();
    let files: Vec<&str> = patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
    assert!(files.len() <= 4, "{files:?}");
    let page = fs::read_to_string(root().join("docs/extending.md")).unwrap();
    for file in files {
        assert!(page.contains(&format!("(../{file})")), "docs/extending.md does not name {file}");
    }

    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tree = patched(place.path());
    let programs = built(place.path(), &tree);
    let dir = place.path();
    SMALL.write(&dir.join("model"), 5);
    tiny_model::write_tokenizer(&dir.join("model"));
    let rows: String = (1..=6).map(|n| format!("{{\"prompt\": \"{n}=\"}}\n")).collect();
    fs::write(dir.join("prompts.jsonl"), rows).unwrap();
    fs::write(
        dir.join("run.toml"),
        "model = \"model\"\ndataset = \"prompts.jsonl\"\nreward_funcs = [\"length:target=12\"]\nloss_type = \"topr\"\n\
         max_steps = 3\nnum_generations = 4\ngeneration_batch_size = 16\nper_device_train_batch_size = 16\n\
         max_completion_length = 16\nlearning_rate = 1e-2\n",
    )
    .unwrap();
    let capped = |cap: &str| -> Vec<f64> {
        let run = dir.join(format!("run-{cap}"));
        let mut train = Command::new(programs.join("tandem"));
        train.arg("train").arg(dir.join("run.toml")).arg("--output_dir").arg(&run);
        train.args(["--topr_cap", cap]).env("TANDEM_CACHE_DIR", dir.join("cache"));
        let _ = cli::finish(train).success();
        let records = json_lines(&run.join("metrics.jsonl"));
        assert_eq!(records.len(), 3);
        let number =
            |record: &Value, key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
        assert!(records.iter().all(|record| number(record, "grad_norm") > 0.0), "nothing is trained: {records:?}");
        records.iter().map(|record| number(record, "topr/capped_frac")).collect()
    };
    // With one update a step every ratio is 1. A lower cap then counts each token with a negative advantage, a higher
    // one none.
    let (low, high) = (capped("0.9"), capped("1.5"));
    assert!(low.iter().all(|&share| share > 0.0 && share < 1.0), "{low:?}");
    assert_eq!(high, [0.0; 3]);
}
