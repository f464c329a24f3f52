//! Models and datasets by their names on the Hugging Face Hub.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    binary,
    cli::{self, Finished},
    hub::{Faults, Hub},
    tiny_model::{self, SMALL},
};

/// A user with an empty cache, and a Hub that has a model and a dataset.
struct Bench {
    hub: Hub,
    dir: tempfile::TempDir,
    model: String,
    dataset: String,
}

const MODEL: &str = "models/tandem/Small-1";
const DATASET: &str = "datasets/tandem/sums";

fn files_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())).collect()
}

fn rows(prefix: &str) -> String {
    (1..=8).map(|n| format!("{{\"prompt\": \"{prefix}{n}+{n}=\", \"answer\": {}}}\n", 2 * n)).collect()
}

impl Bench {
    fn new() -> Self {
        let (hub, dir) = (Hub::new(), tempfile::tempdir().unwrap());
        let source = dir.path().join("source");
        SMALL.write(&source, 5);
        tiny_model::write_tokenizer(&source);
        let others = [("pytorch_model.bin", "pickled"), ("onnx/model.onnx", "a graph")];
        let others = others.map(|(name, content)| (name.to_owned(), content.as_bytes().to_vec()));
        let model = hub.commit(MODEL, files_of(&source).into_iter().chain(others));
        let dataset = hub.commit(
            DATASET,
            [("easy/train.jsonl", rows("")), ("easy/test.jsonl", rows("1+")), ("hard/train.jsonl", rows("10*"))]
                .map(|(name, text)| (name.to_owned(), text)),
        );
        Self { hub, dir, model, dataset }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `tandem train run.toml` with these words behind it, in an environment with these variables more.
    fn train(&self, words: &[&str], environment: &[(&str, &str)]) -> Finished {
        let config = "model = \"tandem/Small-1\"\ndataset = \"tandem/sums\"\ndataset_config = \"easy\"\noutput_dir \
            = \"run\"\n\
                      reward_funcs = [\"numeric\", \"length:target=6\"]\nmax_steps = 2\nnum_generations = 4\n\
                      generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 8\n\
                      learning_rate = 1e-3\nsave_steps = 2\n";
        fs::write(self.path("run.toml"), config).unwrap();
        let mut command = self.command("tandem");
        command.arg("train").arg(self.path("run.toml")).args(words).envs(environment.iter().copied());
        cli::finish(command)
    }

    /// A program in the folder of this user, with nothing in its environment that another user has set.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(binary(program));
        command.current_dir(self.dir.path());
        for variable in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN_PATH"] {
            command.env_remove(variable);
        }
        command.env("HF_HOME", self.path("home")).env("HF_ENDPOINT", &self.hub.endpoint).env("NO_PROXY", "127.0.0.1");
        command.env("TANDEM_CACHE_DIR", self.path("cache"));
        command
    }

    fn dry_run(&self, environment: &[(&str, &str)]) -> Finished {
        self.train(&["--dry-run"], environment)
    }

    fn refusal(&self, environment: &[(&str, &str)]) -> String {
        self.dry_run(environment).refusal().to_owned()
    }

    /// The folder of the model in the cache.
    fn snapshot(&self, commit: &str) -> PathBuf {
        self.path("home/hub/models--tandem--Small-1/snapshots").join(commit)
    }
}

#[test]
fn a_run_by_name_writes_its_commits_and_keeps_them_when_it_is_resumed() {
    let bench = Bench::new();
    let first = bench.train(&["--max_steps", "1", "--save_steps", "1"], &[]).success();
    let told = format!("model tandem/Small-1: commit {}, ", bench.model);
    assert!(first.stderr.contains(&told) && first.stderr.contains("MB downloaded"), "{}", first.stderr);
    let written = fs::read_to_string(bench.path("run/config.toml")).unwrap();
    assert!(written.contains(&format!("{:?}", bench.snapshot(&bench.model))), "{written}");
    assert!(written.contains(&format!("datasets--tandem--sums/snapshots/{}", bench.dataset)), "{written}");
    let asked = bench.hub.requests();
    let fetched = |what: &str| asked.iter().any(|path| path.contains(what));
    assert!(fetched("easy/train.jsonl") && fetched("/tokenizer.json") && fetched("/cdn/"), "{asked:?}");
    for unwanted in ["hard/train.jsonl", "easy/test.jsonl", "pytorch_model.bin", "model.onnx"] {
        assert!(!fetched(unwanted), "{unwanted}: {asked:?}");
    }
    let newer = bench
        .hub
        .commit(MODEL, files_of(&bench.snapshot(&bench.model)).into_iter().chain([("new.txt".into(), b"1".to_vec())]));
    let second = bench.train(&["--resume_from_checkpoint", "latest"], &[]).success();
    assert!(second.stderr.contains(&format!("{}, from the cache", bench.model)), "{}", second.stderr);
    let warned = |line: &str| line.contains("warning: ") && !line.contains("this machine is busy");
    assert!(!second.stderr.contains(&newer) && !second.stderr.lines().any(warned), "{}", second.stderr);
    // A run that begins anew takes what is there now.
    let anew = bench.train(&["--dry-run", "--output_dir", "anew"], &[]).success();
    assert!(anew.stdout.contains(&newer), "{}", anew.stdout);
}

#[test]
fn a_path_that_is_there_wins() {
    let bench = Bench::new();
    let copy = bench.path("tandem/Small-1");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::rename(bench.path("source"), &copy).unwrap();
    fs::create_dir(bench.path("tandem/sums")).unwrap();
    fs::write(bench.path("tandem/sums/train.jsonl"), rows("")).unwrap();
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("has no configuration `easy`"), "{refusal}");
    let config = bench.train(&["--dry-run", "--dataset_config", "none"], &[]).success().stdout;
    assert!(config.contains(&format!("model = {copy:?}")), "{config}");
    assert_eq!(bench.hub.requests(), [""; 0]);
}

#[test]
fn without_a_network_the_cache_serves() {
    let bench = Bench::new();
    let offline = [("HF_HUB_OFFLINE", "1")];
    let refusal = bench.refusal(&offline);
    assert!(
        refusal.contains("`model`: tandem/Small-1: it is not in the cache") && refusal.contains("HF_HUB_OFFLINE"),
        "{refusal}"
    );
    let online = bench.dry_run(&[]).success();
    drop(bench.hub.requests());
    let without = bench.dry_run(&offline).success();
    assert_eq!(bench.hub.requests(), [""; 0]);
    let configuration = |finished: &Finished| {
        let text = finished.stdout.split("\n\n").next().unwrap();
        // The second in which it was resolved may be the next one.
        text.lines().filter(|line| !line.starts_with("template_date")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(configuration(&without), configuration(&online));
    bench.hub.faults(Faults { down: true, ..Faults::default() });
    let unreachable = bench.dry_run(&[]).success();
    assert!(unreachable.stderr.contains("it is taken from the cache, as of "), "{}", unreachable.stderr);
    fs::remove_file(bench.snapshot(&bench.model).join("model.safetensors")).unwrap();
    let refusal = bench.refusal(&offline);
    assert!(refusal.contains("of it, model.safetensors is not in the cache"), "{refusal}");
    fs::remove_dir_all(bench.path("home")).unwrap();
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("cannot be asked for at ") && refusal.contains("only what is in the cache"), "{refusal}");
}

#[test]
fn a_download_that_was_cut_goes_on_where_it_was() {
    let bench = Bench::new();
    bench.hub.faults(Faults { cut: Some((3000, 1)), ..Faults::default() });
    let _ = bench.dry_run(&[]).success();
    assert!(bench.hub.requests().iter().any(|request| request.ends_with(" from 3000")));
    fs::remove_dir_all(bench.path("home")).unwrap();
    // Nothing more arrives at all: it ends, and the next command goes on.
    bench.hub.faults(Faults { silent: Some(3000), ..Faults::default() });
    let refusal = bench.refusal(&[("HF_HUB_DOWNLOAD_TIMEOUT", "0.5")]);
    assert!(refusal.contains("nothing has arrived for 0.5 s") && refusal.contains("goes on from there"), "{refusal}");
    assert!(!bench.snapshot(&bench.model).join("model.safetensors").exists());
    // Nor if the connection is cut again and again.
    bench.hub.faults(Faults { cut: Some((0, 99)), ..Faults::default() });
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("the download was cut (") && refusal.contains("goes on from there"), "{refusal}");
    bench.hub.faults(Faults::default());
    drop(bench.hub.requests());
    let _ = bench.dry_run(&[]).success();
    assert!(bench.hub.requests().iter().any(|request| request.ends_with(" from 3000")));
    let sent = fs::read(bench.path("source/model.safetensors")).unwrap();
    assert!(fs::read(bench.snapshot(&bench.model).join("model.safetensors")).unwrap() == sent);
}

#[test]
fn what_is_left_of_an_earlier_download_does_no_harm() {
    let bench = Bench::new();
    let _ = bench.dry_run(&[]).success();
    let link = bench.snapshot(&bench.model).join("model.safetensors");
    let blob = fs::canonicalize(&link).unwrap();
    let whole = fs::read(&blob).unwrap();
    for left in [whole.clone(), [&whole[..], b"more"].concat()] {
        fs::remove_file(&link).unwrap();
        fs::write(blob.with_extension("part"), left).unwrap();
        let _ = bench.dry_run(&[]).success();
        assert!(fs::read(&link).unwrap() == whole);
    }
}

#[test]
fn what_arrives_otherwise_than_promised_is_thrown_away() {
    let bench = Bench::new();
    bench.hub.faults(Faults { wrong: true, ..Faults::default() });
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("has another hash than the Hub gives for it"), "{refusal}");
    let left = fs::read_dir(bench.snapshot(&bench.model)).map_or(0, Iterator::count);
    let blobs = fs::read_dir(bench.path("home/hub/models--tandem--Small-1/blobs")).unwrap();
    let kept = blobs.filter(|entry| entry.as_ref().unwrap().path().extension().is_none()).count();
    assert_eq!((left, kept), (0, 0));
    bench.hub.faults(Faults::default());
    let _ = bench.dry_run(&[]).success();
}

#[test]
fn what_the_hub_refuses_is_said_in_its_words_and_ours() {
    let bench = Bench::new();
    bench.hub.faults(Faults { token: Some("right"), ..Faults::default() });
    let refusal = bench.refusal(&[("HF_TOKEN", "wrong")]);
    assert!(
        refusal.contains("does not accept the token (Invalid credentials") && refusal.contains("HF_TOKEN"),
        "{refusal}"
    );
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("has no such model, or does not show it without a token (HF_TOKEN)"), "{refusal}");
    let _ = bench.dry_run(&[("HF_TOKEN", "right")]).success();
    fs::remove_dir_all(bench.path("home")).unwrap();
    fs::create_dir(bench.path("home")).unwrap();
    fs::write(bench.path("home/token"), "right\n").unwrap();
    let _ = bench.dry_run(&[]).success();
    bench.hub.faults(Faults { gated: true, ..Faults::default() });
    fs::remove_dir_all(bench.path("home/hub")).unwrap();
    let refusal = bench.refusal(&[]);
    assert!(refusal.contains("accepted the terms: do so at ") && refusal.contains("/tandem/Small-1,"), "{refusal}");
    bench.hub.faults(Faults::default());
    for (words, said) in [
        (["--model", "tandem/none"], "`model`: tandem/none: "),
        (["--model_revision", "v2"], "has no revision `v2` (model_revision)"),
        (["--dataset_revision", "v2"], "has no revision `v2` (dataset_revision)"),
        (["--dataset_config", "no"], "has no configuration `no` (`dataset_config`), but `easy`, `hard`"),
        (["--dataset_train_split", "dev"], "has no split `dev`, but `test`, `train`"),
    ] {
        let refused = bench.train(&[&words[..], &["--dry-run"]].concat(), &[]);
        assert!(refused.refusal().contains(said), "{said}: {}", refused.stderr);
    }
    let weights = [("config.json".to_owned(), "{}"), ("pytorch_model.bin".to_owned(), "pickled")];
    let _ = bench.hub.commit("models/tandem/pickled", weights);
    let refused = bench.train(&["--model", "tandem/pickled", "--dry-run"], &[]);
    assert!(refused.refusal().contains("has no safetensors"), "{}", refused.stderr);
}

#[test]
fn a_name_of_a_file_outside_the_cache_is_refused() {
    let bench = Bench::new();
    let _ = bench.hub.commit("models/tandem/evil", [("../../evil.json".to_owned(), "{}")]);
    let refused = bench.train(&["--model", "tandem/evil", "--dry-run"], &[]);
    assert!(refused.refusal().contains("a file is called `../../evil.json`"), "{}", refused.stderr);
}

#[test]
fn single_commands_know_names_too() {
    let bench = Bench::new();
    let mut command = bench.command("rollout");
    command.args(["generate", "--model", "tandem/Small-1", "--prompts", "tandem/sums", "--dataset-config", "easy"]);
    command.args(["--limit", "1", "--max-completion-length", "2", "--output", "out.jsonl"]);
    let finished = cli::finish(command).success();
    assert!(bench.snapshot(&bench.model).join("model.safetensors").exists(), "{}", finished.stderr);
}
