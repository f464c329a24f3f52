//! A Python script that trains with TRL, as the keys that TRL's YAML has for the same training: the arguments of its
//! `GRPOTrainer`, `GRPOConfig` and `LoraConfig`. The script is read and not run. An argument whose value only a run of
//! the script would tell is a key with an unknown value, like that of a variable in a shell script.

mod data;
mod expression;
mod parser;
mod places;

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;
use shared::config::layers;

use super::{
    dialect::Dialect,
    read::{Contents, Entry},
    shell::Unset,
};
use expression::{Call, Changed, Expression, Kind, Report};
use places::Places;

/// The arguments of TRL's `GRPOTrainer` in its order.
const TRAINER: [&str; 14] = [
    "model",
    "reward_funcs",
    "args",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "reward_processing_classes",
    "callbacks",
    "optimizers",
    "quantization_config",
    "peft_config",
    "tools",
    "rollout_func",
    "environment_factory",
];

/// Fields of PEFT's `LoraConfig` by the keys of TRL's scripts.
const LORA: [(&str, &str); 13] = [
    ("r", "lora_r"),
    ("lora_alpha", "lora_alpha"),
    ("lora_dropout", "lora_dropout"),
    ("target_modules", "lora_target_modules"),
    ("use_rslora", "use_rslora"),
    ("use_dora", "use_dora"),
    ("modules_to_save", "lora_modules_to_save"),
    ("target_parameters", "lora_target_parameters"),
    ("bias", "lora_bias"),
    ("init_lora_weights", "init_lora_weights"),
    ("layers_to_transform", "layers_to_transform"),
    ("rank_pattern", "rank_pattern"),
    ("alpha_pattern", "alpha_pattern"),
];

/// PEFT's defaults, where they are not those of TRL's scripts.
const LORA_DEFAULTS: [(&str, f64); 3] = [("r", 8.0), ("lora_alpha", 8.0), ("lora_dropout", 0.0)];

/// Fields that say nothing about the adapter itself.
const LORA_WITHOUT_EFFECT: [&str; 5] =
    ["task_type", "peft_type", "inference_mode", "base_model_name_or_path", "revision"];

/// Arguments of a tokenizer that change neither prompts nor completions.
const TOKENIZER_WITHOUT_EFFECT: [&str; 10] = [
    "padding_side",
    "truncation_side",
    "use_fast",
    "trust_remote_code",
    "model_max_length",
    "cache_dir",
    "token",
    "pad_token",
    "revision",
    "add_eos_token",
];

/// Reads a script.
///
/// # Errors
/// A script that is no Python, has no trainer or several, or no Python to read it with.
pub fn read(text: &str, path: &Path) -> Result<Contents> {
    let python = layers::named_interpreter().unwrap_or_else(|| "python3".to_owned());
    let report = parser::report(&python, text)?;
    let trainer = match report.trainers.as_slice() {
        [trainer] => trainer,
        [] => bail!(
            "is a Python script without a call of trl's GRPOTrainer, and other trainers are not read (nor classes \
             that derive from it); write the arguments as YAML, or as run.toml"
        ),
        [first, second, ..] => bail!(
            "makes more than one GRPOTrainer (lines {} and {}), and one command trains once; leave one of them in the \
             script",
            first.line,
            second.line
        ),
    };
    if trainer.looped {
        bail!(
            "line {}: makes GRPOTrainer in a loop, and one command trains once; take it out of the loop",
            trainer.line
        );
    }
    let mut reading = Reading { entries: Vec::new(), places: Places::new(path, &report) };
    reading.trainer(&trainer.call);
    reading.training(&report);
    reading.changes(trainer.line, &report);
    let Reading { entries, places } = reading;
    Ok(Contents { entries, notes: places.notes(), dialect: Some(Dialect::Trl) })
}

/// The keys that are found so far.
struct Reading<'a> {
    entries: Vec<Entry>,
    places: Places<'a>,
}

impl Reading<'_> {
    fn trainer(&mut self, call: &Call) {
        let mut arguments = call.arguments(&TRAINER);
        arguments.retain(|(_, value)| !value.is_none());
        let model = arguments.iter().find(|(name, _)| name == "model").and_then(|(_, value)| model_name(value));
        if !arguments.iter().any(|(name, _)| name == "args") {
            // TRL's name for the folder of a run without a configuration.
            let name = model.as_deref().and_then(|model| model.trim_end_matches('/').rsplit('/').next());
            self.entries.extend(name.map(|name| Entry::new("output_dir", format!("{name}-GRPO"))));
        }
        for (name, value) in arguments {
            match name.as_str() {
                "model" => self.model(&value),
                "args" => self.config(&value),
                "reward_funcs" => self.entries.push(self.places.rewards(&value)),
                "tools" => self.entries.push(self.places.tools(&value)),
                "environment_factory" => self.entries.extend(self.places.environments(&value)),
                "train_dataset" => self.entries.extend(data::train(&value)),
                "eval_dataset" => self.entries.extend(data::eval(&value)),
                "processing_class" | "tokenizer" => self.entries.extend(tokenizer(&value, model.as_deref())),
                "peft_config" => self.adapter(&value),
                "optimizers" if value.literal().is_ok_and(|pair| pair == serde_json::json!([null, null])) => {}
                "quantization_config" => self.entries.push(Entry::unread(
                    "model_init_kwargs.quantization_config",
                    value.unset(&value.what(), "load_in_8bit and load_in_4bit of TRL's scripts are options here"),
                )),
                "callbacks" | "rollout_func" | "optimizers" | "reward_processing_classes" => {
                    self.entries.push(Entry::unread(&name, value.unset(&value.what(), "")));
                }
                _ => value.entries(&name, &mut self.entries),
            }
        }
    }

    /// The model: a name, or one that transformers loads by its name.
    fn model(&mut self, value: &Expression) {
        let key = "model_name_or_path";
        match (&value.is, model_name(value)) {
            (_, None) => {
                let way = "name its folder, or its name on the Hub";
                self.entries.push(Entry::unread(key, value.unset(&value.what(), way)));
            }
            (Kind::Call(call), Some(name)) => {
                self.entries.push(Entry::new(key, name));
                for (name, value) in call.arguments(&[PRETRAINED]).iter().filter(|(name, _)| name != PRETRAINED) {
                    value.entries(&format!("model_init_kwargs.{name}"), &mut self.entries);
                }
            }
            (_, Some(name)) => self.entries.push(Entry::new(key, name)),
        }
    }

    fn config(&mut self, value: &Expression) {
        match &value.is {
            Kind::Call(call) if call.is("trl", "GRPOConfig") => {
                for (name, value) in call.arguments(&["output_dir"]) {
                    value.entries(&name, &mut self.entries);
                }
            }
            _ => {
                let way = "write the arguments out, as args=GRPOConfig(learning_rate=1e-6, …), or as YAML";
                self.entries.push(Entry::unread("args", value.unset(&value.what(), way)));
            }
        }
    }

    fn adapter(&mut self, value: &Expression) {
        let Kind::Call(call) = &value.is else {
            return self
                .entries
                .push(Entry::unread("peft_config", value.unset(&value.what(), "write a LoraConfig(…)")));
        };
        if !call.is("peft", "LoraConfig") {
            let what = format!("`{}(…)` is no LoraConfig, and of adapters LoRA alone is there", call.short_name());
            return self.entries.push(Entry::unread("peft_config", value.unset(&what, "")));
        }
        self.entries.push(Entry::new("use_peft", true));
        let fields = call.arguments(&[]);
        for (field, default) in LORA_DEFAULTS {
            if !fields.iter().any(|(name, _)| name == field) {
                let (_, key) = LORA.iter().find(|(name, _)| *name == field).expect("a default is a field's");
                self.entries.push(Entry::new(*key, default));
            }
        }
        for (name, value) in fields {
            let says_nothing = match &value.is {
                Kind::Value(Value::Null | Value::Bool(false)) => true,
                Kind::Value(Value::Array(list)) => list.is_empty(),
                Kind::Value(Value::Object(map)) => map.is_empty(),
                _ => false,
            };
            // `False` begins an adapter with weights that change the model at once.
            if LORA_WITHOUT_EFFECT.contains(&name.as_str()) || (says_nothing && name != "init_lora_weights") {
                continue;
            }
            match LORA.iter().find(|(field, _)| *field == name) {
                Some((_, key)) => value.entries(key, &mut self.entries),
                None => value.entries(&format!("peft_config.{name}"), &mut self.entries),
            }
        }
    }

    /// `trainer.train(resume_from_checkpoint=…)`.
    fn training(&mut self, report: &Report) {
        let Some(train) = report.trains.first() else { return };
        for (name, value) in train.call.arguments(&["resume_from_checkpoint"]) {
            if !value.is_none() {
                value.entries(&name, &mut self.entries);
            }
        }
    }

    /// Arguments that the script sets elsewhere: what they are for the trainer, which is made in a line, only a run
    /// would tell. Such an entry takes the place of one with the same key.
    fn changes(&mut self, trainer: usize, report: &Report) {
        for Changed { name, line, text } in &report.changed {
            let key = match name.as_str() {
                "model" => "model_name_or_path",
                "train_dataset" => "dataset_name",
                "quantization_config" => "model_init_kwargs.quantization_config",
                name => name,
            };
            let unset = Unset::new(trainer, format!("`{name}` is changed in line {line} (`{text}`)"));
            self.entries.push(Entry::unread(key, unset));
        }
    }
}

/// The argument of `from_pretrained`.
const PRETRAINED: &str = "pretrained_model_name_or_path";

/// The folder or name of a model or tokenizer.
fn model_name(value: &Expression) -> Option<String> {
    let Kind::Call(call) = &value.is else { return value.text().map(str::to_owned) };
    if !is_pretrained(call) {
        return None;
    }
    let arguments = call.arguments(&[PRETRAINED]);
    arguments.iter().find(|(name, _)| name == PRETRAINED)?.1.text().map(str::to_owned)
}

fn is_pretrained(call: &Call) -> bool {
    call.of.starts_with("transformers.") && call.of.ends_with(".from_pretrained") && call.item.is_none()
}

/// The model's own tokenizer is what a run has anyway; another one is refused.
fn tokenizer(value: &Expression, model: Option<&str>) -> Option<Entry> {
    let way = "the tokenizer is that of the model's folder: save yours there, tokenizer.save_pretrained(DIR), and take \
               the argument out";
    let refused = |what: &str| Some(Entry::unread("processing_class", value.unset(what, way)));
    let Kind::Call(call) = &value.is else { return refused(&value.what()) };
    let Some(name) = model_name(value) else { return refused(&value.what()) };
    if let Some(model) = model.filter(|model| model.trim_end_matches('/') != name.trim_end_matches('/')) {
        return refused(&format!("it is the tokenizer of {name}, and the model is {model}"));
    }
    let changed = call.named.iter().find(|(name, _)| !TOKENIZER_WITHOUT_EFFECT.contains(&name.as_str()));
    changed.and_then(|(name, _)| refused(&format!("the tokenizer is loaded with `{name}`")))
}

#[cfg(test)]
mod tests;
