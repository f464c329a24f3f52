//! A store through its public functions: on a folder, on a real server with the protocol of S3, and with faults on the
//! way.

mod damage;
mod full;
mod proxy;
mod tried;
mod words;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use harness::s3::Server;
use shared_store::{CHUNK_BYTES, Store, StoreError, Watch};
use tempfile::TempDir;

/// Bytes of a file with three chunks.
const THREE_CHUNKS: usize = 2 * CHUNK_BYTES as usize + 12_345;

/// A store, and the folder with its objects as files.
struct TestStore {
    store: Store,
    objects: PathBuf,
    /// The server ends with the test.
    _server: Option<Server>,
    dir: TempDir,
}

impl TestStore {
    fn folder() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let objects = dir.path().join("store");
        let store = Store::open(&objects.display().to_string()).unwrap();
        Self { store, objects, _server: None, dir }
    }

    fn s3() -> Self {
        let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
        let store = Store::open_with("s3://bucket/runs/one", server.variables(server.address)).unwrap();
        Self { store, objects: server.bucket().join("runs/one"), _server: Some(server), dir }
    }

    /// A store of both kinds.
    fn both() -> [Self; 2] {
        [Self::folder(), Self::s3()]
    }

    /// A path on this host.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The file that is an object of a publication.
    fn object(&self, prefix: &str, blake3: &[u8; 32], name: &str) -> PathBuf {
        let hash8 = &blake3::Hash::from_bytes(*blake3).to_hex()[..8];
        self.objects.join(format!("{prefix}-{hash8}")).join(name)
    }
}

/// Bytes that differ at every place and with every seed.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A folder with the files of a version.
fn version(dir: &Path, seed: u64) -> PathBuf {
    let folder = dir.join(format!("version-{seed}"));
    fs::create_dir(&folder).unwrap();
    let files =
        [("weights.data", bytes(seed, THREE_CHUNKS)), ("manifest.json", bytes(seed + 1000, 300)), ("empty", vec![])];
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
    }
    folder
}

/// Whether two folders have the same files.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let files = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
            .into_iter()
            .map(|name| (name.clone(), blake3::hash(&fs::read(dir.join(&name)).unwrap())))
            .collect::<Vec<_>>()
    };
    assert_eq!(files(one), files(other), "{} and {}", one.display(), other.display());
}

/// Gives up once so many bytes are there, and records how many there were.
struct Until {
    most: u64,
    seen: AtomicU64,
}

impl Until {
    fn new(most: u64) -> Self {
        Self { most, seen: AtomicU64::new(0) }
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Watch for Until {
    fn progress(&self, done: u64, total: u64) {
        assert!(done <= total, "{done} of {total}");
        self.seen.fetch_max(done, Ordering::Relaxed);
    }

    fn give_up(&self) -> bool {
        self.seen() >= self.most
    }
}

#[track_caller]
fn assert_says(error: &StoreError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "without `{word}`: {text}");
    }
}
