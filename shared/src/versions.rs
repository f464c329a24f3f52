//! Where the published versions of a run lie, and how much room they take: in shared memory where they fit, so that
//! publishing costs a copy, else on disk.
//!
//! `weights` in the run directory is then a link to a folder in shared memory. That folder lives as long as the processes of
//! its run: the launcher locks it, and the processes that it starts inherit the lock. One that nobody holds was left by
//! killed processes, and the next start removes it, whosever run it was; nothing is lost with it, since checkpoints are on
//! disk, and the version that a run goes on from is made again.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::geteuid,
};

use crate::{
    ModelConfig, RunDir,
    atomic::{self, named},
    channel::incarnation,
    config::{TrainConfig, VersionStorage},
    memory,
    memory_plan::adapter_numbers,
};

/// Where Linux keeps files in memory.
const SHARED_MEMORY: &str = "/dev/shm";
const PREFIX: &str = "tandem-weights-";
/// Versions take at most one part in so many of the memory: it is needed for the models that compute.
const SHARE: u64 = 4;
/// Rows of the rotary tables of an export, unless the model or `max_model_len` says otherwise.
const POSITIONS: usize = 32_768;

/// How much room the versions of a run take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRoom {
    /// Bytes of one version.
    pub version_bytes: u64,
    /// Most versions that are there at once: the one that the sampler uses, those since, and the one being written.
    pub versions: u64,
}

impl VersionRoom {
    /// The room for the versions of a model.
    #[must_use]
    pub fn of(config: &TrainConfig, model: &ModelConfig) -> Self {
        let positions = config.max_model_len.unwrap_or(POSITIONS).min(model.max_position_embeddings);
        let bytes = if config.use_peft {
            adapter_numbers(config, model) * size_of::<f32>() as u64
        } else {
            let values = model.parameter_count() + (positions * model.head_dim) as u64;
            values * config.rollout_device.export_dtype().size() as u64
        };
        Self { version_bytes: bytes, versions: 2 + config.max_staleness / config.publish_every }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.version_bytes.saturating_mul(self.versions)
    }

    /// Whether the versions lie in shared memory; the error says why not. They take from the machine's memory then.
    ///
    /// # Errors
    /// What is in the way, for the user.
    pub fn in_shared_memory(&self, storage: VersionStorage) -> Result<(), String> {
        self.fits(storage, Path::new(SHARED_MEMORY), memory::total())
    }

    fn fits(&self, storage: VersionStorage, folder: &Path, memory: io::Result<u64>) -> Result<(), String> {
        if storage == VersionStorage::Disk {
            return Err("`version_storage` is disk".into());
        }
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let needed = format!("{} versions take up to {}", self.versions, gib(self.bytes()));
        let free = atomic::free_space(folder).map_err(|e| e.to_string())?;
        if self.bytes() > free {
            return Err(format!("{needed}, and {} has {} free", folder.display(), gib(free)));
        }
        let memory = memory.map_err(|e| e.to_string())?;
        if self.bytes() > memory / SHARE {
            return Err(format!("{needed}, which is more than a quarter of the {} of memory", gib(memory)));
        }
        Ok(())
    }
}

/// Refuses a `weights` that is a link to anything but a folder of versions in shared memory, of this user.
///
/// # Errors
/// Where it leads, with the way out.
pub(crate) fn check_link(weights: &Path) -> io::Result<()> {
    let Ok(target) = fs::read_link(weights) else { return Ok(()) };
    let is_place = target.parent() == Some(Path::new(SHARED_MEMORY))
        && target.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    let is_ours = match fs::symlink_metadata(&target) {
        // What a stop of the machine has taken away harms nobody.
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        there => there.is_ok_and(|there| there.is_dir() && there.uid() == geteuid().as_raw()),
    };
    if is_place && is_ours {
        return Ok(());
    }
    let (weights, target) = (weights.display(), target.display());
    let message = format!("{weights}: is a link to {target}, where no versions of this user lie; remove it");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// The place of a run's versions. Dropping it removes them: what is to be kept is in checkpoints.
#[derive(Debug)]
pub struct VersionPlace {
    run_dir: RunDir,
    /// The folder in shared memory, if they lie there, and the lock on it.
    shared: Option<(PathBuf, File)>,
}

impl VersionPlace {
    /// Makes the place of a run's versions, empty, for whoever holds the run: a folder in shared memory for which `weights`
    /// is a link, or the folder of that name in the run directory. Removes what killed processes left, of this run and of
    /// others.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn open(run_dir: &RunDir, in_shared_memory: bool) -> io::Result<Self> {
        Self::open_in(Path::new(SHARED_MEMORY), run_dir, in_shared_memory)
    }

    fn open_in(folder: &Path, run_dir: &RunDir, in_shared_memory: bool) -> io::Result<Self> {
        let weights = run_dir.weights();
        if fs::symlink_metadata(&weights).is_ok() {
            // Of a link, only the link: in a copied run directory it leads to what is another's.
            fs::remove_dir_all(&weights).map_err(named(&weights))?;
        }
        remove_abandoned(folder);
        let shared = in_shared_memory.then(|| make_folder(folder)).transpose()?;
        let place = Self { run_dir: run_dir.clone(), shared };
        match &place.shared {
            Some((path, _)) => symlink(path, &weights).map_err(named(&weights))?,
            None => fs::create_dir(&weights).map_err(named(&weights))?,
        }
        Ok(place)
    }
}

impl Drop for VersionPlace {
    fn drop(&mut self) {
        let weights = self.run_dir.weights();
        for path in self.shared.iter().map(|(path, _)| path).chain([&weights]) {
            match fs::remove_dir_all(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("{}: published versions cannot be removed: {e}", path.display());
                }
                _ => (),
            }
        }
    }
}

/// Has a run go on with its versions on disk, where shared memory turned out to be too small. `write` writes the first one
/// into the run directory that it is given; those before it go. Returns nothing when they are on disk already.
///
/// # Errors
/// Any error of `write` or the file system.
pub fn move_to_disk<T, E: From<io::Error>>(
    run_dir: &RunDir,
    write: impl FnOnce(&RunDir) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let weights = run_dir.weights();
    let Ok(shared) = fs::read_link(&weights) else { return Ok(None) };
    // A run directory within this one, whose folder of versions takes the place of the link.
    let aside = RunDir::new(run_dir.root().join(format!(".tmp-{}-versions", std::process::id())));
    fs::create_dir_all(aside.weights()).map_err(named(aside.root()))?;
    let written = write(&aside).and_then(|written| {
        atomic::put_in_place(&aside.weights(), &weights)?;
        Ok(Some(written))
    });
    let _ = fs::remove_dir_all(aside.root());
    if written.is_ok() {
        let versions = fs::read_dir(&shared).into_iter().flatten().flatten();
        versions.for_each(|version| drop(fs::remove_dir_all(version.path())));
    }
    written
}

/// A new folder that nobody else removes.
fn make_folder(parent: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let path = parent.join(format!("{PREFIX}{:016x}", incarnation()));
        DirBuilder::new().mode(0o700).create(&path).map_err(named(&path))?;
        // Until it is locked, another start may take it for abandoned.
        let Ok(lock) = File::open(&path) else { continue };
        lock.lock().map_err(named(&path))?;
        if path.exists() {
            // Without the flag that closes it, children inherit the lock.
            fcntl_setfd(&lock, FdFlags::empty())?;
            return Ok((path, lock));
        }
    }
}

/// The folders of runs without a living process, of this user.
pub(crate) fn abandoned() -> Vec<PathBuf> {
    unlocked(Path::new(SHARED_MEMORY))
}

/// Removes the folders of runs without a living process. What belongs to another user stays.
fn remove_abandoned(parent: &Path) {
    for path in unlocked(parent) {
        tracing::debug!("removing {}, left by killed processes", path.display());
        let _ = fs::remove_dir_all(&path);
    }
}

fn unlocked(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    ours.map(|entry| entry.path())
        .filter(|path| File::open(path).is_ok_and(|folder| folder.try_lock().is_ok()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyVersion;

    const GIB: u64 = 1 << 30;

    #[test]
    fn versions_go_to_shared_memory_where_they_fit_and_leave_room_for_the_models() {
        let folder = tempfile::tempdir().unwrap();
        let room = |version_bytes| VersionRoom { version_bytes, versions: 2 };
        let fits = |room: VersionRoom, storage, memory| room.fits(storage, folder.path(), Ok(memory));
        let auto = VersionStorage::Auto;
        assert_eq!(fits(room(1 << 20), auto, GIB), Ok(()));
        let error = fits(room(1 << 20), VersionStorage::Disk, GIB).unwrap_err();
        assert_eq!(error, "`version_storage` is disk");
        let error = fits(room(GIB / 4), auto, GIB).unwrap_err();
        assert_eq!(error, "2 versions take up to 0.5 GiB, which is more than a quarter of the 1.0 GiB of memory");
        let error = fits(room(u64::MAX), auto, u64::MAX).unwrap_err();
        assert!(error.starts_with("2 versions take up to") && error.ends_with("GiB free"), "{error}");
        let error = room(1).fits(auto, Path::new("/nowhere"), Ok(GIB)).unwrap_err();
        assert!(error.starts_with("/nowhere: "), "{error}");
    }

    #[test]
    fn versions_since_the_one_in_use_are_counted() {
        let of = |max_staleness, publish_every| {
            let config = TrainConfig { max_staleness, publish_every, ..TrainConfig::default() };
            let model = crate::ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
            (VersionRoom::of(&config, model.config()), model.config().clone())
        };
        assert_eq!([of(0, 1), of(1, 1), of(3, 2), of(3, 4)].map(|(room, _)| room.versions), [2, 3, 3, 2]);
        let (room, model) = of(0, 1);
        let tables = (model.max_position_embeddings * model.head_dim) as u64;
        assert_eq!(room.version_bytes, 4 * (model.parameter_count() + tables));
        let (r, layers) = (8, model.num_hidden_layers);
        let adapter = TrainConfig { use_peft: true, lora_r: r, ..TrainConfig::default() };
        let [hidden, inner] = [model.hidden_size, model.intermediate_size];
        let [q, kv] = [model.num_attention_heads, model.num_key_value_heads].map(|heads| heads * model.head_dim);
        // q, k, v, o, gate, up and down.
        let sides = 2 * (hidden + q) + 2 * (hidden + kv) + 3 * (hidden + inner);
        let values = r as usize * layers * sides;
        assert_eq!(VersionRoom::of(&adapter, &model).version_bytes, 4 * values as u64);
    }

    /// A run directory and a folder that stands for shared memory.
    fn places() -> (tempfile::TempDir, PathBuf, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let (shared, run) = (dir.path().join("shm"), RunDir::new(dir.path().join("run")));
        fs::create_dir(&shared).unwrap();
        run.create().unwrap();
        (dir, shared, run)
    }

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    fn write(run: &RunDir, version: u64) -> io::Result<()> {
        atomic::write_passing_dir(&run.version(PolicyVersion(version)), |dir| fs::write(dir.join("data"), "x"))
    }

    #[test]
    fn a_run_reads_its_versions_by_the_same_names_and_leaves_nothing() {
        let (_dir, shared, run) = places();
        for in_shared_memory in [true, false] {
            let place = VersionPlace::open_in(&shared, &run, in_shared_memory).unwrap();
            write(&run, 3).unwrap();
            assert_eq!(run.versions().unwrap(), [PolicyVersion(3)]);
            assert_eq!((run.weights().is_symlink(), entries(&shared)), (in_shared_memory, in_shared_memory.into()));
            // As its processes do when they start.
            run.create().unwrap();
            drop(place);
            assert!(fs::symlink_metadata(run.weights()).is_err() && entries(&shared) == 0);
            assert!(run.versions().unwrap().is_empty());
        }
    }

    #[test]
    fn what_killed_processes_left_goes_at_the_next_start_of_any_run_and_what_is_in_use_stays() {
        let (dir, shared, run) = places();
        let mut place = VersionPlace::open_in(&shared, &run, true).unwrap();
        write(&run, 1).unwrap();
        // The copy of a run directory has its link.
        let copy = RunDir::new(dir.path().join("copy"));
        fs::create_dir(copy.root()).unwrap();
        symlink(fs::read_link(run.weights()).unwrap(), copy.weights()).unwrap();
        assert_eq!(copy.versions().unwrap(), [PolicyVersion(1)]);
        let other = VersionPlace::open_in(&shared, &copy, true).unwrap();
        assert!(copy.versions().unwrap().is_empty());
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)], "it is in use");
        drop(other);
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)]);

        // A process that is killed gives back its lock and nothing else.
        drop(place.shared.take());
        std::mem::forget(place);
        fs::create_dir(shared.join(format!("{PREFIX}left"))).unwrap();
        fs::create_dir(shared.join("another-program")).unwrap();
        drop(VersionPlace::open_in(&shared, &copy, false).unwrap());
        assert_eq!(entries(&shared), 1, "only the other program's folder stays");
    }

    #[test]
    fn a_link_whose_folder_is_gone_is_no_obstacle() {
        let (_dir, shared, run) = places();
        fs::remove_dir(run.weights()).unwrap();
        symlink(shared.join("gone"), run.weights()).unwrap();
        assert!(run.versions().unwrap().is_empty());
        run.remove_litter().unwrap();
        drop(VersionPlace::open_in(&shared, &run, true).unwrap());
        symlink(shared.join("gone"), run.weights()).unwrap();
        run.create().unwrap();
        write(&run, 1).unwrap();
        assert_eq!(run.versions().unwrap(), [PolicyVersion(1)]);
    }

    #[test]
    fn a_run_goes_on_on_disk_with_the_version_that_did_not_fit() {
        let (_dir, shared, run) = places();
        let place = VersionPlace::open_in(&shared, &run, true).unwrap();
        write(&run, 1).unwrap();
        let failed: io::Result<Option<()>> = move_to_disk(&run, |_| Err(io::Error::other("no room there either")));
        assert!(failed.is_err() && run.weights().is_symlink() && run.versions().unwrap() == [PolicyVersion(1)]);
        assert!(move_to_disk(&run, |run| write(run, 2)).unwrap().is_some());
        assert!(!run.weights().is_symlink() && run.versions().unwrap() == [PolicyVersion(2)]);
        assert!(move_to_disk(&run, |run| write(run, 3)).unwrap().is_none(), "it is there");
        let folder = fs::read_dir(&shared).unwrap().next().unwrap().unwrap().path();
        assert_eq!(entries(&folder), 0, "the memory is free");
        assert_eq!(entries(run.root()), 3, "its folders and nothing else");
        drop(place);
        assert!(entries(&shared) == 0 && !run.weights().exists());
    }
}
