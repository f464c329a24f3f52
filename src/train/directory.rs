//! The run directory before the pair starts: who uses it, and where the run goes on.

use std::{
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::HumanDuration;
use rustix::{
    fs::{Access, access},
    io::{FdFlags, fcntl_setfd},
};
use shared::{
    ModelDir, RunDir,
    channel::{RunId, iox::remove_leftovers},
    config::{TrainConfig, layers},
    files::{atomic, output_dir},
    process::pace::Waiting,
    run::{
        checkpoints::{self, Depth},
        resume,
    },
};

use super::session::Session;
use crate::{
    tensorboard,
    terminal::{output, signals},
};

/// A run directory that belongs to this launcher until it is dropped.
#[derive(Debug)]
pub struct OwnedRun {
    /// The paths.
    pub dir: RunDir,
    /// The id that this launcher has given the run.
    pub id: RunId,
    /// The options that the processes of this start receive.
    pub session: Session,
    /// The id in the start before, for a resumed run.
    id_before: Option<RunId>,
    _lock: File,
}

impl OwnedRun {
    /// Whether the run began with this start.
    pub fn is_new(&self) -> bool {
        self.id_before.is_none()
    }

    /// Leaves a resumed run as it was before this start, which made no step.
    pub fn give_up(&self) {
        if let Some(Err(error)) = self.id_before.map(|id| id.leave(&self.dir)) {
            output::tell(format_args!("warning: the id of the run could not be left as it was: {error}"));
        }
    }
}

/// Creates (or takes up again) the run directory of a resolved configuration. A resumed run stays as it was until its
/// first step is made ([`shared::process::session`]); a new run gets its `config.toml` at once.
pub fn prepare(config: &TrainConfig) -> Result<OwnedRun> {
    let dir = RunDir::new(&config.output_dir);
    // A refused run stays untouched.
    dir.check_places().context("`output_dir` cannot be used")?;
    start_of(config, &dir)?;
    dir.create().context("`output_dir` cannot be used")?;
    let lock = lock(&dir)?;
    // During the wait for the lock, its last holder may have made a step or a checkpoint.
    let start = start_if_free(config, &dir)?;
    dir.remove_litter()?;
    // The run directory itself says where to go on; a restarted learner must not go back to the first start.
    let written = TrainConfig { resume_from_checkpoint: None, ..config.clone() };
    let text = layers::to_toml(&written);
    match &start {
        Start::Fresh => clear(&dir)?,
        Start::Resume => (),
        Start::Branch(checkpoint, step) => {
            clear(&dir)?;
            copy_checkpoint(checkpoint, &dir.checkpoint(*step))?;
        }
    }
    if start != Start::Resume {
        atomic::write(&dir.config(), text.as_bytes()).context("`output_dir` cannot be written")?;
    }
    let id_before = if start == Start::Resume { RunId::of(&dir).ok() } else { None };
    let id = begin(&dir)?;
    Ok(OwnedRun { dir, id, session: Session::new(&text)?, id_before, _lock: lock })
}

/// Gives the run a new id, by which its two processes recognise each other and nobody else: processes of the start
/// before may still be dying. Their shared memory is found by the old id.
fn begin(dir: &RunDir) -> Result<RunId> {
    if let Err(error) = remove_leftovers(dir) {
        output::tell(format_args!("warning: an earlier start of this run may have left shared memory behind: {error}"));
    }
    let id = RunId::draw();
    id.leave(dir).context("`output_dir` cannot be written")?;
    Ok(id)
}

/// Checks that the run directory can be used, and that the checkpoint to resume from belongs to `model`; returns that
/// checkpoint. It leaves everything as it was.
///
/// # Errors
/// The obstacle.
pub fn check(config: &TrainConfig, model: Option<&ModelDir>) -> Result<Option<PathBuf>> {
    if config.output_dir.as_os_str().is_empty() {
        return Ok(None);
    }
    let dir = RunDir::new(&config.output_dir);
    dir.check_places().context("`output_dir` cannot be used")?;
    let checkpoint = checkpoint(config)?;
    let above = dir.root().ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let writable = match above == dir.root() {
        true => access(above, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from),
        false => output_dir::takes_folders(above),
    };
    writable
        .with_context(|| format!("`output_dir` {} cannot be written: {}", dir.root().display(), above.display()))?;
    if let Some((path, model)) = checkpoint.as_ref().zip(model) {
        resume::check(config, model, path).context("`resume_from_checkpoint`")?;
    }
    Ok(checkpoint)
}

/// The number of completed steps that a checkpoint has in its name.
pub fn step_of(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
}

/// Reports that checkpoints are being checked, which reads all of their bytes.
fn looking() -> Waiting {
    Waiting::new("looking at the checkpoints")
}

/// The checkpoint to resume from, if there is one: the newest whose contents are as they were written.
fn checkpoint(config: &TrainConfig) -> Result<Option<PathBuf>> {
    let dir = RunDir::new(&config.output_dir);
    let start = start_of(config, &dir)?;
    let _waiting = (start != Start::Fresh).then(looking);
    match start {
        Start::Fresh => Ok(None),
        Start::Resume => {
            let found = checkpoints::newest(&dir, Depth::Contents).context("`output_dir` cannot be used")?;
            let step = found.usable(&dir).map_err(|problem| anyhow!("`resume_from_checkpoint`: {problem}"))?;
            Ok(step.map(|step| dir.checkpoint(step)))
        }
        Start::Branch(checkpoint, _) => {
            require_whole(&checkpoint)?;
            Ok(Some(checkpoint))
        }
    }
}

fn require_whole(checkpoint: &Path) -> Result<()> {
    let whole = checkpoints::check(checkpoint, Depth::Contents);
    whole.map(drop).with_context(|| {
        let shown = checkpoint.display();
        format!("`resume_from_checkpoint` {shown} is no whole checkpoint; name another one, or `latest`")
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// From the model.
    Fresh,
    /// From the newest checkpoint of this directory.
    Resume,
    /// From the checkpoint of another run, with its number of completed steps.
    Branch(PathBuf, u64),
}

/// How a run starts. If it cannot start and another process is at work in its directory, that process is the reason
/// given, whatever other obstacles there are.
fn start_of(config: &TrainConfig, dir: &RunDir) -> Result<Start> {
    start_if_free(config, dir).map_err(|error| at_work(&dir.lock(), dir.root()).map_or(error, |words| anyhow!(words)))
}

fn start_if_free(config: &TrainConfig, dir: &RunDir) -> Result<Start> {
    let root = dir.root().display();
    let checkpoints = dir.checkpoints().context("`output_dir` cannot be used")?;
    let Some(wanted) = &config.resume_from_checkpoint else {
        if is_unused(dir)? {
            return Ok(Start::Fresh);
        }
        match checkpoints.last() {
            Some(step) => bail!(
                "`output_dir` {root} already holds a run (checkpoint-{step}): add --resume_from_checkpoint latest to \
                 go on with it, or choose another folder"
            ),
            None if fs::metadata(dir.metrics()).is_ok() => bail!(
                "`output_dir` {root} holds the records of a run without a checkpoint, which cannot be gone on with: \
                 choose another folder, or move this one away"
            ),
            None => bail!("`output_dir` {root} is not empty (it has {}): choose another folder", content(dir.root())),
        }
    };
    if wanted == "latest" {
        let Some(newest) = checkpoints.last() else {
            let way = if is_unused(dir)? {
                "leave `resume_from_checkpoint` out, of the command line or the file, to begin"
            } else {
                "choose another `output_dir`"
            };
            bail!("`resume_from_checkpoint` latest: {root} holds no checkpoint to resume from: {way}");
        };
        refuse_foreign(&dir.checkpoint(*newest))?;
        return Ok(Start::Resume);
    }
    let path = fs::canonicalize(wanted)
        .with_context(|| format!("`resume_from_checkpoint` {wanted}{}", those_of(&checkpoints, dir.root())))?;
    refuse_foreign(&path)?;
    let Some(step) = step_of(&path) else {
        bail!(
            "`resume_from_checkpoint` must be `latest`, a folder named checkpoint-N, or the folder of a run that has \
             one, got {wanted}"
        );
    };
    let own = fs::canonicalize(dir.root()).is_ok_and(|root| path.parent() == Some(&root));
    if !own {
        ensure!(
            is_unused(dir)?,
            "`output_dir` {root} is not empty (it has {}): choose another folder to branch off into",
            content(dir.root())
        );
        return Ok(Start::Branch(path, step));
    }
    let is_whole = |later: &&u64| checkpoints::check(&dir.checkpoint(**later), Depth::Contents).is_ok();
    // Later checkpoints that are all damaged cannot be resumed from: the learner sets them aside.
    let mut later = checkpoints.iter().rev().take_while(|later| **later > step).peekable();
    if later.peek().is_some() {
        let _waiting = looking();
        if let Some(newest) = later.find(is_whole) {
            bail!(
                "{root} already went on to checkpoint-{newest}: choose another `output_dir` to branch off at \
                 checkpoint-{step}"
            );
        }
        require_whole(&path)?;
    }
    Ok(Start::Resume)
}

/// Most files of a folder that a message names.
const NAMED: usize = 5;

/// ` (runs/a has checkpoint-2, checkpoint-4)`; the newest ones, if there are many.
fn those_of(checkpoints: &[u64], root: &Path) -> String {
    let newest = &checkpoints[checkpoints.len().saturating_sub(NAMED)..];
    let names: Vec<String> = newest.iter().map(|step| format!("checkpoint-{step}")).collect();
    if names.is_empty() { String::new() } else { format!(" ({} has {})", root.display(), names.join(", ")) }
}

/// `notes.txt, data and 3 more`: the content of a folder.
fn content(root: &Path) -> String {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Refuses a checkpoint of another trainer, with that trainer's name.
fn refuse_foreign(checkpoint: &Path) -> Result<()> {
    resume::foreign(checkpoint).map_or(Ok(()), |words| Err(anyhow!("`resume_from_checkpoint`: {words}")))
}

/// Whether the directory is free for a new run: it is absent, empty, or left by a run that ended before its first step
/// (for instance because of an unknown reward function).
pub fn is_unused(dir: &RunDir) -> Result<bool> {
    let no_step = !fs::metadata(dir.metrics()).is_ok_and(|file| file.len() > 0);
    Ok(is_empty(dir.root())? || (dir.lock().exists() && no_step && dir.checkpoints()?.is_empty()))
}

/// Removes the files of a run that never made a step.
fn clear(dir: &RunDir) -> Result<()> {
    for folder in [dir.weights(), dir.logs(), dir.completions()] {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    remove_file(&dir.metrics())?;
    remove_file(&dir.eval())?;
    remove_file(&dir.best())?;
    remove_file(&dir.notices())?;
    remove_file(&dir.ledger())?;
    remove_file(&dir.prompts())?;
    remove_file(&dir.ended())?;
    dir.reopen()?;
    tensorboard::files(dir.root())
        .context("`output_dir` cannot be used")?
        .iter()
        .try_for_each(|path| remove_file(path))?;
    dir.create().context("`output_dir` cannot be used")
}

/// Removes a file that may be missing.
fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).with_context(|| path.display().to_string()),
        _ => Ok(()),
    }
}

fn is_empty(root: &Path) -> Result<bool> {
    match fs::read_dir(root) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e).with_context(|| format!("`output_dir` {}", root.display())),
    }
}

/// How long the processes of a run that has just ended, or whose launcher was killed, may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Takes the run for this process and the children it starts: they inherit the lock, so that a learner which outlives a
/// killed launcher keeps the next launcher out until it has ended.
fn lock(dir: &RunDir) -> Result<File> {
    hold(&dir.lock(), dir.root(), LOCK_PATIENCE)
}

/// Locks a file of a folder, to mark that this process and its children are at work in the folder.
///
/// # Errors
/// The number of another process that is at work there; a file that cannot be written.
pub fn hold(path: &Path, folder: &Path, patience: Duration) -> Result<File> {
    let file = atomic::append(path).context("`output_dir` cannot be written")?;
    let begin = Instant::now();
    loop {
        signals::check()?;
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if begin.elapsed() < patience => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => bail!(in_words(path, folder)),
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| path.display().to_string()),
        }
    }
    // Without the flag that closes it, children inherit it.
    fcntl_setfd(&file, FdFlags::empty()).with_context(|| path.display().to_string())?;
    Ok(file)
}

/// Who is at work in a folder, with the ways out; none if nobody is.
fn at_work(lock: &Path, folder: &Path) -> Option<String> {
    let file = shared_bounds::open(lock).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| in_words(lock, folder))
}

fn in_words(lock: &Path, folder: &Path) -> String {
    let holders = holders(lock);
    let end = holders.first().map_or_else(|| "end it".to_owned(), |first| format!("end it (kill {})", first.id));
    format!(
        "`output_dir` {}: another `tandem` is still at work there{}; wait until it is done, {end}, or choose another \
         folder",
        folder.display(),
        named(&holders)
    )
}

/// A process that has a file open.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    id: u32,
    /// Seconds since its start.
    age: u64,
}

/// The processes that have a file open, the oldest first. The process that took a lock may have ended and left it to
/// its children, so the system's list of locks is no help.
fn holders(path: &Path) -> Vec<Holder> {
    let Ok(path) = fs::canonicalize(path) else { return Vec::new() };
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let has_open = |process: &Path| {
        entries(&process.join("fd")).any(|file| fs::read_link(file.path()).is_ok_and(|open| open == path))
    };
    let own = std::process::id();
    let number = |name: &OsStr| name.to_str()?.parse::<u32>().ok().filter(|&process| process != own);
    let processes = entries(Path::new("/proc")).filter_map(|entry| Some((number(&entry.file_name())?, entry.path())));
    let ids: Vec<u32> = processes.filter(|(_, path)| has_open(path)).map(|(id, _)| id).collect();
    let mut found: Vec<Holder> = ids.into_iter().map(|id| Holder { id, age: age(id) }).collect();
    found.sort_by_key(|holder| (std::cmp::Reverse(holder.age), holder.id));
    found
}

/// Seconds since a process was started; 0 if the system does not tell.
fn age(process: u32) -> u64 {
    let id = sysinfo::Pid::from_u32(process);
    let Ok(mut system) = sysinfo::System::new_with_specifics(sysinfo::RefreshKind::nothing()) else { return 0 };
    system.refresh_processes_specifics(
        sysinfo::ProcessesToUpdate::Some(&[id]),
        false,
        sysinfo::ProcessRefreshKind::nothing(),
    );
    system.process(id).map_or(0, sysinfo::Process::run_time)
}

/// ` (process 12, 15, for 3 minutes)`.
fn named(holders: &[Holder]) -> String {
    let Some(oldest) = holders.first() else { return String::new() };
    let ids: Vec<String> = holders.iter().map(|holder| holder.id.to_string()).collect();
    format!(" (process {}, for {})", ids.join(", "), HumanDuration(Duration::from_secs(oldest.age)))
}

/// Removes a run once nobody is at work in it.
///
/// # Errors
/// When its processes do not end, or the directory cannot be removed.
pub fn remove(dir: &RunDir) -> Result<()> {
    if !dir.root().exists() {
        return Ok(());
    }
    let _lock = lock(dir)?;
    fs::remove_dir_all(dir.root()).with_context(|| dir.root().display().to_string())
}

/// Whether an earlier run in this directory can be resumed. The remains of a run without a checkpoint are removed once
/// nobody is at work in it: a learner that outlived its launcher still writes a checkpoint.
///
/// # Errors
/// When the processes of the run do not end, or the directory cannot be removed.
pub fn goes_on(dir: &RunDir) -> Result<bool> {
    if !dir.root().exists() {
        return Ok(false);
    }
    let _lock = lock(dir)?;
    let found = !dir.checkpoints().context("`output_dir` cannot be used")?.is_empty();
    if !found {
        fs::remove_dir_all(dir.root()).with_context(|| dir.root().display().to_string())?;
    }
    Ok(found)
}

fn copy_checkpoint(from: &Path, to: &Path) -> Result<()> {
    atomic::write_dir(to, |target| atomic::copy_files(from, target))
        .with_context(|| format!("cannot copy {}", from.display()))
}

#[cfg(test)]
mod tests;
