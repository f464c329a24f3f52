//! File and command line: which one wins, and what is refused.

use std::{fs, path::PathBuf};

use super::*;
use crate::config::{LossType, LrSchedulerType, Paths, ScaleRewards};

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|w| (*w).to_owned()).collect()
}

fn from_line(line: &[&str]) -> Result<TrainConfig, ConfigError> {
    load(None, &parse_overrides(&words(line))?)
}

fn from_file(text: &str, line: &[&str]) -> Result<(PathBuf, TrainConfig), ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    fs::write(&path, text).unwrap();
    load(Some(&path), &parse_overrides(&words(line))?).map(|config| (dir.path().to_owned(), config))
}

fn message<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    let text = message(from_line(&["--learning-rat", "1e-4"]));
    assert!(text.contains("`learning_rat`") && text.contains("did you mean `learning_rate`?"), "{text}");
    let text = message(from_file("# a run\nnum_generation = 4", &[]));
    assert!(text.contains("run.toml, line 2)") && text.contains("did you mean `num_generations`?"), "{text}");
    // A key with little similarity is not suggested.
    for key in ["zzz", "push_to_hub", "use_vllm", "max_new_tokens"] {
        let text = message(from_line(&[&format!("--{key}"), "1"]));
        assert!(text.contains(&format!("unknown option `{key}`")) && !text.contains("did you mean"), "{text}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_lines() {
    let file = "use_vllm = true\nseed = 1\n\"push_to_hub\" = \"none\"\nmax_steps = \"many\"\n[training]\nlr = 1\n";
    let text = message(from_file(file, &[]));
    let expected = [
        "unknown option `use_vllm` (",
        "run.toml, line 1); unknown option `push_to_hub` (",
        "run.toml, line 3); `max_steps` (",
        "run.toml, line 4) must be a whole number of at least 0, got \"many\"; unknown option `training` (",
        "run.toml, line 5)",
    ];
    let mut rest = text.as_str();
    for part in expected {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} in {text}")).1;
    }
    let text = message(from_line(&["--use_vllm", "--push_to_hub", "none", "--seed", "3"]));
    assert_eq!(text, "unknown option `use_vllm` (command line); unknown option `push_to_hub` (command line)");
}

#[test]
fn true_and_false_may_be_written_as_in_python() {
    let file = "shuffle_dataset = False  # not yet\nsystem_prompt = \"\"\"\nx = True\n\"\"\"\nuse_peft=True\n";
    let (_, config) = from_file(file, &["--log_completions", "False"]).unwrap();
    assert_eq!((config.shuffle_dataset, config.use_peft, config.log_completions), (false, true, false));
    assert_eq!(config.system_prompt.as_deref(), Some("x = True\n"));
    assert!(message(from_file("shuffle_dataset = Falsch", &[])).contains("line 1: "));
}

#[test]
fn what_is_no_run_toml_is_told_by_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        message(load(Some(&path), &Overrides::new()))
    };
    for (name, text, format) in [
        ("grpo.yaml", "learning_rate: 1e-6\n", "YAML"),
        ("grpo", "# TRL\nlearning_rate: 1e-6\n", "YAML"),
        ("grpo.json", "{\"learning_rate\": 1e-6}", "JSON"),
    ] {
        let text = of(name, text);
        assert!(text.contains(&format!("is {format} and no TOML; `tandem train` takes ")), "{text}");
    }
    let text = of("a.toml", "seed = :1\n");
    assert!(
        text.contains("a.toml: line 1: ") && text.ends_with("; `seed` takes a whole number of at least 0"),
        "{text}"
    );
    let text = message(load(Some(Path::new("Qwen/Qwen2.5-0.5B")), &Overrides::new()));
    assert!(text.contains("`hf download NAME"), "{text}");
    assert!(message(load(Some(dir.path()), &Overrides::new())).contains("is a folder"));
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let (_, config) =
        from_file("learning_rate = 1e-4\nseed = 7", &["--learning-rate", "2e-4", "--learning_rate=3e-4"]).unwrap();
    assert_eq!(config.learning_rate, 3e-4);
    assert_eq!(config.seed, 7);
    assert_eq!(config.num_generations, TrainConfig::default().num_generations);
}

#[test]
fn alias_spellings_mean_the_same_option() {
    let (dir, config) = from_file("model_name_or_path = \"m\"", &["--dataset-name", "d.jsonl"]).unwrap();
    assert_eq!(config.model, dir.join("m"));
    assert_eq!(config.dataset, Paths::from("d.jsonl"));
    let text = message(from_file("model = \"a\"\nmodel_name_or_path = \"b\"", &[]));
    assert!(text.contains("`model` is given twice"), "{text}");
}

#[test]
fn type_errors_name_the_key_and_its_origin() {
    let text = message(from_file("seed = 1\nmax_steps = \"many\"", &[]));
    assert!(text.contains("run.toml, line 2) must be a whole number of at least 0, got \"many\""), "{text}");
    let text = message(from_line(&["--num_generations", "2.5"]));
    assert!(text.contains("`num_generations` (command line)"), "{text}");
    let text = message(from_line(&["--num_generations", "5000000000"]));
    assert!(text.contains("must be at most 4294967295, got 5000000000"), "{text}");
    let above = "18446744073709551615";
    let text = message(from_line(&["--seed", above]));
    assert!(text.contains(&format!("must be at most 9223372036854775807, got {above}")), "{text}");
    let text = message(from_file("seed = \"7\"", &[]));
    assert!(text.contains("must be a whole number of at least 0, got \"7\""), "{text}");
    let text = message(from_file(&format!("beta = 0\nseed = {above} # any\n"), &[]));
    assert!(text.contains("line 2: ") && text.contains("; `seed` must be at most 9223372036854775807"), "{text}");
    let text = message(from_line(&["--loss_type", "mean"]));
    assert!(text.contains("`loss_type`") && text.contains("dr_grpo"), "{text}");
    let text = message(from_line(&["--num_generations", "-1"]));
    assert!(text.contains("`num_generations`"), "{text}");
    let text = message(from_file("learning_rate = \n", &[]));
    assert!(text.contains("run.toml: line 1"), "{text}");
    let text = message(from_file("seed = 1\nbeta = 0\nseed = 2", &[]));
    assert!(text.contains("run.toml: line 3: `seed` is given twice"), "{text}");
    assert!(!text.contains("u32") && !text.contains("u64"), "{text}");
}

#[test]
fn a_missing_file_is_named() {
    let text = message(load(Some(Path::new("/nowhere/run.toml")), &Overrides::new()));
    assert!(text.contains("/nowhere/run.toml") && text.contains("cannot be read"), "{text}");
}

/// A run would go into a folder that is called `~`, which invites to remove the user's own.
#[test]
fn a_shells_word_for_a_folder_of_the_users_is_refused() {
    for text in ["output_dir = \"~/runs\"", "dataset = [\"a.jsonl\", \"~/b.jsonl\"]"] {
        let error = parse(text, Path::new("/a/run.toml"), &Vec::new()).unwrap_err().to_string();
        assert!(error.contains("must be written out: `~` is a shell's word") && error.contains("/a/~/"), "{error}");
    }
    let error = load(None, &vec![("output_dir".into(), "~/runs".into())]).unwrap_err().to_string();
    assert!(error.contains("must be written out"), "{error}");
    load(None, &vec![("output_dir".into(), "~runs/~x".into())]).unwrap();
}

#[test]
fn paths_in_a_file_are_relative_to_it_and_flags_to_the_working_directory() {
    let (dir, config) = from_file("dataset = \"data/x.jsonl\"\nmodel = \"/abs/m\"", &["--output-dir", "out"]).unwrap();
    assert_eq!(config.dataset, Paths::from(dir.join("data/x.jsonl")));
    assert_eq!(config.model, PathBuf::from("/abs/m"));
    assert_eq!(config.output_dir, PathBuf::from("out"));
    let (dir, config) = from_file("dataset = [\"a,b.jsonl\", \"/c\"]", &[]).unwrap();
    assert_eq!(*config.dataset, [dir.join("a,b.jsonl"), "/c".into()]);
    assert_eq!(*from_line(&["--dataset", "a.jsonl, b"]).unwrap().dataset, [PathBuf::from("a.jsonl"), "b".into()]);
}

#[test]
fn reward_functions_are_found_from_the_folder_of_the_file_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    fs::write(&path, "reward_funcs = [\"r.py:f\"]").unwrap();
    let found = |line: &[&str]| load_named(Some(&path), &parse_overrides(&words(line)).unwrap()).unwrap().reward_dir;
    assert_eq!(found(&[]).as_deref(), Some(dir.path()));
    assert_eq!(found(&["--reward_funcs", "s.py:g"]), None);
    assert_eq!(found(&["--reward_dir", "elsewhere"]), Some("elsewhere".into()));
    // What is built in lies nowhere, so that a tool of the command line is found from the working directory.
    fs::write(&path, "reward_funcs = [\"numeric\"]\ntools = [\"builtin:calculator\"]").unwrap();
    assert_eq!(found(&[]), None);
    assert_eq!(found(&["--tools", "t.py:f"]), None);
    fs::write(&path, "reward_funcs = [\"numeric\"]\nenvironment_factory = \"e.py:Maze\"").unwrap();
    assert_eq!(found(&[]).as_deref(), Some(dir.path()));
}

#[test]
fn an_interpreter_is_found_from_the_folder_of_the_file_or_where_the_command_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    let found = |line: &[&str]| load_named(Some(&path), &parse_overrides(&words(line)).unwrap()).unwrap().reward_python;
    fs::write(&path, "reward_python = \".venv/bin/python\"").unwrap();
    let here = path::absolute("bin/python").unwrap().display().to_string();
    assert_eq!(found(&["--reward_funcs", "format"]), dir.path().join(".venv/bin/python").display().to_string());
    assert_eq!(found(&["--reward_dir", "/w"]), "/w/.venv/bin/python");
    assert_eq!(found(&["--reward_python", "bin/python", "--reward_dir", "/w"]), here);
    assert_eq!(found(&["--reward_python", "python3.11"]), "python3.11");
}

#[test]
fn the_interpreter_of_the_environment_is_for_those_who_name_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml");
    let found = |python: Option<&str>, line: &[&str]| {
        let overrides = parse_overrides(&words(line)).unwrap();
        load_in(python.map(str::to_owned), Some(&path), &overrides).unwrap().reward_python
    };
    fs::write(&path, "reward_funcs = [\"r.py:f\"]").unwrap();
    assert_eq!(found(Some("/venv/bin/python"), &[]), "/venv/bin/python");
    assert_eq!(found(Some("/venv/bin/python"), &["--reward_python", "python3.11"]), "python3.11");
    assert_eq!(found(None, &[]), "python3");
    let here = path::absolute("venv/bin/python").unwrap().display().to_string();
    assert_eq!(found(Some("venv/bin/python"), &[]), here, "it is no path of the file");
    fs::write(&path, "reward_python = \"python3.12\"").unwrap();
    assert_eq!(found(Some("/venv/bin/python"), &[]), "python3.12");
}

#[test]
fn none_takes_an_optional_value_back_and_is_a_value_elsewhere() {
    let (_, config) = from_file("max_steps = 5\neval_dataset = \"none\"", &["--max-steps", "none"]).unwrap();
    assert_eq!(config.max_steps, None);
    assert_eq!(config.eval_dataset, None);
    assert_eq!(from_line(&["--scale_rewards", "none"]).unwrap().scale_rewards, ScaleRewards::None);
    assert!(message(from_line(&["--num_generations", "none"])).contains("`num_generations`"));
}

#[test]
fn lists_are_split_at_commas_or_written_in_toml() {
    let config = from_line(&["--reward_funcs", "a, b", "--reward_weights", "1,0.5"]).unwrap();
    assert_eq!(config.reward_funcs, ["a", "b"]);
    assert_eq!(config.reward_weights, [1.0, 0.5]);
    assert_eq!(from_line(&["--stop", r#"["a,b", "\n"]"#]).unwrap().stop, ["a,b", "\n"]);
    assert_eq!(from_line(&["--stop", "true,7"]).unwrap().stop, ["true", "7"]);
}

#[test]
fn values_take_the_type_of_their_option() {
    let config = from_line(&[
        "--system-prompt",
        "123",
        "--temperature",
        "1",
        "--min_p",
        "0",
        "--shuffle_dataset",
        "false",
        "--mask-truncated-completions",
        "--lr_scheduler_type",
        "cosine",
        "--loss-type=dr_grpo",
    ])
    .unwrap();
    assert_eq!(config.system_prompt.as_deref(), Some("123"));
    assert_eq!((config.temperature, config.min_p), (1.0, Some(0.0)));
    assert!(!config.shuffle_dataset && config.mask_truncated_completions);
    assert_eq!((config.lr_scheduler_type, config.loss_type), (LrSchedulerType::Cosine, LossType::DrGrpo));
}

#[test]
fn words_that_are_no_options_and_missing_values_are_refused() {
    assert!(message(from_line(&["seed", "3"])).contains("unexpected `seed`"));
    assert!(message(from_line(&["--seed", "--beta", "0"])).contains("`--seed` needs a value"));
}

#[test]
fn the_written_configuration_is_read_back_equal() {
    let config = from_line(&[
        "--model",
        "/m \"quoted\"",
        "--top_p",
        "0.9",
        "--min_p",
        "0.1",
        "--reward_funcs",
        "x",
        "--max_steps",
        "12",
        "--stop",
        r#"["\n", "é"]"#,
    ])
    .unwrap();
    let text = to_toml(&config);
    assert!(text.contains("top_p = 0.9\n"), "{text}");
    let (_, again) = from_file(&text, &["--output_dir", &config.output_dir.display().to_string()]).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_share_of_steps_is_the_option_that_has_shares() {
    let (_, config) =
        from_file("save_steps = 0.25\nwarmup_steps = 0.1\neval_steps = 0.5\nlogging_steps = 0.01\n", &[]).unwrap();
    assert_eq!((config.save_ratio, config.warmup_ratio, config.eval_ratio), (Some(0.25), 0.1, Some(0.5)));
    assert_eq!((config.warmup_steps, config.logging_ratio, config.evaluates()), (0, Some(0.01), true));
    // As in transformers: rounded up.
    let mut resolved = TrainConfig { max_steps: Some(7), ..config.clone() };
    resolved.resolve_shares(7);
    assert_eq!((resolved.save_steps, resolved.eval_steps, resolved.logging_steps), (2, Some(4), 1));
    assert_eq!((resolved.save_ratio, resolved.eval_ratio, resolved.logging_ratio), (None, None, None));
    // 1 and 1.0 mean one step, and the later of two values wins.
    let (_, config) = from_file("save_steps = 1.0\nwarmup_steps = 0.1\n", &["--warmup_steps", "0"]).unwrap();
    assert_eq!((config.save_steps, config.save_ratio, config.warmup_steps, config.warmup_ratio), (1, None, 0, 0.0));
    let (_, config) = from_file("save_steps = 10\n", &["--save_steps", "0.5"]).unwrap();
    assert_eq!((config.save_steps, config.save_ratio), (500, Some(0.5)));
    let (_, config) = from_file("warmup_steps = 0\nwarmup_ratio = 0.2\n", &[]).unwrap();
    assert_eq!((config.warmup_steps, config.warmup_ratio), (0, 0.2));
    for line in ["save_steps = 1.5", "save_steps = -0.5", "warmup_steps = \"0.1\""] {
        let text = message(from_file(line, &[]));
        assert!(text.contains("a whole number of steps, or a share of all steps below 1, got"), "{text}");
    }
    assert!(message(from_line(&["--max_steps", "0.5"])).contains("must be a whole number of at least 0"));
    // Where nothing is a share, whole numbers are whole in any spelling too.
    let (_, config) = from_file("num_generations = 8.0\n", &["--max_steps", "1e3"]).unwrap();
    assert_eq!((config.num_generations, config.max_steps), (8, Some(1000)));
    for number in ["5000000000", "5e9", "1e30"] {
        let text = message(from_line(&["--num_generations", number]));
        assert!(text.contains("must be at most 4294967295, got "), "{number}: {text}");
    }
}

#[test]
fn names_that_others_have_for_options_lead_to_them() {
    for (name, option) in [
        ("lr", "learning_rate"),
        ("batch_size", "per_device_train_batch_size"),
        ("epochs", "num_train_epochs"),
        ("n", "num_generations"),
        ("max_tokens", "max_completion_length"),
        ("kl_coef", "beta"),
        ("kl-coef", "beta"),
    ] {
        let text = message(from_line(&[&format!("--{name}"), "1"]));
        assert!(text.contains(&format!("did you mean `{option}`?")), "{text}");
    }
    assert!(message(from_file("lr = 1e-6\n", &[])).contains("line 1); did you mean `learning_rate`?"));
}

#[test]
fn settings_of_a_schedule_are_a_table_or_json() {
    let expected = serde_json::json!({ "min_lr_rate": 0.1 });
    let table = "lr_scheduler_type = \"cosine_with_min_lr\"\nlr_scheduler_kwargs = { min_lr_rate = 0.1 }\n";
    let (_, of_file) = from_file(table, &[]).unwrap();
    let of_line = from_line(&["--lr_scheduler_kwargs", r#"{"min_lr_rate": 0.1}"#]).unwrap();
    for config in [of_file, of_line] {
        assert_eq!(
            config.lr_scheduler_kwargs.as_ref().map(|table| table.values().clone().into()),
            Some(expected.clone())
        );
        assert!(parse(&to_toml(&config), Path::new("run.toml"), &Overrides::new()).unwrap() == config);
    }
    let text = message(from_line(&["--lr_scheduler_type", "reduce_lr_on_plateau"]));
    assert!(text.contains("`lr_scheduler_type`") && text.contains("evaluation loss"), "{text}");
}
