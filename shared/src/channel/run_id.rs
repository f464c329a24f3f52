//! The identity of the run that a process belongs to.
//!
//! A path does not say that: a directory can be removed, moved away or be there twice, in two containers with one
//! `/dev/shm`, while processes of the run that had it are still at work. So the launcher draws an id at each start,
//! leaves it in the run directory and gives it to both processes. It is in the names of their shared memory, in every
//! frame and in the word that the run is over; messages and files with another id belong to another run and are
//! ignored.
//!
//! A restarted process gets the id of its launcher, and so finds the half that is still there. A resumed run has a new
//! id: the pair of the launcher before it may still be dying.

use std::{fmt, io, num::ParseIntError, str::FromStr};

use super::incarnation;
use crate::files::{atomic, run_dir::RunDir};

/// Most bytes of the file.
const MOST_BYTES: u64 = 100;

/// The id of a run from one start of its launcher to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RunId(u64);

/// A process that was started for another run than the one that has the directory now.
#[derive(Debug, thiserror::Error)]
pub enum RunIdError {
    /// The id cannot be read, or is no id.
    #[error("{path}: {reason}; `tandem train` writes it")]
    File {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// The id that was here at the start is gone.
    #[error(
        "{path} is missing, which `tandem train` wrote (id {own}): the folder was moved or emptied while this run was \
         at work; start that one again where it is now"
    )]
    Gone {
        /// The file.
        path: String,
        /// The id of this process.
        own: RunId,
    },
    /// Another launcher has begun a run here.
    #[error(
        "{dir} holds another run by now (id {found}, and this process is of {own}): it was moved or replaced while \
         this run was at work; start that one again where it is now"
    )]
    Other {
        /// The directory.
        dir: String,
        /// The id in the directory.
        found: RunId,
        /// The id of this process.
        own: RunId,
    },
}

impl RunId {
    /// No run: frames in files, and processes that no launcher has started.
    pub const NONE: Self = Self(0);

    /// Draws a new id.
    #[must_use]
    pub fn draw() -> Self {
        Self(incarnation().max(1))
    }

    /// The id with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number; 0 for [`RunId::NONE`].
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Writes it into a run directory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn leave(self, run_dir: &RunDir) -> io::Result<()> {
        atomic::write(&run_dir.run_id(), format!("{self}\n").as_bytes())
    }

    /// The one that is left in a run directory; [`RunId::NONE`] where no launcher has been.
    ///
    /// # Errors
    /// A file that holds no id.
    pub fn of(run_dir: &RunDir) -> Result<Self, RunIdError> {
        let path = run_dir.run_id();
        let fail = |reason: String| RunIdError::File { path: path.display().to_string(), reason };
        match shared_bounds::read(&path, MOST_BYTES).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
            Ok(text) => text.trim().parse().map_err(|error: ParseIntError| fail(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::NONE),
            Err(error) => Err(fail(error.to_string())),
        }
    }

    /// The id of a process that works in this directory: the one `given` by its launcher, or the directory's if it was
    /// started by hand.
    ///
    /// # Errors
    /// When the directory belongs to another run.
    pub fn join(run_dir: &RunDir, given: Option<Self>) -> Result<Self, RunIdError> {
        let found = Self::of(run_dir)?;
        match given {
            Some(own) if found == Self::NONE && own != found => {
                Err(RunIdError::Gone { path: run_dir.run_id().display().to_string(), own })
            }
            Some(own) if own != found => {
                Err(RunIdError::Other { dir: run_dir.root().display().to_string(), found, own })
            }
            _ => Ok(found),
        }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for RunId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_process_joins_the_run_that_it_was_started_for_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert_eq!(RunId::join(&run_dir, None).unwrap(), RunId::NONE);
        let (own, other) = (RunId::draw(), RunId::draw());
        assert!(own != other && own != RunId::NONE);
        own.leave(&run_dir).unwrap();
        assert_eq!(RunId::join(&run_dir, Some(own)).unwrap(), own);
        assert_eq!(RunId::join(&run_dir, None).unwrap(), own, "started by hand");
        other.leave(&run_dir).unwrap();
        let error = RunId::join(&run_dir, Some(own)).unwrap_err().to_string();
        assert!(error.contains("holds another run by now") && error.contains(&own.to_string()), "{error}");
        fs::remove_file(run_dir.run_id()).unwrap();
        let error = RunId::join(&run_dir, Some(own)).unwrap_err().to_string();
        assert!(error.contains("run.id is missing") && !error.contains("0000000000000000"), "{error}");
        fs::write(run_dir.run_id(), "no id").unwrap();
        assert!(RunId::of(&run_dir).unwrap_err().to_string().contains("run.id"));
    }
}
