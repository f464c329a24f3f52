//! The declaration of an option.

use std::sync::LazyLock;

use serde_json::Value;

use super::{OPTIONS, TrainConfig};
use crate::declare::{Bounds, OptionValue, ValueKind};

/// The defaults by their keys.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| values(&TrainConfig::default()));

fn values(config: &TrainConfig) -> Value {
    serde_json::to_value(config).expect("a configuration is serialisable")
}

/// An option of a run. The methods that return `Self` are the words of a declaration, behind type and default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Its name: the key in `run.toml`, and the flag on the command line.
    pub key: &'static str,
    /// The section of the reference page.
    pub section: &'static str,
    /// What it does, and its cost.
    pub doc: &'static str,
    /// The systems that have it too, with the names that they give it.
    pub source: Origin,
    /// Its type.
    pub kind: ValueKind,
    /// The largest number of that type, for whole numbers.
    pub most: Option<i64>,
    /// The meaning of its absence, if it may be absent.
    pub absent: Option<&'static str>,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// The range of its numbers.
    pub bounds: Bounds,
    /// Whether an empty text means something else than its absence.
    pub may_be_empty: bool,
    /// Whether its value changes results. If not, a run may be resumed with another value.
    pub changes_results: bool,
    /// Whether it may be a name on the Hugging Face Hub instead of a path.
    pub on_hub: bool,
    /// For a number of steps: the option that takes a number below 1, a share of all steps.
    pub share: Option<&'static str>,
    /// Whether any value except the default needs the stock kernels.
    pub needs_stock: bool,
}

/// The tool that an option and its name come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This project.
    Own,
    /// TRL has it under the same name.
    Trl,
    /// Systems, with their names for it.
    Named(&'static str),
}

impl OptionSpec {
    /// An option with no more than this said about it.
    pub(super) const fn new<T: OptionValue>(key: &'static str, section: &'static str, doc: &'static str) -> Self {
        Self {
            key,
            section,
            doc,
            source: Origin::Own,
            kind: T::KIND,
            most: T::MOST,
            absent: None,
            aliases: &[],
            bounds: Bounds::FINITE,
            may_be_empty: false,
            changes_results: true,
            on_hub: false,
            share: None,
            needs_stock: false,
        }
    }

    /// The meaning of its absence, for options that may be absent and are so by default.
    pub(super) const fn absent(mut self, meaning: &'static str) -> Self {
        self.absent = Some(meaning);
        self
    }

    /// TRL has it under the same name.
    pub(super) const fn trl(mut self) -> Self {
        self.source = Origin::Trl;
        self
    }

    /// The systems that have it, with their names for it.
    pub(super) const fn source(mut self, names: &'static str) -> Self {
        self.source = Origin::Named(names);
        self
    }

    /// Other spellings of the key, which mean exactly the same.
    pub(super) const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// At least this number.
    pub(super) const fn at_least(mut self, low: f64) -> Self {
        self.bounds.low = Some((low, true));
        self
    }

    /// Above this number.
    pub(super) const fn above(mut self, low: f64) -> Self {
        self.bounds.low = Some((low, false));
        self
    }

    /// At most this number.
    pub(super) const fn at_most(mut self, high: f64) -> Self {
        self.bounds.high = Some((high, true));
        self
    }

    /// Below this number.
    pub(super) const fn below(mut self, high: f64) -> Self {
        self.bounds.high = Some((high, false));
        self
    }

    /// Infinity is allowed too.
    pub(super) const fn or_infinite(mut self) -> Self {
        self.bounds.infinite = true;
        self
    }

    /// Unit of the bounds, or the reason for them, for messages.
    pub(super) const fn because(mut self, reason: &'static str) -> Self {
        self.bounds.because = Some(reason);
        self
    }

    /// An empty text is a value of its own.
    pub(super) const fn or_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// A path, or a name on the Hugging Face Hub.
    pub(super) const fn on_hub(mut self) -> Self {
        self.on_hub = true;
        self
    }

    /// A number below 1 is a share of all steps, which is another option, as in transformers 5.
    pub(super) const fn share(mut self, option: &'static str) -> Self {
        self.share = Some(option);
        self
    }

    /// Its value does not change results.
    pub(super) const fn keeps_results(mut self) -> Self {
        self.changes_results = false;
        self
    }

    /// Any value except the default needs the stock kernels.
    pub(super) const fn needs_stock(mut self) -> Self {
        self.needs_stock = true;
        self
    }

    /// The option for the share of all steps, if the number is such a share.
    #[must_use]
    pub fn share_of(&self, number: f64) -> Option<&'static str> {
        self.share.filter(|_| number > 0.0 && number < 1.0)
    }

    /// The first sentence of its meaning, without its full stop.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        self.doc.split(". ").next().unwrap_or_default().trim_end_matches('.')
    }

    /// The default as a file has it, if there is one. Options that every run must give have none.
    #[must_use]
    pub fn default_value(&self) -> Option<&'static Value> {
        Some(&DEFAULTS[self.key]).filter(|value| !value.is_null() && value.as_str() != Some(""))
    }

    /// The default, if there is one: texts without quotes, lists as in TOML. Options that every run must give have
    /// none.
    #[must_use]
    pub fn default_text(&self) -> Option<String> {
        self.default_value().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Refuses numbers outside the bounds, and empty texts, in words that follow the name of the option. An option that
    /// every run must give is empty where it is missing; others say so.
    ///
    /// # Errors
    /// `must be`, the bounds, and the number that was given; or that the text is empty, and the meaning of its absence.
    pub fn check<T: OptionValue>(&self, value: &T) -> Result<(), String> {
        if let Some(problem) = value.outside(&self.bounds) {
            return Err(problem);
        }
        if self.may_be_empty || !value.has_empty_text() {
            return Ok(());
        }
        if matches!(self.kind, ValueKind::Texts | ValueKind::Paths) {
            return Err("has an empty entry: fill it, or leave it out".to_owned());
        }
        let instead = self.absent.map(str::to_owned).or_else(|| self.default_text());
        instead.map_or(Ok(()), |then| Err(format!("is empty: fill it, or leave it out (then: {then})")))
    }
}

impl TrainConfig {
    /// The options with values other than the defaults, with these values.
    #[must_use]
    pub fn given(&self) -> Vec<(&'static OptionSpec, Value)> {
        let mut values = values(self);
        let given = |option: &'static OptionSpec| {
            let value = values[option.key].take();
            (value != DEFAULTS[option.key]).then_some((option, value))
        };
        OPTIONS.iter().filter_map(given).collect()
    }
}

/// Declares the options: a structure with a field for each, their defaults, and [`OptionSpec`]s of them all. It is the
/// last of the list of macros that gather the sections, so nothing stands before the semicolon.
macro_rules! options {
    (; $( $section:literal { $(
        $(#[doc = $doc:literal])+
        $key:ident: $type:ty = $default:expr $(, $word:ident $(($($said:tt)+))?)*;
    )+ } )+) => {
        /// All options of a run. Field names are the keys of `run.toml` and of the command line.
        #[derive(Debug, Clone, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct TrainConfig { $($(
            $(#[doc = $doc])+
            pub $key: $type,
        )+)+ }

        /// Every option, in the order of the declaration.
        pub static OPTIONS: &[$crate::config::OptionSpec] = &[$($(
            $crate::config::OptionSpec::new::<$type>(
                stringify!($key),
                $section,
                concat!($($doc),+).trim_ascii(),
            )$(.$word($($($said)+)?))*
        ),+),+];

        impl Default for TrainConfig {
            fn default() -> Self {
                Self { $($($key: $default),+),+ }
            }
        }

        impl TrainConfig {
            /// The paths in the options, where they are given.
            pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut ::std::path::PathBuf> {
                [$($($crate::declare::OptionValue::paths_mut(&mut self.$key)),+),+].into_iter().flatten()
            }

            /// Every number that is out of its bounds, and every text that is empty.
            pub(super) fn out_of_bounds(&self) -> Vec<$crate::config::ConfigError> {
                let checked = OPTIONS.iter().map(|option| {
                    let checked = match option.key {
                        $($(stringify!($key) => option.check(&self.$key),)+)+
                        _ => unreachable!("every option is a field"),
                    };
                    checked.map_err(|message| format!("`{}` {message}", option.key))
                });
                checked.filter_map(Result::err).map($crate::config::ConfigError::Value).collect()
            }
        }
    };
}
pub(super) use options;

#[cfg(test)]
#[path = "option_tests.rs"]
mod tests;
