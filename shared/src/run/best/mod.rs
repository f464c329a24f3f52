//! The best checkpoint of a run by its evaluations, and the early end of a run whose evaluations no longer improve.
//!
//! Everything follows from `eval.jsonl` and from the checkpoints on disk, and no state is carried from step to step. So
//! a run that goes on from a checkpoint has the best value and the count that it had there.

mod lost;
mod selection;

use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::{
    RunDir,
    files::atomic::{self, named},
    metrics::Figure,
};

pub use lost::lost_evaluations;
pub use selection::Selection;

/// Most bytes of `best.json`.
const MOST_BYTES: u64 = 1 << 16;

/// `best.json`: the best checkpoint of a run, with the value that an evaluation of its weights had.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Step of the checkpoint, which is the version that was evaluated.
    pub step: u64,
    /// The metric, as it is called in `eval.jsonl`.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// Whether larger values are better.
    pub greater_is_better: bool,
}

impl Best {
    /// The best checkpoint that a run has recorded, if it has recorded one and the checkpoint is there.
    ///
    /// # Errors
    /// A record that cannot be read, with its path.
    pub fn of(run_dir: &RunDir) -> io::Result<Option<Self>> {
        let path = run_dir.best();
        let text = match shared_bounds::read(&path, MOST_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(named(&path))?,
        };
        let best: Self = serde_json::from_slice(&text).map_err(|e| named(&path)(e.into()))?;
        Ok(Some(best).filter(|best| run_dir.checkpoint(best.step).is_dir()))
    }

    /// Records it, in the place of an earlier one.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        atomic::write(&run_dir.best(), &text)
    }
}

/// `checkpoint-40 (eval_accuracy 0.6100)`.
impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint-{} ({} {:.4})", self.step, self.metric, Figure(self.value))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_best_checkpoint_is_read_as_it_was_written_as_long_as_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        assert_eq!(Best::of(&run).unwrap(), None);
        let best = Best { step: 40, metric: "eval_accuracy".into(), value: 0.1 + 0.2, greater_is_better: true };
        best.write(&run).unwrap();
        assert_eq!(Best::of(&run).unwrap(), None, "the checkpoint is not there");
        fs::create_dir(run.checkpoint(40)).unwrap();
        assert_eq!(Best::of(&run).unwrap(), Some(best.clone()));
        assert_eq!(best.to_string(), "checkpoint-40 (eval_accuracy 0.3000)");
        let extreme = Best { value: 1e300, ..best };
        assert_eq!(extreme.to_string(), "checkpoint-40 (eval_accuracy 1.0000e300)");
        fs::write(run.best(), "{").unwrap();
        assert!(Best::of(&run).unwrap_err().to_string().contains("best.json"));
    }
}
