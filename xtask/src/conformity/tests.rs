//! List, verdicts and page.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Output},
};

use super::{
    answer::{Outcome, Verdict},
    checks::{self, CHECKS, Check, Figure},
    environment::Environment,
    judge, page,
};
use crate::host::fake;

static CHECK: Check = Check {
    name: "some-check",
    rival: "a program",
    about: "something",
    figures: &[
        Figure { key: "logprob", about: "largest difference", bound: 1e-4 },
        Figure { key: "greedy", about: "tokens that differ", bound: 0.0 },
    ],
};

fn ended(code: i32, stdout: &str, stderr: &str) -> Outcome {
    let status = ExitStatus::from_raw(code << 8);
    Outcome::of(&CHECK, &Output { status, stdout: stdout.into(), stderr: stderr.into() })
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn figures_within_their_bounds_pass_and_others_do_not() {
    let answer = |logprob: &str, greedy: &str| {
        let figures = format!("{{\"logprob\": {logprob}, \"greedy\": {greedy}}}");
        ended(0, &format!("noise\n{{\"cases\": \"2 models\", \"figures\": {figures}}}\n"), "")
    };
    let good = answer("3.21e-5", "0");
    assert_eq!(good.verdict, Verdict::Passed);
    let line = "some-check: passed: 2 models; largest difference 3.2e-5 (bound 1e-4); tokens that differ 0 (bound 0)";
    assert_eq!(good.line(), line);
    assert_eq!(answer("1e-4", "0").verdict, Verdict::Passed, "the bound itself is within");
    for (logprob, greedy, why) in [
        ("1.1e-4", "0", "largest difference"),
        ("0.0", "1", "tokens that differ"),
        ("null", "0", "largest difference"),
        ("-1", "0", "largest difference"),
        ("1", "1", "largest difference, tokens that differ"),
    ] {
        let bad = answer(logprob, greedy);
        assert_eq!(bad.verdict, Verdict::Failed(format!("beyond the bound: {why}")));
        assert!(bad.line().starts_with("some-check: FAILED: "), "{}", bad.line());
    }
    assert!(answer("null", "0").line().contains("largest difference not a number (bound 1e-4)"));
}

#[test]
fn what_is_no_answer_fails() {
    let failure = |outcome: Outcome| match outcome.verdict {
        Verdict::Failed(reason) => reason,
        other @ Verdict::Passed => panic!("{other:?}"),
    };
    let crashed = failure(ended(1, "", "Traceback\nValueError: no such thing\n"));
    assert_eq!(crashed, "the script ended with exit status: 1: ValueError: no such thing");
    assert!(
        failure(ended(1, r#"{"cases": "1", "figures": {"logprob": 0, "greedy": 0}}"#, "")).contains("exit status: 1"),
        "an answer before the end is none"
    );
    assert!(failure(ended(0, "", "")).contains("`` is no answer"));
    assert!(failure(ended(0, "{\"cases\": \"1\"}", "")).contains("has no figures"));
    let figures = |figures: &str| failure(ended(0, &format!("{{\"cases\": \"1\", \"figures\": {{{figures}}}}}"), ""));
    assert!(figures("\"logprob\": 0").contains("no figure `greedy`"));
    assert!(figures("\"logprob\": 0, \"greedy\": 0, \"more\": 0").contains("a figure `more`"));
    assert!(figures("\"logprob\": \"0\", \"greedy\": 0").contains("`logprob` is \"0\""));
    assert!(failure(ended(0, r#"{"skipped": "no tokenizer"}"#, "")).contains("has no figures"), "no check is left out");
}

#[test]
fn one_failure_fails_the_command_which_names_the_folder() {
    let passed = || ended(0, r#"{"cases": "1", "figures": {"logprob": 0, "greedy": 0}}"#, "");
    let work = Path::new("/build/conformity/work");
    judge(&[passed(), passed()], work).unwrap();
    let error = judge(&[passed(), ended(1, "", "")], work).unwrap_err().to_string();
    assert_eq!(error, "some-check failed; what they wrote is in /build/conformity/work");
}

#[test]
fn checks_are_chosen_by_name_and_listed() {
    let names = |checks: Vec<&Check>| checks.iter().map(|check| check.name).collect::<Vec<_>>();
    let all = names(checks::chosen(&[]).unwrap());
    assert_eq!(all.len(), CHECKS.len());
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "two checks have one name");
    let two = checks::chosen(&["trl-loss".into(), "golden-models".into()]).unwrap();
    assert_eq!(names(two), ["golden-models", "trl-loss"]);
    let error = checks::chosen(&["trl-los".into()]).unwrap_err().to_string();
    assert!(error.starts_with("no check is called trl-los; there are golden-models, "), "{error}");
    let list = checks::list();
    assert_eq!(list.lines().count(), CHECKS.len());
    assert!(list.lines().zip(&all).all(|(line, name)| line.starts_with(&format!("{name} "))), "{list}");
}

#[test]
fn every_check_has_a_script_and_every_script_a_check() {
    let helpers = ["support.py", "peers.py", "blocks.py"];
    let folder = root().join("tests/conformity");
    let found: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".py") && !helpers.contains(&name.as_str()))
        .map(|name| format!("tests/conformity/{name}"))
        .collect();
    assert_eq!(found, CHECKS.iter().map(Check::script).collect::<BTreeSet<_>>());
    for check in CHECKS {
        let script = fs::read_to_string(root().join(check.script())).unwrap();
        for figure in check.figures {
            assert!(script.contains(&format!("{}=", figure.key)), "{} does not say {}", check.script(), figure.key);
        }
    }
}

/// The recorded page has the present checks, with their bounds: a change to one has to be run and recorded.
#[test]
fn the_recorded_page_names_every_check_with_its_bounds_and_no_other() {
    let text = fs::read_to_string(root().join(page::PATH)).unwrap();
    let found: Vec<Vec<&str>> = table(&text, "| check | compared with ");
    let expected = CHECKS.iter().flat_map(|check| check.figures.iter().map(move |figure| (check, figure)));
    let expected: Vec<[String; 4]> = expected
        .map(|(check, figure)| {
            let bound = super::answer::number(Some(figure.bound));
            [format!("`{}`", check.name), check.rival.into(), figure.about.into(), bound]
        })
        .collect();
    let found: Vec<[&str; 4]> = found.iter().map(|row| [row[0], row[1], row[3], row[5]]).collect();
    let stale = "docs/conformity.md is of other checks: run `cargo xtask conformity --record`";
    assert_eq!(found, expected, "{stale}");
    let what = table(&text, "| check | what ");
    let what: Vec<(String, &str)> = what.iter().map(|row| (row[0].to_owned(), row[1])).collect();
    assert_eq!(what, CHECKS.iter().map(|c| (format!("`{}`", c.name), c.about)).collect::<Vec<_>>(), "{stale}");
    let packages = fs::read_to_string(root().join("tests/conformity/requirements.txt")).unwrap();
    let packages = packages.lines().filter(|line| !line.starts_with('#')).map(|line| line.replace("==", " "));
    for package in packages {
        assert!(text.contains(&package), "{package} is not on the page: {stale}");
    }
}

/// The cells of the rows below a heading.
fn table<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let rows = text.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn the_page_has_a_row_for_each_figure_and_says_what_failed() {
    let circumstances = page::Circumstances {
        date: "1 May 2026".into(),
        commit: "abcdef0".into(),
        processor: "avx2".into(),
        versions: vec!["Python 3.12".into(), "torch 2.11.0".into()],
    };
    let passed = ended(0, r#"{"cases": "3 rows", "figures": {"logprob": 2.5e-6, "greedy": 0}}"#, "");
    let text = page::page(&circumstances, &[passed, ended(1, "", "a | b")], "").unwrap();
    for line in [
        "| programs | Python 3.12, torch 2.11.0 |",
        "| processor | avx2 |",
        "| `some-check` | a program | 3 rows | largest difference | 2.5e-6 | 1e-4 | passed | 1 May 2026, abcdef0 |",
        "| `some-check` | a program | 3 rows | tokens that differ | 0 | 0 | passed | 1 May 2026, abcdef0 |",
        "| `some-check` | a program |  | tokens that differ | – | 0 | \
         **failed**: the script ended with exit status: 1: a \\| b | 1 May 2026, abcdef0 |",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }

    // Of the checks of the list, those that are not made again stay where they were.
    let [first, second] = [&CHECKS[0], &CHECKS[1]];
    let with = |date: &str, check| {
        let outcome = Outcome { check, cases: date.into(), values: vec![Some(0.0); 2], verdict: Verdict::Passed };
        let circumstances = page::Circumstances { date: date.into(), ..circumstances.clone() };
        (circumstances, [outcome])
    };
    let dates =
        |text: &str| -> Vec<String> { table(text, "| check | compared").iter().map(|row| row[7].into()).collect() };
    let (later, outcome) = with("2 May 2026", second);
    let text = page::page(&later, &outcome, &text).unwrap();
    let (latest, outcome) = with("3 May 2026", first);
    let both = page::page(&latest, &outcome, &text).unwrap();
    assert_eq!(dates(&both), ["3", "3", "2", "2"].map(|day| format!("{day} May 2026, abcdef0")));
    let other = page::Circumstances { processor: "avx512f".into(), ..latest };
    assert!(page::page(&other, &outcome, &text).unwrap_err().to_string().contains("record all checks"));
}

#[test]
fn flags_are_whole_words_of_the_first_processor() {
    let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx avx512f avx2 amx_tile\n\nprocessor\t: 1\nflags\t\t: fma\n";
    assert_eq!(page::flags(cpuinfo), "avx2, avx512f, amx_tile");
    assert_eq!(page::flags(""), "");
}

/// The host's python3 makes an environment whose python notes its calls.
#[test]
fn the_environment_is_made_once_for_a_list_of_packages() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("target/conformity");
    fs::create_dir_all(dir.path().join("tests/conformity")).unwrap();
    let list = dir.path().join("tests/conformity/requirements.txt");
    let log = dir.path().join("log");
    let python = format!(
        "/bin/mkdir -p $3/bin; printf '#!/bin/sh\\necho \"$@\" >> {log}\\n' > $3/bin/python; \
         /bin/chmod +x $3/bin/python",
        log = log.display()
    );
    let host = fake::host(dir.path(), &[("python3", &python)]);
    let installed = || fs::read_to_string(&log).unwrap().lines().count();
    for (packages, expected) in [("# Why.\na==1\nb==2\n", 1), ("# Why.\na==1\nb==2\n", 1), ("a==1\n", 2)] {
        fs::write(&list, packages).unwrap();
        let environment = Environment::open(&host, &place).unwrap();
        assert_eq!(installed(), expected);
        assert_eq!(environment.packages()[0], "a 1");
    }
    // A failed attempt leaves no environment that counts.
    fs::write(&list, "a==2\n").unwrap();
    let without = fake::host(dir.path(), &[("python3", "exit 1")]);
    let error = format!("{:#}", Environment::open(&without, &place).unwrap_err());
    assert!(error.contains("needs python3 with venv"), "{error}");
    let host = fake::host(dir.path(), &[("python3", &python)]);
    Environment::open(&host, &place).unwrap();
    assert_eq!(installed(), 3);
}
