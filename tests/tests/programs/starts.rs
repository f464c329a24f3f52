//! The built binaries start by themselves and load only what is theirs.

use std::process::Command;

use harness::{binary, cli};

const BINARIES: [&str; 5] = ["tandem", "rollout", "rollout-fleet", "rollout-serve", "learner"];

#[test]
fn binaries_start_without_cargo_and_without_environment() {
    let elsewhere = tempfile::tempdir().unwrap();
    for name in BINARIES {
        for flag in ["--version", "--help"] {
            let mut command = Command::new(binary(name));
            command.arg(flag).env_clear().current_dir(elsewhere.path());
            let finished = cli::finish(command).success();
            let version = format!("{name} {}", env!("CARGO_PKG_VERSION"));
            let expected = if flag == "--version" { &version } else { "Usage:" };
            assert!(finished.stdout.contains(expected), "{name} {flag}: {}", finished.stdout);
        }
    }
}

/// What the dynamic loader would load for a binary.
fn libraries(name: &str) -> String {
    let mut command = Command::new("ldd");
    command.arg(binary(name)).env_remove("LD_LIBRARY_PATH");
    cli::finish(command).success().stdout
}

#[test]
fn each_binary_links_only_what_is_its_own() {
    for name in BINARIES {
        let libraries = libraries(name);
        assert!(!libraries.contains("not found"), "{name}: {libraries}");
        assert!(!libraries.contains("onnxruntime"), "{name} opens ONNX Runtime by itself, if at all: {libraries}");
        assert_eq!(libraries.contains("libtorch"), name == "learner", "{name}: {libraries}");
    }
}
