//! Versions that the sampler refuses: how many in a row, and what is told of them.

use exporters::cache_dir;
use shared::{
    channel::{LearnerStatus, Refusal},
    run::notices::{Notice, NoticeKind},
};

use crate::error::LearnerError;

/// What is remembered of refusals from version to version.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Since the sampler last took a version.
    in_a_row: u32,
    /// The last of them.
    seen: Option<Refusal>,
}

/// A refusal that was not heard of before.
#[derive(Debug)]
pub struct Refused {
    refusal: Refusal,
    /// How many there have been in a row.
    in_a_row: u32,
    /// How many end the run.
    most: u32,
}

impl Refusals {
    /// Takes note of what the sampler says of the newest version. `most` refusals in a row end the run.
    pub fn hear(&mut self, refusal: Option<Refusal>, most: u32) -> Option<Refused> {
        let Some(refusal) = refusal else {
            self.in_a_row = 0;
            return None;
        };
        if self.seen.as_ref() == Some(&refusal) {
            return None;
        }
        self.seen = Some(refusal.clone());
        self.in_a_row += 1;
        Some(Refused { refusal, in_a_row: self.in_a_row, most })
    }
}

impl Refused {
    /// Whether it ends the run.
    pub fn is_last(&self) -> bool {
        self.in_a_row >= self.most
    }

    /// Whether the version that was refused is the one that is announced.
    pub fn is_of(&self, status: &LearnerStatus) -> bool {
        self.refusal.is_of(status.version, status.publication)
    }

    /// What is told of it after so many steps.
    pub fn notice(&self, step: u64) -> Notice {
        let Self { refusal: Refusal { version, reason, .. }, in_a_row, most } = self;
        Notice::new(
            NoticeKind::VersionRefused,
            step,
            format!("the sampler refused the weights v{version} ({in_a_row} of {most} in a row): {reason}"),
            "they are published again; if it comes again, check memory and disk",
        )
    }

    /// Why the run ends.
    pub fn error(&self) -> LearnerError {
        let Self { refusal: Refusal { version, reason, .. }, in_a_row, .. } = self;
        let cache = cache_dir().map_or_else(|e| e.to_string(), |dir| dir.join("exports").display().to_string());
        LearnerError::Conformity(format!(
            "the sampler refused {in_a_row} weights in a row (`max_refusals`), the last of v{version}: {reason}; check \
             memory and disk, remove the exports in {cache}, and go on with --resume_from_checkpoint latest"
        ))
    }
}

#[cfg(test)]
mod tests {
    use shared::PolicyVersion;

    use super::*;

    #[test]
    fn a_refusal_is_heard_once_and_a_version_that_is_taken_begins_the_count_anew() {
        let of = |version, publication| {
            Some(Refusal { version: PolicyVersion(version), publication, reason: "norms".into() })
        };
        let mut refusals = Refusals::default();
        let mut hear = |refusal| refusals.hear(refusal, 2).map(|refused| (refused.in_a_row, refused.is_last()));
        assert_eq!(hear(of(1, 0)), Some((1, false)));
        assert_eq!(hear(of(1, 0)), None);
        assert_eq!(hear(of(1, 1)), Some((2, true)));
        assert_eq!(hear(None), None);
        assert_eq!(hear(of(2, 1)), Some((1, false)));
    }
}
