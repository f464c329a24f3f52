//! A run directory in the cases of a new run, a second start, a resume and a branch.

use std::process::Command;

use shared::run::disk_room::EVENTS_PREFIX;

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

/// A checkpoint that passes as whole in these tests.
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
    assert!(refusal(&config(&root, None)).contains("holds the records of a run without a checkpoint"));
    let text = refusal(&config(&root, Some("latest")));
    assert!(text.contains("no checkpoint") && text.contains("choose another") && !text.contains("leave out"), "{text}");
    fs::create_dir(root.join("checkpoint-7")).unwrap();
    let text = refusal(&config(&root, None));
    assert!(text.contains("checkpoint-7") && text.contains("--resume_from_checkpoint latest"), "{text}");
    let before = fs::read(run.config()).unwrap();
    let other = TrainConfig { seed: 7, ..config(&root, Some("latest")) };
    let id = RunId::of(&run).unwrap();
    let run = prepare(&other).unwrap();
    assert_ne!(run.id, id);
    assert_eq!(fs::read(run.dir.config()).unwrap(), before, "no step is made with the new options yet");
    run.give_up();
    assert_eq!(RunId::of(&run.dir).unwrap(), id, "without a step, the run keeps its id");
    let handed = layers::load(Some(&run.session.path()), &Vec::new()).unwrap();
    assert_eq!((handed.resume_from_checkpoint, handed.seed), (None, 7));
    for resume in [None, Some("latest")] {
        let text = refusal(&config(&root, resume));
        assert!(text.contains("another `tandem` is still at work"), "{text}");
    }
}

/// Whatever is asked for, with or without a checkpoint, the error names the run that is at work.
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
            assert!(text.contains(&child.id().to_string()) && text.contains(", for "), "{text}");
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
    let text = refusal(&config(&foreign, None));
    assert!(text.ends_with("is not empty (it has thesis.tex): choose another folder"), "{text}");
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
    assert!(named(&found).starts_with(&format!(" (process {}, for ", child.id())), "{found:?}");
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
    // Layout of checkpoints with a critic or a moved reference.
    fs::create_dir_all(root.join("checkpoint-5/critic/head")).unwrap();
    fs::write(root.join("checkpoint-5/critic/head/weights"), "w").unwrap();
    let five = root.join("checkpoint-5").display().to_string();
    assert!(refusal(&config(&root, Some(&five))).contains("checkpoint-10"));
    let ten = root.join("checkpoint-10").display().to_string();
    assert_eq!(start_of(&config(&root, Some(&ten)), &RunDir::new(&root)).unwrap(), Start::Resume);
    let branch = prepare(&config(&dir.path().join("branch"), Some(&five))).unwrap();
    assert_eq!(fs::read_to_string(branch.dir.checkpoint(5).join("state.json")).unwrap(), "{}");
    assert_eq!(fs::read_to_string(branch.dir.checkpoint(5).join("critic/head/weights")).unwrap(), "w");
    let text = refusal(&config(&root, Some("/nowhere/checkpoint-1")));
    assert!(text.contains("/nowhere/checkpoint-1 (") && text.contains(" has checkpoint-5, checkpoint-10)"), "{text}");
    assert!(refusal(&config(&root, Some(&root.display().to_string()))).contains("checkpoint-N"));
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let text = refusal(&config(&dir.path().join("file/run"), None));
    assert!(text.contains("output_dir") && text.contains("file/run"), "{text}");
}

/// Root may write to /proc, which takes no folder.
#[test]
fn a_directory_that_cannot_be_made_is_refused_before_anything_else_is_done() {
    let text = format!("{:#}", check(&config(Path::new("/proc/run"), None), None).unwrap_err());
    assert!(text.starts_with("`output_dir` /proc/run cannot be written: /proc: "), "{text}");
    let dir = tempfile::tempdir().unwrap();
    check(&config(&dir.path().join("a/run"), None), None).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}
