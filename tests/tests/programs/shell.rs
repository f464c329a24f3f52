//! What shells complete, and manual pages.

use std::{fs, process::Command};

use harness::{binary, cli};
use shared::config::OPTIONS;

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
    let train = fs::read_to_string(man.join("tandem-train.1")).unwrap();
    assert!(train.starts_with(".ie") || train.contains(".TH tandem-train 1"), "{train}");
    for option in OPTIONS {
        assert!(train.contains(&format!("\\-\\-{}", option.key)), "{}", option.key);
    }
}
