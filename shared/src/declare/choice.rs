//! Options with a closed list of values.

/// One value of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceSpec {
    /// The word for it in `run.toml` and on the command line.
    pub word: &'static str,
    /// Other words for it.
    pub aliases: &'static [&'static str],
    /// Its meaning.
    pub doc: &'static str,
}

/// A type whose values are a closed list of words.
pub trait Choice: Copy + Sized + 'static {
    /// The values as they are written, in the order of [`Choice::ALL`].
    const WORDS: &'static [ChoiceSpec];
    /// Every value.
    const ALL: &'static [Self];

    /// The value of a word or of one of its aliases.
    ///
    /// # Errors
    /// The words that exist.
    fn of_word(word: &str) -> Result<Self, UnknownChoice> {
        let known = Self::WORDS.iter().position(|value| value.word == word || value.aliases.contains(&word));
        known.map(|at| Self::ALL[at]).ok_or_else(|| UnknownChoice { given: word.to_owned(), known: Self::WORDS })
    }
}

/// A word that no value has.
#[derive(Debug, thiserror::Error)]
#[error("`{given}` is none of {}", words(known))]
pub struct UnknownChoice {
    given: String,
    known: &'static [ChoiceSpec],
}

/// The words of some values, separated by commas.
pub(super) fn words(values: &[ChoiceSpec]) -> String {
    values.iter().map(|value| value.word).collect::<Vec<_>>().join(", ")
}

/// Declares enumerations whose variants are words: `Variant = "word" | "another word for it",` below its doc comment.
/// `Display` and serde write the word; `FromStr` and serde read the word and its aliases.
macro_rules! choices {
    ($(
        $(#[doc = $about:literal])+
        $name:ident { $(
            $(#[doc = $doc:literal])+
            $variant:ident = $word:literal $(| $alias:literal)*,
        )+ }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $(
            $(#[doc = $doc])+
            $variant,
        )+ }

        impl $crate::declare::Choice for $name {
            const WORDS: &'static [$crate::declare::ChoiceSpec] = &[$(
                $crate::declare::ChoiceSpec {
                    word: $word,
                    aliases: &[$($alias),*],
                    doc: concat!($($doc),+).trim_ascii(),
                }
            ),+];
            const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(match self { $(Self::$variant => $word),+ })
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::declare::UnknownChoice;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                $crate::declare::Choice::of_word(word)
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                word.parse().map_err(::serde::de::Error::custom)
            }
        }

        impl $crate::declare::OptionValue for $name {
            const KIND: $crate::declare::ValueKind =
                $crate::declare::ValueKind::Choice(<Self as $crate::declare::Choice>::WORDS);
        }
    )+ };
}
pub(crate) use choices;

#[cfg(test)]
mod tests {
    use crate::config::{KlEstimator, LossAggregation, LossType};

    #[test]
    fn words_are_read_as_they_are_written() {
        assert_eq!(LossType::DrGrpo.to_string(), "dr_grpo");
        assert_eq!("gmpo".parse::<LossType>().unwrap(), LossType::GeoMean);
        assert_eq!(serde_json::to_value(KlEstimator::K1Plus).unwrap(), "k1+");
        assert_eq!(serde_json::from_str::<KlEstimator>("\"low_var_kl\"").unwrap(), KlEstimator::K3);
        let error = "mean".parse::<LossAggregation>().unwrap_err().to_string();
        assert!(error.starts_with("`mean` is none of token-mean, token-sum, seq-mean-token-sum,"), "{error}");
    }
}
