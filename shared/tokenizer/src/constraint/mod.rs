//! Completions that a regular expression matches: which tokens may come in each place.
//!
//! Sampler and learner must agree about this set, since log-probs are taken over it. So both ask this module, and
//! nothing about it crosses between them: the learner finds the places of a completion from its token ids.
//!
//! | file | subject |
//! |---|---|
//! | `automaton` | a regular expression as an automaton over bytes |
//! | `vocabulary` | tokens in the order of their bytes, and a walk over them |
//!
//! A token may come if its bytes lead to a state from which the model's tokens can reach a match. So a completion never
//! gets stuck. A token that ends completions may come where the text so far is a match. The model chooses how a text is
//! cut into tokens.

mod automaton;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use shared::{ModelDir, config::TrainConfig};

use self::{
    automaton::{Automaton, START, State, reaching},
    vocabulary::Vocabulary,
};
use crate::{TextTokenizer, TokenBytes};

/// Memory for masks. Many places share one; where they do not, masks beyond this are computed again.
const MOST_MASKS: usize = 256 << 20;
/// Most tokens that are looked at while all places of an expression are searched, which takes two seconds at most.
const MOST_LOOKS: usize = 1 << 28;

/// Why completions cannot follow an expression. Words that go on after the name of the option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// It is no regular expression, or has a part that an automaton cannot have.
    #[error("no regular expression that completions can follow: {0}")]
    Syntax(String),
    /// Its automaton would be too large.
    #[error(
        "the regular expression is too large: its automaton would take more than a few MiB; shorten its repetitions, \
         or write `*` for a large bound, which `max_completion_length` sets anyway"
    )]
    TooLarge,
    /// It matches no text at all.
    #[error("the regular expression matches no text")]
    Nothing,
    /// Only the empty text matches it.
    #[error("the regular expression matches the empty completion alone: nothing would be sampled")]
    OnlyEmpty,
    /// No token of the model begins with a match.
    #[error("no text that the tokens of the model make up matches the regular expression")]
    NoTokens,
    /// The bytes of tokens do not make up texts.
    #[error("completions of this model cannot follow a regular expression: {0}")]
    Tokens(String),
    /// No completion would ever be whole.
    #[error(
        "every text that the regular expression matches has more tokens than `max_completion_length` ({0}): no \
         completion would be whole; raise `max_completion_length`"
    )]
    TooShort(u32),
}

/// A place in a completion: what may come depends on it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    state: State,
    /// At the beginning of a text that drops a space there.
    is_first: bool,
}

/// What comes after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Further tokens, from this place on.
    Tokens(Place),
    /// Nothing: the token has ended the completion.
    Nothing,
}

/// The tokens that may come in a place.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Mask {
    words: Vec<u32>,
    count: u32,
    goes_on: bool,
}

impl Mask {
    /// A bit for each token of the model: token `t` may come if bit `t % 32` of word `t / 32` is set.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of tokens that may come.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether a token may come that adds to the text. If not, the completion is whole.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// The tokens, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        let of_word = |(at, &word): (usize, &u32)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * 32 + bit)
        };
        self.words.iter().enumerate().flat_map(of_word)
    }
}

/// Masks that were computed.
#[derive(Debug, Default)]
struct Masks {
    of_places: HashMap<Place, Arc<Mask>>,
    distinct: HashSet<Arc<Mask>>,
}

impl Masks {
    fn insert(&mut self, place: Place, mask: Mask) -> Arc<Mask> {
        let mask = self.distinct.get(&mask).cloned().unwrap_or_else(|| Arc::new(mask));
        if self.distinct.len() * mask.words.len() * size_of::<u32>() > MOST_MASKS {
            *self = Self::default();
        }
        self.distinct.insert(Arc::clone(&mask));
        self.of_places.insert(place, Arc::clone(&mask));
        mask
    }
}

/// A regular expression that completions of a model follow from beginning to end.
#[derive(Debug)]
pub struct RegexConstraint {
    automaton: Automaton,
    bytes: TokenBytes,
    plain: Vocabulary,
    /// Where a text drops a space at its beginning: what is left of the tokens that begin with one.
    rests: Option<Vocabulary>,
    /// Those of which nothing is left.
    blank: Vec<u32>,
    /// Tokens that end a completion.
    ends: Vec<u32>,
    /// The states from which the tokens can reach a match; absent where that is all of them.
    reach: Option<Vec<bool>>,
    masks: Mutex<Masks>,
}

impl RegexConstraint {
    /// What `structured_outputs_regex` says of the completions of a run; absent without that option.
    ///
    /// # Errors
    /// An expression that no whole completion of the run can follow.
    pub fn of_run(
        config: &TrainConfig,
        model: &ModelDir,
        tokenizer: &TextTokenizer,
    ) -> Result<Option<Self>, ConstraintError> {
        let Some(regex) = &config.structured_outputs_regex else { return Ok(None) };
        let ends = &model.generation().eos_token_ids;
        let found = Self::new(regex, tokenizer, model.config().vocab_size, ends)?;
        if found.exceeds(config.max_completion_length as usize) {
            return Err(ConstraintError::TooShort(config.max_completion_length));
        }
        Ok(Some(found))
    }

    /// Of an expression in the syntax of the crate `regex`, for a model with so many tokens, whose completions end with
    /// one of `ends`. Each completion is a text of its own.
    ///
    /// # Errors
    /// An expression that no text of the model can follow.
    pub fn new(regex: &str, tokenizer: &TextTokenizer, rows: usize, ends: &[u32]) -> Result<Self, ConstraintError> {
        let automaton = Automaton::new(regex)?;
        let mut bytes = tokenizer.token_bytes(rows).map_err(ConstraintError::Tokens)?;
        let ends = bytes.take_ends(ends);
        let rests = bytes.rests();
        let with_ids = (0..).zip(rests.iter().flatten());
        let blank = with_ids.filter(|(_, rest)| rest.is_some_and(<[u8]>::is_empty)).map(|(id, _)| id).collect();
        let mut found = Self {
            automaton,
            plain: Vocabulary::new(bytes.tokens.iter().map(Vec::as_slice)),
            rests: rests.map(|rests| Vocabulary::new(rests.into_iter().map(Option::unwrap_or_default))),
            blank,
            ends,
            reach: None,
            bytes,
            masks: Mutex::default(),
        };
        found.reach = found.reachable()?;
        if found.has_text() { Ok(found) } else { Err(ConstraintError::NoTokens) }
    }

    /// Whether a completion may be more than an empty text, which a space that is dropped is too.
    fn has_text(&self) -> bool {
        let is_blank = |place: Place, id: u32| place.is_first && self.blank.contains(&id);
        let adds = |place: Place, id: u32| !self.ends.contains(&id) && !is_blank(place, id);
        let begins = |place: Place| self.mask(place).ids().any(|id| adds(place, id));
        begins(self.begin()) || !self.blank.is_empty() && begins(Place { state: START, is_first: false })
    }

    /// The beginning of every completion.
    #[must_use]
    pub fn begin(&self) -> Place {
        Place { state: START, is_first: self.rests.is_some() }
    }

    /// The tokens that may come in a place.
    #[must_use]
    pub fn mask(&self, place: Place) -> Arc<Mask> {
        let masks = || self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        let known = masks().of_places.get(&place).cloned();
        // Not under the lock: others draw meanwhile.
        known.unwrap_or_else(|| {
            let computed = self.compute(place);
            masks().insert(place, computed)
        })
    }

    fn compute(&self, place: Place) -> Mask {
        let mut words = vec![0; self.bytes.tokens.len().div_ceil(32)];
        let mut allow = |token: u32| words[token as usize / 32] |= 1u32 << (token % 32);
        let mut goes_on = false;
        self.walk(place, |token, next| {
            if self.reaches(next) {
                allow(token);
                goes_on = true;
            }
        });
        if self.automaton.accepts(place.state) {
            self.ends.iter().copied().for_each(allow);
        }
        Mask { count: words.iter().map(|word| word.count_ones()).sum(), words, goes_on }
    }

    /// What comes after a token in a place; none if the token may not come there.
    #[must_use]
    pub fn after(&self, place: Place, token: u32) -> Option<After> {
        if self.ends.contains(&token) {
            return self.automaton.accepts(place.state).then_some(After::Nothing);
        }
        let bytes = self.bytes.tokens.get(token as usize).filter(|bytes| !bytes.is_empty())?;
        let dropped = if place.is_first { bytes.strip_prefix(b" ") } else { None };
        let state = self.automaton.after_all(place.state, dropped.unwrap_or(bytes))?;
        self.reaches(state).then_some(After::Tokens(Place { state, is_first: false }))
    }

    /// Whether even the shortest match has more than `most` tokens. An expression whose search takes too long counts as
    /// one that has not.
    fn exceeds(&self, most: usize) -> bool {
        let (mut known, mut open, mut looks) = (HashSet::from([self.begin()]), vec![self.begin()], 0);
        if self.automaton.accepts(START) {
            return false;
        }
        for _ in 0..most {
            let mut next = Vec::new();
            for place in std::mem::take(&mut open) {
                looks += self.plain.len();
                if looks > MOST_LOOKS {
                    return false;
                }
                self.walk(place, |_, state| {
                    let place = Place { state, is_first: false };
                    if known.insert(place) {
                        next.push(place);
                    }
                });
            }
            if next.iter().any(|place| self.automaton.accepts(place.state)) {
                return false;
            }
            open = next;
        }
        true
    }

    /// Calls `found` with each token after which bytes can reach a match, and the state after it.
    fn walk(&self, place: Place, mut found: impl FnMut(u32, State)) {
        let Some(rests) = self.rests.as_ref().filter(|_| place.is_first) else {
            self.plain.walk(&self.automaton, place.state, found);
            return;
        };
        let drops = |token: u32| self.bytes.tokens[token as usize].starts_with(b" ");
        self.plain.walk(&self.automaton, place.state, |token, next| {
            if !drops(token) {
                found(token, next);
            }
        });
        rests.walk(&self.automaton, place.state, &mut found);
        self.blank.iter().for_each(|&token| found(token, place.state));
    }

    fn reaches(&self, state: State) -> bool {
        self.reach.as_ref().is_none_or(|reach| reach[state as usize])
    }

    /// The states from which the tokens can reach a match; none where every byte that matters is a token.
    fn reachable(&self) -> Result<Option<Vec<bool>>, ConstraintError> {
        let alone: HashSet<u8> =
            self.bytes.tokens.iter().filter(|bytes| bytes.len() == 1).map(|bytes| bytes[0]).collect();
        if self.automaton.bytes_in_use().all(|byte| alone.contains(&byte)) {
            return Ok(None);
        }
        let mut known = vec![false; self.automaton.len()];
        known[START as usize] = true;
        let (mut open, mut edges, mut looks) = (vec![START], Vec::new(), 0);
        let mut note = |state: State, open: &mut Vec<State>| {
            if !std::mem::replace(&mut known[state as usize], true) {
                open.push(state);
            }
        };
        self.walk(self.begin(), |_, next| note(next, &mut open));
        while let Some(state) = open.pop() {
            looks += self.plain.len();
            if looks > MOST_LOOKS {
                return Err(ConstraintError::TooLarge);
            }
            let mut to = Vec::new();
            self.plain.walk(&self.automaton, state, |_, next| to.push(next));
            to.sort_unstable();
            to.dedup();
            to.iter().for_each(|&next| note(next, &mut open));
            edges.extend(to.into_iter().map(|next| (state, next)));
        }
        Ok(Some(reaching(self.automaton.accepting(), edges)))
    }
}
