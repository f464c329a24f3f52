//! A store without room, and a host without room.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use shared_store::{Store, StoreError};

use crate::{assert_same, version};

/// Variable that names the folder with little room, for a child process.
const LITTLE_ROOM: &str = "STORE_TEST_LITTLE_ROOM";
/// A file system with room for two chunks of three.
const MOUNT: &str = "mount -t tmpfs -o size=16m tmpfs \"$0\" && exec \"$@\"";
/// No file of more than one chunk; the signal for a larger one becomes an error.
const LIMIT: &str = "trap '' XFSZ && ulimit -f 18000 && exec \"$0\" \"$@\"";

/// Runs the same test in a child process whose folder is a small file system.
fn within_a_small_file_system(folder: &Path, test: &str) -> Option<bool> {
    let inside = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", MOUNT]).arg(folder).arg(program).args(arguments).env(LITTLE_ROOM, folder);
        command.status().is_ok_and(|status| status.success())
    };
    let own = std::env::current_exe().unwrap();
    inside(Path::new("true"), &[]).then(|| inside(&own, &[test, "--exact", "--nocapture"]))
}

/// Runs the same test in a child process that may not write large files: its error is another one, with the same
/// meaning here.
fn with_small_files(folder: &Path, test: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", LIMIT]).arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    command.env(LITTLE_ROOM, folder).status().unwrap().success()
}

/// The test in the child process, in the folder with little room: `source` is a published folder, `large` a store with
/// room.
fn tried(little: &Path) {
    let dir = little.parent().unwrap();
    let source = dir.join("version-1");
    let large = Store::open(&dir.join("large").display().to_string()).unwrap();
    let published = blake3::Hash::from_hex(fs::read_to_string(dir.join("hash")).unwrap()).unwrap();

    // The store is full. Earlier objects stay, and objects that were sent in vain take no room.
    let store = Store::open(&little.join("store").display().to_string()).unwrap();
    let small = dir.join("small");
    let kept = store.publish("v0", &small, &()).unwrap();
    let error = store.publish("v1", &source, &()).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("weights.data") && error.to_string().contains("store_versions"), "{error}");
    let held = store.list(&()).unwrap();
    assert_eq!(held.iter().map(|held| held.prefix.as_str()).collect::<Vec<_>>(), ["v0"]);
    store.fetch("v0", &kept.blake3, &little.join("v0"), &()).unwrap();
    assert_same(&little.join("v0"), &small);

    // The host is full.
    let error = large.fetch("v1", published.as_bytes(), &little.join("v1"), &()).unwrap_err();
    assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
    assert!(error.to_string().contains("goes on from there"), "{error}");
    assert!(!little.join("v1").exists());
    assert_same(&little.join("v0"), &small);
}

fn prepared() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = version(dir.path(), 1);
    fs::create_dir(dir.path().join("small")).unwrap();
    fs::write(dir.path().join("small/weights.data"), "small").unwrap();
    let large = Store::open(&dir.path().join("large").display().to_string()).unwrap();
    let published = large.publish("v1", &source, &()).unwrap();
    fs::write(dir.path().join("hash"), blake3::Hash::from_bytes(published.blake3).to_hex().as_str()).unwrap();
    let little = dir.path().join("little");
    fs::create_dir(&little).unwrap();
    (dir, little)
}

#[test]
fn no_room_is_an_error_that_leaves_what_was_there() {
    const TEST: &str = "full::no_room_is_an_error_that_leaves_what_was_there";
    if let Some(little) = std::env::var_os(LITTLE_ROOM) {
        return tried(Path::new(&little));
    }
    let (_dir, little) = prepared();
    match within_a_small_file_system(&little, TEST) {
        Some(passed) => assert!(passed, "in a small file system"),
        None => harness::skipped(TEST, "this user cannot mount a small file system"),
    }
    assert!(with_small_files(&little, TEST), "with small files");
}
