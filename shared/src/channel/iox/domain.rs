//! A run's own corner of iceoryx2: names that no other run uses, and the removal of leftovers of dead processes.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use iceoryx2::{
    config::Config,
    node::{Node, NodeBuilder, NodeState},
    prelude::{
        CallbackProgression, FileName, LogLevel, NodeName, Path as IoxPath, SemanticString, SignalHandlingMode,
        set_log_level,
    },
    service::ipc_threadsafe::Service,
};

use super::room::{remove_unsized, segments};
use crate::{
    channel::{ChannelError, RunId},
    files::run_dir::RunDir,
};

/// Folder of a run's iceoryx2 folders. Not `TMPDIR`: both processes must find the same place.
const TEMPORARY: &str = "/tmp";
/// Prefix of their names, before `HASH` letters of a hash.
const PREFIX: &str = "tandem_";
const HASH: usize = 16;
/// How long a process may take from creating its first file to being known as alive.
const START: Duration = Duration::from_secs(60);
/// How long a new process waits for a predecessor of its role that is about to end.
const TAKE_OVER: Duration = Duration::from_secs(5);
/// How long a process waits for another one that is entering or leaving.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Membership in a run's domain; the last member to leave removes the folders.
#[derive(Debug)]
pub(super) struct Domain {
    node: Option<Node<Service>>,
    place: Namespace,
}

/// Holds off every other process that enters or clears the same domain.
pub(super) type Lock = File;

impl Domain {
    /// Enters as `role`, after removing leftovers of dead processes. The caller must hold the lock until all ports
    /// exist.
    pub fn enter(run_dir: &RunDir, run: RunId, role: &str) -> Result<(Self, Lock), ChannelError> {
        set_log_level(LogLevel::Fatal);
        let place = Namespace::of(run_dir, run)?;
        let config = place.config()?;
        let deadline = Instant::now() + TAKE_OVER;
        let lock = loop {
            let lock = place.lock()?;
            let members = living(&config)?;
            if members.is_empty() {
                place.wipe();
            }
            let Some(member) = members.iter().find(|member| member.role == role) else { break lock };
            // The predecessor may be about to leave, for which it needs the lock.
            drop(lock);
            if Instant::now() >= deadline {
                return Err(ChannelError::Transport(member.at_work_in(&place.run_dir)));
            }
            thread::sleep(Duration::from_millis(20));
        };
        remove_unsized(&place.prefix);
        let node = NodeBuilder::new()
            .name(&NodeName::new(role).map_err(transport("name the node"))?)
            .signal_handling_mode(SignalHandlingMode::Disabled)
            .config(&config)
            .create::<Service>()
            .map_err(transport("enter the domain of this run"))?;
        node.blocking_cleanup_dead_nodes(TAKE_OVER);
        Ok((Self { node: Some(node), place }, lock))
    }

    pub fn node(&self) -> &Node<Service> {
        self.node.as_ref().expect("the node lives until the domain is dropped")
    }

    /// The run of the domain.
    pub fn run(&self) -> RunId {
        self.place.run
    }

    /// Prefix of the names of its segments.
    pub fn prefix(&self) -> &str {
        &self.place.prefix
    }

    /// Removes leftovers of processes that have died since.
    pub fn clear_dead(&self) {
        remove_unsized(&self.place.prefix);
        self.node().try_cleanup_dead_nodes();
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let lock = self.place.lock();
        // If the run directory was removed, nobody can enter any more: another run there has another domain.
        if lock.is_err() && self.place.run_dir.exists() {
            return;
        }
        self.node = None;
        if self.place.config().and_then(|config| living(&config)).is_ok_and(|names| names.is_empty()) {
            self.place.wipe();
        }
    }
}

/// The files and folders that the channel of a run has outside the run directory, in shared memory and in the temporary
/// folder: none if no process of the run is alive and the last one ended in order.
///
/// # Errors
/// When the run directory does not exist.
pub fn files(run_dir: &RunDir) -> Result<Vec<PathBuf>, ChannelError> {
    Ok(Namespace::of(run_dir, known(run_dir)?)?.files())
}

/// Removes what the dead processes of a run left in shared memory and in the temporary folder. Does nothing while a
/// process of the run is alive.
///
/// # Errors
/// When the run directory does not exist, or when the state of the run's processes is unknown.
pub fn remove_leftovers(run_dir: &RunDir) -> Result<(), ChannelError> {
    set_log_level(LogLevel::Fatal);
    let place = Namespace::of(run_dir, known(run_dir)?)?;
    let _lock = place.lock()?;
    if living(&place.config()?)?.is_empty() {
        place.wipe();
    }
    Ok(())
}

/// The id in a run directory.
fn known(run_dir: &RunDir) -> Result<RunId, ChannelError> {
    RunId::of(run_dir).map_err(|error| ChannelError::Transport(error.to_string()))
}

/// Leftovers of this user's dead runs in shared memory and in the temporary folder. Files written a moment ago may
/// belong to a run that is starting.
#[must_use]
pub fn abandoned() -> Vec<PathBuf> {
    set_log_level(LogLevel::Fatal);
    let entries =
        segments(PREFIX).into_iter().chain(fs::read_dir(TEMPORARY).into_iter().flatten().flatten().map(|e| e.path()));
    let names: BTreeSet<String> = entries.filter_map(|path| run_of(path.file_name()?.to_str()?)).collect();
    let dead =
        |place: &Namespace| place.config().and_then(|config| living(&config)).is_ok_and(|names| names.is_empty());
    let places = names.into_iter().map(|name| Namespace::named(PathBuf::new(), &name)).filter(dead);
    places.map(|place| place.files()).filter(|files| files.iter().all(|path| is_ours_and_old(path))).flatten().collect()
}

/// The name of the run that a file of the channel belongs to.
fn run_of(file: &str) -> Option<String> {
    let hash = file.strip_prefix(PREFIX)?.get(..HASH)?;
    hash.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| format!("{PREFIX}{hash}"))
}

fn is_ours_and_old(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let old = |metadata: &fs::Metadata| metadata.modified().is_ok_and(|t| t.elapsed().is_ok_and(|age| age > START));
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.uid() == own && old(&metadata))
}

/// The place of a run's files: all names carry a hash of the run directory's true path and the run's id, since another
/// run may have had the path, or has the same path in another container.
#[derive(Debug)]
struct Namespace {
    run_dir: PathBuf,
    run: RunId,
    prefix: String,
    root: PathBuf,
}

impl Namespace {
    fn of(run_dir: &RunDir, run: RunId) -> Result<Self, ChannelError> {
        let path = fs::canonicalize(run_dir.root())
            .map_err(|e| ChannelError::Transport(format!("run directory {}: {e}", run_dir.root().display())))?;
        let bytes = [path.as_os_str().as_encoded_bytes(), &[0], &run.number().to_le_bytes()].concat();
        let hash = blake3::hash(&bytes).to_hex();
        Ok(Self { run, ..Self::named(path, &format!("{PREFIX}{}", &hash[..HASH])) })
    }

    fn named(run_dir: PathBuf, name: &str) -> Self {
        Self { run_dir, run: RunId::NONE, root: Path::new(TEMPORARY).join(name), prefix: format!("{name}_") }
    }

    fn config(&self) -> Result<Config, ChannelError> {
        let mut config = Config::default();
        config.global.prefix = FileName::new(self.prefix.as_bytes()).map_err(transport("form a prefix"))?;
        let root = IoxPath::new(format!("{}/", self.root.display()).as_bytes()).map_err(transport("form a path"))?;
        config.global.set_root_path(&root);
        Ok(config)
    }

    /// Waits for the lock of this domain: the run directory itself, so that no lock file is left behind.
    fn lock(&self) -> Result<Lock, ChannelError> {
        let folder = File::open(&self.run_dir).map_err(transport("open the run directory"))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(folder),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Err(TryLockError::WouldBlock) => {
                    let held = format!("another process has held it for {:.0} s", LOCK_PATIENCE.as_secs_f64());
                    return Err(transport("lock the run directory")(held));
                }
                // File systems without locks: at worst, two processes that start at the same time disturb each other.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => return Ok(folder),
                Err(TryLockError::Error(e)) => return Err(transport("lock the run directory")(e)),
            }
        }
    }

    /// All files of the domain on this machine.
    fn files(&self) -> Vec<PathBuf> {
        segments(&self.prefix).into_iter().chain(self.root.exists().then(|| self.root.clone())).collect()
    }

    /// Removes every trace of the domain. Only to be called with the lock held and no living member.
    fn wipe(&self) {
        for path in self.files() {
            let _ = if path == self.root { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// A living process of a domain.
struct Member {
    role: String,
    /// Its process id, which iceoryx2 does not always know.
    process: Option<u32>,
}

impl Member {
    /// The error for another process that wants its place.
    fn at_work_in(&self, run_dir: &Path) -> String {
        let (role, place) = (&self.role, run_dir.display());
        match self.process {
            Some(process) => {
                format!("another {role} (process {process}) is at work in {place}; end it first: kill {process}")
            }
            None => format!("another {role} is at work in {place}; end it first"),
        }
    }
}

/// The domain's living processes.
fn living(config: &Config) -> Result<Vec<Member>, ChannelError> {
    let mut names = Vec::new();
    Node::<Service>::list(config, |state| {
        if let NodeState::Alive(view) = state {
            use iceoryx2::node::NodeView;
            let role = view.details().as_ref().map(|d| d.name().to_string()).unwrap_or_default();
            names.push(Member {
                role,
                process: view.id().pid::<Service>().ok().and_then(|id| u32::try_from(id.value()).ok()),
            });
        }
        CallbackProgression::Continue
    })
    .map_err(transport("list the processes of this run"))?;
    Ok(names)
}

fn transport<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> ChannelError {
    move |error| ChannelError::Transport(format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_number_is_unknown_is_not_number_0() {
        let said = |process| Member { role: "learner".into(), process }.at_work_in(Path::new("run"));
        assert_eq!(said(Some(7)), "another learner (process 7) is at work in run; end it first: kill 7");
        assert_eq!(said(None), "another learner is at work in run; end it first");
    }
}
