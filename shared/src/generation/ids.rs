//! Identifiers that cross the process boundary. Newtypes, so that a step is never taken for a version.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The next one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
    };
}

id! {
    /// A row of the dataset: its line index in the file, counted from 0. One of the keys of a completion's randomness,
    /// so it never depends on the order of arrival.
    PromptId
}
id! {
    /// A version of the policy's weights: the number of completed steps. v0 is the initial export.
    PolicyVersion
}
id! {
    /// A training step: one generation batch and every optimiser update on it. Step `s` turns version `s` into `s + 1`.
    Step
}

/// A group's place in the run: the step it was made for and its index within that step's generation batch.
///
/// The pair (step, index) follows from the dataset order alone; with dynamic sampling, also from which groups are
/// usable. So a group that is generated or sent twice has the same id, and the learner can drop the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct GroupId {
    /// The step whose generation batch the group belongs to.
    pub step: Step,
    /// Position within the batch, from 0.
    pub index: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.step, self.index)
    }
}
