//! The card of a model, `README.md`: what it was made of and how, from the records of its run.
//!
//! A card goes to other people. So it names files and folders of this machine by their last part alone, and models and
//! datasets of the Hub by their names there.

mod curve;
mod evaluation;
mod front;
mod licence;
pub mod markdown;
mod options;
pub mod place;
mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shared::{
    ModelDir, RunDir,
    config::{TrainConfig, layers, rewards},
    metrics::{self, MetricRecord},
};
use shared_hub::{NamedAdapter, NamedModel};

use markdown::{cell, inline};
use place::Place;

/// The name of the file.
pub const FILE: &str = "README.md";

/// What is known of a card's place beside the model.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Its title: the name of the repository or of the folder.
    pub title: &'a str,
    /// The name on the Hub under which it will be found, if it is known.
    pub repo: Option<&'a str>,
    /// Whether the files are those of an adapter alone, without its base.
    pub as_adapter: bool,
    /// The model's name on the Hub that it was made of, where the user says so.
    pub base: Option<&'a str>,
}

/// The model that a card is about.
#[derive(Debug)]
pub struct Model<'a> {
    folder: &'a Path,
    run: Option<RunDir>,
    /// Its architecture and templates; none of an adapter whose base is not on this machine.
    dir: Option<&'a ModelDir>,
}

impl<'a> From<&'a NamedModel> for Model<'a> {
    fn from(named: &'a NamedModel) -> Self {
        Self { folder: named.folder(), run: named.run(), dir: Some(named.dir()) }
    }
}

impl<'a> From<&'a NamedAdapter> for Model<'a> {
    fn from(named: &'a NamedAdapter) -> Self {
        Self { folder: named.folder(), run: named.run(), dir: None }
    }
}

/// The run of a model, as far as its checkpoint has come.
struct Trained {
    dir: RunDir,
    config: TrainConfig,
    /// Steps up to the checkpoint, with the records of each.
    steps: Vec<MetricRecord>,
    evaluations: Vec<MetricRecord>,
    /// The step of the checkpoint, if its name has it.
    step: Option<u64>,
}

impl Trained {
    /// The run that a model belongs to, if it belongs to one.
    ///
    /// # Errors
    /// Records that cannot be read.
    fn of(model: &Model<'_>) -> Result<Option<Self>> {
        let Some(dir) = model.run.clone() else { return Ok(None) };
        let config = layers::load(Some(&dir.config()), &Vec::new()).context("the options of its run")?;
        let step = step_of(model.folder);
        let until = |records: Vec<MetricRecord>| -> Vec<MetricRecord> {
            let of = |record: &MetricRecord| record.get(metrics::STEP).unwrap_or(0.0) as u64;
            records.into_iter().filter(|record| step.is_none_or(|step| of(record) <= step)).collect()
        };
        let (steps, evaluations) = (until(metrics::read(&dir.metrics())?), until(metrics::read(&dir.eval())?));
        Ok(Some(Self { dir, config, steps, evaluations, step }))
    }
}

/// The step of a checkpoint or a version, by the name of its folder. A link to a checkpoint, as a run's `model`, has
/// that of its target.
fn step_of(folder: &Path) -> Option<u64> {
    let name = |path: &Path| {
        let name = path.file_name()?.to_str()?.to_owned();
        name.strip_prefix("checkpoint-").or_else(|| name.strip_prefix('v'))?.parse().ok()
    };
    name(folder).or_else(|| name(&folder.canonicalize().ok()?))
}

/// Writes the card of a model.
///
/// # Errors
/// A run whose options or records cannot be read, by the name of the file.
pub fn text<'a>(model: impl Into<Model<'a>>, subject: &Subject<'_>) -> Result<String> {
    let model = model.into();
    let trained = Trained::of(&model)?;
    let origin = Origin::of(&model, trained.as_ref(), subject);
    let mut card = front::text(&model, trained.as_ref(), &origin, subject);
    card.push_str(&format!("\n# {}\n\n{}", inline(subject.title), introduction(trained.as_ref(), &origin, subject)));
    card.push_str(&usage::text(&model, trained.as_ref().map(|trained| &trained.config), &origin, subject));
    if let Some(trained) = &trained {
        card.push_str(&method(trained));
        card.push_str(&reward_functions(&trained.config));
        card.push_str(&curve::text(&trained.config, &trained.steps));
        card.push_str(&evaluation::text(&trained.config, &trained.evaluations, trained.step));
        card.push_str(&options::text(&trained.config));
    }
    card.push_str(&versions(trained.as_ref(), &origin));
    Ok(place::without_private(card, trained.as_ref().map(|trained| trained.dir.root())))
}

/// What a model was made of.
struct Origin {
    /// The model that the run began with, or the base of an adapter; none of a model of which nothing is known.
    direct: Option<Place>,
    /// The model on the Hub that it goes back to, perhaps over other runs.
    on_hub: Option<Place>,
    /// Where the card of that model may lie.
    folder: Option<PathBuf>,
}

impl Origin {
    fn of(model: &Model<'_>, trained: Option<&Trained>, subject: &Subject<'_>) -> Self {
        let first = match (trained, model.dir) {
            (Some(trained), _) => Some(trained.config.model.clone()),
            (None, Some(dir)) if dir.adapter().is_some() => Some(dir.path().to_owned()),
            // A folder of the Hub's cache is that model itself.
            (None, Some(_)) => Some(model.folder.to_owned()).filter(|it| shared_hub::name_in_cache(it).is_some()),
            (None, None) => None,
        };
        let said = subject.base.map(|name| Place::Hub { name: name.to_owned(), commit: None });
        let lineage = first.as_deref().map(place::lineage).unwrap_or_default();
        let found = lineage.iter().find(|path| matches!(Place::of(path), Place::Hub { .. })).cloned();
        // The weights of an adapter fit its base alone, and no model that the base was made of.
        let direct = first.as_deref().map(Place::of);
        let fits = |place: &Place| !subject.as_adapter || direct.as_ref() == Some(place);
        let on_hub = said.clone().or_else(|| found.as_deref().map(Place::of).filter(fits));
        Self { direct: said.or(direct), on_hub, folder: found.or(lineage.last().cloned()) }
    }
}

fn introduction(trained: Option<&Trained>, origin: &Origin, subject: &Subject<'_>) -> String {
    let what = if subject.as_adapter { "LoRA adapter on" } else { "version of" };
    let base = match &origin.direct {
        Some(place) => format!("This is a {what} {}", place.in_markdown("")),
        None => "This is a model".to_owned(),
    };
    let Some(trained) = trained else {
        return format!(
            "{base}. It belongs to no run of Tandem whose records were at hand, so this card does not say how it was \
             trained.\n"
        );
    };
    let data: Vec<String> =
        trained.config.dataset.iter().map(|path| Place::of(path).in_markdown("datasets/")).collect();
    let mut text = format!(
        "{base}, trained with {} on {}.",
        inline(trained.config.advantage_estimator.spec().title),
        if data.is_empty() { "prompts".to_owned() } else { data.join(", ") }
    );
    if let (Some(direct), Some(root)) = (&origin.direct, &origin.on_hub)
        && direct != root
    {
        text.push_str(&format!(" That model goes back to {}.", root.in_markdown("")));
    }
    text + "\n"
}

/// How it was trained, in words; the options stand below.
fn method(trained: &Trained) -> String {
    let config = &trained.config;
    let (advantage, loss) = (config.advantage_estimator.spec(), config.loss_type.spec());
    let last = trained.steps.last();
    let of = |metric| last.and_then(|record| record.get(metric));
    let mut lines = vec![
        format!("- **Advantages**: {} ({}). {}", advantage.title, advantage.about, advantage.source),
        format!("- **Loss**: {} ({}). {}", loss.title, loss.about, loss.source),
        format!(
            "- **Completions**: {} for each prompt, of {} tokens at most, at temperature {}",
            config.num_generations, config.max_completion_length, config.temperature
        ),
    ];
    if config.use_peft {
        lines.push(format!("- **LoRA**: rank {}, alpha {}", config.lora_r, config.lora_alpha));
    }
    let total = of(metrics::TOTAL_STEPS).map_or_else(String::new, |total| format!(" of {total}"));
    if let Some(step) = trained.step.or(of(metrics::STEP).map(|step| step as u64)) {
        let tokens = of(metrics::NUM_TOKENS).map_or_else(String::new, |tokens| format!(", after {tokens} tokens"));
        lines.push(format!("- **Steps**: {step}{total}{tokens}; a step is a generation batch with all updates on it"));
    }
    format!("\n## Training\n\n{}\n", lines.join("\n"))
}

/// The reward functions with their weights.
fn reward_functions(config: &TrainConfig) -> String {
    let names = rewards::names(&config.reward_funcs);
    let mut table =
        "\n### Reward functions\n\n| function | weight | as in `reward_funcs` |\n|---|---|---|\n".to_owned();
    for (index, (name, entry)) in names.iter().zip(&config.reward_funcs).enumerate() {
        let weight = config.reward_weights.get(index).copied().unwrap_or(1.0);
        let entry = place::of_reward(entry);
        table.push_str(&format!(
            "| {} | {weight} | {} |\n",
            cell(&place::of_reward(name)),
            markdown::code_cell(&entry)
        ));
    }
    table
}

/// What wrote the card, and the commits of what it was made of.
fn versions(trained: Option<&Trained>, origin: &Origin) -> String {
    let mut lines = vec![format!("- Tandem {} (it wrote this card)", env!("CARGO_PKG_VERSION"))];
    let mut commit = |kind: &str, place: &Place| {
        if let Place::Hub { name, commit: Some(commit) } = place {
            lines.push(format!("- {kind} {}: commit `{commit}`", inline(name)));
        }
    };
    if let Some(place) = &origin.direct {
        commit("model", place);
    }
    for path in trained.iter().flat_map(|trained| trained.config.dataset.iter()) {
        commit("dataset", &Place::of(path));
    }
    format!("\n## Versions\n\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests;
