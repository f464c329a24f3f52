//! Reward functions of one's own, from `tandem train` and `tandem check-rewards`: what cannot work is refused before
//! anything is started, with the words of the function's own program, and what works needs no more than its file.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    processes,
    tiny_model::{self, ModelFolder},
    training::json_lines,
};
use serde_json::{Value, json};

/// A model, a dataset with right answers, and a folder for rewards beside the configuration.
struct Bench(ModelFolder);

impl Bench {
    fn new() -> Self {
        let place = ModelFolder::new();
        tiny_model::write_tokenizer(&place.path("model"));
        let row = |a: i32, b: i32| json!({"prompt": format!("{a}+{b}="), "answer": (a + b).to_string()}).to_string();
        fs::write(place.path("prompts.jsonl"), [row(1, 1), row(2, 3), row(4, 4), row(9, 8)].join("\n")).unwrap();
        fs::create_dir(place.path("elsewhere")).unwrap();
        Self(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Writes `run.toml` with these functions.
    fn configure(&self, functions: &[&str], more: &str) {
        let text = format!(
            "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"run\"\nreward_funcs = {functions:?}\n\
             num_generations = 4\nmax_completion_length = 12\nper_device_train_batch_size = 8\nmax_steps = 2\n{more}\n"
        );
        self.write("run.toml", &text);
    }

    /// Runs `tandem` in another folder than the one of the configuration.
    fn tandem(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(binary("tandem"));
        command.args(words).current_dir(self.path("elsewhere")).env("TANDEM_CACHE_DIR", self.path("cache"));
        // With it, there is no program that does not flush.
        command.env_remove("PYTHONUNBUFFERED");
        cli::finish(command)
    }

    fn train(&self) -> Finished {
        self.tandem(&["train", "../run.toml"])
    }
}

/// What a run cannot start with, in Python: a file, an entry that names a function in it, and what is said of that.
const BROKEN_FUNCTIONS: &[(&str, &str, &[&str])] = &[
    ("def f(completions, **kwargs)\n    return []\n", "r.py:f", &["SyntaxError", "r.py, line 1", "def f(completions"]),
    (
        "import no_such_module_of_mine\n",
        "r.py:f",
        &["No module named 'no_such_module_of_mine'", "r.py, line 1", "`reward_python`"],
    ),
    ("", "absent.py:f", &["absent.py: no such file"]),
    ("def g(completions): ...\n", "r.py:f", &["no function `f`", "its functions: g"]),
    (
        "def f(completions, answers, **kwargs):\n    return answers\n",
        "r.py:f",
        &[
            "failed on all 12 sample completions",
            "missing 1 required positional argument: 'answers'",
            "the row has the columns answer",
        ],
    ),
    (
        "def f(completions, **kwargs):\n    return [1 / 0 for _ in completions]\n",
        "r.py:f",
        &["failed on all 12 sample completions: ZeroDivisionError: division by zero (r.py, line 2", "return [1 / 0"],
    ),
    ("def f(completions, **kwargs):\n    return [1.0]\n", "r.py:f", &["returned 1 scores for 4 completions"]),
    ("def f(completions, **kwargs):\n    return 'good'\n", "r.py:f", &["returned 'good' and not a list of 4 numbers"]),
];

/// As [`BROKEN_FUNCTIONS`], of programs.
const BROKEN_PROGRAMS: &[(&str, &[&str])] = &[
    ("raise RuntimeError('no key')\n", &["ended without an answer (exit status: 1)", "RuntimeError: no key"]),
    ("for line in sys.stdin\n", &["ended without an answer (exit status: 1)", "SyntaxError"]),
    ("import sys\nfor line in sys.stdin:\n    print([1], flush=True)\n", &["answered 1 entries for 4 completions"]),
    (
        "import sys\nprint('loaded', flush=True)\nfor line in sys.stdin:\n    print([1, 2, 3, 4], flush=True)\n",
        &["wrote `loaded` to its standard output before it was asked"],
    ),
    (
        "import sys\nfor line in sys.stdin:\n    print([1, 2, 3, 4])\n",
        &["has to flush its standard output after every line"],
    ),
];

/// How long a start may take that ends with a refusal, but for what a program takes that does not flush.
const AT_ONCE: Duration = Duration::from_secs(5);

fn assert_refused(finished: &Finished, words: &[&str], bench: &Bench) {
    let _ = finished.refusal();
    for word in words {
        assert!(finished.stderr.contains(word), "{word} is missing in {}", finished.stderr);
    }
    assert!(!bench.path("run").exists(), "nothing was started");
}

#[test]
fn a_python_function_that_cannot_work_ends_the_start_with_its_own_traceback() {
    let bench = Bench::new();
    for (text, entry, words) in BROKEN_FUNCTIONS {
        bench.write("r.py", text);
        bench.configure(&["format", entry], "");
        let begin = Instant::now();
        assert_refused(&bench.train(), words, &bench);
        assert!(begin.elapsed() < AT_ONCE, "{entry}: {:?}", begin.elapsed());
    }
}

#[test]
fn a_program_that_cannot_work_ends_the_start_with_its_own_words() {
    let bench = Bench::new();
    for (text, words) in BROKEN_PROGRAMS {
        bench.write("r.py", text);
        bench.configure(&["format", "command:run=python3 r.py"], "");
        assert_refused(&bench.train(), words, &bench);
    }
    bench.configure(&["command:run=python3 absent.py"], "");
    let begin = Instant::now();
    assert_refused(&bench.train(), &["ended without an answer (exit status: 2)", "absent.py"], &bench);
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
}

const REWARDS: &str = "
import helper

print('imported')


def think_format_reward(completions, **kwargs):
    print('called')
    return [helper.score(completion) for completion in completions]


async def repeats(completion_ids, **kwargs):
    rewards = []
    for ids in completion_ids:
        rewards.append(-(1 - len(set(ids)) / len(ids)) if ids else 0.0)
    return rewards


def sometimes(prompts, completions, answer, **kwargs):
    if any(sum(map(ord, completion)) % 2 for completion in completions):
        raise ValueError('odd')
    return [None if right == '2' else float(right) for right in answer]
";

/// Found from the configuration's folder, with a module beside them, noisy, and as good as the rules that are built in.
#[test]
fn python_functions_score_as_the_rules_that_they_repeat() {
    let bench = Bench::new();
    bench.write("my_rewards.py", REWARDS);
    bench.write("helper.py", "def score(text):\n    return float(text.startswith('<think>'))\n");
    bench.write("score.sh", "while read -r line; do echo '[0, 1, 2, 3]'; done");
    let functions = [
        "my_rewards.py:think_format_reward",
        "think_format",
        "my_rewards.repeats",
        "repetition_penalty:ngram_size=1",
        "my_rewards.py:sometimes",
        "command:run=sh score.sh",
    ];
    bench.configure(&functions, "reward_processes = 2\ntemperature = 2.0");
    let finished = bench.train().success();
    assert!(finished.stderr.contains("warning: reward function `sometimes` failed on"), "{}", finished.stderr);
    assert!(finished.stderr.contains("ValueError: odd (my_rewards.py, line"), "{}", finished.stderr);
    let steps = json_lines(&bench.path("run/metrics.jsonl"));
    assert_eq!(steps.len(), 2);
    for step in &steps {
        let mean =
            |name: &str| step[format!("rewards/{name}/mean")].as_f64().unwrap_or_else(|| panic!("{name}: {step}"));
        assert!((mean("repeats") - mean("repetition_penalty")).abs() < 1e-6, "{step}");
        assert_eq!(mean("think_format_reward"), mean("think_format"));
        assert_eq!(mean("command"), 1.5);
    }
    let failed: f64 = steps.iter().filter_map(|step| step["rewards/sometimes/failed"].as_f64()).sum();
    assert!(failed > 0.0 && failed < 16.0, "{steps:?}");
    let log = fs::read_to_string(bench.path("run/logs/rollout.log")).unwrap();
    assert!(log.contains("imported") && log.contains("called"), "{log}");
    let shown = log.matches("ValueError: odd").count();
    assert!((1..=4).contains(&shown), "a traceback is shown once by each process, not {shown} times: {log}");
}

#[test]
fn a_file_alone_stands_for_its_function() {
    let bench = Bench::new();
    bench.write("one.py", "def only(completions):\n    return [float(len(c) % 3) for c in completions]\n");
    bench.configure(&["one.py"], "");
    let _ = bench.train().success();
    let steps = json_lines(&bench.path("run/metrics.jsonl"));
    assert!(steps.iter().all(|step| step["rewards/only/mean"].is_f64()), "{steps:?}");
    let written = fs::read_to_string(bench.path("run/config.toml")).unwrap();
    assert!(written.contains("reward_funcs = [\"one.py:only\"]"), "{written}");
}

#[test]
fn dynamic_sampling_goes_by_the_name_of_a_function_in_a_dry_run_as_in_a_run() {
    let bench = Bench::new();
    bench.write("one.py", "def only(completions):\n    return [len(c) for c in completions]\n");
    for (name, fits) in [("only", true), ("one", false)] {
        let more = format!("dynamic_sampling = true\nfilter_groups_metric = {name:?}\nbeta = 0.0");
        bench.configure(&["one.py"], &more);
        for words in [["train", "../run.toml", "--dry-run"].as_slice(), &["train", "../run.toml"]] {
            let finished = bench.tandem(words);
            assert_eq!(finished.status.success(), fits, "{name}: {}", finished.stderr);
            assert!(fits || finished.refusal().contains("`filter_groups_metric`"), "{}", finished.stderr);
        }
        let _ = fs::remove_dir_all(bench.path("run"));
    }
}

#[test]
fn check_rewards_says_how_each_function_did() {
    let bench = Bench::new();
    bench.write(
        "r.py",
        "def right(completions, answer):\n    return [float(f'<answer>\\n{a}\\n' in c) for c, a in zip(completions, \
         answer)]\n\n\n\
         def same(completions):\n    return [0.5 for _ in completions]\n\n\n\
         def long(completion_ids):\n    return [len(ids) for ids in completion_ids]\n",
    );
    bench.configure(&["r.py:right", "gsm8k", "r.py:same", "r.py:long"], "");
    let checked = bench.tandem(&["check-rewards", "../run.toml"]).success();
    let names: Vec<&str> = checked.stdout.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["function", "right", "gsm8k", "same", "long"]);
    let warnings: Vec<&str> = checked.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains(
            "`same` gives 0.5 to each of 24 sample completions, right answers and 12 of the model's own included"
        ),
        "{warnings:?}"
    );
    assert!(warnings[1].contains("`long` goes by the length"), "{warnings:?}");

    let json = bench.tandem(&["check-rewards", "../run.toml", "--json"]).success();
    let figures: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&figures[0]["name"], &figures[0]["right"], &figures[0]["lowest"]),
        (&json!("right"), &json!(1.0), &json!(0.0))
    );
    assert_eq!(figures[1]["entry"], "gsm8k");
    assert!(figures[0]["of_the_model"].is_number(), "the model is asked, however the figures are written: {figures}");
    let before = bench.tandem(&["check-rewards", "--before-run", "--json", "../run.toml"]).success();
    let figures: Value = serde_json::from_str(&before.stdout).unwrap();
    assert!(figures[0]["of_the_model"].is_null(), "a run's start asks it where there is a doubt: {figures}");

    let refused = bench.tandem(&["check-rewards", "../run.toml", "--reward_funcs", "r.py:right"]);
    assert!(refused.refusal().contains("elsewhere/r.py: no such file"), "the command line is relative to its folder");
    let columns = bench.tandem(&["check-rewards", "../run.toml", "--reward_funcs=countdown"]);
    assert!(columns.refusal().contains("needs the column nums"));
}

/// Whole solutions and lists are read, and what is not read is named.
#[test]
fn answers_that_are_no_plain_texts_are_read_or_named() {
    let bench = Bench::new();
    let checked = |rows: &[Value], functions: &str| {
        bench.write("prompts.jsonl", &rows.iter().map(Value::to_string).collect::<Vec<_>>().join("\n"));
        bench.configure(&["format"], "");
        let dataset = bench.path("prompts.jsonl");
        let words = ["check-rewards", "../run.toml", "--json", "--reward_funcs", functions, "--dataset"];
        let finished = bench.tandem(&[&words[..], &[dataset.to_str().unwrap()]].concat()).success();
        (serde_json::from_str::<Value>(&finished.stdout).unwrap(), finished.stderr)
    };
    let solution = json!({"prompt": "1+1=", "answer": "48 / 2 = 24, 48 + 24 = 72\n#### 72"});
    let (figures, said) = checked(&[solution], "boxed,accuracy,gsm8k");
    assert!(figures.as_array().unwrap().iter().all(|figure| figure["right"] == 1.0), "{figures}");
    assert!(!said.contains("warning"), "{said}");

    let list = json!({"prompt": "1+1=", "answer": ["7"]});
    let (figures, said) = checked(std::slice::from_ref(&list), "accuracy,boxed,numeric");
    assert!(figures.as_array().unwrap().iter().all(|figure| figure["right"] == 1.0), "{figures}");
    assert!(!said.contains("warning"), "{said}");
    let (_, said) = checked(&[list, json!({"prompt": "2+2=", "answer": {"target": ["7"]}})], "accuracy,boxed,numeric");
    for rule in ["accuracy", "boxed", "numeric"] {
        let words = format!("warning: reward function `{rule}`: column `answer` holds mappings in 1 of 2 rows");
        assert!(said.contains(&words) && said.contains("answer_column = \"answer.target\""), "{said}");
    }
}

#[test]
fn an_interpreter_beside_the_configuration_is_found_from_any_folder() {
    let bench = Bench::new();
    bench.write("r.py", "def f(completions):\n    return [len(c) for c in completions]\n");
    bench.write("python", "#!/bin/sh\nexec python3 \"$@\"\n");
    fs::set_permissions(bench.path("python"), Permissions::from_mode(0o755)).unwrap();
    bench.configure(&["r.py:f"], "reward_python = \"./python\"");
    let works = |words: &[&str]| {
        let said = bench.tandem(words).success().stdout;
        assert!(said.lines().any(|line| line.starts_with("f ") || line.contains("r.py:f")), "{said}");
    };
    works(&["check-rewards", "../run.toml"]);
    works(&["train", "../run.toml", "--dry-run"]);
    bench.configure(&["r.py:f"], "reward_python = \"absent\"");
    works(&["check-rewards", "../run.toml", "--reward_python", "../python"]);
}

#[test]
fn functions_are_loaded_and_not_called_where_that_is_wanted() {
    let bench = Bench::new();
    bench.write(
        "r.py",
        "import os\n\n\ndef f(completions, **kwargs):\n    open('asked', 'w').close()\n    return [0.0]\n",
    );
    bench.configure(&["r.py:f"], "rehearse_rewards = false\nreward_writable = \".\"");
    let checked = bench.tandem(&["check-rewards", "../run.toml"]).success();
    assert!(checked.stdout.contains("\nf "), "{}", checked.stdout);
    assert!(!bench.path("asked").exists());
    bench.configure(&["r.py:f"], "reward_failure_stops = false\nreward_writable = \".\"");
    let checked = bench.tandem(&["check-rewards", "../run.toml"]).success();
    assert!(checked.stderr.contains("warning: reward function `f` failed on all 12"), "{}", checked.stderr);
    assert!(Path::new(&bench.path("asked")).exists(), "functions run in the folder of the configuration");
}

/// Every key and every way in: the environment, the network, the file system, said in one line and opened by options.
#[test]
fn what_programs_may_do_is_said_and_opened_by_options() {
    let bench = Bench::new();
    bench.write(
        "r.py",
        "import os, socket\n\n\ndef secret(completions):\n    return [float('HF_TOKEN' in os.environ) for _ in \
         completions]\n\n\n\
         def judge(completions):\n    socket.socket().close()\n    return [float(len(c)) for c in completions]\n",
    );
    let check = |words: &[&str]| {
        let mut command = Command::new(binary("tandem"));
        command.args(["check-rewards", "../run.toml"]).args(words).current_dir(bench.path("elsewhere"));
        command.env("HF_TOKEN", "hf_secret").env("TANDEM_CACHE_DIR", bench.path("cache"));
        cli::finish(command)
    };
    bench.configure(&["r.py:secret"], "");
    let checked = check(&[]).success();
    let line = checked.stderr.lines().find(|line| line.starts_with("programs of reward functions run with ")).unwrap();
    for word in ["of memory", "3600 s of processor time", "256 processes", "files of 1.00 GiB"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    assert!(checked.stderr.contains("`secret` gives 0 to each"), "{}", checked.stderr);
    let named = check(&["--reward_env", "HF_TOKEN"]).success();
    assert!(named.stderr.contains("`secret` gives 1 to each"), "{}", named.stderr);

    bench.configure(&["r.py:judge"], "");
    assert!(check(&[]).refusal().contains("reward programs have no network unless `reward_network` is true"));
    let open = check(&["--reward_network", "true"]).success();
    assert!(open.stderr.contains("with network (`reward_network`)"), "{}", open.stderr);
}

/// What is said without end fills neither the log nor the machine, and what is cut is told.
#[test]
fn endless_words_on_standard_error_are_cut() {
    let bench = Bench::new();
    let loud = "command:run=while read -r line; do timeout 2 yes $(seq 1000) >&2; echo '[0, 1, 2, 3]'; done";
    bench.configure(&[loud], "");
    let mut command = Command::new(binary("rollout"));
    command.arg("check-rewards").arg(bench.path("run.toml")).env("TANDEM_LOG", "info");
    let said = cli::finish(command).success().stderr;
    assert!(said.len() < 1 << 20, "{} bytes", said.len());
    assert!(said.contains("bytes of what it wrote to standard error are left out here"), "{}", &said[..2000]);
}

/// What takes the right to make namespaces from root.
const UNPRIVILEGED: &[&str] = &["setpriv", "--bounding-set=-sys_admin"];

/// Functions that hang with a child that has left their session, and a sampler that is killed with no chance to clean
/// up: as it is, and without the right to make namespaces.
#[test]
fn nothing_outlives_a_sampler_that_is_killed() {
    let bench = Bench::new();
    let mark = bench.path("run.toml").with_file_name("mark");
    let hangs =
        format!("command:run=setsid tail -f {0} & touch $TMPDIR/begun; read -r line; tail -f {0}", mark.display());
    fs::write(&mark, "").unwrap();
    bench.configure(&[&hangs], "");
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    for prefix in [Some(&[][..]), is_root.then_some(UNPRIVILEGED)].into_iter().flatten() {
        let rollout = binary("rollout");
        let words = [prefix, &[rollout.to_str().unwrap(), "check-rewards"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(bench.path("run.toml")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut sampler = command.spawn().unwrap();
        processes::wait_for(2, "tail", &mark);
        sampler.kill().unwrap();
        let _ = sampler.wait();
        processes::wait_for(0, "", &mark);
    }
}
