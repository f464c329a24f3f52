//! The declaration of a metric.

use std::{borrow::Cow, fmt};

use super::Chart;

/// A metric of a fixed name.
///
/// Metrics come from the [`catalogue`](super::catalogue) alone, which is why nothing can be recorded that is not
/// declared and explained there.
#[derive(Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Its name in the records. That of a [`Family`] has a part in braces.
    pub key: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Its meaning and, in the second paragraph, normal values.
    pub text: &'static str,
    /// Where its name and definition come from: TRL, verl, prime-rl or Tandem.
    pub source: &'static str,
    /// Condition for recording it; none if all runs record it.
    pub when: Option<&'static str>,
    /// The chart of the report that shows it, and the name of its curve there.
    pub chart: Option<(&'static Chart, &'static str)>,
}

impl Metric {
    /// The part of a key that stands in place of the braces of a family's key; empty for a metric of a fixed name. None
    /// if the key belongs to another metric.
    #[must_use]
    pub fn name_in<'k>(&self, key: &'k str) -> Option<&'k str> {
        match self.key.split_once(['{', '}']) {
            None => (self.key == key).then_some(""),
            Some((before, rest)) => {
                let (_, after) = rest.split_once('}').expect("a brace that opens also closes");
                key.strip_prefix(before)?.strip_suffix(after).filter(|name| !name.is_empty())
            }
        }
    }
}

/// Metrics that differ in one part of their names, which is known only in a run: one per reward function, for instance.
#[derive(Debug)]
pub struct Family(pub(super) Metric);

impl Family {
    /// The key of a member.
    #[must_use]
    pub fn of(&self, name: impl fmt::Display) -> Key {
        let (before, rest) = self.0.key.split_once('{').expect("a family's key has a part in braces");
        let (_, after) = rest.split_once('}').expect("a brace that opens also closes");
        Key(format!("{before}{name}{after}").into())
    }

    /// The declaration.
    #[must_use]
    pub fn metric(&'static self) -> &'static Metric {
        &self.0
    }
}

/// The key of a declared metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(Cow<'static, str>);

impl Key {
    /// As it stands in the record.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static Metric> for Key {
    fn from(metric: &'static Metric) -> Self {
        Self(metric.key.into())
    }
}

/// Unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// A number without a unit.
    Number,
    /// Points of the reward functions.
    Points,
    /// A part of the whole, from 0 to 1.
    Share,
    /// Nats per token.
    Nats,
    /// Tokens.
    Tokens,
    /// Tokens per second.
    TokensPerSecond,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// Metrics that belong together.
#[derive(Debug)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Introduction to the section's metrics.
    pub intro: &'static str,
    /// Its metrics, as they are declared.
    pub metrics: &'static [&'static Metric],
}

/// Declares the metrics of a section: a constant for each one, and the list of all.
///
/// ```text
/// /// What it means.
/// ///
/// /// What is normal, and what a departure from it means.
/// metric NAME = "key" { unit: Share, source: "TRL", when: "`option` is on", chart: CHART "name of the curve" }
/// ```
///
/// `when` and `chart` may be left out. `family` instead of `metric` declares a [`Family`].
macro_rules! section {
    (
        $title:literal, $intro:literal;
        $(
            $(#[doc = $doc:literal])+
            $kind:ident $name:ident = $key:literal {
                unit: $unit:ident, source: $source:literal
                $(, when: $when:literal)?
                $(, chart: $chart:ident $label:literal)?
            }
        )*
    ) => {
        $(
            $(#[doc = $doc])+
            pub const $name: $crate::metrics::metric::section!(@type $kind) =
                &$crate::metrics::metric::section!(@value $kind $crate::metrics::Metric {
                    key: $key,
                    unit: $crate::metrics::Unit::$unit,
                    text: concat!($($doc, "\n"),+),
                    source: $source,
                    when: $crate::metrics::metric::section!(@option $($when)?),
                    chart: $crate::metrics::metric::section!(@option $(($crate::metrics::chart::$chart, $label))?),
                });
        )*

        pub(super) const SECTION: &$crate::metrics::Section = &$crate::metrics::Section {
            title: $title,
            intro: $intro,
            metrics: &[$($crate::metrics::metric::section!(@metric $kind $name)),*],
        };

        #[cfg(test)]
        pub(super) const NAMES: &[(&str, &str)] = &[$((stringify!($name), $key)),*];
    };
    (@type metric) => { &$crate::metrics::Metric };
    (@type family) => { &$crate::metrics::Family };
    (@value metric $value:expr) => { $value };
    (@value family $value:expr) => { $crate::metrics::Family($value) };
    (@metric metric $name:ident) => { $name };
    (@metric family $name:ident) => { &$name.0 };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
}

pub(super) use section;
