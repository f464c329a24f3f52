//! The way of an edition out of the store.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use exporters::ExportError;
use rollout_rounded::{RoundedError, unpack};
use shared::{
    RunDir, WeightManifest,
    channel::fleet::{Difference, Edition},
    files::atomic::{self, named},
    model::manifest::MANIFEST_FILE,
};
use shared_store::{Fetched, Store, StoreError, Watch};

use super::{BASE, Origin, incoming, prefix, prefix_of_difference, remove};

/// An edition that is here, in its folder.
#[derive(Debug, Clone)]
pub struct Have {
    /// Which.
    pub edition: Edition,
    /// Where it is.
    pub dir: PathBuf,
}

/// What came from the store.
#[derive(Debug, Clone, Default)]
pub struct Came {
    /// Bytes.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Why it did not come by the shorter way that there was.
    pub detour: Option<String>,
}

impl Came {
    fn add(&mut self, more: Fetched) {
        self.bytes += more.bytes;
        self.seconds += more.seconds;
    }
}

/// Why an edition did not come.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What came cannot be unpacked.
    #[error(transparent)]
    Rounded(#[from] RoundedError),
    /// This side's disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl FetchError {
    /// Whether the store has something else than was published, or nothing any more.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Store(StoreError::Corrupted { .. } | StoreError::NotFound { .. }))
    }

    /// Whether this side's disk has no room.
    pub fn is_full(&self) -> bool {
        let error = match self {
            Self::Store(StoreError::DiskFull(_)) => return true,
            Self::Io(error) | Self::Rounded(RoundedError::Io(error) | RoundedError::Export(ExportError::Io(error))) => {
                error
            }
            Self::Store(_) | Self::Rounded(_) => return false,
        };
        matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Fetches an edition to where a run directory has that version: by a difference to what is here, if there is one; with
/// the export that it is added to, if it is an adapter. Whole or not at all. What is there of another edition of the
/// version is replaced.
///
/// # Errors
/// Those of the store, of what it gave, or of the file system.
pub fn fetch(
    origin: &Origin,
    edition: &Edition,
    have: Option<&Have>,
    run_dir: &RunDir,
    watch: &dyn Watch,
) -> Result<Came, FetchError> {
    let target = run_dir.version(edition.version);
    let store = match origin {
        Origin::Learner(learner) => {
            link(learner, edition, &target)?;
            return Ok(Came::default());
        }
        Origin::Store(store) => store,
    };
    if let Some(base) = &edition.base {
        return fetch_adapter(store, edition, base, run_dir, watch);
    }
    let mut came = Came::default();
    if !edition.rounded {
        came.add(store.fetch(&prefix(edition.version), &edition.blake3, &target, watch)?);
        return Ok(came);
    }
    let shorter = have.and_then(|have| {
        let leads_from = |difference: &&Difference| difference.from_blake3 == have.edition.blake3;
        edition.differences.iter().find(leads_from).map(|difference| (have, difference))
    });
    if let Some((have, difference)) = shorter {
        match by_difference(store, edition, have, difference, run_dir, watch, &mut came) {
            Ok(()) => return Ok(came),
            Err(error) if watch.give_up() => return Err(error),
            Err(error) => {
                tracing::warn!("weights v{} are fetched whole: {error}", edition.version);
                came.detour = Some(error.to_string());
            }
        }
    }
    let packed = incoming(run_dir, edition.version, "whole");
    came.add(store.fetch(&prefix(edition.version), &edition.blake3, &packed, watch)?);
    unpack_to(&packed, None, &target)?;
    Ok(came)
}

fn by_difference(
    store: &Store,
    edition: &Edition,
    have: &Have,
    difference: &Difference,
    run_dir: &RunDir,
    watch: &dyn Watch,
    came: &mut Came,
) -> Result<(), FetchError> {
    let packed = incoming(run_dir, edition.version, "difference");
    let prefix = prefix_of_difference(difference.from, edition.version);
    came.add(store.fetch(&prefix, &difference.blake3, &packed, watch)?);
    unpack_to(&packed, Some(&have.dir), &run_dir.version(edition.version))
}

/// Looks whether a version is still where the learner has left it.
///
/// # Errors
/// One that is not there, or that is another one.
pub fn look_in_place(learner: &RunDir, edition: &Edition) -> io::Result<()> {
    let version = learner.version(edition.version);
    let why = match fs::read(version.join(MANIFEST_FILE)) {
        Ok(manifest) if blake3::hash(&manifest) == edition.blake3 => return Ok(()),
        Ok(_) => "it is not what was announced".to_owned(),
        Err(error) => error.to_string(),
    };
    let version = version.display();
    Err(io::Error::other(format!("{version}: {why}; a worker on another host than the run needs a `weights_store`")))
}

/// Has a version be read where the learner has left it.
fn link(learner: &RunDir, edition: &Edition, target: &Path) -> io::Result<()> {
    look_in_place(learner, edition)?;
    target.parent().map_or(Ok(()), fs::create_dir_all).map_err(named(target))?;
    remove(target);
    symlink(learner.version(edition.version), target).map_err(named(target))
}

/// Makes a version of what came, which goes.
fn unpack_to(packed: &Path, base: Option<&Path>, target: &Path) -> Result<(), FetchError> {
    let unpacked = unpack(packed, base, target);
    remove(packed);
    unpacked?;
    Ok(())
}

fn fetch_adapter(
    store: &Store,
    edition: &Edition,
    base: &[u8; 32],
    run_dir: &RunDir,
    watch: &dyn Watch,
) -> Result<Came, FetchError> {
    let export = run_dir.root().join(format!("{BASE}-{}", blake3::Hash::from_bytes(*base).to_hex()));
    let mut came = Came::default();
    if !export.is_dir() {
        came.add(store.fetch(BASE, base, &export, watch)?);
    }
    let aside = incoming(run_dir, edition.version, "adapter");
    came.add(store.fetch(&prefix(edition.version), &edition.blake3, &aside, watch)?);
    set_base(&export, &aside)?;
    atomic::place_dir(&aside, &run_dir.version(edition.version))?;
    Ok(came)
}

/// Writes into the manifest of an adapter where the export is that it is added to.
fn set_base(export: &Path, dir: &Path) -> io::Result<()> {
    let path = dir.join(MANIFEST_FILE);
    let mut manifest: WeightManifest = serde_json::from_slice(&fs::read(&path).map_err(named(&path))?)?;
    if let Some(adapter) = &mut manifest.adapter {
        adapter.base = export.to_path_buf();
    }
    atomic::write(&path, &serde_json::to_vec_pretty(&manifest)?)
}
