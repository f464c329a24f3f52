//! Stores without room and with damaged objects, and hosts without room or without the versions: both sides name them,
//! and nothing is lost.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary, cli,
    fleet::{FleetBench, Worker, assert_says},
    processes::signal,
    s3::Server,
    skipped,
};

const STEPS: u64 = 6;
/// So long nothing new comes of a run whose worker is gone.
const SETTLED: Duration = Duration::from_secs(1);
/// A file system with less room than a version takes.
const MOUNT: &str = "mount -t tmpfs -o size=200k tmpfs \"$0\" && exec \"$@\"";

/// A program for which there is such a file system at a place, and nothing else.
fn with_mount_at(place: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", MOUNT]).arg(place).arg(program);
    command
}

fn can_mount(place: &Path) -> bool {
    let tried = with_mount_at(place, Path::new("true")).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

/// Folders of a store that have everything, differences or others.
fn published(store: &Path, differences: bool) -> BTreeSet<PathBuf> {
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('v') && name.contains("-from-") == differences && path.join("index.json").is_file()
    };
    fs::read_dir(store).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_meant).collect()
}

/// The largest object of a folder.
fn largest(folder: &Path) -> Option<PathBuf> {
    let objects = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    objects.max_by_key(|path| fs::metadata(path).map_or(0, |what| what.len()))
}

/// The folder of a store that has what is published under a prefix.
fn folder_of(store: &Path, prefix: &str) -> PathBuf {
    let is_meant = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{prefix}-")))
            && path.join("index.json").is_file()
    };
    fs::read_dir(store).unwrap().flatten().map(|entry| entry.path()).find(is_meant).expect("it was published")
}

/// What somebody does to an object.
type Damage = fn(&Path);

fn overwrite(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn truncate(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

fn delete(path: &Path) {
    fs::remove_file(path).unwrap();
}

/// A worker that has nothing from before, and is slow enough to be ended in the middle of a step.
fn newcomer(bench: &FleetBench, name: &str) -> Worker {
    let cache = bench.path(&format!("cache-{name}")).display().to_string();
    bench.worker_at(&bench.listen, name, &["--cache", &cache, "--tokens-per-second", "500"])
}

/// The newest version in a store, once there is no other for a while.
fn settled(store: &Path) -> PathBuf {
    let (mut newest, mut since) = (None, Instant::now());
    while since.elapsed() < SETTLED || newest.is_none() {
        let now = published(store, false).pop_last();
        if now != newest {
            (newest, since) = (now, Instant::now());
        }
        thread::sleep(Duration::from_millis(10));
    }
    newest.expect("it was waited for")
}

#[test]
fn a_version_that_somebody_damages_in_the_store_is_sent_again() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "rounded"]);
    let store = bench.path("fleet/store");
    let mut last = ("first", newcomer(&bench, "first"));
    let damages: [(&str, Damage, &str); 3] = [
        ("overwritten", overwrite, "is damaged: bytes 0 to"),
        ("truncated", truncate, "is damaged: it has"),
        ("deleted", delete, "is not there"),
    ];
    for (number, (name, damage, found)) in damages.into_iter().enumerate() {
        bench.wait_for_step("fleet", number + 1);
        let (before, ends) = last;
        drop(ends);
        bench.coordinator_says("fleet", &format!("worker {before} is gone"));
        damage(&largest(&settled(&store)).unwrap());
        last = (name, newcomer(&bench, name));
        bench.worker_says(name, "have not come, they are tried again");
        assert_says(&bench.worker_said(name), &[found]);
        bench.coordinator_says("fleet", &format!("are sent again: worker {name}: "));
    }
    bench.ends(&mut run, vec![last]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_eq!(bench.coordinator_said("fleet").matches("are sent again: ").count(), damages.len());
}

#[test]
fn the_base_of_adapters_that_somebody_damages_in_the_store_is_sent_again() {
    let bench = FleetBench::new(STEPS, "use_peft = true\nlora_r = 4\n");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "plain"]);
    let first = newcomer(&bench, "first");
    bench.wait_for_step("fleet", 2);
    drop(first);
    bench.coordinator_says("fleet", "worker first is gone");
    overwrite(&largest(&folder_of(&bench.path("fleet/store"), "base")).unwrap());
    let second = newcomer(&bench, "second");
    bench.coordinator_says("fleet", "are sent again: worker second: ");
    bench.ends(&mut run, vec![("second", second)]);
    assert_says(&bench.worker_said("second"), &["is damaged: bytes 0 to"]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_eq!(bench.coordinator_said("fleet").matches("are sent again: ").count(), 1);
}

#[test]
fn a_worker_whose_store_is_another_one_is_dropped_and_the_run_goes_on() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "plain"]);
    let first = bench.worker_at(&bench.listen, "first", &["--tokens-per-second", "500"]);
    bench.wait_for_step("fleet", 1);
    drop(first);
    // A copy that nobody keeps up to date: it has the model and no version.
    let (store, copy) = (bench.path("fleet/store"), bench.path("copy"));
    fs::create_dir(&copy).unwrap();
    let copied = Command::new("cp").arg("-r").arg(folder_of(&store, "model")).arg(&copy).status();
    assert!(copied.unwrap().success());
    let place = copy.display().to_string();
    let refused = bench.refused("astray", &["--store", &place]);
    assert_says(&refused, &["weights were sent again several times", "its --store", "is not there"]);
    let near = bench.worker("near");
    bench.ends(&mut run, vec![("near", near)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.run_said(), &["notice: worker astray was dropped: weights were sent again several times"]);
    assert!(!bench.run_said().contains("restarting"), "{}", bench.run_said());
}

#[test]
fn instead_of_a_damaged_difference_the_whole_version_is_fetched() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "rounded"]);
    let worker = bench.worker("worker");
    let (store, over) = (bench.path("fleet/store"), AtomicBool::new(false));
    thread::scope(|scope| {
        // As soon as they are there: mostly before the worker has heard of them.
        scope.spawn(|| {
            let mut damaged = BTreeSet::new();
            while !over.load(Relaxed) {
                for folder in published(&store, true).difference(&damaged.clone()) {
                    if let Some(object) = largest(folder) {
                        drop(fs::write(object, "short"));
                    }
                    damaged.insert(folder.clone());
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        bench.ends(&mut run, vec![("worker", worker)]);
        over.store(true, Relaxed);
    });
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.worker_said("worker"), &["are fetched whole: ", "is damaged: it has 5 bytes"]);
    let log = bench.coordinator_said("fleet");
    assert_says(&log, &["worker worker has trouble with its weights: fetched whole: ", "is damaged: it has 5 bytes"]);
    assert!(!log.contains("sent again"), "the version itself is whole: {log}");
}

#[test]
fn a_store_that_is_full_is_tried_again_until_there_is_room() {
    let mut bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let server = Server::start();
    bench.variables = server.variables(server.address);
    let mut run = bench.start_fleet("fleet", &["--weights_store", "s3://bucket/run"]);
    let worker = bench.worker_at(&bench.listen, "worker", &["--tokens-per-second", "500"]);
    bench.wait_for_step("fleet", 1);
    server.fill(true);
    bench.coordinator_says("fleet", "the store is tried again in 2 s: s3://bucket/run: no room for run/v0000");
    bench.run_says("notice: weights do not get into the store, and are tried again: s3://bucket/run: no room for");
    assert_says(bench.table("fleet")["store_trouble"].as_str().unwrap(), &["no room for", "`store_versions`"]);
    server.fill(false);
    bench.ends(&mut run, vec![("worker", worker)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.run_said(), &["weights get into the store again"]);
    assert!(!bench.run_said().contains("restarting"), "{}", bench.run_said());
    assert!(bench.table("fleet")["store_trouble"].is_null());
}

/// It takes longer than others, since a store is tried again for half a minute, by each of three samplers, one after
/// the other.
#[test]
fn a_store_that_stays_full_ends_the_run_with_a_checkpoint() {
    let mut bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let server = Server::start();
    bench.variables = server.variables(server.address);
    let flags = ["--weights_store", "s3://bucket/run"];
    let mut run = bench.start_fleet("fleet", &flags);
    let worker = bench.worker_at(&bench.listen, "worker", &["--tokens-per-second", "500"]);
    bench.wait_for_step("fleet", 1);
    server.fill(true);
    let status = run.wait().unwrap();
    let said = bench.run_said();
    assert!(!status.success(), "{said}");
    assert_says(&said, &["do not get into the store: s3://bucket/run: no room for"]);
    server.fill(false);
    let mut run = bench.start_fleet("fleet", &[&flags[..], &["--resume_from_checkpoint", "latest"]].concat());
    bench.ends(&mut run, vec![("worker", worker)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
}

#[test]
fn a_worker_without_room_ends_with_the_name_of_its_cache() {
    const TEST: &str = "a_worker_without_room_ends_with_the_name_of_its_cache";
    let bench = FleetBench::new(STEPS, "");
    let cache = bench.path("little");
    fs::create_dir(&cache).unwrap();
    if !can_mount(&cache) {
        return skipped(TEST, "this user cannot mount a small file system");
    }
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "plain"]);
    let mut command = with_mount_at(&cache, &binary("tandem"));
    command.args(["worker", "--join", &bench.listen, "--name", "full", "--cache"]).arg(&cache);
    let finished = cli::finish(command);
    let place = format!("--cache {}", cache.display());
    assert_says(
        finished.refusal(),
        &[&place, "no room for what is fetched", "free some space or choose another folder"],
    );
    assert_eq!(finished.refusal().matches("are needed").count(), 1);
    let worker = bench.worker("worker");
    bench.ends(&mut run, vec![("worker", worker)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.coordinator_said("fleet"), &["worker full leaves: ", &place]);
    assert_says(&bench.run_said(), &["notice: worker full was dropped: ", &place]);
}

#[test]
fn a_worker_that_cannot_see_the_run_directory_is_told_that_it_needs_a_store() {
    const TEST: &str = "a_worker_that_cannot_see_the_run_directory_is_told_that_it_needs_a_store";
    let bench = FleetBench::new(STEPS, "");
    if !can_mount(&bench.path("")) {
        return skipped(TEST, "this user cannot mount a small file system");
    }
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &[]);
    bench.coordinator_says("fleet", "workers join at");
    let run_dir = bench.path("fleet");
    let elsewhere = |args: &[&str]| {
        let mut command = with_mount_at(&run_dir, &binary("tandem"));
        command.args(args).args(["--join", &bench.listen]);
        cli::finish(command)
    };
    let versions = run_dir.join("weights").display().to_string();
    let words = [&*versions, "cannot be read from here", "need a `weights_store`"];
    assert_says(
        elsewhere(&["worker", "--name", "far", "--cache", &bench.path("far").display().to_string()]).refusal(),
        &words,
    );
    assert_says(elsewhere(&["doctor"]).refusal(), &words);
    let worker = bench.worker("near");
    bench.ends(&mut run, vec![("near", worker)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.run_said(), &["notice: worker far was dropped: ", &versions]);
}

#[test]
fn what_a_run_has_in_its_store_goes_when_it_goes_on_without() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--store_format", "plain"]);
    let worker = newcomer(&bench, "first");
    bench.wait_for_step("fleet", 2);
    signal(run.id(), "TERM");
    run.wait().unwrap();
    drop(worker);
    let store = bench.path("fleet/store");
    assert!(!published(&store, false).is_empty(), "{}", bench.run_said());
    let mut run = bench.start_fleet("fleet", &["--resume_from_checkpoint", "latest"]);
    bench.ends(&mut run, vec![("second", bench.worker("second"))]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert!(published(&store, false).is_empty(), "{:?}", published(&store, false));
}
