//! `tandem` is the one front door: what the halves do on their own can be asked of it too.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use harness::{binary, cli, tiny_model};

/// The commands that a program lists, with what it says about each.
pub fn listed(program: &str) -> Vec<(String, String)> {
    let help = cli::run(program, ["--help"]).success().stdout;
    let entry = |line: &str| {
        let (name, about) = line.strip_prefix("  ")?.split_once("  ")?;
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
        is_name.then(|| (name.to_owned(), about.trim().to_owned()))
    };
    help.lines().filter_map(entry).collect()
}

/// What `tandem` does not have of a half, since it means something else there or is nobody's to call.
const OWN: [(&str, &[&str]); 4] = [
    ("rollout", &["help", "run"]),
    ("rollout-fleet", &["help", "run"]),
    ("rollout-serve", &["help", "run"]),
    ("learner", &["bench", "help", "rank", "run"]),
];

#[test]
fn the_commands_of_the_halves_are_listed_in_their_words_and_lead_to_them() {
    let here = listed("tandem");
    for (half, own) in OWN {
        let there = listed(half);
        assert!(there.len() > own.len(), "{there:?}");
        for (name, about) in there.into_iter().filter(|(name, _)| !own.contains(&name.as_str())) {
            assert!(here.contains(&(name.clone(), about)), "`{name}` of {half}: {here:?}");
            let theirs = cli::run(half, [&name, "--help"]).success().stdout;
            for words in [[name.as_str(), "--help"], ["help", &name]] {
                let ours = cli::run("tandem", words).success().stdout;
                assert!(ours.contains(&format!("Usage: tandem {name}")), "{ours}");
                assert_eq!(ours, theirs.replace(&format!("Usage: {half} "), "Usage: tandem "));
            }
        }
    }
}

#[test]
fn the_sampler_of_one_host_names_the_program_that_samples_with_workers() {
    let build = "`cargo build --release --workspace --bin rollout-fleet` builds it";
    let run = tempfile::tempdir().unwrap();
    let config = "model = \"model\"\ndataset = \"data.jsonl\"\noutput_dir = \".\"\nreward_funcs = [\"accuracy\"]\n";
    fs::write(run.path().join("config.toml"), format!("{config}listen = \"tcp/127.0.0.1:7447\"\n")).unwrap();
    let half = cli::run("rollout", ["run", "--run-dir", run.path().to_str().unwrap()]);
    let other = "`listen`: the sampler of a run with workers is `rollout-fleet run`";
    assert_eq!(half.refusal(), format!("error: {other}; {build}"));
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1, "it has made something");
}

#[test]
fn every_command_explains_itself() {
    let listed = listed("tandem");
    assert!(listed.len() > 15, "{listed:?}");
    for (name, _) in listed {
        let help = cli::run("tandem", [&name, "--help"]).success().stdout;
        assert!(help.contains(&format!("Usage: tandem {name}")), "{help}");
        if name == "help" {
            continue;
        }
        for flag in ["--version", "-V"] {
            let version = cli::run("tandem", [&name, flag]).success().stdout;
            assert!(version.starts_with(&format!("tandem {name} 0.")) && version.lines().count() == 1, "{version}");
        }
    }
}

#[test]
fn errors_and_exit_codes_are_those_of_the_half() {
    let wrong = cli::run("tandem", ["generate", "--modl", "x"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.stderr.contains("tip: a similar argument exists: '--model'"), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("Usage: tandem generate"), "{}", wrong.stderr);
    // Also of flags that are refused after clap has read them, by whichever program.
    for words in [
        &["--json", "--output", "z"][..],
        &["--raw", "--system-prompt", "hi"],
        &["--prompts", "z"],
        &["--regex", "x", "--json", "--output", "z"],
    ] {
        let both = cli::run("tandem", [&["generate", "--model", "absent", "--prompt", "a"][..], words].concat());
        assert_eq!(both.status.code(), Some(2));
        assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
        assert!(both.stderr.contains("Usage: tandem generate"), "{}", both.stderr);
    }
    let missing = cli::run("tandem", ["logprobs", "--model=absent", "--input=absent", "--output=out"]);
    assert!(missing.refusal().contains("absent"));
    let misspelt = cli::run("tandem", ["genrate"]);
    assert_eq!(misspelt.status.code(), Some(2));
    assert!(misspelt.stderr.contains("'generate'"), "{}", misspelt.stderr);
}

#[test]
fn a_signal_reaches_the_half_since_it_is_the_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let script = "#!/bin/sh\ntrap 'exit 7' TERM\necho \"$1 $2\"; while :; do sleep 0.02; done\n";
    fs::copy(binary("tandem"), dir.path().join("tandem")).unwrap();
    let mut shell = Command::new("/bin/sh");
    // Written by another process, so that no child of this one holds it open while it is started.
    shell.args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod +x \"$0\""]).arg(dir.path().join("rollout")).arg(script);
    let _ = cli::finish(shell).success();
    let mut child = Command::new(dir.path().join("tandem"))
        .args(["generate", "--my_option"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    assert_eq!(line, "generate --my_option\n");
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn options_are_understood_with_dashes_and_with_underscores() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model::SMALL.write(&dir.path().join("model"), 1);
    tiny_model::write_tokenizer(&dir.path().join("model"));
    fs::write(dir.path().join("prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n").unwrap();
    for (program, args) in [
        ("rollout", &["generate", "--prompts=prompts.jsonl", "--output=out.jsonl", "--max_completion_length=2"][..]),
        ("tandem", &["generate", "--prompts=prompts.jsonl", "--output=out_2.jsonl", "--num_generations", "2"]),
        ("learner", &["logprobs", "--input=out.jsonl", "--output=l.jsonl", "--micro_batch_tokens=64"]),
        ("tandem", &["export", "--out=exported", "--max_positions=32"]),
    ] {
        let mut command = Command::new(binary(program));
        command
            .args(args)
            .arg("--model=model")
            .current_dir(dir.path())
            .env("TANDEM_CACHE_DIR", dir.path().join("cache"));
        let _ = cli::finish(command).success();
    }
    assert!(dir.path().join("out_2.jsonl").exists(), "values keep their underscores");
}

/// `eprintln!` panics where stderr cannot be written, which would be exit code 101 and, in a run, its end.
#[test]
fn a_full_disk_behind_stderr_changes_no_exit_code() {
    for (program, args) in [
        ("tandem", ["report", "absent", "", ""]),
        ("tandem", ["export", "--model=absent", "--out=absent", ""]),
        ("rollout", ["generate", "--model=absent", "--prompts=absent", "--output=out"]),
        ("learner", ["logprobs", "--model=absent", "--input=absent", "--output=out"]),
    ] {
        let mut command = Command::new(binary(program));
        command.args(args.iter().filter(|arg| !arg.is_empty())).env("TANDEM_LOG", "trace");
        let status = command.stderr(File::options().write(true).open("/dev/full").unwrap()).status().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(1), None), "{program} {args:?}");
    }
}

/// `tandem import-config foreign.yaml > run.toml` would otherwise leave half a file, and go on.
#[test]
fn a_full_disk_behind_stdout_is_a_failure() {
    for command_of_tandem in ["schema", "doctor"] {
        let mut command = Command::new(binary("tandem"));
        command.arg(command_of_tandem).stdout(File::options().write(true).open("/dev/full").unwrap());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("error: stdout cannot be written: No space left on device"), "{said}");
        assert_eq!(output.status.code(), Some(1), "{command_of_tandem}");
    }
}

#[test]
fn colours_are_for_terminals_and_can_be_refused() {
    let coloured = |variables: &[(&str, &str)]| {
        // A terminal of its own, by `script`, would be needed to see colours without a variable that asks for them.
        let mut command = Command::new(binary("tandem"));
        command.arg("doctor").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").envs(variables.iter().copied());
        cli::finish(command).stdout.contains('\x1b')
    };
    assert!(!coloured(&[]));
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&[("CLICOLOR_FORCE", "0"), ("NO_COLOR", "1")]));
}
