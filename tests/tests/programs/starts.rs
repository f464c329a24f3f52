//! The built binaries start by themselves and load only what is theirs.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use harness::{binary, cli};

const BINARIES: [&str; 6] = ["tandem", "rollout", "rollout-bridge", "rollout-fleet", "rollout-serve", "learner"];

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

/// The loader says which libraries it ends. libtorch would take its tables apart.
#[test]
fn a_learner_ends_without_the_destructors_of_libtorch() {
    let mut command = Command::new(binary("learner"));
    command.arg("--version").env("LD_DEBUG", "files");
    let said = cli::finish(command).success();
    let lines = |begin: &str| {
        let of_libtorch = said.stderr.lines().filter(|line| line.contains("libtorch_cpu.so"));
        of_libtorch.filter(|line| line.contains(begin)).count()
    };
    assert_eq!((lines("calling init:"), lines("calling fini:")), (1, 0), "{}", said.stderr);
    assert!(said.stdout.contains("learner"), "{}", said.stdout);
}

/// What the dynamic loader would load for a program.
fn libraries(program: &Path) -> String {
    let mut command = Command::new("ldd");
    command.arg(program).env_remove("LD_LIBRARY_PATH");
    cli::finish(command).success().stdout
}

/// The file that the loader would take for the learner's libtorch.
fn libtorch(learner: &Path) -> String {
    let libraries = libraries(learner);
    let found = libraries.lines().find_map(|line| line.trim().strip_prefix("libtorch_cpu.so => "));
    found.unwrap_or_else(|| panic!("{libraries}")).rsplit_once(" (").unwrap().0.to_owned()
}

/// A copy of the programs elsewhere takes the libraries beside it, although those that it was built with are still
/// there, and `tandem doctor` names them with their versions.
#[test]
fn libraries_beside_the_programs_win_over_those_of_the_build() {
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = elsewhere.path().canonicalize().unwrap();
    for name in ["tandem", "rollout", "learner"] {
        fs::copy(binary(name), folder.join(name)).unwrap();
    }
    let built_with = libtorch(&folder.join("learner"));
    assert!(!built_with.starts_with(folder.to_str().unwrap()), "{built_with}");
    let root = Path::new(&built_with).ancestors().nth(2).unwrap();
    symlink(root, folder.join("libtorch")).unwrap();
    assert_eq!(Path::new(&libtorch(&folder.join("learner"))), folder.join("libtorch/lib/libtorch_cpu.so"));

    symlink(shared::system::native::onnxruntime().unwrap().parent().unwrap(), folder.join("onnxruntime")).unwrap();
    let mut doctor = Command::new(folder.join("tandem"));
    doctor.arg("doctor").env_remove("LD_LIBRARY_PATH").env_remove("ORT_DYLIB_PATH");
    let said = cli::finish(doctor).stdout;
    for (library, version) in [("libtorch", "2.11.0"), ("onnxruntime", "1.31.1")] {
        let begin = format!("{version} ({}", folder.join(library).display());
        let found = said.lines().any(|line| line.contains(library) && line.contains(&begin));
        assert!(found, "{library} is not said to be {begin}: {said}");
    }
}

#[test]
fn each_binary_links_only_what_is_its_own() {
    for name in BINARIES {
        let libraries = libraries(&binary(name));
        assert!(!libraries.contains("not found"), "{name}: {libraries}");
        assert!(!libraries.contains("onnxruntime"), "{name} opens ONNX Runtime by itself, if at all: {libraries}");
        assert_eq!(libraries.contains("libtorch"), name == "learner", "{name}: {libraries}");
    }
}
