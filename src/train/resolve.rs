//! From the words of the command line to a configuration in which everything is set.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use exporters::{AdapterConfig, Checkpoint};
use shared::{
    Head, ModelDir, RunDir,
    config::{ConfigError, Device, TrainConfig, hub_name, layers, torchrun::Torchrun},
    process::pace::Waiting,
    run::memory_plan::{Machine, RunPlan, VersionRoom},
    system::native,
};
use shared_bounds::read_text;
use shared_tokenizer::{RegexConstraint, TextTokenizer};

use super::{data::Datasets, directory, disk::DiskPlan, precision, problems::Problems};
use crate::{
    doctor,
    import_config::{self, Imported},
    supervise::Chaos,
    terminal::output,
};

/// The words after `tandem train`, sorted.
#[derive(Debug, PartialEq)]
pub struct CommandLine {
    /// `run.toml`, if one is named.
    pub file: Option<PathBuf>,
    /// Whether to print the resolved configuration only.
    pub dry_run: bool,
    /// Deliberate faults, with `--chaos`.
    pub chaos: Option<Chaos>,
    /// `--key value` pairs.
    pub overrides: layers::Overrides,
}

impl CommandLine {
    /// Sorts the words; the file comes first, `--dry-run` and `--chaos` anywhere.
    pub fn parse(words: &[String]) -> Result<Self> {
        let (file, options) = layers::file_and_options(words);
        let is_dry_run = |word: &String| word == "--dry-run" || word == "--dry_run";
        let dry_run = options.iter().any(is_dry_run);
        let mut options: Vec<String> = options.iter().filter(|word| !is_dry_run(word)).cloned().collect();
        let chaos = take(&mut options, "--chaos", "seed=7,kill=0.02,stop=0.01,disk=0.01")?
            .map(|text| text.parse())
            .transpose()?;
        Ok(Self {
            file: file.map(Path::to_owned),
            dry_run,
            chaos,
            overrides: layers::parse_overrides(&options).map_err(explained).and_then(without_steps)?,
        })
    }

    /// The configuration that the words name. The loader leaves a checkpoint as it stands, since it is a path or
    /// `latest`; a path in the file then becomes relative to the file's folder, as all paths there.
    pub fn config(&self) -> Result<TrainConfig> {
        if let Some(file) = self.file.as_deref().filter(|file| import_config::is_foreign(file)) {
            return self.imported(file);
        }
        let ending = |file: &Path| {
            file.extension().is_some_and(|own| ROWS.iter().any(|of_rows| own.eq_ignore_ascii_case(of_rows)))
        };
        if let Some(file) = self.file.as_deref().filter(|file| ending(file)) {
            bail!(
                "{}: the first word is the configuration, run.toml, and this is a file of rows; name it with --dataset",
                file.display()
            );
        }
        if let Some(file) = self.file.as_deref().filter(|file| !file.exists()) {
            bail!("{}: there is no such file; the first word is the configuration, run.toml", file.display());
        }
        let loaded = layers::load_named(self.file.as_deref(), &self.overrides);
        if let (Err(_), Some(file)) = (&loaded, self.file.as_deref()) {
            let text = read_text(file, layers::MOST_BYTES).unwrap_or_default();
            import_config::refuse_toml(&text).with_context(|| file.display().to_string())?;
        }
        let mut config = loaded.map_err(explained)?;
        let in_file = !self.overrides.iter().any(|(key, _)| key == "resume_from_checkpoint");
        if let (true, Some(folder), Some(wanted)) =
            (in_file, self.file.as_deref().and_then(Path::parent), &mut config.resume_from_checkpoint)
            && !NEWEST.contains(&wanted.as_str())
        {
            *wanted = folder.join(&*wanted).display().to_string();
        }
        find_checkpoint(&mut config);
        Ok(config)
    }

    /// The configuration of another system, as `tandem import-config` translates it, with an account of it. Its paths
    /// stay relative to the working directory, as in that system.
    fn imported(&self, file: &Path) -> Result<TrainConfig> {
        let imported = Imported::read(file, None)?;
        output::tell(imported.account().trim_end());
        imported.require_all(|option| self.overrides.iter().any(|(key, _)| key == option))?;
        let mut overrides = self.overrides.clone();
        layers::add_interpreter(layers::named_interpreter(), &mut overrides);
        layers::parse(&imported.to_toml(), Path::new("run.toml"), &overrides).map_err(explained)
    }
}

/// Explains TRL's `--max_steps -1`, which means an absent value.
fn without_steps(overrides: layers::Overrides) -> Result<layers::Overrides> {
    if overrides.iter().any(|(key, value)| key == "max_steps" && value.trim() == "-1") {
        bail!(
            "`max_steps` -1 is TRL's word for none: leave it out, and `num_train_epochs` says how many steps there are"
        );
    }
    Ok(overrides)
}

/// Words for the newest checkpoint; the second one is TRL's.
const NEWEST: [&str; 3] = ["latest", "true", "True"];

/// Completes a checkpoint that is named without its folder, as `checkpoint-50` or `50`, to one of the run's own, unless
/// it is a path by itself. The folder of a run stands for its newest checkpoint.
fn find_checkpoint(config: &mut TrainConfig) {
    let Some(wanted) = &mut config.resume_from_checkpoint else { return };
    if NEWEST.contains(&wanted.as_str()) {
        NEWEST[0].clone_into(wanted);
        return;
    }
    let path = Path::new(&*wanted);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = name.strip_prefix("checkpoint-").or((!path.exists()).then_some(&*name));
    let Some(Ok(step)) = number.map(str::parse::<u64>) else {
        let of = |path: &Path| fs::canonicalize(path).ok();
        if of(path).is_some_and(|path| of(&config.output_dir) == Some(path)) {
            NEWEST[0].clone_into(wanted);
        } else if let Some(newest) = RunDir::new(path).checkpoints().ok().and_then(|all| all.last().copied()) {
            *wanted = RunDir::new(path).checkpoint(newest).display().to_string();
        }
        return;
    };
    let own = RunDir::new(&config.output_dir).checkpoint(step);
    if !path.exists() && own.is_dir() {
        *wanted = own.display().to_string();
    }
}

/// Names of options of our other commands or of other programs that have no single counterpart here, with their
/// replacement.
const NO_OPTIONS: [(&str, &str); 6] = [
    ("threads", "a run has `rollout_threads` and `learner_threads`"),
    ("max_new_tokens", "did you mean `max_completion_length`?"),
    (
        "gpus",
        "`rollout_device` and `learner_device` choose the GPU (cuda), `learner_ranks` takes several for the learner",
    ),
    ("device", "a run has `rollout_device` and `learner_device`"),
    ("sweep", "the table is for `tandem sweep`, which makes a run for each combination of its values"),
    ("overwrite_output_dir", "no run is overwritten: choose another `output_dir`, or move the old one away"),
];

/// Extensions of files of rows.
const ROWS: [&str; 7] = ["csv", "tsv", "jsonl", "ndjson", "parquet", "arrow", "txt"];

/// Says why an option of TRL's is unknown here, if a reason is known.
pub fn explained(error: ConfigError) -> anyhow::Error {
    match error {
        ConfigError::Several(list) => {
            let mut problems = Problems::default();
            problems.extend(list.into_iter().map(explained));
            problems.into()
        }
        ConfigError::UnknownKey { key, origin, suggestion } => match import_config::hint(&key) {
            Some(hint) => anyhow!("unknown option `{key}` ({origin}): {hint}"),
            None => match NO_OPTIONS.iter().find(|(name, _)| *name == key.replace('-', "_")) {
                Some((_, hint)) => anyhow!("unknown option `{key}` ({origin}): {hint}"),
                None => ConfigError::UnknownKey { key, origin, suggestion }.into(),
            },
        },
        error => error.into(),
    }
}

/// A configuration in which everything is set.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: TrainConfig,
    /// Memory that the run takes.
    pub plan: RunPlan,
    /// Disk space that the run takes.
    pub disk: DiskPlan,
    /// A line for each dataset, and one for the number formats that `precision` has chosen.
    pub about: Vec<String>,
    /// The checkpoint that the run resumes from, if it does.
    pub checkpoint: Option<PathBuf>,
}

/// Fills in values that depend on data and machine (steps, threads, the learner's token budget) and makes paths
/// absolute. Checks that the named files exist, fit together and fit into memory.
///
/// # Errors
/// All faults.
pub fn resolve(mut config: TrainConfig) -> Result<Resolved> {
    let mut problems = Problems::default();
    problems.extend(config.problems());
    problems.extend(native::onnxruntime().err().map(|error| anyhow!("the sampler: {error}")));
    problems.extend(Torchrun::of_run(&config).err());
    problems.take(make_absolute(&mut config));
    let model = problems.take(models(&config));
    let of_run = model.as_ref().and_then(|(model, _)| model.as_ref());
    problems.extend(of_run.and_then(|model| check_expression(&config, model).err()));
    let checkpoint = problems.take(directory::check(&config, of_run)).flatten();
    let waiting = Waiting::new("reading the datasets");
    let datasets = Datasets::read(&config, &mut problems);
    drop(waiting);
    problems.check()?;
    let Some((Some(model), critic)) = model else {
        bail!("`model` is missing");
    };
    let steps = config.total_steps(datasets.rows);
    config.max_steps = Some(steps);
    config.resolve_shares(steps);
    // Some checks need numbers of steps in the place of shares.
    config.validate()?;
    refuse_idle_branch(&config, checkpoint.as_deref(), steps)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (rollout, learner) = config.threads(cores);
    config.rollout_threads = Some(rollout);
    config.learner_threads = Some(learner);
    let before = before(&config);
    // Another budget would round sums differently.
    config.micro_batch_tokens = config.micro_batch_tokens.or_else(|| before.as_ref()?.micro_batch_tokens);
    let precision = precision::settle(&mut config, before.as_ref(), model.config())?;
    config.fix_template_date(before.as_ref());
    let on_gpu = config.learner_device != Device::Cpu || config.rollout_device != Device::Cpu;
    let machine = Machine::this(on_gpu.then(doctor::gpu_memory).flatten())?;
    let shared = VersionRoom::of(&config, model.config()).in_shared_memory(config.version_storage).is_ok();
    let plan = RunPlan::new(&config, model.config(), critic.as_ref().map(ModelDir::config), machine, shared)?;
    config.micro_batch_tokens = Some(plan.micro_batch_tokens);
    let in_shared_memory = plan.versions_in_shared_memory();
    let disk = DiskPlan::new(&config, model.config(), critic.as_ref().map(ModelDir::config), in_shared_memory);
    let about = datasets.about.into_iter().chain(precision).collect();
    Ok(Resolved { config, plan, disk, about, checkpoint })
}

/// Refuses to branch off from a checkpoint of another folder that has every step already. The new folder would hold a
/// copy of the checkpoint, and no step.
fn refuse_idle_branch(config: &TrainConfig, checkpoint: Option<&Path>, steps: u64) -> Result<()> {
    let branched = checkpoint.filter(|path| path.parent() != Some(config.output_dir.as_path()));
    match branched.and_then(directory::step_of) {
        Some(made) if made >= steps => bail!(
            "`resume_from_checkpoint`: checkpoint-{made} has all {} already; raise `max_steps` to go on from it",
            super::steps_in_words(steps)
        ),
        _ => Ok(()),
    }
}

/// Makes the paths in a configuration independent of the working directory.
///
/// # Errors
/// When there is no working directory, or a path is no text.
pub fn make_absolute(config: &mut TrainConfig) -> Result<()> {
    config.reward_dir.get_or_insert_with(|| ".".into());
    for path in config.paths_mut().filter(|path| !path.as_os_str().is_empty() && hub_name(path).is_none()) {
        *path = std::path::absolute(&*path).with_context(|| path.display().to_string())?;
        // Options are written as text, so a folder with such a name cannot be recorded.
        ensure!(path.to_str().is_some(), "{}: the path is not UTF-8; rename its folder", path.display());
    }
    Ok(())
}

/// The models that a configuration names, policy and critic, if it names them.
fn models(config: &TrainConfig) -> Result<(Option<ModelDir>, Option<ModelDir>)> {
    if config.model.as_os_str().is_empty() || hub_name(&config.model).is_some() {
        return Ok((None, None));
    }
    let open = |key: &str, path: &Path| ModelDir::open(path).with_context(|| format!("`{key}`"));
    let model = open("model", &config.model)?;
    let model = model.with_chat_template(config.chat_template.as_deref()).context("`chat_template`")?;
    if model.config().head != Head::LanguageModel {
        bail!(
            "`model`: {} has a classification head (config.json: `architectures`); name the directory of a language \
             model",
            model.path().display()
        );
    }
    AdapterConfig::of_run(config, &model)?;
    config.check_model(model.config())?;
    let critic = config.critic_model.as_ref().map(|path| open("critic_model", path)).transpose()?;
    if let Some((critic, reason)) = critic.as_ref().and_then(|it| Some((it, it.config().refuses_scorers()?))) {
        bail!("`critic_model`: {} {reason}", critic.path().display());
    }
    Ok((Some(model), critic))
}

/// Refuses an expression that no whole completion of the run can follow. A tokenizer that cannot be read is left to the
/// sampler, which needs it for prompts too.
fn check_expression(config: &TrainConfig, model: &ModelDir) -> Result<()> {
    if config.structured_outputs_regex.is_none() {
        return Ok(());
    }
    let Ok(tokenizer) = TextTokenizer::of_model(model) else { return Ok(()) };
    RegexConstraint::of_run(config, model, &tokenizer).map(drop).context("`structured_outputs_regex`")
}

/// Refuses weights of policy or critic from which nothing can be trained: their names, shapes and values are checked.
///
/// # Errors
/// As [`Checkpoint::open`], with the option.
pub fn check_weights(config: &TrainConfig) -> Result<()> {
    check_weights_of("model", &config.model)?;
    check_critic(config)
}

/// As [`check_weights`], for the critic alone: weights that the sampler has checked need not be read again.
///
/// # Errors
/// As [`check_weights`].
pub fn check_critic(config: &TrainConfig) -> Result<()> {
    config.critic_model.as_ref().map_or(Ok(()), |path| check_weights_of("critic_model", path))
}

fn check_weights_of(key: &str, path: &Path) -> Result<()> {
    let _waiting = Waiting::new("looking at the weights");
    let open = || Ok::<_, anyhow::Error>(Checkpoint::open(&ModelDir::open(path)?)?);
    open().map(drop).with_context(|| format!("`{key}`"))
}

/// The resolved configuration of the run that is resumed.
pub fn before(config: &TrainConfig) -> Option<TrainConfig> {
    let run = match config.resume_from_checkpoint.as_deref()? {
        "latest" => &config.output_dir,
        checkpoint => Path::new(checkpoint).parent()?,
    };
    layers::load(Some(&RunDir::new(run).config()), &Vec::new()).ok()
}

/// Takes an option with its value, `--name value` or `--name=value`, out of the words. `such_as` is a value of it.
///
/// # Errors
/// When the option has no value.
pub fn take(words: &mut Vec<String>, name: &str, such_as: &str) -> Result<Option<String>> {
    let is_it = |word: &String| word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    let Some(at) = words.iter().position(is_it) else { return Ok(None) };
    let word = words.remove(at);
    match word.split_once('=') {
        Some((_, value)) => Ok(Some(value.to_owned())),
        None if words.get(at).is_some_and(|next| !next.starts_with("--")) => Ok(Some(words.remove(at))),
        None => bail!("{name} needs a value, as in {name} {such_as}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use shared::config::{AdvantageEstimator, OPTIONS, ValueKind};

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_path_that_is_no_text_is_refused() {
        let folder = OsStr::from_bytes(b"/donn\xe9es/run");
        let mut config = TrainConfig { output_dir: folder.into(), ..TrainConfig::default() };
        let error = make_absolute(&mut config).unwrap_err().to_string();
        assert!(error.ends_with("/run: the path is not UTF-8; rename its folder"), "{error}");
    }

    #[test]
    fn a_checkpoint_is_found_by_its_name_its_number_or_the_folder_of_a_run() {
        let root = tempfile::tempdir().unwrap();
        let (own, other) = (root.path().join("own"), root.path().join("other"));
        for (run, step) in [(&own, 2), (&own, 10), (&other, 4), (&other, 30)] {
            fs::create_dir_all(RunDir::new(run).checkpoint(step)).unwrap();
        }
        fs::create_dir(root.path().join("empty")).unwrap();
        let shown = |path: &Path| path.display().to_string();
        let found = |wanted: String| {
            let (output_dir, resume_from_checkpoint) = (own.clone(), Some(wanted));
            let mut config = TrainConfig { output_dir, resume_from_checkpoint, ..TrainConfig::default() };
            find_checkpoint(&mut config);
            config.resume_from_checkpoint.unwrap()
        };
        let second = shown(&own.join("checkpoint-2"));
        assert_eq!(
            [found("checkpoint-2".into()), found("2".into()), found(second.clone())],
            [(); 3].map(|()| &*second)
        );
        assert_eq!([found("true".into()), found(shown(&own)), found(shown(&own.join(".")))], ["latest"; 3]);
        assert_eq!(found(shown(&other)), shown(&other.join("checkpoint-30")), "its newest");
        let numbered = root.path().join("3");
        fs::create_dir_all(RunDir::new(&numbered).checkpoint(5)).unwrap();
        assert_eq!(found(shown(&numbered)), shown(&numbered.join("checkpoint-5")), "a run may be called so");
        for unknown in [shown(&root.path().join("empty")), shown(&root.path().join("absent")), "checkpoint-7".into()] {
            assert_eq!(found(unknown.clone()), unknown, "the refusal comes later, with all checkpoints there are");
        }
    }

    #[test]
    fn an_option_without_its_value_is_told_one() {
        for line in ["--jobs", "--jobs --seed 1,2"] {
            let error = take(&mut words(line), "--jobs", "2").unwrap_err().to_string();
            assert_eq!(error, "--jobs needs a value, as in --jobs 2", "{line}");
        }
    }

    #[test]
    fn the_file_comes_first_and_dry_run_anywhere() {
        let line = CommandLine::parse(&words("run.toml --seed 3 --dry-run --beta=0.1")).unwrap();
        assert_eq!(line.file.as_deref(), Some(Path::new("run.toml")));
        assert!(line.dry_run);
        assert_eq!(line.overrides, [("seed".into(), "3".into()), ("beta".into(), "0.1".into())]);
        let line = CommandLine::parse(&words("--seed 3")).unwrap();
        assert_eq!((line.file, line.dry_run), (None, false));
    }

    #[test]
    fn chaos_is_asked_for_on_the_command_line_alone() {
        for line in ["run.toml --chaos seed=7,kill=0.5 --seed 3", "run.toml --seed=3 --chaos=kill=0.5,seed=7"] {
            let line = CommandLine::parse(&words(line)).unwrap();
            assert_eq!(line.chaos, Some("seed=7,kill=0.5".parse().unwrap()));
            assert_eq!(line.overrides, [("seed".into(), "3".into())]);
        }
        assert!(CommandLine::parse(&words("--chaos")).unwrap_err().to_string().contains("needs a value"));
    }

    #[test]
    fn an_option_of_trl_without_a_counterpart_is_explained() {
        for (word, hint) in [
            ("--fp16", "float32"),
            ("--push-to-hub=true", "nothing is uploaded"),
            ("--lerning-rate", "`learning_rate`"),
        ] {
            let message = CommandLine::parse(&words(word)).unwrap_err().to_string();
            assert!(message.contains("unknown option") && message.contains(hint), "{message}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.toml");
        fs::write(&file, "seed = 1\nuse_vllm = true\n").unwrap();
        let line = CommandLine { file: Some(file), dry_run: true, chaos: None, overrides: Vec::new() };
        let message = line.config().unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("ONNX Runtime"), "{message}");
    }

    const CONFIG_JSON: &str = r#"{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 16,
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 1}"#;

    fn config(dir: &Path) -> TrainConfig {
        fs::write(dir.join("config.json"), CONFIG_JSON).unwrap();
        fs::write(dir.join("train.jsonl"), "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}").unwrap();
        TrainConfig {
            model: dir.to_owned(),
            dataset: dir.join("train.jsonl").into(),
            output_dir: dir.join("run"),
            reward_funcs: vec!["format".into()],
            num_generations: 4,
            ..TrainConfig::default()
        }
    }

    #[test]
    fn steps_and_threads_are_filled_in() {
        let dir = tempfile::tempdir().unwrap();
        // 2 prompts and 8 completions make 2 groups a step, for 3 epochs.
        let resolved = resolve(config(dir.path())).unwrap().config;
        assert_eq!(resolved.max_steps, Some(3));
        assert!(resolved.rollout_threads.is_some() && resolved.learner_threads.is_some());
        assert!(!resolved.output_dir.exists(), "resolving must not touch the disk");
    }

    /// Another budget would round sums differently, so a change of its default must not reach a resumed run.
    #[test]
    fn the_token_budget_is_filled_in_and_a_resumed_run_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = config(dir.path());
        let resolved = |config: &TrainConfig| resolve(config.clone()).unwrap().config.micro_batch_tokens;
        let chosen = resolved(&fresh).unwrap();
        fs::create_dir(&fresh.output_dir).unwrap();
        let date = Some("2026-01-31T12:00:00Z".to_owned());
        let earlier =
            TrainConfig { micro_batch_tokens: Some(chosen + 7), template_date: date.clone(), ..fresh.clone() };
        fs::write(fresh.output_dir.join("config.toml"), layers::to_toml(&earlier)).unwrap();
        fs::write(fresh.output_dir.join("run.lock"), "").unwrap();
        assert_ne!(resolve(fresh.clone()).unwrap().config.template_date, date);
        assert_eq!(resolve(fresh.clone()).unwrap().checkpoint, None);
        assert_eq!(resolved(&fresh), Some(chosen), "a new run does not look at what one without a step has left");
        fs::create_dir(fresh.output_dir.join("checkpoint-3")).unwrap();
        for (file, text) in [("trainer_state.json", "{}"), ("config.json", CONFIG_JSON)] {
            fs::write(fresh.output_dir.join("checkpoint-3").join(file), text).unwrap();
        }
        let checkpoint = fresh.output_dir.join("checkpoint-3").display().to_string();
        for from in ["latest", &checkpoint] {
            let goes_on = TrainConfig { resume_from_checkpoint: Some(from.into()), ..fresh.clone() };
            assert_eq!(resolved(&goes_on), Some(chosen + 7), "{from}");
            let again = resolve(goes_on.clone()).unwrap();
            assert_eq!(again.config.template_date, date, "prompts stay as they were");
            assert_eq!(again.checkpoint.as_deref(), Some(Path::new(&checkpoint)), "nobody need look for it again");
            assert_eq!(resolved(&TrainConfig { micro_batch_tokens: Some(5), ..goes_on }), Some(5));
        }
    }

    #[test]
    fn a_branch_off_a_checkpoint_that_has_every_step_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("other/checkpoint-3");
        fs::create_dir_all(&checkpoint).unwrap();
        for (file, text) in [("trainer_state.json", "{}"), ("config.json", CONFIG_JSON)] {
            fs::write(checkpoint.join(file), text).unwrap();
        }
        let branch =
            TrainConfig { resume_from_checkpoint: Some(checkpoint.display().to_string()), ..config(dir.path()) };
        let with = |steps| resolve(TrainConfig { max_steps: Some(steps), ..branch.clone() });
        for steps in [2, 3] {
            let text = format!("{:#}", with(steps).unwrap_err());
            assert!(text.contains(&format!("checkpoint-3 has all {steps} steps already; raise `max_steps`")), "{text}");
        }
        let begins = with(4).unwrap().checkpoint.unwrap();
        assert!(begins.ends_with("other/checkpoint-3"), "{}", begins.display());
    }

    /// Both processes read the path from config.toml in the run directory, where only an absolute path has the same
    /// meaning.
    #[test]
    fn every_option_that_is_a_path_is_made_absolute() {
        let dir = tempfile::tempdir().unwrap();
        drop(config(dir.path()));
        let up = PathBuf::from_iter(std::env::current_dir().unwrap().components().skip(1).map(|_| ".."));
        let relative = up.join(dir.path().strip_prefix("/").unwrap());
        let value_of = |key: &str| match key {
            "dataset" | "eval_dataset" => relative.join("train.jsonl"),
            "output_dir" => relative.join("run"),
            "chat_template" => relative.join("train.jsonl"),
            _ => relative.clone(),
        };
        let paths: Vec<&str> =
            OPTIONS.iter().filter(|o| matches!(o.kind, ValueKind::Path | ValueKind::Paths)).map(|o| o.key).collect();
        assert!(paths.len() >= 5, "{paths:?}");
        let mut overrides: Vec<(String, String)> =
            paths.iter().map(|key| ((*key).to_owned(), value_of(key).display().to_string())).collect();
        let more = [
            ("reward_funcs", "format"),
            ("advantage_estimator", "gae"),
            ("num_generations", "4"),
            ("listen", "tls/127.0.0.1:7447"),
        ];
        overrides.extend(more.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let resolved = resolve(layers::load(None, &overrides).unwrap()).unwrap().config;
        let resolved = serde_json::to_value(resolved).unwrap();
        for key in paths {
            let path = Path::new(resolved[key].as_str().unwrap());
            assert!(path.is_absolute() && path.ends_with(value_of(key).strip_prefix(&up).unwrap()), "{key}: {path:?}");
        }
    }

    #[test]
    fn words_that_are_no_options_of_a_run_lead_to_those_that_are_meant() {
        let message = |line: &str| {
            let parsed = CommandLine::parse(&words(line)).and_then(|line| line.config());
            parsed.unwrap_err().to_string()
        };
        for (line, meant) in [
            ("--threads 2", "`rollout_threads` and `learner_threads`"),
            ("--max-new-tokens 5", "`max_completion_length`"),
            ("--gpus=2", "`learner_ranks`"),
            ("--overwrite_output_dir true", "choose another `output_dir`"),
            ("--max_steps -1", "leave it out, and `num_train_epochs`"),
            ("data/sums.csv", "name it with --dataset"),
        ] {
            assert!(message(line).contains(meant), "{line}: {}", message(line));
        }
    }

    #[test]
    fn a_checkpoint_named_in_the_file_is_relative_to_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.toml");
        let resumed_from = |value: &str, options: &str| {
            fs::write(&file, format!("resume_from_checkpoint = \"{value}\"\n")).unwrap();
            let line = CommandLine::parse(&words(&format!("{}{options}", file.display()))).unwrap();
            line.config().unwrap().resume_from_checkpoint.unwrap()
        };
        assert_eq!(resumed_from("run/checkpoint-5", ""), dir.path().join("run/checkpoint-5").display().to_string());
        assert_eq!(resumed_from("/run/checkpoint-5", ""), "/run/checkpoint-5");
        assert_eq!(resumed_from("latest", ""), "latest");
        assert_eq!(resumed_from("true", ""), "latest", "as in TRL");
        fs::create_dir_all(dir.path().join("run/checkpoint-5")).unwrap();
        let own = dir.path().join("run/checkpoint-5").display().to_string();
        let output = format!(" --output_dir {}", dir.path().join("run").display());
        for named in ["checkpoint-5", "5"] {
            assert_eq!(resumed_from(named, &output), own, "one of the run's own");
            assert_eq!(resumed_from("a", &format!("{output} --resume_from_checkpoint {named}")), own);
        }
        assert_eq!(resumed_from("a", &format!("{output} --resume_from_checkpoint 6")), "6", "which is then refused");
        assert_eq!(resumed_from("a", " --resume_from_checkpoint b/checkpoint-1"), "b/checkpoint-1");
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let good = config(dir.path());
        let message = |config: TrainConfig| format!("{:#}", resolve(config).unwrap_err());
        let text = message(TrainConfig { dataset: dir.path().join("no.jsonl").into(), ..good.clone() });
        assert!(text.contains("`dataset`") && text.contains("no.jsonl"), "{text}");
        let gae = TrainConfig { advantage_estimator: AdvantageEstimator::Gae, ..good.clone() };
        let text = message(TrainConfig { critic_model: Some(dir.path().join("no-critic")), ..gae.clone() });
        assert!(text.contains("`critic_model`") && text.contains("no-critic"), "{text}");
        let gemma = harness::golden_dir().join("models-2026/gemma4");
        let text = message(TrainConfig { critic_model: Some(gemma), ..gae });
        assert!(text.contains("`critic_model`: ") && text.contains("no class of sequence classifiers"), "{text}");
        let scorer = tempfile::tempdir().unwrap();
        shared::files::atomic::copy_files(&good.model, scorer.path()).unwrap();
        let config = fs::read_to_string(scorer.path().join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["architectures"] = serde_json::json!(["Qwen2ForSequenceClassification"]);
        fs::write(scorer.path().join("config.json"), config.to_string()).unwrap();
        let text = message(TrainConfig { model: scorer.path().to_owned(), ..good.clone() });
        assert!(text.contains("`model`: ") && text.contains("has a classification head"), "{text}");
        let text = message(TrainConfig { model: dir.path().join("no-model"), ..good.clone() });
        assert!(text.contains("`model`") && text.contains("no-model"), "{text}");
        let lora = TrainConfig { use_peft: true, lora_target_modules: vec!["qproj".into()], ..good.clone() };
        let text = message(lora);
        assert!(text.contains("`lora_target_modules`") && text.contains("qproj"), "{text}");
        fs::write(dir.path().join("empty.jsonl"), "\n\n").unwrap();
        let text = message(TrainConfig { dataset: dir.path().join("empty.jsonl").into(), ..good });
        assert!(text.contains("empty.jsonl") && text.contains("no rows"), "{text}");
    }
}
