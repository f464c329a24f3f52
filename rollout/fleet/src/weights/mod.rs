//! Versions on their way into the store, and out of it. On one host there is no way to go: workers read what the
//! learner has left.
//!
//! [`Publisher`] is the [`WeightSender`](shared::WeightSender) of this transport. Its
//! [`WeightReceiver`](shared::WeightReceiver) lies with the [`worker`](crate::worker) and has `fetch` do the work.
//!
//! | file | subject |
//! |---|---|
//! | `publisher` | the coordinator's side: rounds, compares, sends, sends again what was damaged, and removes |
//! | `record` | what a coordinator has in the store, for the next one |
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

use anyhow::Context;
use shared::{PolicyVersion, RunDir};
use shared_store::{Store, Watch};

pub(super) use fetch::{Came, FetchError, Have, fetch, look_in_place};
pub use publisher::{OnItsWay, Publisher, Received, Sending, Trouble};

/// What the store calls the export that adapters are added to.
const BASE: &str = "base";
/// What the store calls configuration and tokenizer of the model.
pub(crate) const MODEL: &str = "model";

/// Where versions come from.
#[derive(Clone)]
pub enum Origin {
    /// The store.
    Store(Arc<Store>),
    /// A run directory of this host: they are read where the learner leaves them.
    Learner(RunDir),
}

impl Origin {
    /// The run directory, where there is one to read from, or else the store.
    pub fn of(store: &Arc<Store>, run_dir: Option<RunDir>) -> Self {
        run_dir.map_or_else(|| Self::Store(Arc::clone(store)), Self::Learner)
    }
}

/// Looks whether this worker can read the versions of a run that stay where the learner leaves them.
///
/// # Errors
/// When it cannot: it is on another host, in a container without `/dev/shm` of the host, or another user's.
pub(crate) fn sees_versions(run_dir: &RunDir) -> anyhow::Result<()> {
    let versions = run_dir.weights();
    let there = fs::read_dir(&versions).map(drop);
    there.with_context(|| {
        format!(
            "{}: the run leaves its versions there, for workers on its host, and they cannot be read from here; \
             workers elsewhere need a `weights_store`",
            versions.display()
        )
    })
}

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
