//! The seam for constrained decoding: which tokens a completion may go on with.
//!
//! The engine knows no grammar. At each place it asks a [`Constraint`] for the tokens that may come, draws one of them,
//! and tells it which. What turns a regular expression or a schema into a constraint is a crate of its own,
//! `rollout-constraint`.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

/// What one completion may be.
pub trait Constraint: Send {
    /// The tokens that may come next: token `t` may if bit `t % 32` of word `t / 32` is set. Tokens beyond the last
    /// word may not.
    ///
    /// # Errors
    /// Why no token can come. The completion then ends as [`Aborted`](shared::FinishReason::Aborted).
    fn allowed(&mut self) -> Result<&[u32], String>;

    /// Takes the token that was drawn. True ends the completion: nothing can come after that token.
    ///
    /// # Errors
    /// Why the completion cannot go on.
    fn push(&mut self, token: u32) -> Result<bool, String>;
}

/// Makes a constraint for a completion at its beginning.
pub type ConstraintFactory = Arc<dyn Fn() -> Box<dyn Constraint> + Send + Sync>;

/// The constraint of a request, of which each of its completions has a copy of its own.
#[derive(Clone)]
pub struct Constrained {
    name: Arc<str>,
    factory: ConstraintFactory,
    failure: Arc<OnceLock<String>>,
}

impl Constrained {
    /// A constraint that is called `name` where it fails: the flag or the field that asks for it.
    #[must_use]
    pub fn new(name: &str, factory: ConstraintFactory) -> Self {
        Self { name: name.into(), factory, failure: Arc::default() }
    }

    /// What asks for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The constraint of one completion.
    #[must_use]
    pub fn begin(&self) -> Box<dyn Constraint> {
        (self.factory)()
    }

    /// Why the first completion that could not go on did not.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Says why a completion cannot go on. Whoever generates calls this.
    pub fn fail(&self, reason: String) {
        let _ = self.failure.set(reason);
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").field("name", &self.name).finish_non_exhaustive()
    }
}
