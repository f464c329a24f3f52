//! `tandem new`: a commented `run.toml` to begin with. What the options name is looked at before anything is written.

mod file;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use shared::{
    ModelDir,
    config::{TrainConfig, hub_name, layers},
    files::atomic,
};
use shared_data::{Columns, DataError};
use toml::Value;

use crate::{
    terminal::output,
    train::{self, Problems},
};

/// Words of `tandem new`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hugging Face model directory to start from, or its name on the Hub.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Training prompts: a file, a folder or a name on the Hub; may be given several times.
    #[arg(long, value_name = "DATASET", required = true)]
    dataset: Vec<String>,
    /// Reward function: a rule (`tandem rewards` lists them), or a function in Python as my_rewards.py:my_function; may
    /// be given several times.
    #[arg(long, value_name = "FUNCTION", required = true, visible_alias = "reward-funcs")]
    reward: Vec<String>,
    /// File to write.
    #[arg(long, short, value_name = "FILE", default_value = "run.toml")]
    output: PathBuf,
    /// Replace the file if there is one.
    #[arg(long)]
    force: bool,
    /// Further options, as for `tandem train`; the file has them too.
    #[arg(value_name = "OPTIONS", last = true)]
    overrides: Vec<String>,
}

/// Runs `tandem new`; a message on stdout says what comes next.
///
/// # Errors
/// A file that exists, options that make no sense together, and everything that they name and that cannot be used.
pub fn run(args: &Args) -> Result<ExitCode> {
    let path = &args.output;
    if path.symlink_metadata().is_ok() && !args.force {
        bail!("{}: there is such a file; name another with --output, or replace it with --force", path.display());
    }
    let (mut config, names_python) = args.config()?;
    let data = look(&mut config)?;
    if !names_python {
        // It may be that of the environment, where the run finds it too.
        config.reward_python = TrainConfig::default().reward_python;
    }
    located(&mut config, path)?;
    atomic::write_output(path, file::text(&config, path, &data).as_bytes())
        .with_context(|| path.display().to_string())?;
    let path = path.display();
    output::print(format_args!(
        "wrote {path}; `tandem train {path} --dry-run` makes every check, `tandem train {path}` trains"
    ));
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The configuration that the words name, and whether they name an interpreter of reward functions.
    fn config(&self) -> Result<(TrainConfig, bool)> {
        let list = |values: &[String]| Value::from(values.to_vec()).to_string();
        let named =
            [("model", self.model.clone()), ("dataset", list(&self.dataset)), ("reward_funcs", list(&self.reward))];
        let mut overrides: layers::Overrides = named.map(|(key, value)| (key.to_owned(), value)).into();
        overrides.extend(layers::parse_overrides(&self.overrides).map_err(train::explained)?);
        let config = layers::load_named(None, &overrides).map_err(train::explained)?;
        let mut problems = Problems::default();
        problems.extend(config.problems());
        problems.check()?;
        Ok((config, overrides.iter().any(|(key, _)| key == "reward_python")))
    }
}

/// Looks at everything that the options name and that is on this machine. Reward functions get their full names.
/// Returns lines about the datasets.
///
/// # Errors
/// Everything that cannot be used.
fn look(config: &mut TrainConfig) -> Result<Vec<String>> {
    let (mut problems, mut lines) = (Problems::default(), Vec::new());
    let is_here = |path: &Path| hub_name(path).is_none();
    let mut whole = [&config.eval_dataset, &config.critic_model].into_iter().flatten().all(|path| is_here(path));
    if is_here(&config.model) {
        whole &= problems.take(ModelDir::open(&config.model).context("`model`")).is_some();
    } else {
        whole = false;
    }
    for path in config.dataset.iter() {
        if let Some(name) = hub_name(path) {
            lines.push(format!("{name} is on the Hub: --dry-run downloads it, and says how prompts are made of it."));
            whole = false;
        } else {
            let found = problems.take(about(path, config));
            whole &= found.is_some();
            lines.extend(found.into_iter().flatten());
        }
    }
    problems.take(try_rewards(config, whole));
    problems.check()?;
    Ok(lines)
}

/// What there is in a dataset: its format, how prompts are made of its rows, their columns, and oddities.
fn about(path: &Path, config: &TrainConfig) -> Result<Vec<String>> {
    let columns = Columns {
        prompt: config.prompt_column.clone(),
        answer: config.answer_column.clone(),
        may_lack_prompt: config.environment_factory.is_some(),
    };
    let read = || -> Result<_, DataError> {
        let table = shared_data::read(path, config.train_part())?;
        let names: Vec<String> = table.rows[0].values.keys().map(|name| format!("`{name}`")).collect();
        let mut lines = vec![format!("{}: {}.", path.display(), table.describe(&columns)?)];
        lines.push(format!("Columns of its first row: {}.", names.join(", ")));
        lines.extend(table.warnings(&columns).into_iter().map(|warning| format!("Warning: {warning}.")));
        Ok(lines)
    };
    read().context("`dataset` (options as `prompt_column` are given behind `--`)")
}

/// Has the sampler try the reward functions: on sample completions if model and dataset are here and `whole`, else it
/// only loads them.
fn try_rewards(config: &mut TrainConfig, whole: bool) -> Result<()> {
    let mut tried = config.clone();
    if !whole {
        tried = TrainConfig {
            model: ".".into(),
            dataset: ".".into(),
            eval_dataset: None,
            critic_model: None,
            rehearse_rewards: false,
            ..tried
        };
    }
    train::make_absolute(&mut tried)?;
    train::rehearse(&mut tried)?;
    config.reward_funcs = tried.reward_funcs;
    Ok(())
}

/// Makes paths right for a file: those in a file are relative to its folder.
fn located(config: &mut TrainConfig, file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let here = env::current_dir().context("working directory")?;
    let is_here =
        folder.is_none_or(|folder| folder.canonicalize().is_ok_and(|folder| Some(folder) == here.canonicalize().ok()));
    if is_here {
        return Ok(());
    }
    let output_dir = config.output_dir.clone();
    train::make_absolute(config)?;
    if output_dir == TrainConfig::default().output_dir {
        config.output_dir = output_dir;
    }
    Ok(())
}
