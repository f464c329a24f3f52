//! Completions of a run that a regular expression matches (`structured_outputs_regex`).
//!
//! Which tokens may come is said in `shared-tokenizer`, by which the learner finds the same sets again. Here is only
//! the way of one completion through them. Grammars of command lines and requests are `rollout-constraint`, which
//! knows more of them and takes long to compile.

use std::sync::Arc;

use shared::{ModelDir, config::TrainConfig};
use shared_tokenizer::{After, ConstraintError, Mask, Place, RegexConstraint};

use crate::{
    data::Tokenizer,
    engine::{Constrained, Constraint},
};

/// The option.
pub const OPTION: &str = "structured_outputs_regex";

/// What the completions of a run may be; absent without the option.
///
/// # Errors
/// An expression that no whole completion of the run can follow, in words that go on after [`OPTION`].
pub fn of_run(
    config: &TrainConfig,
    model: &ModelDir,
    tokenizer: &Tokenizer,
) -> Result<Option<Constrained>, ConstraintError> {
    let constraint = RegexConstraint::of_run(config, model, tokenizer.text_tokenizer())?;
    Ok(constraint.map(|constraint| constrained(OPTION, constraint)))
}

/// The constraint of requests whose completions `constraint` matches, called `name`.
#[must_use]
pub fn constrained(name: &str, constraint: RegexConstraint) -> Constrained {
    let constraint = Arc::new(constraint);
    Constrained::new(name, Arc::new(move || Box::new(Completion::new(&constraint))))
}

/// A completion on its way.
struct Completion {
    constraint: Arc<RegexConstraint>,
    place: Place,
    mask: Arc<Mask>,
}

impl Completion {
    fn new(constraint: &Arc<RegexConstraint>) -> Self {
        let place = constraint.begin();
        Self { place, mask: constraint.mask(place), constraint: Arc::clone(constraint) }
    }
}

impl Constraint for Completion {
    fn allowed(&mut self) -> Result<&[u32], String> {
        Ok(self.mask.words())
    }

    /// A completion ends with an end token, and also where nothing but an end token could come.
    fn push(&mut self, token: u32) -> Result<bool, String> {
        let after = self.constraint.after(self.place, token);
        let After::Tokens(place) = after.ok_or_else(|| format!("token {token} may not come in this place"))? else {
            return Ok(true);
        };
        self.place = place;
        self.mask = self.constraint.mask(place);
        Ok(!self.mask.goes_on())
    }
}

#[cfg(test)]
mod tests {
    use shared_tokenizer::TextTokenizer;

    use super::*;
    use crate::data::testing::{BOS, byte_tokenizer};

    fn constraint(regex: &str) -> Box<dyn Constraint> {
        let tokenizer = byte_tokenizer(None);
        let text: &TextTokenizer = tokenizer.text_tokenizer();
        constrained("regex", RegexConstraint::new(regex, text, 300, &[BOS]).unwrap()).begin()
    }

    fn ids(text: &str) -> Vec<u32> {
        byte_tokenizer(None).encode(text, false).unwrap()
    }

    fn may(constraint: &mut dyn Constraint) -> Vec<u32> {
        let words = constraint.allowed().unwrap();
        (0..300)
            .filter(|token| words.get(token / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
            .map(|t| t as u32)
            .collect()
    }

    #[test]
    fn a_completion_ends_where_nothing_more_can_come_and_with_an_end_where_one_may() {
        let mut forced = constraint("[ab]{2}");
        let [a, b] = [ids("a")[0], ids("b")[0]];
        assert_eq!(may(&mut *forced), [a, b]);
        assert_eq!(forced.push(a), Ok(false));
        assert_eq!(forced.push(b), Ok(true), "no end token is drawn");
        let mut free = constraint("a+");
        assert_eq!(free.push(a), Ok(false));
        assert_eq!(may(&mut *free), [a, BOS]);
        assert_eq!(free.push(BOS), Ok(true));
        assert!(constraint("a+").push(b).unwrap_err().contains("may not come"));
    }

    #[test]
    fn the_error_of_a_run_goes_on_after_the_option() {
        let tokenizer = byte_tokenizer(None);
        let folder = harness::golden_dir().join("models/llama");
        let model = ModelDir::open(&folder).unwrap();
        let of = |regex: Option<&str>, max_completion_length| {
            let regex = regex.map(str::to_owned);
            let config =
                TrainConfig { structured_outputs_regex: regex, max_completion_length, ..TrainConfig::default() };
            of_run(&config, &model, &tokenizer).map(|found| found.is_some())
        };
        assert_eq!(of(None, 1), Ok(false));
        assert_eq!(of(Some("a{3}"), 3), Ok(true));
        assert_eq!(of(Some("a{3}"), 2), Err(ConstraintError::TooShort(2)));
        assert!(matches!(of(Some("a{3"), 9), Err(ConstraintError::Syntax(_))));
    }
}
