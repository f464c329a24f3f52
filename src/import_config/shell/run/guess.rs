//! Variables that a script finds in its environment, and conditions that nothing but a missing one decides.

use std::collections::HashMap;

use super::{
    super::{Guess, Word, expand, is_name},
    Branch, Leaving, Shell, Variable,
};

/// A variable that counts as empty because nothing sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The line that uses it.
    line: usize,
    /// Its name, or the number of an argument.
    name: String,
}

impl Shell {
    /// A shell with the variables of an environment, as far as the script is to know them.
    pub fn with(environment: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_known = |name: &str| is_name(name) && name != "IFS" && !expand::ALWAYS_THERE.contains(&name);
        let known = environment.into_iter().filter(|(name, _)| is_known(name));
        let variables: HashMap<_, _> =
            known.map(|(name, value)| (name, Variable::Scalar(Word::known(value)))).collect();
        Self { inherited: variables.keys().cloned().collect(), variables, ..Self::default() }
    }

    /// Tells that the script uses a variable of the environment, once.
    pub(in crate::import_config::shell) fn uses(&mut self, name: &str) {
        if self.inherited.remove(name) {
            self.note(&format!("`${name}` is taken from the environment"));
        }
    }

    /// Remembers a variable that counts as empty because nothing sets it; `written` is its expansion.
    pub(in crate::import_config::shell) fn misses(&mut self, written: &str) {
        let name = written.trim_start_matches(['$', '{', '#']);
        let name = name.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        self.missing = Some(Missing { line: self.line, name });
    }

    /// Follows the ways that are not taken because of a missing variable, for their commands alone.
    pub(super) fn not_taken(&mut self, missing: Option<&Missing>, ways: Vec<Branch<'_>>) {
        let Some(Missing { line, name }) = missing.cloned() else { return };
        let mut others = Vec::new();
        for way in ways {
            let mut inner = self.copy();
            way(&mut inner);
            self.count = inner.count;
            others.extend(inner.script.commands);
            others.extend(inner.script.guesses.into_iter().flat_map(|guess| guess.others));
        }
        if !others.is_empty() {
            self.script.guesses.push(Guess { line, name, others });
        }
    }

    /// Remembers that a way which was taken because of a missing variable has ended the script, if it has.
    pub(super) fn may_have_ended(&mut self, missing: Option<Missing>) {
        if self.leaving == Some(Leaving::Script) && self.ended.is_none() {
            self.ended = missing;
        }
    }

    /// A shell with the same variables and functions that has run nothing yet.
    pub(super) fn copy(&self) -> Self {
        Self {
            variables: self.variables.clone(),
            arguments: self.arguments.clone(),
            functions: self.functions.clone(),
            line: self.line,
            count: self.count,
            depth: self.depth + 1,
            ..Self::default()
        }
    }
}
