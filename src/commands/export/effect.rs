//! What an export changes in the evaluation of the run that its model belongs to: model and export answer the same
//! prompts greedily, and the run's reward functions score both. This is information, and no reason to refuse an export.

use std::{
    ffi::OsString,
    fs,
    path::{self, Path},
    process,
};

use anyhow::{Context, Result, ensure};
use exporters::{ExportOptions, cache_dir, export_values};
use exporters_verify::{Architecture, Model, values_as_of};
use serde::Deserialize;
use shared::{
    RunDir,
    config::{TrainConfig, layers},
    files::atomic,
};
use shared_hub::NamedModel;

use crate::{
    card::markdown::{number, table},
    terminal::output,
    train::ask,
};

/// Most prompts without `--eval-rows`: an export takes little longer for them.
const ROWS: usize = 64;

/// What answers the prompts for an export.
pub(super) enum Exported<'a> {
    /// Its weights, as a reader has them from the disk, in the engine. They are put into the layout of the model.
    Weights(&'a Architecture, &'a Model),
    /// The folder itself, in ONNX Runtime.
    Folder(&'a Path),
}

/// An evaluation of the run that a model belongs to.
pub(super) struct Evaluation<'a> {
    named: &'a NamedModel,
    run: RunDir,
    rows: usize,
    options: ExportOptions,
}

impl<'a> Evaluation<'a> {
    /// The evaluation of the model's run on so many prompts; none if the model belongs to no run, or nobody wants it.
    pub fn of(named: &'a NamedModel, rows: Option<usize>, max_positions: Option<usize>) -> Option<Self> {
        let rows = rows.unwrap_or(ROWS);
        let run = named.run().filter(|_| rows > 0)?;
        Some(Self { named, run, rows, options: ExportOptions { max_positions, ..ExportOptions::default() } })
    }

    /// Has both answer. What stands in the way is told, and the effect then is not known.
    pub fn effect(&self, exported: &Exported<'_>) -> Option<Effect> {
        let measured = self.measured(exported);
        let tell = |error: &anyhow::Error| {
            output::tell(format_args!("warning: the effect on the run's evaluation is not known: {error:#}"));
        };
        measured.inspect_err(tell).ok()
    }

    fn measured(&self, exported: &Exported<'_>) -> Result<Effect> {
        let config = layers::load(Some(&self.run.config()), &Vec::new()).context("the options of the run")?;
        ensure!(!config.has_tools(), "the run has `tools` or an environment, and an export is asked without them");
        ensure!(config.agent.is_none(), "the run has an `agent`, and an export is asked without one");
        let config = TrainConfig { model: path::absolute(self.named.folder())?, ..config };
        match exported {
            Exported::Folder(folder) => self.ask(&config, "folder", folder),
            Exported::Weights(model, export) => {
                let cache = cache_dir()?.join("exports");
                fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
                // Those of an export that was interrupted.
                atomic::remove_abandoned(&cache)?;
                let name = format!(".tmp-{}-", process::id());
                let place = tempfile::Builder::new().prefix(&name).tempdir_in(&cache)?;
                let weights = place.path().join("weights");
                export_values(self.named.dir().config(), &weights, &self.options, &mut |name| {
                    Ok(values_as_of(model, export, name)?.into())
                })?;
                self.ask(&config, "weights", &weights)
            }
        }
    }

    /// Has the sampler evaluate the model, and the export that a flag of it names.
    fn ask(&self, config: &TrainConfig, flag: &str, export: &Path) -> Result<Effect> {
        let positions = self.options.positions(self.named.dir().config())?;
        let mut named = OsString::from(format!("--{flag}="));
        named.push(export);
        let numbers = [format!("--rows={}", self.rows), format!("--positions={positions}")].map(OsString::from);
        let words = ["evaluate".into()].into_iter().chain(numbers).chain([named, "/dev/stdin".into()]);
        ask(&words.collect::<Vec<_>>(), config, None)
    }
}

/// The answer of `rollout evaluate`.
#[derive(Debug, Deserialize)]
pub(super) struct Effect {
    /// The option of the run that names the prompts.
    dataset: String,
    prompts: usize,
    export: Figures,
}

#[derive(Debug, Deserialize)]
struct Figures {
    accuracy: Option<Difference>,
    reward: Option<Difference>,
    same_tokens: f64,
    sentences: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Difference {
    a: f64,
    b: f64,
    difference: f64,
    interval: [f64; 2],
}

impl Effect {
    /// The effect in lines.
    pub fn lines(&self) -> Vec<String> {
        let prompts = if self.prompts == 1 { "1 prompt".to_owned() } else { format!("{} prompts", self.prompts) };
        let trained = if self.dataset == "dataset" { " (the run names no `eval_dataset`)" } else { "" };
        let mut lines = vec![format!(
            "effect on the run's evaluation: model and export answered {prompts} of `{}`{trained} greedily, and {:.1} \
             % of the tokens are the same",
            self.dataset,
            100.0 * self.export.same_tokens,
        )];
        lines.extend(self.export.sentences.iter().cloned());
        if self.export.sentences.is_empty() {
            lines.push("no two prompts could be scored with both, and fewer say nothing".into());
        }
        lines
    }

    /// The effect as a section of the model's card.
    pub fn section(&self) -> String {
        let Figures { accuracy, reward, same_tokens, .. } = &self.export;
        let head = ["", "before", "as it is here", "difference", "95 % interval"].map(str::to_owned);
        let row = |(name, found): (&str, &Option<Difference>)| {
            let Difference { a, b, difference, interval: [low, high] } = found.as_ref()?;
            let interval = format!("{} to {}", number(*low), number(*high));
            Some(vec![name.to_owned(), number(*a), number(*b), number(*difference), interval])
        };
        let rows: Vec<_> = [("accuracy", accuracy), ("reward", reward)].into_iter().filter_map(row).collect();
        format!(
            "\n## What the export changes\n\nGreedy answers to {} prompts of the run's `{}`, by the checkpoint and by \
             these weights; {:.1} % of the tokens are the same.\n\n{}",
            self.prompts,
            self.dataset,
            100.0 * same_tokens,
            table(&head, &rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_effect_is_told_with_its_prompts_and_stands_in_the_card() {
        let difference = json!({"prompts": 8, "a": 1.0, "b": 0.75, "difference": -0.25, "interval": [-0.5, 0.0],
            "p_value": 0.1, "verdict": "no_difference"});
        let answer = |dataset: &str, sentences: &[&str]| -> Effect {
            let export = json!({"accuracy": difference, "reward": null, "same_tokens": 0.875, "sentences": sentences});
            let answer = json!({"dataset": dataset, "prompts": 8, "model": {}, "export": export});
            serde_json::from_value(answer).unwrap()
        };
        let effect = answer("eval_dataset", &["accuracy: no difference"]);
        let lines = effect.lines();
        assert!(
            lines[0].ends_with("answered 8 prompts of `eval_dataset` greedily, and 87.5 % of the tokens are the same")
        );
        assert_eq!(lines[1..], ["accuracy: no difference"]);
        let card = effect.section();
        assert!(
            card.contains("\n| accuracy | 1 | 0.75 | -0.25 | -0.5 to 0 |\n") && !card.contains("| reward"),
            "{card}"
        );
        let lines = answer("dataset", &[]).lines();
        assert!(lines[0].contains("of `dataset` (the run names no `eval_dataset`) greedily"), "{lines:?}");
        assert!(lines[1].starts_with("no two prompts could be scored"), "{lines:?}");
    }
}
