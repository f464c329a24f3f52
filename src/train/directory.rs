//! The run directory before the pair starts: whose it is, and where the run goes on.

use std::{
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::{
    fs::{Access, access},
    io::{FdFlags, fcntl_setfd},
};
use shared::{
    ModelDir, RunDir, atomic,
    channel::{RunId, iox::remove_leftovers},
    checkpoints::{self, Depth},
    config::{TrainConfig, layers},
    resume,
};

use crate::{output, signals, tensorboard};

/// A run directory that belongs to this launcher until it is dropped.
#[derive(Debug)]
pub struct OwnedRun {
    /// The paths.
    pub dir: RunDir,
    /// The id of the run as this launcher has begun it or gone on with it.
    pub id: RunId,
    _lock: File,
}

/// Creates (or takes up again) the run directory of a resolved configuration and writes `config.toml` into it.
pub fn prepare(config: &TrainConfig) -> Result<OwnedRun> {
    let dir = RunDir::new(&config.output_dir);
    // What is refused stays untouched.
    start_of(config, &dir)?;
    dir.create().context("`output_dir` cannot be used")?;
    let lock = lock(&dir)?;
    // While the lock was waited for, its last holder may have made a step or a checkpoint.
    let start = start_of(config, &dir)?;
    dir.remove_litter()?;
    dir.reopen()?;
    // The sampler tells it anew, of the data as it is now.
    remove_file(&dir.prompts())?;
    match &start {
        Start::Fresh => clear(&dir)?,
        Start::Resume => (),
        Start::Branch(checkpoint, step) => {
            clear(&dir)?;
            copy_checkpoint(checkpoint, &dir.checkpoint(*step))?;
        }
    }
    // The run directory itself says where to go on; a restarted learner must not go back to the first start.
    let written = TrainConfig { resume_from_checkpoint: None, ..config.clone() };
    atomic::write(&dir.config(), layers::to_toml(&written).as_bytes()).context("`output_dir` cannot be written")?;
    let id = begin(&dir)?;
    Ok(OwnedRun { dir, id, _lock: lock })
}

/// Gives the run a new id, by which its two processes know each other and nobody else: those of the start before may still be
/// dying. What they left in shared memory is found by the old one.
fn begin(dir: &RunDir) -> Result<RunId> {
    if let Err(error) = remove_leftovers(dir) {
        output::tell(format_args!("warning: an earlier start of this run may have left shared memory behind: {error}"));
    }
    let id = RunId::draw();
    id.leave(dir).context("`output_dir` cannot be written")?;
    Ok(id)
}

/// Checks that the run directory can be used, and that a checkpoint to go on from is one of `model`; touches nothing.
///
/// # Errors
/// What is in the way.
pub fn check(config: &TrainConfig, model: Option<&ModelDir>) -> Result<()> {
    if config.output_dir.as_os_str().is_empty() {
        return Ok(());
    }
    let dir = RunDir::new(&config.output_dir);
    let checkpoint = checkpoint(config)?;
    let above = dir.root().ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    access(above, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("`output_dir` {} cannot be written: {}", dir.root().display(), above.display()))?;
    let Some(path) = checkpoint else { return Ok(()) };
    model.map_or(Ok(()), |model| resume::check(config, model, &path).context("`resume_from_checkpoint`"))
}

/// The checkpoint that a run goes on from, if it does. The learner looks at the contents as well, before it goes on.
pub fn checkpoint(config: &TrainConfig) -> Result<Option<PathBuf>> {
    let dir = RunDir::new(&config.output_dir);
    match start_of(config, &dir)? {
        Start::Fresh => Ok(None),
        Start::Resume => {
            let found = checkpoints::newest(&dir, Depth::Lengths).context("`output_dir` cannot be used")?;
            let step = found.usable(&dir).map_err(|problem| anyhow!("`resume_from_checkpoint`: {problem}"))?;
            Ok(step.map(|step| dir.checkpoint(step)))
        }
        Start::Branch(checkpoint, _) => {
            checkpoints::check(&checkpoint, Depth::Lengths)
                .with_context(|| format!("`resume_from_checkpoint` {}", checkpoint.display()))?;
            Ok(Some(checkpoint))
        }
    }
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

fn start_of(config: &TrainConfig, dir: &RunDir) -> Result<Start> {
    let root = dir.root().display();
    let checkpoints = dir.checkpoints().context("`output_dir` cannot be used")?;
    let Some(wanted) = &config.resume_from_checkpoint else {
        if is_unused(dir)? {
            return Ok(Start::Fresh);
        }
        match checkpoints.last() {
            Some(step) => bail!(
                "`output_dir` {root} already holds a run (checkpoint-{step}): add --resume_from_checkpoint latest to go \
                 on with it, or choose another folder"
            ),
            None => bail!("`output_dir` {root} is not empty: choose another folder, or remove it"),
        }
    };
    if wanted == "latest" {
        return match checkpoints.last() {
            Some(_) => Ok(Start::Resume),
            None => bail!("{root} holds no checkpoint to resume from: leave out --resume_from_checkpoint to begin"),
        };
    }
    let path = fs::canonicalize(wanted).with_context(|| format!("`resume_from_checkpoint` {wanted}"))?;
    let number = |name: &str| name.strip_prefix("checkpoint-").and_then(|n| n.parse::<u64>().ok());
    let Some(step) = path.file_name().and_then(|name| number(&name.to_string_lossy())) else {
        bail!("`resume_from_checkpoint` must be `latest` or a folder named checkpoint-N, got {wanted}");
    };
    let own = fs::canonicalize(dir.root()).is_ok_and(|root| path.parent() == Some(&root));
    match (own, checkpoints.last()) {
        (true, Some(newest)) if *newest > step => bail!(
            "{root} already went on to checkpoint-{newest}: choose another `output_dir` to branch off at \
             checkpoint-{step}"
        ),
        (true, _) => Ok(Start::Resume),
        (false, _) if is_unused(dir)? => Ok(Start::Branch(path, step)),
        (false, _) => bail!("`output_dir` {root} is not empty: choose another folder to branch off into"),
    }
}

/// Whether the directory is free for a new run: absent, empty, or left by one that ended before its first step (for
/// instance because of an unknown reward function).
pub fn is_unused(dir: &RunDir) -> Result<bool> {
    let no_step = !fs::metadata(dir.metrics()).is_ok_and(|file| file.len() > 0);
    Ok(is_empty(dir.root())? || (dir.lock().exists() && no_step && dir.checkpoints()?.is_empty()))
}

/// Removes what a run that never made a step left behind.
fn clear(dir: &RunDir) -> Result<()> {
    for folder in [dir.weights(), dir.logs(), dir.completions()] {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    remove_file(&dir.metrics())?;
    remove_file(&dir.eval())?;
    remove_file(&dir.notices())?;
    tensorboard::files(dir.root())
        .context("`output_dir` cannot be used")?
        .iter()
        .try_for_each(|path| remove_file(path))?;
    dir.create().context("`output_dir` cannot be used")
}

/// Removes a file that need not be there.
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
    let path = dir.lock();
    let file = File::create(&path).with_context(|| format!("`output_dir` cannot be written: {}", path.display()))?;
    let begin = Instant::now();
    loop {
        signals::check()?;
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_PATIENCE => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => {
                bail!("another `tandem train` is still at work in {}{}", dir.root().display(), holders(&path))
            }
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| path.display().to_string()),
        }
    }
    // Without the flag that closes it, children inherit it.
    fcntl_setfd(&file, FdFlags::empty()).with_context(|| path.display().to_string())?;
    Ok(file)
}

/// The processes that have a file open, in brackets. Whoever took a lock may have ended and left it to its children, so
/// the system's list of locks does not say this.
fn holders(path: &Path) -> String {
    let Ok(path) = fs::canonicalize(path) else { return String::new() };
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let has_open = |process: &Path| {
        entries(&process.join("fd")).any(|file| fs::read_link(file.path()).is_ok_and(|open| open == path))
    };
    let own = std::process::id();
    let number = |name: &OsStr| name.to_str()?.parse::<u32>().ok().filter(|&process| process != own);
    let processes = entries(Path::new("/proc")).filter_map(|entry| Some((number(&entry.file_name())?, entry.path())));
    let found: Vec<String> = processes.filter(|(_, path)| has_open(path)).map(|(id, _)| id.to_string()).collect();
    if found.is_empty() { String::new() } else { format!(" (process {})", found.join(", ")) }
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

/// Whether an earlier run in this directory can be gone on with. What is left of one without a checkpoint is removed, once
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
mod tests {
    use std::process::Command;

    use super::*;

    fn config(root: &Path, resume: Option<&str>) -> TrainConfig {
        TrainConfig {
            output_dir: root.to_owned(),
            resume_from_checkpoint: resume.map(str::to_owned),
            ..TrainConfig::default()
        }
    }

    fn refusal(config: &TrainConfig) -> String {
        let text = format!("{:#}", prepare(config).unwrap_err());
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn a_fresh_directory_gets_its_configuration_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir.path().join("a/run"), None);
        let run = prepare(&config).unwrap();
        assert_eq!(layers::load(Some(&run.dir.config()), &Vec::new()).unwrap(), config);
        assert!(run.dir.logs().is_dir() && run.dir.weights().is_dir());
    }

    #[test]
    fn a_directory_of_another_run_is_refused_unless_resuming() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let run = prepare(&config(&root, None)).unwrap().dir;
        fs::write(run.metrics(), "{\"step\":1}\n").unwrap();
        assert!(refusal(&config(&root, None)).contains("is not empty"));
        assert!(refusal(&config(&root, Some("latest"))).contains("no checkpoint"));
        fs::create_dir(root.join("checkpoint-7")).unwrap();
        let text = refusal(&config(&root, None));
        assert!(text.contains("checkpoint-7") && text.contains("--resume_from_checkpoint latest"), "{text}");
        let run = prepare(&config(&root, Some("latest"))).unwrap();
        let written = layers::load(Some(&run.dir.config()), &Vec::new()).unwrap();
        assert_eq!(written.resume_from_checkpoint, None);
        assert!(refusal(&config(&root, Some("latest"))).contains("another `tandem train`"));
    }

    #[test]
    fn a_directory_whose_run_never_made_a_step_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let run = prepare(&config(&root, None)).unwrap().dir;
        fs::create_dir(run.weights().join("v000000")).unwrap();
        fs::write(run.eval(), "{\"step\":0}\n").unwrap();
        drop(tensorboard::Follower::new(run.clone(), 0, 1).unwrap());
        drop(prepare(&config(&root, None)).unwrap());
        assert!(run.versions().unwrap().is_empty(), "weights of another start must not stay");
        assert!(!run.eval().exists(), "nor its evaluation");
        assert!(tensorboard::files(run.root()).unwrap().is_empty(), "nor the events of it");

        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("thesis.tex"), "").unwrap();
        assert!(refusal(&config(&foreign, None)).contains("is not empty"));
        assert!(foreign.join("thesis.tex").exists());
    }

    /// A learner that outlives its launcher may make the first step while the next launcher waits for it.
    #[test]
    fn what_happened_while_the_lock_was_waited_for_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let OwnedRun { dir: run, _lock: lock, .. } = prepare(&config(&root, None)).unwrap();
        let text = thread::scope(|scope| {
            let next = scope.spawn(|| refusal(&config(&root, None)));
            thread::sleep(LOCK_POLL * 6);
            assert!(!next.is_finished(), "the lock is waited for");
            fs::write(run.metrics(), "{\"step\":1}\n").unwrap();
            fs::create_dir(run.checkpoint(1)).unwrap();
            drop(lock);
            next.join().unwrap()
        });
        assert!(text.contains("checkpoint-1"), "{text}");
        assert!(run.metrics().exists());
    }

    #[test]
    fn what_is_left_of_a_run_goes_only_when_nobody_is_at_work_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        assert!(!goes_on(&RunDir::new(&root)).unwrap() && !root.exists());
        let OwnedRun { dir: run, _lock: lock, .. } = prepare(&config(&root, None)).unwrap();
        let found = thread::scope(|scope| {
            let next = scope.spawn(|| goes_on(&run).unwrap());
            thread::sleep(LOCK_POLL * 6);
            // A learner whose launcher was killed writes a checkpoint before it ends.
            fs::create_dir(run.checkpoint(1)).unwrap();
            drop(lock);
            next.join().unwrap()
        });
        assert!(found && run.checkpoint(1).exists());
        fs::remove_dir(run.checkpoint(1)).unwrap();
        assert!(!goes_on(&run).unwrap() && !root.exists());
    }

    #[test]
    fn a_process_that_holds_the_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.lock");
        let file = File::create(&path).unwrap();
        assert_eq!(holders(&path), "", "this process is not meant");
        let mut child = Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
        let found = holders(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, format!(" (process {})", child.id()));
    }

    #[test]
    fn a_named_checkpoint_is_resumed_or_branched_off_from() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        drop(prepare(&config(&root, None)).unwrap());
        for step in [5, 10] {
            fs::create_dir(root.join(format!("checkpoint-{step}"))).unwrap();
            fs::write(root.join(format!("checkpoint-{step}/state.json")), "{}").unwrap();
        }
        // As checkpoints with a critic or a moved reference have them.
        fs::create_dir_all(root.join("checkpoint-5/critic/head")).unwrap();
        fs::write(root.join("checkpoint-5/critic/head/weights"), "w").unwrap();
        let five = root.join("checkpoint-5").display().to_string();
        assert!(refusal(&config(&root, Some(&five))).contains("checkpoint-10"));
        let ten = root.join("checkpoint-10").display().to_string();
        assert_eq!(start_of(&config(&root, Some(&ten)), &RunDir::new(&root)).unwrap(), Start::Resume);
        let branch = prepare(&config(&dir.path().join("branch"), Some(&five))).unwrap();
        assert_eq!(fs::read_to_string(branch.dir.checkpoint(5).join("state.json")).unwrap(), "{}");
        assert_eq!(fs::read_to_string(branch.dir.checkpoint(5).join("critic/head/weights")).unwrap(), "w");
        assert!(refusal(&config(&root, Some("/nowhere/checkpoint-1"))).contains("/nowhere/checkpoint-1"));
        assert!(refusal(&config(&root, Some(&root.display().to_string()))).contains("checkpoint-N"));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let text = refusal(&config(&dir.path().join("file/run"), None));
        assert!(text.contains("output_dir") && text.contains("file/run"), "{text}");
    }
}
