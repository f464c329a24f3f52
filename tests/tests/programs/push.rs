//! `tandem push` against the Hub of the tests, which Hugging Face's own library is tried on first.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    copy_folder,
    hub::{Faults, Hub, Refusal, WriteFaults},
    skipped,
    tiny_model::{self, TINY},
};
use serde_json::{Value, json};

const TOKEN: &str = "hf_not_for_others";
const REPO: &str = "models/me/mine";

/// A user with a token, a Hub, and a run of an earlier build with checkpoints full of other things.
struct Bench {
    hub: Hub,
    dir: tempfile::TempDir,
}

/// What must never leave the machine, beside the model in a checkpoint.
const STRAYS: [&str; 8] = [
    "optimizer.safetensors",
    "trainer_state.json",
    "checksums.json",
    "manifest.json",
    "model.onnx",
    "weights.data",
    "notes.txt",
    "logs/learner.log",
];

impl Bench {
    fn new() -> Self {
        let bench = Self { hub: Hub::new(), dir: tempfile::tempdir().unwrap() };
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runs");
        for name in ["model", "sync", "lora"] {
            copy_folder(&fixtures.join(name), &bench.path(name));
        }
        for stray in ["sync", "lora"].map(|run| bench.path(run).join("checkpoint-4")) {
            fs::create_dir(stray.join("logs")).unwrap();
            fs::write(stray.join("logs/learner.log"), "a log").unwrap();
            fs::write(stray.join("notes.txt"), format!("my token is {TOKEN}")).unwrap();
        }
        // Paths of the machine that it was made on are those of this one now.
        for run in ["sync", "lora"] {
            let file = bench.path(run).join("config.toml");
            let moved = fs::read_to_string(&file).unwrap().replace("/fixture", bench.dir.path().to_str().unwrap());
            fs::write(file, moved).unwrap();
        }
        bench.hub.faults(Faults { token: Some(TOKEN), ..Faults::default() });
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("tandem"));
        command.arg("push").args(words).current_dir(self.dir.path());
        for variable in ["HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(variable);
        }
        command.env("HF_HOME", self.path("home")).env("HF_ENDPOINT", &self.hub.endpoint).env("NO_PROXY", "127.0.0.1");
        command.env("HF_TOKEN", TOKEN);
        command
    }

    fn push(&self, words: &[&str]) -> Finished {
        let finished = cli::finish(self.command(words));
        for printed in [&finished.stdout, &finished.stderr] {
            assert!(!printed.contains(TOKEN), "{finished:?}");
        }
        finished
    }

    fn refusal(&self, words: &[&str]) -> String {
        let finished = self.push(words);
        assert!(finished.stdout.is_empty(), "{finished:?}");
        finished.refusal().to_owned()
    }

    /// The faults of what is sent, for this user's token.
    fn faults(&self, writes: WriteFaults) {
        self.hub.faults(Faults { token: Some(TOKEN), writes, ..Faults::default() });
    }

    fn pushed(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = self.hub.files(REPO, "main").unwrap();
        files.remove(".gitattributes");
        files
    }

    fn commits(&self) -> usize {
        self.hub.summaries(REPO).map_or(0, |summaries| summaries.len())
    }
}

/// The head of a card, as the Hub reads it.
fn head(card: &[u8]) -> Value {
    let card = String::from_utf8(card.to_vec()).unwrap();
    let (head, _) = card.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
    serde_saphyr::from_str(head).unwrap()
}

const SCRIPT: &str = "
import sys
from huggingface_hub import HfApi

folder, repo = sys.argv[1:]
api = HfApi()
api.create_repo(repo, private=True)
api.create_repo(repo, private=True, exist_ok=True)
made = api.upload_folder(repo_id=repo, folder_path=folder, commit_message='theirs')
again = api.upload_folder(repo_id=repo, folder_path=folder, commit_message='again')
assert made.oid == again.oid, (made, again)
api.create_branch(repo, branch='exp/2')
api.upload_file(repo_id=repo, path_or_fileobj=b'more', path_in_repo='more.txt', revision='exp/2')
info = api.model_info(repo)
print(info.private, sorted(file.rfilename for file in info.siblings))
";

/// The Hub of the tests, measured by Hugging Face's own library. With `TANDEM_TRL_PYTHON`, or the `python3` of the
/// path, if it can import huggingface_hub.
#[test]
fn the_hub_of_the_tests_takes_what_hugging_faces_own_library_sends() {
    let named = env::var("TANDEM_TRL_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".into());
    let mut import = Command::new(&python);
    import.args(["-c", "import huggingface_hub"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !import.status().is_ok_and(|status| status.success()) {
        assert!(named.is_none(), "TANDEM_TRL_PYTHON is {python}, which cannot import huggingface_hub");
        return skipped("upload_folder", "neither TANDEM_TRL_PYTHON nor python3 is a Python with huggingface_hub");
    }
    let bench = Bench::new();
    let folder = bench.path("theirs");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("README.md"), "---\ntags:\n- x\n---\n# Theirs\n").unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
    fs::write(folder.join("empty.txt"), "").unwrap();
    TINY.write(&folder, 3);
    for (repo, parts) in [("me/whole", None), ("me/parts", Some(10_000))] {
        bench.faults(WriteFaults { parts, ..WriteFaults::default() });
        // Other weights each time, so that the store lacks them.
        let mut weights = fs::read(folder.join("model.safetensors")).unwrap();
        *weights.last_mut().unwrap() ^= 1;
        fs::write(folder.join("model.safetensors"), weights).unwrap();
        let mut command = Command::new(&python);
        command.args(["-c", SCRIPT]).arg(&folder).arg(repo);
        // Its newer protocol is another one, and it falls back to this one where that is off.
        command.env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_TELEMETRY", "1").env("HF_TOKEN", TOKEN);
        command.env("HF_ENDPOINT", &bench.hub.endpoint).env("HF_HOME", bench.path("home")).env("NO_PROXY", "127.0.0.1");
        let said = cli::finish(command).success().stdout;
        assert!(said.starts_with("True [") && said.contains("'README.md'"), "{said}");
        let repository = format!("models/{repo}");
        let mut found = bench.hub.files(&repository, "main").unwrap();
        found.remove(".gitattributes");
        let sent: BTreeMap<String, Vec<u8>> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
            .collect();
        assert!(found == sent, "{repo}: {:?}", found.keys());
        assert!(bench.hub.is_private(&repository));
        assert_eq!(bench.hub.files(&repository, "exp/2").unwrap()["more.txt"], b"more");
        let in_parts = bench.hub.requests().iter().filter(|request| request.starts_with("PUT /store/")).count();
        assert!(if parts.is_some() { in_parts > 2 } else { in_parts == 1 }, "{in_parts}");
    }
}

#[test]
fn a_checkpoint_goes_as_the_model_alone_with_its_card() {
    let bench = Bench::new();
    let words = ["--model", "sync/checkpoint-4", "--repo", "me/mine"];
    let listed = bench.push(&[&words[..], &["--dry-run"]].concat()).success();
    assert_eq!(bench.hub.requests(), [""; 0], "nothing is asked");
    let pushed = bench.push(&words).success();
    assert!(
        pushed.stdout.starts_with("pushed 6 files (") && pushed.stdout.contains("/me/mine (new, private), commit ")
    );
    let found = bench.pushed();
    let checkpoint = bench.path("sync/checkpoint-4");
    let own = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    for name in own {
        assert!(found[name] == fs::read(checkpoint.join(name)).unwrap(), "{name}");
        assert!(listed.stdout.contains(&format!("{:>14}  {name}\n", found[name].len())), "{}", listed.stdout);
    }
    assert_eq!(found.len(), own.len() + 1, "{:?}", found.keys());
    assert!(listed.stdout.contains("6 files for me/mine; nothing was sent"), "{}", listed.stdout);
    for stray in STRAYS {
        assert!(checkpoint.join(stray).exists(), "{stray} is there");
    }
    let card = String::from_utf8(found["README.md"].clone()).unwrap();
    assert_eq!(head(card.as_bytes())["tags"], json!(["tandem", "reinforcement-learning", "grpo", "dapo"]));
    assert!(card.contains("# mine\n") && card.contains("model=\"me/mine\"") && card.contains("`digits.py:digits`"));
    for (path, content) in bench.hub.contents() {
        let content = String::from_utf8_lossy(&content);
        assert!(!content.contains(TOKEN) && !content.contains(bench.dir.path().to_str().unwrap()), "{path}");
    }
    let again = bench.push(&words).success();
    assert!(again.stdout.starts_with("nothing to commit: ") && bench.commits() == 1, "{}", again.stdout);
    assert!(!bench.hub.contents().iter().any(|(path, _)| path.contains("/store/") || path.contains("/commit/")));
}

#[test]
fn what_is_pushed_is_found_by_its_name() {
    let bench = Bench::new();
    let _ = bench.push(&["--model", "sync", "--repo", "me/mine", "--commit-message", "of the run"]).success();
    assert_eq!(bench.hub.summaries(REPO).unwrap(), ["of the run"]);
    let mut command = Command::new(binary("tandem"));
    command.args(["generate", "--model", "me/mine", "--prompt", "1+1=", "--max-completion-length", "2"]);
    command.env("HF_HOME", bench.path("other")).env("HF_ENDPOINT", &bench.hub.endpoint).env("HF_TOKEN", TOKEN);
    command.env("NO_PROXY", "127.0.0.1").env("TANDEM_CACHE_DIR", bench.path("cache")).current_dir(bench.dir.path());
    let _ = cli::finish(command).success();
}

#[test]
fn an_adapter_goes_without_its_base_and_names_it_as_others_find_it() {
    let bench = Bench::new();
    let adapter = bench.path("lora/checkpoint-4/adapter_config.json");
    let text = fs::read_to_string(&adapter).unwrap();
    fs::write(&adapter, text.replace("/fixture", bench.dir.path().to_str().unwrap())).unwrap();
    let words = ["--model", "lora/checkpoint-4", "--repo", "me/mine"];
    let pushed = bench.push(&words).success();
    assert!(pushed.stderr.contains("will call it `model`, which nobody else finds; --base-model"), "{}", pushed.stderr);
    let names: Vec<String> = bench.pushed().into_keys().collect();
    assert_eq!(names, ["README.md", "adapter_config.json", "adapter_model.safetensors"]);
    let config =
        |files: &BTreeMap<String, Vec<u8>>| -> Value { serde_json::from_slice(&files["adapter_config.json"]).unwrap() };
    assert_eq!(config(&bench.pushed())["base_model_name_or_path"], "model");
    let named = bench.push(&[&words[..], &["--base-model", "owner/base"]].concat()).success();
    assert!(!named.stderr.contains("warning"), "{}", named.stderr);
    let files = bench.pushed();
    assert_eq!(config(&files)["base_model_name_or_path"], "owner/base");
    let head = head(&files["README.md"]);
    assert_eq!((&head["base_model"], &head["library_name"]), (&json!(["owner/base"]), &json!("peft")));
    for (path, content) in bench.hub.contents() {
        assert!(!String::from_utf8_lossy(&content).contains(bench.dir.path().to_str().unwrap()), "{path}");
    }
}

/// The base may be on another machine, or gone.
#[test]
fn an_adapter_goes_also_where_its_base_is_not() {
    let bench = Bench::new();
    fs::remove_dir_all(bench.path("model")).unwrap();
    let words = ["--model", "lora/checkpoint-4", "--repo", "me/mine", "--base-model", "owner/base"];
    let pushed = bench.push(&words).success();
    assert!(pushed.stderr.contains("warning: the adapter's base is not on this machine"), "{}", pushed.stderr);
    let files = bench.pushed();
    let names: Vec<&String> = files.keys().collect();
    assert_eq!(names, ["README.md", "adapter_config.json", "adapter_model.safetensors"]);
    let config: Value = serde_json::from_slice(&files["adapter_config.json"]).unwrap();
    assert_eq!(config["base_model_name_or_path"], "owner/base");
    let card = String::from_utf8(files["README.md"].clone()).unwrap();
    assert!(card.contains("This is a LoRA adapter on [owner/base]") && card.contains("trained with"), "{card}");
}

/// An export has a card, and it is that card that goes.
#[test]
fn an_export_has_a_card_which_goes_as_it_is() {
    let bench = Bench::new();
    let mut export = Command::new(binary("tandem"));
    export.args(["export", "--model", "sync", "--format", "safetensors", "--dtype", "bf16", "--out", "my export"]);
    let _ = cli::finish({
        export.current_dir(bench.dir.path());
        export
    })
    .success();
    let card = fs::read(bench.path("my export/README.md")).unwrap();
    let text = String::from_utf8(card.clone()).unwrap();
    assert!(text.contains("# my export\n") && text.contains("| digits | 1 |"), "{text}");
    assert!(!text.contains(bench.dir.path().to_str().unwrap()), "{text}");
    let own = [&card[..], b"\nMine.\n"].concat();
    fs::write(bench.path("my export/README.md"), &own).unwrap();
    let _ = bench.push(&["--model", "my export", "--repo", "me/mine"]).success();
    assert!(bench.pushed()["README.md"] == own);
}

/// Waits until the Hub has been asked for something.
fn wait_for(bench: &Bench, what: &str) {
    let begin = Instant::now();
    while !bench.hub.requests().iter().any(|request| request.contains(what)) {
        assert!(begin.elapsed() < Duration::from_secs(120), "nobody has asked for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn started(bench: &Bench, words: &[&str]) -> Child {
    let mut command = bench.command(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_push_that_is_killed_leaves_no_commit_and_the_next_one_is_whole() {
    let bench = Bench::new();
    let words = ["--model", "sync/checkpoint-4", "--repo", "me/mine"];
    for signal in ["KILL", "INT", "TERM"] {
        bench.faults(WriteFaults { silent: Some(1000), ..WriteFaults::default() });
        let mut child = started(&bench, &words);
        wait_for(&bench, "PUT /store/");
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        assert!(sent.success() && !child.wait().unwrap().success(), "{signal}");
        assert_eq!((bench.commits(), bench.hub.stored()), (0, 0), "{signal}");
    }
    bench.faults(WriteFaults::default());
    let _ = bench.push(&words).success();
    assert!(bench.commits() == 1 && bench.pushed().len() == 6);
}

#[test]
fn a_large_file_that_is_there_is_not_sent_again() {
    let bench = Bench::new();
    let words = ["--model", "sync/checkpoint-4", "--repo", "me/mine"];
    let refuse = Refusal { path: "/commit/", status: 403, words: "no".into(), times: 1, retry_after: None };
    bench.faults(WriteFaults { refuse: Some(refuse), ..WriteFaults::default() });
    assert!(bench.refusal(&words).contains("making the commit: the token may not (no)"));
    assert_eq!((bench.commits(), bench.hub.stored()), (0, 1));
    let _ = bench.hub.requests();
    let pushed = bench.push(&words).success();
    assert!(pushed.stdout.contains("1 of them there already; 0.0 MiB of large files sent"), "{}", pushed.stdout);
    assert!(!bench.hub.requests().iter().any(|request| request.starts_with("PUT ")));
}

#[test]
fn what_goes_wrong_is_said_with_the_way_out() {
    let bench = Bench::new();
    let words = ["--model", "sync/checkpoint-4", "--repo", "me/mine"];
    let refused = |path, status, said: &str| {
        let refuse = Refusal { path, status, words: format!("no {TOKEN}"), times: u32::MAX, retry_after: None };
        bench.faults(WriteFaults { refuse: Some(refuse), ..WriteFaults::default() });
        let refusal = bench.refusal(&words);
        assert!(refusal.starts_with("error: cannot push sync/checkpoint-4 to me/mine: "), "{refusal}");
        assert!(refusal.contains(said), "{path} {status}: {refusal}");
        assert_eq!(bench.commits(), 0);
    };
    refused("/api/repos/create", 403, "making the repository: the token may not (no …); it must be allowed to write");
    refused("/preupload/", 404, "knows no such owner, repository or branch, or does not show it (no …)");
    refused("/preupload/", 409, "in conflict with something else (no …); try again when that is done");
    refused("/preupload/", 500, "answers with status 500 (no …), 4 times; nothing of this push is visible");
    bench.faults(WriteFaults { cut: Some((1000, u32::MAX)), ..WriteFaults::default() });
    assert!(bench.refusal(&words).contains("sending model.safetensors: no answer from"));
    bench.faults(WriteFaults { xet: true, ..WriteFaults::default() });
    assert!(bench.refusal(&words).contains("by its protocol Xet alone"));
    bench.hub.faults(Faults { token: Some("another"), ..Faults::default() });
    let refusal = bench.refusal(&words);
    assert!(refusal.contains("does not accept the token (Invalid credentials") && refusal.contains("HF_TOKEN"));
    assert_eq!(bench.commits(), 0);
}

#[test]
fn mistakes_are_found_before_anything_is_asked() {
    let bench = Bench::new();
    let model = ["--model", "sync/checkpoint-4"];
    let of = |more: &[&str]| bench.refusal(&[&model[..], more].concat());
    assert!(of(&["--repo", "mine"]).contains("`mine` is no name on the Hub: it is OWNER/NAME"));
    assert!(of(&["--repo", "me/mine", "--revision", "a b"]).contains("`a b` is no name of a branch"));
    assert!(of(&["--repo", "me/mine", "--base-model", "mine"]).contains("--base-model: `mine` is no name"));
    assert!(of(&["--repo", "me/mine", "--commit-message", " "]).contains("--commit-message: is empty"));
    let of_model = |model: &str, variable: &str, value: Option<&str>| {
        let mut command = bench.command(&["--model", model, "--repo", "me/mine"]);
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
        cli::finish(command).refusal().to_owned()
    };
    let without = |variable: &str, value: Option<&str>| of_model("sync/checkpoint-4", variable, value);
    assert!(of_model("nowhere/at/all", "HF_TOKEN", None).contains("no such directory"), "the path goes first");
    assert!(without("HF_TOKEN", None).contains("there is no token; make one that may write at "));
    assert!(without("HF_TOKEN", Some("a\nb")).contains("has blanks or other characters of no token"));
    assert!(without("HF_HUB_OFFLINE", Some("1")).contains("HF_HUB_OFFLINE forbids the network; unset it to push"));
    let again = |words: &[&str]| bench.refusal(&[words, &["--repo", "me/mine"]].concat());
    assert!(again(&["--model", "nowhere/at/all"]).contains("no such directory"));
    let empty = bench.path("empty");
    fs::create_dir(&empty).unwrap();
    fs::copy(bench.path("sync/config.toml"), empty.join("config.toml")).unwrap();
    assert!(again(&["--model", "empty"]).contains("has neither a checkpoint nor a published version yet"));
    // One byte of the weights is another one.
    let weights = bench.path("sync/checkpoint-4/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&weights, damaged).unwrap();
    assert!(again(&model).contains("is not whole: model.safetensors is not what was written"));
    fs::write(&weights, whole).unwrap();
    fs::write(bench.path("sync/checkpoint-4/README.md"), format!("---\n---\n{TOKEN}\n")).unwrap();
    assert!(again(&model).contains("README.md: has the token in it, and is not sent; take it out"));
    assert_eq!(bench.hub.requests(), [""; 0]);
}

#[test]
fn a_token_of_the_file_and_a_public_repository() {
    let bench = Bench::new();
    TINY.write(&bench.path("plain"), 2);
    tiny_model::write_tokenizer(&bench.path("plain"));
    fs::create_dir_all(bench.path("home")).unwrap();
    fs::write(bench.path("home/token"), format!("{TOKEN}\n")).unwrap();
    let mut command = bench.command(&["--model", "plain", "--repo", "me/mine", "--public", "--revision", "v1"]);
    command.env_remove("HF_TOKEN");
    let pushed = cli::finish(command).success();
    assert!(pushed.stdout.contains("/me/mine/tree/v1 (new, public), commit "), "{}", pushed.stdout);
    assert!(!bench.hub.is_private(REPO) && bench.hub.files(REPO, "v1").unwrap().contains_key("model.safetensors"));
    let card = bench.hub.files(REPO, "v1").unwrap().remove("README.md").unwrap();
    assert!(String::from_utf8(card).unwrap().contains("belongs to no run of Tandem"));
    let refusal = bench.refusal(&["--model", "plain", "--repo", "me/mine"]);
    assert!(refusal.contains("is public, and nothing was sent: everybody would see it. --public says"), "{refusal}");
}
