//! Versions on their way into the store, and out of it.
//!
//! | file | subject |
//! |---|---|
//! | `publisher` | the hub's side: rounds, compares, sends, sends again what was damaged, and removes |
//! | `record` | what a hub has in the store, for the next one |
//! | `fetch` | a worker's side: the shortest way to an edition |

mod fetch;
mod publisher;
mod record;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use shared::{PolicyVersion, RunDir};
use shared_store::Watch;

pub(super) use fetch::{Came, FetchError, Have, fetch};
pub use publisher::{OnItsWay, Publisher, Sending, Trouble};

/// What the store calls the export that adapters are added to.
const BASE: &str = "base";
/// What the store calls configuration and tokenizer of the model.
pub(super) const MODEL: &str = "model";

/// What the store calls a version.
pub(crate) fn prefix(version: PolicyVersion) -> String {
    format!("v{:06}", version.0)
}

/// What the store calls a difference.
fn prefix_of_difference(from: PolicyVersion, to: PolicyVersion) -> String {
    format!("{}-from-{}", prefix(to), prefix(from))
}

/// Ends a transfer when it is set.
#[derive(Debug, Clone, Default)]
pub(super) struct GiveUp(pub Arc<AtomicBool>);

impl Watch for GiveUp {
    fn give_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Removes the versions of a folder but these.
pub(super) fn keep_only(run_dir: &RunDir, kept: &[PolicyVersion]) {
    let versions = run_dir.versions().unwrap_or_default();
    for version in versions.into_iter().filter(|version| !kept.contains(version)) {
        remove(&run_dir.version(version));
    }
}

/// Where a part of a version arrives that is not one yet.
fn incoming(run_dir: &RunDir, version: PolicyVersion, what: &str) -> PathBuf {
    run_dir.root().join("incoming").join(format!("{}-{what}", prefix(version)))
}

/// Removes what has come of other versions than the one that is waited for.
pub(super) fn forget_others(run_dir: &RunDir, wanted: PolicyVersion) {
    let incoming = run_dir.root().join("incoming");
    let is_part = |name: &str| name.ends_with(".part");
    let of_folder = |dir: &Path, goes: &dyn Fn(&str) -> bool| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_str().is_some_and(goes)).for_each(|entry| remove(&entry.path()));
    };
    let is_of_other = |name: &str| !name.starts_with(&prefix(wanted));
    of_folder(&incoming, &is_of_other);
    of_folder(&run_dir.weights(), &|name| is_part(name) && is_of_other(name));
}

/// Removes a folder of which nothing more is wanted.
fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => tracing::warn!("{}: {error}", path.display()),
        _ => (),
    }
}
