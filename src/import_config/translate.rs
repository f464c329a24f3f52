//! From foreign keys to a configuration, with an account of every key.

use serde_json::Value;
use shared::config::{self, OPTIONS, TrainConfig, ValueKind, layers};
use toml::Table;

use super::{
    accelerate,
    read::Entry,
    rules::{Count, Options, Rule, Rules},
};

/// The result of translating a foreign configuration.
#[derive(Debug)]
pub struct Translation {
    /// Our defaults with everything that was taken over.
    pub config: TrainConfig,
    /// Options that were taken over, as (foreign key, option); the key is empty for a default of the dialect.
    pub mapped: Vec<(String, String)>,
    /// Keys that were combined: their options are in `mapped` as [`TOGETHER`].
    pub combined: Vec<String>,
    /// Options that have another unit here.
    pub recounted: Vec<Recounted>,
    /// Keys without a counterpart, with the reason or the way out.
    pub left_out: Vec<(String, String)>,
    /// The keys in `left_out` that have a counterpart, as (foreign key, option): only their values cannot be taken
    /// over.
    pub refused: Vec<(String, String)>,
    /// Remarks on the values that were taken over.
    pub remarks: Vec<String>,
}

/// An option whose number was converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recounted {
    /// The option.
    pub option: &'static str,
    /// Its unit there and here.
    pub count: Count,
    /// The number there.
    pub theirs: u64,
    /// The number here.
    pub ours: u64,
}

/// In place of a foreign key, for an option that follows from several.
pub const TOGETHER: &str = "several keys";

const UNKNOWN: &str = "not known";

const DOUBTFUL: &str = "not known, and may change the training";

/// Whether a key was left out for this reason because nothing is known about it.
pub fn is_unknown(reason: &str) -> bool {
    [UNKNOWN, DOUBTFUL].contains(&reason)
}

/// Translates every key; values that our own loader refuses are left out with its reason.
pub fn translate(entries: &[Entry], rules: Rules) -> Translation {
    let mut translation = Translation {
        config: TrainConfig::default(),
        mapped: Vec::new(),
        combined: Vec::new(),
        recounted: Vec::new(),
        left_out: Vec::new(),
        refused: Vec::new(),
        remarks: Vec::new(),
    };
    let mut overrides = layers::Overrides::new();
    for (option, value) in rules.implied {
        translation.take(&mut overrides, "", option, &Value::from(*value));
    }
    let get = |key: &str| -> Option<Value> {
        let below = key.strip_suffix('*').map(|begin| {
            let found = entries
                .iter()
                .filter_map(|entry| Some((entry.key.strip_prefix(begin)?.to_owned(), entry.value.clone())));
            Value::Object(found.collect())
        });
        // Null counts as not given, so the default stands.
        let given = |entry: &&Entry| entry.key == key && !entry.value.is_null();
        below.or_else(|| entries.iter().find(given).map(|entry| entry.value.clone()))
    };
    let overruled = (rules.overruled)(&get);
    let mut doubts: Vec<&str> = Vec::new();
    for Entry { key, value, unset, deleted } in entries {
        if let Some((_, reason)) = overruled.iter().find(|(name, _)| name == key) {
            translation.leave_out(key, reason);
            continue;
        }
        if let (Some(unset), true) = (unset, *deleted) {
            translation.delete(&mut overrides, key, rules, &unset.to_string());
            continue;
        }
        if let (Some(unset), Some(rule)) = (unset, rules.find(key)) {
            let option = match rule {
                Rule::Option(option) | Rule::Convert(option, _) => option,
                Rule::Combined if !accelerate::counts(key) => rules.keys.given_as(key),
                Rule::Refused(..) | Rule::Doubtful => "",
                _ => {
                    translation.say(key, rule);
                    continue;
                }
            };
            translation.refuse(key, option, &unset.to_string());
            continue;
        }
        match rules.find(key) {
            Some(Rule::Option(option)) => translation.take(&mut overrides, key, option, value),
            Some(Rule::Convert(option, convert)) => match convert(value) {
                Ok(value) => translation.take(&mut overrides, key, option, &value),
                Err(reason) => translation.refuse(key, option, &reason),
            },
            Some(Rule::Refused(words, unless)) if !is_nothing(value) && !is_among(value, unless) => {
                translation.refuse(key, "", words);
            }
            Some(Rule::Doubtful) if !is_nothing(value) => {
                doubts.push(key);
                translation.leave_out(key, DOUBTFUL);
            }
            Some(rule) => translation.say(key, rule),
            None => translation.leave_out(key, UNKNOWN),
        }
    }
    translation.remarks = (rules.remarks)(&get);
    if !doubts.is_empty() {
        translation.remarks.push(format!("not known, and may change the training: {}", doubts.join(", ")));
    }
    for (key, option, reason) in (rules.refusals)(&get) {
        translation.refuse(&key, &option, &reason);
    }
    let options: Options = (rules.combine)(&get);
    for (option, value) in options {
        // A value that a script leaves open is refused under its own key, and so is one that it deletes.
        let is_refused = |entry: &Entry| match entry.deleted {
            true => rules.keys.given_as(&entry.key) == option,
            false => entry.unset.is_some() && entry.value == value,
        };
        if !entries.iter().any(is_refused) {
            translation.take(&mut overrides, TOGETHER, &option, &value);
        }
    }
    for (option, value) in (rules.implied_by)(&get) {
        translation.take(&mut overrides, "", &option, &value);
    }
    let load = |overrides: &_| layers::load(None, overrides).expect("each option was accepted by itself");
    // A default of the dialect that the method does not read needs no line.
    let unused = load(&overrides).options_without_effect();
    translation.mapped.retain(|(from, option)| !from.is_empty() || !unused.contains(&option.as_str()));
    overrides.retain(|(option, _)| translation.mapped.iter().any(|(_, taken)| taken == option));
    translation.recount(&mut overrides, rules.counts);
    translation.config = as_given(load(&overrides), &overrides);
    translation
}

/// With paths as they were given: only the start of training decides whether one is a name on the Hub.
pub fn as_given(mut config: TrainConfig, overrides: &layers::Overrides) -> TrainConfig {
    for path in config.paths_mut() {
        let marked = path.display().to_string();
        if let Some(name) = config::hub_name(path).filter(|_| !overrides.iter().any(|(_, text)| text.contains(&marked)))
        {
            *path = name.into();
        }
    }
    config
}

impl Translation {
    fn take(&mut self, overrides: &mut layers::Overrides, key: &str, option: &str, value: &Value) {
        let is_given = |text: &String| !text.is_empty() || config::option(option).is_some_and(|it| it.may_be_empty);
        let Some(text) = text(value).filter(is_given) else {
            // An absent value, or an empty one where an empty text says nothing, counts as not given: the value of
            // another key stands, and so does a default of theirs, unless being absent is a value of the option.
            let given = self.mapped.iter().any(|(from, known)| !from.is_empty() && known == option);
            if !given && may_be_absent(option) {
                overrides.retain(|(known, _)| known != option);
                self.mapped.retain(|(from, known)| !(from.is_empty() && known == option));
            }
            self.mapped.push((key.to_owned(), format!("{option} (absent)")));
            return;
        };
        let is_path =
            config::option(option).is_some_and(|option| matches!(option.kind, ValueKind::Path | ValueKind::Paths));
        if is_path && text.contains('$') {
            return self.refuse(key, option, "it names a shell variable");
        }
        if is_path && text.trim_start_matches(['[', '"']).starts_with("~") {
            return self.refuse(key, option, "`~` is the shell's word for a folder of the user's; write the path out");
        }
        let share = text.parse().ok().and_then(|number| config::option(option)?.share_of(number));
        let option = share.unwrap_or(option);
        let given = (option.to_owned(), text);
        match layers::check(option, &given.1) {
            Ok(()) => {
                overrides.retain(|(known, _)| known != option);
                self.mapped.retain(|(from, known)| !(from.is_empty() && known == option));
                self.mapped.push((key.to_owned(), option.to_owned()));
                overrides.push(given);
            }
            Err(wrong) => self.refuse(key, option, &format!("`{option}` {wrong}")),
        }
    }

    /// Records a key that was deleted, so that no default of the dialect stands for its option. A key that counts with
    /// others has a default there that nothing here can take out of the account, so its option is wanted.
    fn delete(&mut self, overrides: &mut layers::Overrides, key: &str, rules: Rules, words: &str) {
        match rules.find(key) {
            Some(Rule::Option(option) | Rule::Convert(option, _)) => {
                let is_default = self.mapped.iter().any(|(from, known)| from.is_empty() && known == option);
                if is_default {
                    overrides.retain(|(known, _)| known != option);
                    self.mapped.retain(|(from, known)| !(from.is_empty() && known == option));
                }
                self.leave_out(key, &format!("{words}; `{option}` is as if nothing had been said"));
            }
            Some(Rule::Combined) if !accelerate::counts(key) => {
                self.refuse(key, rules.keys.given_as(key), &format!("{words}, and what takes its place is not known"));
            }
            _ => self.leave_out(key, words),
        }
    }

    /// Records the fate of a key that leads to no option by itself.
    fn say(&mut self, key: &str, rule: Rule) {
        match rule {
            Rule::Combined => self.combined.push(key.to_owned()),
            Rule::Hint(words) | Rule::Refused(words, _) => self.leave_out(key, words),
            Rule::Doubtful => self.leave_out(key, UNKNOWN),
            Rule::Option(_) | Rule::Convert(..) => {}
        }
    }

    fn refuse(&mut self, key: &str, option: &str, reason: &str) {
        self.refused.push((key.to_owned(), option.to_owned()));
        self.leave_out(key, reason);
    }

    /// Converts options with another unit here, if an update and a generation batch are not the same. A default of
    /// theirs that is also ours becomes another number as well, and is filled in.
    fn recount(&mut self, overrides: &mut layers::Overrides, counts: &[(&'static str, Count)]) {
        let config = layers::load(None, overrides).expect("each option was accepted by itself");
        let per_step = config.updates_per_step();
        let values = serde_json::to_value(&config).expect("a configuration is serialisable");
        for &(option, count) in counts {
            let shared = config::option(option)
                .and_then(|option| option.share)
                .is_some_and(|other| values[other].as_f64() > Some(0.0));
            let idle = shared || (option == "ref_model_sync_steps" && !config.sync_ref_model);
            let Some(theirs) = values[option].as_u64().filter(|_| !idle && per_step > 1) else { continue };
            let ours = count.convert(theirs, per_step);
            if ours == theirs {
                continue;
            }
            overrides.retain(|(known, _)| known != option);
            overrides.push((option.to_owned(), ours.to_string()));
            if !self.mapped.iter().any(|(_, known)| known == option) {
                self.mapped.push((String::new(), option.to_owned()));
            }
            self.recounted.push(Recounted { option, count, theirs, ours });
        }
    }

    /// Options that stand for defaults of theirs, with their values as `run.toml` has them.
    pub fn filled_in(&self) -> Vec<String> {
        let toml = layers::to_toml(&self.config);
        let line =
            |option: &String| toml.lines().find(|line| line.split(" = ").next() == Some(option)).map(str::to_owned);
        self.mapped.iter().filter(|(from, _)| from.is_empty()).filter_map(|(_, option)| line(option)).collect()
    }

    /// A line on each option whose number was converted.
    pub fn recounted_in_words(&self) -> impl Iterator<Item = String> {
        let per_step = self.config.updates_per_step();
        self.recounted.iter().map(move |Recounted { option, count, theirs, ours }| {
            let [there, here] = count.words();
            let rounded = if count.is_exact(*theirs, per_step) { "" } else { ", rounded up" };
            format!("{option}: {theirs} {there} are {ours} {here} of {per_step} updates each{rounded}")
        })
    }

    fn leave_out(&mut self, key: &str, reason: &str) {
        self.left_out.push((key.to_owned(), reason.to_owned()));
    }

    /// The options that were taken over, as `run.toml`, in the order of their declaration.
    pub fn to_toml(&self) -> String {
        // Read from the text, in which single precision has the digits that the user gave.
        let values: Table = layers::to_toml(&self.config).parse().expect("a configuration is valid TOML");
        let taken = |key: &&str| self.mapped.iter().any(|(_, option)| option == key);
        let line = |key: &str| Some(Table::from_iter([(key.to_owned(), values.get(key)?.clone())]).to_string());
        OPTIONS.iter().map(|option| option.key).filter(taken).filter_map(line).collect()
    }
}

/// Whether a value asks for nothing: null, false, or empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Whether a value is one of these words.
fn is_among(value: &Value, words: &[String]) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    text(value).is_some_and(|text| {
        words
            .iter()
            .any(|word| word.eq_ignore_ascii_case(&text) || number(word).is_some_and(|n| number(&text) == Some(n)))
    })
}

/// Whether being absent is a value of an option.
fn may_be_absent(option: &str) -> bool {
    let defaults = serde_json::to_value(TrainConfig::default()).expect("a configuration is serialisable");
    defaults[option].is_null()
}

/// A value as on our command line; none if it is absent.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(ToString::to_string).collect();
            Some(format!("[{}]", items.join(", ")))
        }
        value => Some(value.to_string()),
    }
}
