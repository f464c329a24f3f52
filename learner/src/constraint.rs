//! Constrained sampling (`structured_outputs_regex`): the tokens that each token was drawn among.
//!
//! The sampler draws from what the expression leaves. The learner walks through the ids of a completion and finds the
//! same sets, so that every log-prob is over the set that its token was drawn from. Many places have the same set, and
//! then it is in memory once.

use std::{collections::HashMap, sync::Arc};

use shared::{ModelDir, config::TrainConfig};
use shared_tokenizer::{After, RegexConstraint, TextTokenizer};

use crate::{batch::Sequence, error::LearnerError, ragged::Ragged, support::Support};

/// What the completions of a run may be.
#[derive(Debug)]
pub struct Constraint {
    regex: RegexConstraint,
    vocabulary: usize,
}

impl Constraint {
    /// Of a run; absent without the option.
    ///
    /// # Errors
    /// A tokenizer that cannot be read, or an expression that no whole completion of the run can follow.
    pub fn of_run(config: &TrainConfig) -> Result<Option<Self>, LearnerError> {
        if config.structured_outputs_regex.is_none() {
            return Ok(None);
        }
        let model = ModelDir::of_run(config)?;
        let tokenizer = TextTokenizer::of_model(&model)?;
        let regex = RegexConstraint::of_run(config, &model, &tokenizer)
            .map_err(|error| LearnerError::Config(format!("`structured_outputs_regex`: {error}")))?;
        Ok(regex.map(|regex| Self { regex, vocabulary: model.config().vocab_size }))
    }

    /// The support of each sampled token of the given rows; other rows have none. Each turn of a completion is a text
    /// of its own.
    ///
    /// # Errors
    /// A completion that does not follow the expression.
    pub fn supports(&self, sequences: &[Sequence<'_>], rows: &[usize]) -> Result<Ragged<Arc<Support>>, LearnerError> {
        let mut of_places = HashMap::new();
        let mut of_masks = HashMap::new();
        let mut found = vec![Vec::new(); sequences.len()];
        for &row in rows {
            for turn in sequences[row].sampled_turns() {
                let mut place = Some(self.regex.begin());
                for (at, &token) in turn.iter().enumerate() {
                    let after = place.and_then(|place| Some((place, self.regex.after(place, token)?)));
                    let (here, after) = after.ok_or_else(|| does_not_follow(row, at, token))?;
                    let support = of_places.entry(here).or_insert_with(|| {
                        let mask = self.regex.mask(here);
                        let support = of_masks.entry(Arc::clone(&mask)).or_insert_with(|| {
                            Arc::new(Support::new(&mask.ids().collect::<Vec<u32>>(), self.vocabulary))
                        });
                        Arc::clone(support)
                    });
                    found[row].push(Arc::clone(support));
                    place = match after {
                        After::Tokens(next) => Some(next),
                        After::Nothing => None,
                    };
                }
            }
        }
        Ok(found.into_iter().collect())
    }
}

fn does_not_follow(row: usize, at: usize, token: u32) -> LearnerError {
    LearnerError::Config(format!(
        "completion {row} of the step does not follow `structured_outputs_regex`: token {at} of it, {token}, may not \
         come there; it was sampled with another expression or by another build, so give both halves the same one"
    ))
}
