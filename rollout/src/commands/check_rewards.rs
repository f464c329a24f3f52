//! `rollout check-rewards`: the reward functions of a run on sample completions.

use std::{
    cell::LazyCell,
    io::{self, Write},
    process::{self, ExitCode},
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use rayon::prelude::*;
use rollout_rewards::{
    RewardFunction,
    rehearsal::{Demand, Rehearsal, Rehearsed},
};
use serde_json::{Value, json};
use shared::{
    ModelDir,
    config::{RewardHost, TrainConfig, layers, rewards::short_name},
    metrics::Figure,
    process::{command_line::tell_warnings, pace::Waiting},
    tell,
};
use shared_hub::Hub;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use super::print;
use crate::{
    data::{Dataset, Tokenizer},
    pair::setup::prompt_options,
    reward::{self, model, sampled, samples},
};

/// Flags of `rollout check-rewards`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write the figures as a line of JSON in place of a table
    #[arg(long)]
    pub json: bool,
    /// A run follows, which says by itself what is odd about its prompts
    #[arg(long, hide = true)]
    pub before_run: bool,
    /// The configuration file, then options as of `tandem train`
    #[arg(value_name = "RUN.toml", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Runs the subcommand. A reason to refuse a run is an error.
///
/// # Errors
/// A configuration, model or dataset that cannot be used, and a reward function that cannot work.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Behind other words, `--json` is taken for one of them.
    let (flags, words): (Vec<String>, Vec<String>) = args.words.iter().cloned().partition(|word| word == "--json");
    let json = args.json || !flags.is_empty();
    let (file, options) = layers::file_and_options(&words);
    let mut config = layers::load_named(file, &layers::parse_overrides(options)?)?;
    config.validate()?;
    leave_nothing_behind()?;
    let located = shared_hub::locate(&mut config, None, &Hub::of_command());
    located.map_err(|(option, error)| anyhow::Error::from(error).context(format!("`{option}`")))?;
    let functions = load(&config);
    if let Some(words) = rollout_rewards::contained() {
        tell!("programs of reward functions run with {words}");
    }
    let functions = functions?;
    let checked = check(functions, &config, args.before_run)?;
    if json {
        print(&checked.iter().map(Checked::figures).collect())?;
    } else {
        write_table(&checked)?;
    }
    verdict(&checked, &config)
}

/// Ends this program at a signal, with all processes of functions, which have groups of their own and may hang.
pub(super) fn leave_nothing_behind() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("signal handler")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            rollout_rewards::end_all();
            process::exit(128 + signal);
        }
    });
    Ok(())
}

/// A function with the result of its rehearsal; `None` where it was not tried.
struct Checked {
    entry: String,
    found: Option<Rehearsed>,
}

/// An entry of `reward_funcs` with its function; `None` for a reward model and for a function that asks for
/// environments, which are left for the run itself.
type Loaded = (String, Option<RewardFunction>);

/// Loads the functions of a run.
fn load(config: &TrainConfig) -> anyhow::Result<Vec<Loaded>> {
    let registry = reward::registry().on(RewardHost { processes: 1, ..config.reward_host() });
    let is_model = |entry: &str| registry.entry(entry).is_some_and(|entry| entry.name == model::NAME);
    let make = |entry: &String| (!is_model(entry)).then(|| registry.function(entry)).transpose();
    let made: Vec<_> = config.reward_funcs.par_iter().map(make).collect();
    let (mut loaded, mut reasons) = (Vec::new(), Vec::new());
    for (entry, made) in config.reward_funcs.iter().zip(made) {
        match made {
            Ok(function) => {
                let name = function.as_ref().map_or(entry.as_str(), RewardFunction::name);
                loaded.push((name.to_owned(), function.filter(|function| !function.is_rater())));
            }
            Err(error) => {
                quote(error.last_words());
                reasons.push(error.to_string());
            }
        }
    }
    if !reasons.is_empty() {
        bail!("`reward_funcs`: {}", reasons.join("; "));
    }
    Ok(loaded)
}

/// Largest number of weights of a model that is asked for completions at the start of a run. The subcommand itself asks
/// a model of any size.
const ASKED_BEFORE_A_RUN: u64 = 100_000_000;

/// Tries the functions. With `before_run`, a run follows, which remarks on its prompts itself, and a small model is
/// asked for completions only where there is a doubt.
fn check(functions: Vec<Loaded>, config: &TrainConfig, before_run: bool) -> anyhow::Result<Vec<Checked>> {
    if !config.rehearse_rewards {
        return Ok(functions.into_iter().map(|(entry, _)| Checked { entry, found: None }).collect());
    }
    let prompts = Prompts::load(&functions, config, before_run)?;
    let by_hand = samples::trials(prompts.dataset.rows(), config, &prompts.model, &prompts.tokenizer)?;
    let is_small = prompts.model.config().parameter_count() <= ASKED_BEFORE_A_RUN;
    let by_model = LazyCell::new(|| {
        let trials = sampled::trials(prompts.dataset.rows(), config, &prompts.model, &prompts.tokenizer);
        trials.unwrap_or_else(|error| {
            tell!("the model itself was not asked for completions: {error:#}");
            Vec::new()
        })
    });
    let demand = Demand {
        timeout: Duration::from_secs_f64(config.reward_timeout),
        completions_per_step: config.completions_per_step() as usize,
    };
    let check = |function: &RewardFunction| {
        // The start of a run says by itself what it waits for.
        let _waiting = (!before_run).then(|| Waiting::new(format!("trying `{}`", short_name(function.name()))));
        let mut rehearsal = Rehearsal::new(function, demand);
        rehearsal.ask(&by_hand);
        let found = rehearsal.found();
        if found.refusal.is_some() || before_run && !(found.in_doubt && is_small) {
            return found;
        }
        rehearsal.ask(&by_model);
        rehearsal.found()
    };
    let checked = |(entry, function): Loaded| Checked { entry, found: function.as_ref().map(check) };
    Ok(functions.into_iter().map(checked).collect())
}

/// The first rows of a run's dataset, with its model.
struct Prompts {
    model: ModelDir,
    tokenizer: Tokenizer,
    dataset: Dataset,
}

impl Prompts {
    /// Loads as many rows as the samples need, or more, until the functions can score some.
    fn load(functions: &[Loaded], config: &TrainConfig, before_run: bool) -> anyhow::Result<Self> {
        let model = ModelDir::of_run(config).context("`model`")?;
        let tokenizer = Tokenizer::open_at(&model, config.template_now())?
            .with_template_kwargs(config.chat_template_kwargs.as_ref());
        let options = prompt_options(config);
        let functions: Vec<RewardFunction> = functions.iter().filter_map(|(_, function)| function.clone()).collect();
        let part = config.train_part();
        let load = |limit| Dataset::load_first(&config.dataset, part, &tokenizer, &options, limit).context("`dataset`");
        let mut dataset = load(samples::rows(config))?;
        if reward::check(&functions, &dataset).is_err() {
            // Rows further behind may have the columns.
            dataset = load(usize::MAX)?;
            reward::check(&functions, &dataset).context("`reward_funcs`")?;
        }
        if !before_run {
            let remarks = [tokenizer.remarks().to_vec(), dataset.remarks(&tokenizer, &options), model.remarks()];
            tell_warnings(remarks.concat());
            tell_warnings(reward::unreadable(&functions, &dataset));
        }
        Ok(Self { model, tokenizer, dataset })
    }
}

/// Prints what is odd, and refuses functions that cannot work.
fn verdict(checked: &[Checked], config: &TrainConfig) -> anyhow::Result<ExitCode> {
    let mut refusals = Vec::new();
    for Checked { entry, found } in checked {
        let Some(found) = found else { continue };
        let name = short_name(entry);
        for warning in &found.warnings {
            tell!("warning: reward function `{name}` {warning}");
        }
        if found.failed > 0 {
            quote(&found.words);
        }
        match &found.refusal {
            Some(refusal) if config.reward_failure_stops => refusals.push(format!("`{name}` {refusal}")),
            Some(refusal) => tell!("warning: reward function `{name}` {refusal}"),
            None => {}
        }
    }
    if !refusals.is_empty() {
        bail!("`reward_funcs`: {}", refusals.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the last words of a program.
fn quote(words: &[String]) {
    words.iter().for_each(|line| tell!("  {line}"));
}

impl Checked {
    fn figures(&self) -> Value {
        let name = short_name(&self.entry);
        let Some(found) = &self.found else { return json!({"entry": self.entry, "name": name}) };
        json!({
            "entry": self.entry,
            "name": name,
            "samples": found.samples,
            "failed": found.failed,
            "abstained": found.abstained,
            "lowest": found.range.map(|range| range.0),
            "highest": found.range.map(|range| range.1),
            "right": found.right,
            "of_the_model": found.of_model,
            "seconds_per_completion": found.seconds,
            "correlation_with_length": found.length,
        })
    }

    fn cells(&self) -> [String; HEAD.len()] {
        let name = short_name(&self.entry);
        let Some(found) = &self.found else {
            let mut cells = HEAD.map(|_| "-".to_owned());
            cells[0] = name;
            return cells;
        };
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.3}", Figure(value)));
        [
            name,
            found.samples.to_string(),
            found.failed.to_string(),
            found.abstained.to_string(),
            number(found.range.map(|range| range.0)),
            number(found.range.map(|range| range.1)),
            number(found.right),
            number(found.of_model),
            number(found.seconds),
            number(found.length),
        ]
    }
}

const HEAD: [&str; 10] =
    ["function", "samples", "failed", "abstained", "lowest", "highest", "right", "model", "s each", "by length"];

fn write_table(checked: &[Checked]) -> anyhow::Result<()> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(checked.iter().map(Checked::cells));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let line = |row: &[String; HEAD.len()]| {
        let numbers = row.iter().zip(&widths).skip(1).map(|(cell, width)| format!("  {cell:>width$}"));
        format!("{:<width$}{}\n", row[0], numbers.collect::<String>(), width = widths[0])
    };
    let table: String = rows.iter().map(line).collect();
    io::stdout().write_all(table.as_bytes()).context("stdout")
}
