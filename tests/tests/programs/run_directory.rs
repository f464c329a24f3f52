//! What somebody does to the files of a run, and what a start that fails does to them: a damaged file is set aside,
//! left out or named, and never hangs a start, changes the weights without a word, or leads out of the run.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::Bench,
    cli::{self, Finished},
    processes::{children, signal},
    training::json_lines,
};

const CONFIG: &str = "dataset = \"prompts.jsonl\"\nmax_steps = 3\nsave_steps = 1\nnum_generations = 4\n\
                      generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
                      learning_rate = 1e-3\nlr_scheduler_type = \"constant\"\nmax_restarts = 0\nlearner_threads = \
                      1\nrollout_threads = 1\n";
const RESUME: [&str; 2] = ["--resume_from_checkpoint", "latest"];
/// Longest that a start may take which has nothing to wait for.
const SOON: Duration = Duration::from_secs(60);

/// What is done to a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    Zeros,
    Half,
    Flip,
    Delete,
    Pipe,
    Link,
    Folder,
}

const DEEDS: [Deed; 7] = [Deed::Zeros, Deed::Half, Deed::Flip, Deed::Delete, Deed::Pipe, Deed::Link, Deed::Folder];

impl Deed {
    /// Does it; `private` is a file of the user's, outside of the run.
    fn to(self, path: &Path, private: &Path) {
        let bytes = fs::read(path).unwrap();
        if !matches!(self, Self::Zeros | Self::Half | Self::Flip) {
            fs::remove_file(path).unwrap();
        }
        let middle = bytes.len() / 2;
        match self {
            Self::Zeros => fs::write(path, vec![0; bytes.len()]).unwrap(),
            Self::Half => fs::write(path, &bytes[..middle]).unwrap(),
            Self::Flip if bytes.is_empty() => (),
            Self::Flip => {
                let flipped = bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == middle));
                fs::write(path, flipped.collect::<Vec<_>>()).unwrap();
            }
            Self::Delete => (),
            Self::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            Self::Link => symlink(private, path).unwrap(),
            Self::Folder => fs::create_dir(path).unwrap(),
        }
    }
}

/// Every file below a folder, by its path within, with what it holds; links are followed by nobody.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            let name = entry.path().strip_prefix(root).unwrap().to_owned();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("checkpoint-3/model.safetensors")).unwrap()
}

/// A run of two steps that is to go on to a third one, and the weights that it then has.
fn begun() -> (Bench, Vec<u8>) {
    let bench = Bench::new(CONFIG);
    let _ = cli::finish(bench.command("run", &["--max_steps", "2"])).success();
    copy(&bench.path("run"), &bench.path("undisturbed"));
    let _ = cli::finish(bench.command("undisturbed", &RESUME)).success();
    let expected = weights(&bench.path("undisturbed"));
    (bench, expected)
}

fn told(run: &Path) -> String {
    fs::read_to_string(run.join("notices.jsonl")).unwrap_or_default()
}

/// One resume of a copy of the run in which something was done to a file.
fn disturb(bench: &Bench, expected: &[u8], number: usize, file: &Path, deed: Deed) {
    let place = format!("{}: {deed:?}", file.display());
    let (name, private) = (format!("disturbed-{number}"), bench.path(&format!("private-{number}")));
    fs::write(&private, "of the user").unwrap();
    copy(&bench.path("run"), &bench.path(&name));
    let run = bench.path(&name);
    deed.to(&run.join(file), &private);
    let begin = Instant::now();
    let resumed = cli::finish(bench.command(&name, &RESUME));
    assert!(begin.elapsed() < SOON, "{place}: {}", resumed.stderr);
    assert_eq!(fs::read_to_string(&private).unwrap(), "of the user", "{place}: written through");
    let own_name = file.file_name().unwrap().to_string_lossy().into_owned();
    if resumed.status.success() {
        assert!(weights(&run) == expected, "{place}: other weights\n{}", resumed.stderr);
        if file.starts_with("checkpoint-2") {
            assert!(told(&run).contains(&own_name) || deed == Deed::Link, "{place}: without a word\n{}", told(&run));
        }
    } else {
        let refusal = resumed.refusal();
        assert!(refusal.contains(&own_name), "{place}: {refusal}");
        assert!(!matches!(deed, Deed::Zeros | Deed::Half | Deed::Flip | Deed::Delete), "{place}: {refusal}");
    }
    fs::remove_dir_all(run).unwrap();
}

/// Each file meets three of the deeds, others in turn; `TANDEM_ALL_DEEDS` has each meet all.
#[test]
fn whatever_is_done_to_a_file_a_resume_comes_to_the_same_weights_or_names_it() {
    let (bench, expected) = begun();
    let all = std::env::var_os("TANDEM_ALL_DEEDS").is_some();
    let is_concerned = |file: &&PathBuf| !file.starts_with("checkpoint-1") && !file.starts_with("logs");
    let found = files(&bench.path("run"));
    let mut trials = Vec::new();
    for (at, file) in found.keys().filter(is_concerned).enumerate() {
        let deeds = DEEDS.iter().cycle().skip(at * 3).take(if all { DEEDS.len() } else { 3 });
        trials.extend(deeds.map(|deed| (file.clone(), *deed)));
    }
    for (file, deed) in [
        ("checkpoint-2/config.json", Deed::Zeros),
        ("checkpoint-2/checksums.json", Deed::Pipe),
        ("checkpoint-2/checksums.json", Deed::Delete),
        ("notices.jsonl", Deed::Half),
        ("config.toml", Deed::Zeros),
        ("metrics.jsonl", Deed::Delete),
        ("ledger.jsonl", Deed::Pipe),
        ("run.lock", Deed::Link),
    ] {
        if found.contains_key(Path::new(file)) {
            trials.push((file.into(), deed));
        }
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((file, deed)) = trials.get(number) else { break };
                    disturb(&bench, &expected, number, file, *deed);
                }
            });
        }
    });
}

/// Three bits of the weights, and the list that would have told.
#[test]
fn weights_that_were_changed_together_with_the_loss_of_their_list_are_found_or_told() {
    let (bench, expected) = begun();
    let flip = |run: &str, file: &str| {
        let path = bench.path(run).join(file);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 20;
        bytes[at] ^= 0b111;
        fs::write(path, bytes).unwrap();
    };
    let without_lists = |run: &str| {
        copy(&bench.path("run"), &bench.path(run));
        for step in [1, 2] {
            fs::remove_file(bench.path(run).join(format!("checkpoint-{step}/checksums.json"))).unwrap();
        }
    };
    // An earlier version has no lists at all.
    without_lists("one");
    let _ = cli::finish(bench.command("one", &RESUME)).success();
    assert!(weights(&bench.path("one")) == expected);
    assert!(told(&bench.path("one")).contains("\"checkpoint_unchecked\""), "{}", told(&bench.path("one")));
    without_lists("two");
    flip("two", "checkpoint-2/model.safetensors");
    let _ = cli::finish(bench.command("two", &RESUME)).success();
    assert!(told(&bench.path("two")).contains("model.safetensors has other values"), "{}", told(&bench.path("two")));
    assert!(weights(&bench.path("two")) == expected, "it goes on from the one before");
}

#[test]
fn damaged_and_missing_records_are_told_with_their_steps_and_block_nothing() {
    let (bench, expected) = begun();
    let run = bench.path("run");
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    fs::write(run.join("metrics.jsonl"), text.replacen('{', "", 1)).unwrap();
    let mut notices = fs::read(run.join("notices.jsonl")).unwrap_or_default();
    notices.extend(b"{\"kind\":\"of_tomorrow\",\"step\":1,\"text\":\"t\",\"remedy\":\"r\"}\n{\"kind\":");
    fs::write(run.join("notices.jsonl"), notices).unwrap();
    let report = cli::run("tandem", [Path::new("report"), &run]).success();
    let html = fs::read_to_string(report.stdout.trim()).unwrap();
    for words in ["metrics.jsonl: 1 damaged line, step 1 is missing", "notices.jsonl: 1 damaged line, 1 line of a kind"]
    {
        assert!(html.contains(words), "{words}");
    }
    let resumed = cli::finish(bench.command("run", &RESUME)).success();
    assert!(weights(&run) == expected);
    for words in ["metrics.jsonl: 1 damaged line, step 1 is missing", "notices.jsonl: 1 damaged line, 1 line of a kind"]
    {
        assert!(told(&run).contains(words) && resumed.stderr.contains(words), "{words}: {}", resumed.stderr);
    }
    assert!(told(&run).contains("of_tomorrow"), "what another version has told stays");
    let html = fs::read_to_string(run.join("report.html")).unwrap();
    assert_eq!(html.matches("\"records_damaged\"").count(), 1, "told by the run, and not once more by the report");
    assert_eq!(json_lines(&run.join("metrics.jsonl")).len(), 2);
}

/// What a run holds, but for its logs, its lock and the id that each start draws.
fn snapshot(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = files(run);
    let of_a_start = [Path::new("run.lock"), Path::new("run.id")];
    found.retain(|file, _| !file.starts_with("logs") && !of_a_start.contains(&file.as_path()));
    found
}

#[test]
fn a_start_that_fails_changes_nothing_in_the_run_that_it_was_to_go_on_with() {
    let (bench, expected) = begun();
    let run = bench.path("run");
    let before = snapshot(&run);
    assert!(before.contains_key(Path::new("finished.json")) && before.contains_key(Path::new("report.html")));
    let no_weights = bench.path("no-weights");
    copy(&bench.path("model"), &no_weights);
    fs::remove_file(no_weights.join("model.safetensors")).unwrap();
    let other_shape = bench.path("other-shape");
    harness::tiny_model::TINY.write(&other_shape, 1);
    harness::tiny_model::write_tokenizer(&other_shape);
    let no_tokenizer = bench.path("no-tokenizer");
    copy(&bench.path("model"), &no_tokenizer);
    fs::write(no_tokenizer.join("tokenizer.json"), "{}").unwrap();
    fs::write(bench.path("broken.py"), "def f(completions, **kwargs):\n    raise ValueError('broken')\n").unwrap();
    let failing: [&[&str]; 7] = [
        &["--model", "no-weights"],
        &["--model", "other-shape"],
        &["--model", "no-tokenizer"],
        &["--num_generations", "0"],
        &["--reward_funcs", "broken.py:missing"],
        &["--dataset", "nowhere.jsonl"],
        &["--max_model_len", "2"],
    ];
    for words in failing {
        let failed = cli::finish(bench.command("run", &[&RESUME, words, &["--seed", "7"]].concat()));
        assert!(!failed.status.success(), "{words:?}: {}", failed.stderr);
        assert_same(&before, &snapshot(&run), words);
    }
    for name in ["KILL", "INT"] {
        let mut child = bench.start("run", &[&RESUME[..], &["--seed", "7"]].concat());
        let begin = Instant::now();
        while children(child.id(), "learner").is_empty() && child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < SOON);
            thread::sleep(Duration::from_millis(2));
        }
        signal(child.id(), name);
        signal(child.id(), name);
        let _ = child.wait().unwrap();
        wait_until_free(&run);
        let mut after = snapshot(&run);
        // A killed launcher leaves versions in shared memory, and nothing else.
        after.retain(|file, _| !file.starts_with("weights"));
        assert_same(&before, &after, &[name]);
    }
    let _ = cli::finish(bench.command("run", &RESUME)).success();
    assert!(weights(&run) == expected);
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("max_steps = 3"), "a start that comes to something has its options there: {config}");
}

fn assert_same(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>, what: &[&str]) {
    let changed: Vec<_> =
        before.keys().chain(after.keys()).filter(|file| before.get(*file) != after.get(*file)).collect();
    assert!(changed.is_empty(), "{what:?} changed {changed:?}");
}

/// Waits until the processes of a killed launcher are gone.
fn wait_until_free(run: &Path) {
    let begin = Instant::now();
    while fs::File::open(run.join("run.lock")).unwrap().try_lock().is_err() {
        assert!(begin.elapsed() < SOON, "a process outlives its launcher");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_run_keeps_to_the_bound_of_its_records_and_says_what_went() {
    let bench = Bench::new(CONFIG);
    // 200 KiB.
    let more = ["--max_steps", "60", "--save_steps", "30", "--records_size_limit", "0.0002", "--token_records", "2"];
    let finished: Finished = cli::finish(bench.command("run", &more)).success();
    let run = bench.path("run");
    let is_record = |file: &Path| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        file.starts_with("completions")
            || ["metrics.jsonl", "ledger.jsonl"].contains(&&*name)
            || name.starts_with("events.out.tfevents.")
    };
    let taken: usize = files(&run).iter().filter(|(file, _)| is_record(file)).map(|(_, bytes)| bytes.len()).sum();
    assert!(taken < 240 << 10, "{taken} bytes");
    assert!(told(&run).contains("\"records_removed\"") && finished.stderr.contains("`records_size_limit`"));
    let last = json_lines(&run.join("metrics.jsonl")).pop().unwrap();
    assert_eq!(last["step"], 60);
    assert!(last["num_tokens"].as_u64().unwrap() > 60 * 8, "counts go on from the beginning: {last}");
    assert!(!run.join("completions/step-1.jsonl").exists() && run.join("completions/step-60.jsonl").exists());
    let explained = cli::run("tandem", [Path::new("explain"), &run, Path::new("1.0.0")]);
    assert!((explained.stdout + &explained.stderr).contains("`records_size_limit`"));
    let report = cli::run("tandem", [Path::new("report"), &run]).success();
    assert!(fs::read_to_string(report.stdout.trim()).unwrap().contains("records_removed"));
    // What went on purpose is not missing.
    let _ = cli::finish(bench.command("run", &[&RESUME[..], &more[2..], &["--max_steps", "61"]].concat())).success();
    assert!(!told(&run).contains("records_damaged"), "{}", told(&run));

    let _ = cli::finish(bench.command("free", &["--max_steps", "60", "--records_size_limit", "0"])).success();
    assert!(bench.path("free/completions/step-1.jsonl").exists());
    assert_eq!(json_lines(&bench.path("free/metrics.jsonl")).len(), 60);
}
