//! The run directory before the pair starts: whose it is, and where the run goes on.

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
    ModelDir, RunDir, atomic,
    channel::{RunId, iox::remove_leftovers},
    checkpoints::{self, Depth},
    config::{TrainConfig, layers},
    resume,
};

use super::session::Session;
use crate::{output, signals, tensorboard};

/// A run directory that belongs to this launcher until it is dropped.
#[derive(Debug)]
pub struct OwnedRun {
    /// The paths.
    pub dir: RunDir,
    /// The id of the run as this launcher has begun it or gone on with it.
    pub id: RunId,
    /// What the processes of this start are handed.
    pub session: Session,
    _lock: File,
}

/// Creates (or takes up again) the run directory of a resolved configuration. A run that is gone on with stays what it was until
/// its first step is made ([`shared::session`]); a new one has its `config.toml` from now on.
pub fn prepare(config: &TrainConfig) -> Result<OwnedRun> {
    let dir = RunDir::new(&config.output_dir);
    // What is refused stays untouched.
    dir.check_places().context("`output_dir` cannot be used")?;
    start_of(config, &dir)?;
    dir.create().context("`output_dir` cannot be used")?;
    let lock = lock(&dir)?;
    // While the lock was waited for, its last holder may have made a step or a checkpoint.
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
    let id = begin(&dir)?;
    Ok(OwnedRun { dir, id, session: Session::new(&text)?, _lock: lock })
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
    dir.check_places().context("`output_dir` cannot be used")?;
    let checkpoint = checkpoint(config)?;
    let above = dir.root().ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    access(above, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("`output_dir` {} cannot be written: {}", dir.root().display(), above.display()))?;
    let Some(path) = checkpoint else { return Ok(()) };
    model.map_or(Ok(()), |model| resume::check(config, model, &path).context("`resume_from_checkpoint`"))
}

/// The checkpoint that a run goes on from, if it does: the newest whose contents are as they were written.
pub fn checkpoint(config: &TrainConfig) -> Result<Option<PathBuf>> {
    let dir = RunDir::new(&config.output_dir);
    match start_of(config, &dir)? {
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

/// How a run starts. Where it cannot, that somebody is at work in its directory is the reason, whatever else is in the way.
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
                "`output_dir` {root} already holds a run (checkpoint-{step}): add --resume_from_checkpoint latest to go \
                 on with it, or choose another folder"
            ),
            None => bail!("`output_dir` {root} is not empty: choose another folder, or remove it"),
        }
    };
    if wanted == "latest" {
        let Some(newest) = checkpoints.last() else {
            bail!("{root} holds no checkpoint to resume from: leave out --resume_from_checkpoint to begin");
        };
        refuse_foreign(&dir.checkpoint(*newest))?;
        return Ok(Start::Resume);
    }
    let path = fs::canonicalize(wanted).with_context(|| format!("`resume_from_checkpoint` {wanted}"))?;
    refuse_foreign(&path)?;
    let number = |name: &str| name.strip_prefix("checkpoint-").and_then(|n| n.parse::<u64>().ok());
    let Some(step) = path.file_name().and_then(|name| number(&name.to_string_lossy())) else {
        bail!("`resume_from_checkpoint` must be `latest` or a folder named checkpoint-N, got {wanted}");
    };
    let own = fs::canonicalize(dir.root()).is_ok_and(|root| path.parent() == Some(&root));
    if !own {
        ensure!(is_unused(dir)?, "`output_dir` {root} is not empty: choose another folder to branch off into");
        return Ok(Start::Branch(path, step));
    }
    let is_whole = |later: &&u64| checkpoints::check(&dir.checkpoint(**later), Depth::Contents).is_ok();
    // Of later ones that are damaged, nothing would be gone on from: the learner sets them aside.
    let mut later = checkpoints.iter().rev().take_while(|later| **later > step).peekable();
    if later.peek().is_some() {
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

/// Names the trainer whose checkpoint it is, where it is another one.
fn refuse_foreign(checkpoint: &Path) -> Result<()> {
    resume::foreign(checkpoint).map_or(Ok(()), |words| Err(anyhow!("`resume_from_checkpoint`: {words}")))
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
    remove_file(&dir.ledger())?;
    remove_file(&dir.prompts())?;
    dir.reopen()?;
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
    hold(&dir.lock(), dir.root(), LOCK_PATIENCE)
}

/// Takes a file of a folder as the sign that this process, and what it starts, is at work in it.
///
/// # Errors
/// That another process is, by its number; a file that cannot be written.
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

/// Who is at work in a folder, with the ways out; nothing where nobody is.
fn at_work(lock: &Path, folder: &Path) -> Option<String> {
    let file = shared_bounds::open(lock).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| in_words(lock, folder))
}

fn in_words(lock: &Path, folder: &Path) -> String {
    let holders = holders(lock);
    let end = holders.first().map_or_else(|| "end it".to_owned(), |first| format!("end it (kill {})", first.id));
    format!(
        "`output_dir` {}: another `tandem` is still at work there{}; wait until it is done, {end}, or choose another folder",
        folder.display(),
        named(&holders)
    )
}

/// A process that has a file open.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    id: u32,
    /// Seconds since it was started.
    age: u64,
}

/// The processes that have a file open, the oldest first. Whoever took a lock may have ended and left it to its children, so
/// the system's list of locks does not say this.
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

/// Seconds since a process was started; 0 where the system does not tell.
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

/// ` (process 12, 15, since 3 minutes)`.
fn named(holders: &[Holder]) -> String {
    let Some(oldest) = holders.first() else { return String::new() };
    let ids: Vec<String> = holders.iter().map(|holder| holder.id.to_string()).collect();
    format!(" (process {}, since {})", ids.join(", "), HumanDuration(Duration::from_secs(oldest.age)))
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

    use shared::disk_room::EVENTS_PREFIX;

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

    /// A checkpoint that is whole as far as anybody looks.
    fn write_checkpoint(root: &Path, step: u64) -> PathBuf {
        let path = root.join(format!("checkpoint-{step}"));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(resume::STATE_FILE), "{\"format\": 1}").unwrap();
        fs::write(path.join("model.data"), "weights").unwrap();
        checkpoints::seal(&path).unwrap();
        path
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
        let before = fs::read(run.config()).unwrap();
        let other = TrainConfig { seed: 7, ..config(&root, Some("latest")) };
        let run = prepare(&other).unwrap();
        assert_eq!(fs::read(run.dir.config()).unwrap(), before, "no step is made with the new options yet");
        let handed = layers::load(Some(&run.session.path()), &Vec::new()).unwrap();
        assert_eq!((handed.resume_from_checkpoint, handed.seed), (None, 7));
        for resume in [None, Some("latest")] {
            let text = refusal(&config(&root, resume));
            assert!(text.contains("another `tandem` is still at work"), "{text}");
        }
    }

    /// With and without a checkpoint, and whatever is asked for, the run that is at work is the reason.
    #[test]
    fn a_second_start_in_the_folder_of_a_live_run_says_that_it_lives() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let run = prepare(&config(&root, None)).unwrap().dir;
        fs::write(run.metrics(), "{\"step\":1}\n").unwrap();
        let file = File::open(run.lock()).unwrap();
        file.lock().unwrap();
        let mut child = Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
        for with_checkpoint in [false, true] {
            if with_checkpoint {
                write_checkpoint(&root, 3);
            }
            for resume in [None, Some("latest")].iter().take(if with_checkpoint { 1 } else { 2 }) {
                let begin = Instant::now();
                let text = format!("{:#}", check(&config(&root, *resume), None).unwrap_err());
                assert!(text.contains("still at work there (process "), "{text}");
                assert!(text.contains(&child.id().to_string()) && text.contains("since "), "{text}");
                assert!(!text.contains("remove") && !text.contains("leave out"), "{text}");
                assert!(begin.elapsed() < LOCK_PATIENCE / 2, "nobody need wait for that");
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(refusal(&config(&root, None)).contains("already holds a run"));
    }

    #[test]
    fn an_older_checkpoint_is_gone_on_from_where_all_newer_ones_are_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        drop(prepare(&config(&root, None)).unwrap());
        let [four, five, six] = [4, 5, 6].map(|step| write_checkpoint(&root, step));
        let run = RunDir::new(&root);
        let named = |path: &Path| config(&root, Some(&path.display().to_string()));
        fs::write(six.join("model.data"), "WEIGHTS").unwrap();
        assert!(format!("{:#}", checkpoint(&named(&four)).unwrap_err()).contains("went on to checkpoint-5"));
        assert_eq!(checkpoint(&named(&five)).unwrap(), Some(run.checkpoint(5)));
        assert_eq!(checkpoint(&config(&root, Some("latest"))).unwrap(), Some(run.checkpoint(5)));
        fs::write(five.join(resume::STATE_FILE), [0; 13]).unwrap();
        assert_eq!(checkpoint(&named(&four)).unwrap(), Some(run.checkpoint(4)));
        let text = format!("{:#}", checkpoint(&named(&five)).unwrap_err());
        assert!(text.contains("checkpoint-5 is no whole checkpoint") && text.contains("trainer_state.json"), "{text}");
    }

    #[test]
    fn the_checkpoint_of_another_trainer_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("trl/checkpoint-9");
        fs::create_dir_all(&theirs).unwrap();
        fs::write(theirs.join(resume::STATE_FILE), "{\"global_step\": 9, \"log_history\": []}").unwrap();
        for (output, resume) in [("new", theirs.display().to_string()), ("trl", "latest".to_owned())] {
            let text = refusal(&config(&dir.path().join(output), Some(&resume)));
            assert!(text.contains("is a checkpoint of TRL") && text.contains("as `model`"), "{text}");
        }
        let verl = dir.path().join("global_step_20");
        fs::create_dir_all(verl.join("actor")).unwrap();
        let text = refusal(&config(&dir.path().join("new"), Some(&verl.display().to_string())));
        assert!(text.contains("is a checkpoint of verl"), "{text}");
        assert!(!dir.path().join("new").exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_file_of_the_run_is_refused_and_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (root, private) = (dir.path().join("run"), dir.path().join("thesis"));
        let places = ["run.lock", "config.toml", "metrics.jsonl", "ledger.jsonl", "notices.jsonl", "logs/learner.log"];
        drop(prepare(&config(&root, None)).unwrap());
        for place in places {
            fs::write(&private, "of the user").unwrap();
            let path = root.join(place);
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(&private, &path).unwrap();
            let text = refusal(&config(&root, None));
            assert!(text.contains(place) && text.contains("is a link"), "{text}");
            assert_eq!(fs::read_to_string(&private).unwrap(), "of the user");
            fs::remove_file(&path).unwrap();
            fs::write(root.join("run.lock"), "").unwrap();
        }
    }

    #[test]
    fn a_directory_whose_run_never_made_a_step_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        let run = prepare(&config(&root, None)).unwrap().dir;
        fs::create_dir(run.weights().join("v000000")).unwrap();
        fs::write(run.eval(), "{\"step\":0}\n").unwrap();
        fs::write(run.root().join(format!("{EVENTS_PREFIX}1.host.2")), "").unwrap();
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
        assert_eq!(holders(&path), [], "this process is not meant");
        let mut child = Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
        let found = holders(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.iter().map(|holder| holder.id).collect::<Vec<_>>(), [child.id()]);
        assert!(named(&found).starts_with(&format!(" (process {}, since ", child.id())), "{found:?}");
        assert_eq!(named(&[]), "");
    }

    #[test]
    fn a_named_checkpoint_is_resumed_or_branched_off_from() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("run");
        drop(prepare(&config(&root, None)).unwrap());
        for step in [5, 10] {
            let path = write_checkpoint(&root, step);
            fs::write(path.join("state.json"), "{}").unwrap();
            checkpoints::seal(&path).unwrap();
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
