//! What shells complete, and manual pages.

use std::{fs, process::Command};

use harness::{binary, cli};
use shared::config::OPTIONS;

use crate::front_door::listed;

/// What bash offers for the last of the words.
fn completed(words: &[&str]) -> Vec<String> {
    // As bash calls the function at the key Tab.
    let script = "source <(\"$0\" completions bash) || exit 3\n\
                  COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))\n\
                  function=$(complete -p tandem | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
                  \"$function\" tandem \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"\n\
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script]).arg(binary("tandem")).args(words);
    let finished = cli::finish(bash).success();
    assert_eq!(finished.stderr, "");
    finished.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(completed(&["tandem", "train", "--learning_r"]), ["--learning_rate"]);
    assert_eq!(completed(&["tandem", "train", "run.toml", "--dry"]), ["--dry-run"]);
    assert_eq!(completed(&["tandem", "train", "--kl_controller", ""]), ["fixed", "adaptive"]);
    assert_eq!(completed(&["tandem", "gen"]), ["generate"]);
    assert_eq!(completed(&["tandem", "export", "--max"]), ["--max-positions"]);
    assert_eq!(completed(&["tandem", "serve", "--max-num-s"]), ["--max-num-seqs"]);
    assert_eq!(completed(&["tandem", "generate", "--kv-dtype", "int"]), ["int8"]);
    assert_eq!(completed(&["tandem", "reward-model", "--learning-r"]), ["--learning-rate"]);
    assert_eq!(completed(&["tandem", "worker", "--retry"]), ["--retry-for"]);
    let all = completed(&["tandem", "train", "--"]);
    for option in OPTIONS {
        assert!(all.contains(&format!("--{}", option.key)), "{}: {all:?}", option.key);
    }
}

#[test]
fn other_shells_have_every_option_too() {
    for (shell, begin) in [("zsh", "#compdef tandem"), ("fish", "")] {
        let script = cli::run("tandem", ["completions", shell]).success().stdout;
        assert!(script.starts_with(begin), "{script}");
        for option in OPTIONS {
            assert!(script.contains(option.key), "{shell}: {}", option.key);
        }
        for flag in ["max-num-seqs", "reward-network", "lengths-file", "retry-for"] {
            assert!(script.contains(flag), "{shell}: {flag}");
        }
    }
    assert_eq!(cli::run("tandem", ["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_written_to_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("share/man1");
    let said = cli::run("tandem", ["man".as_ref(), man.as_os_str()]).success().stdout;
    let mut pages: Vec<String> =
        fs::read_dir(&man).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    pages.sort();
    assert!(said.starts_with(&format!("wrote {} pages", pages.len())), "{said}");
    for page in ["tandem.1", "tandem-train.1", "tandem-new.1", "tandem-export-to-hf.1"] {
        assert!(pages.iter().any(|known| known == page), "{page}: {pages:?}");
    }
    let first = fs::read_to_string(man.join("tandem.1")).unwrap();
    assert!(!first.contains("COMMANDS WITHOUT PAGES"), "{first}");
    let train = fs::read_to_string(man.join("tandem-train.1")).unwrap();
    assert!(train.starts_with(".ie") || train.contains(".TH tandem-train 1"), "{train}");
    for option in OPTIONS {
        assert!(train.contains(&format!("\\-\\-{}", option.key)), "{}", option.key);
    }
}

#[test]
fn every_command_has_a_page_with_the_flags_of_its_help() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(cli::run("tandem", ["man".as_ref(), dir.path().as_os_str()]).success().stderr, "");
    let commands = listed("tandem");
    assert!(commands.len() > 30, "{commands:?}");
    for (name, about) in commands {
        let page = fs::read_to_string(dir.path().join(format!("tandem-{name}.1"))).unwrap_or_default();
        let page = page.replace("\\-", "-").replace("\\*(Aq", "'");
        assert!(page.contains(&format!("tandem-{name} - {about}")), "{name}: {page}");
        let help = cli::run("tandem", [&name, "--help"]).success().stdout;
        // Deeper lines, and those without a margin, only speak of flags.
        for line in help.lines().filter_map(|line| line.strip_prefix("      --")) {
            let flag = line.split([' ', '=', '[']).next().unwrap();
            assert!(page.contains(&format!("--{flag}")), "{name}: {flag}: {page}");
        }
    }
    for hidden in ["run", "check", "evaluate"] {
        assert!(!dir.path().join(format!("tandem-{hidden}.1")).exists(), "{hidden}");
    }
}

#[test]
fn commands_of_programs_that_are_missing_or_fail_are_known_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Written by another process, so that no child of this one holds a program open while it is started.
    let script = "cp \"$0\" \"$2/tandem\" && ln -s \"$1\" \"$2/rollout-serve\" &&\n\
                  printf '#!/bin/sh\\necho \"error: no libtorch\" >&2\\nexit 1\\n' > \"$2/learner\" &&\n\
                  chmod +x \"$2/learner\"";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script]).args([binary("tandem"), binary("rollout-serve"), dir.path().to_owned()]);
    let _ = cli::finish(shell).success();
    let mut man = Command::new(path("tandem"));
    man.arg("man").arg(path("man1"));
    let said = cli::finish(man).success().stderr;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with("warning: the flags of `tandem sft`, "), "{said}");
    assert!(lines[0].ends_with(" fails: no libtorch"), "{said}");
    assert!(lines[1].starts_with("warning: the flags of `tandem generate`, "), "{said}");
    let missing = format!("`rollout-fleet` is not beside `tandem` in {}: build it with ", dir.path().display());
    assert!(lines[2].starts_with(&format!("warning: the flags of `tandem worker` are not known: {missing}")), "{said}");
    assert!(path("man1/tandem-serve.1").exists() && !path("man1/tandem-worker.1").exists());
    let first = fs::read_to_string(path("man1/tandem.1")).unwrap();
    assert!(first.contains("tandem worker\\fR") && first.contains("Sample for a run on another host"), "{first}");
    let mut bash = Command::new(path("tandem"));
    bash.args(["completions", "bash"]);
    let finished = cli::finish(bash).success();
    // A shell may ask whenever it starts.
    assert!(finished.stderr.lines().eq(lines.into_iter().take(1)), "{}", finished.stderr);
    let script = finished.stdout;
    assert!(script.contains("tandem,worker)") && !script.contains("--retry-for"), "{script}");
}
