//! Where a worker puts weights: a folder that is its own as long as it lives, and that the next one takes over with
//! what is in it, so that a fetch that was cut goes on.

use std::{
    fs::{self, File},
    path::Path,
};

use anyhow::Context;
use shared::{RunDir, files::atomic::named};

/// Workers that may share a cache.
const MOST: usize = 1000;

/// The folder, locked.
pub struct Scratch {
    run_dir: RunDir,
    _lock: File,
}

impl Scratch {
    /// The first folder of a cache that no other worker has.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(cache: &Path) -> anyhow::Result<Self> {
        for number in 0..MOST {
            let folder = cache.join(format!("worker-{number}"));
            fs::create_dir_all(&folder).map_err(named(&folder))?;
            let lock = File::options().create(true).append(true).open(folder.join("lock")).map_err(named(&folder))?;
            if lock.try_lock().is_err() {
                continue;
            }
            let run_dir = RunDir::new(&folder);
            fs::create_dir_all(run_dir.weights()).map_err(named(&folder))?;
            run_dir.remove_litter()?;
            return Ok(Self { run_dir, _lock: lock });
        }
        Err(anyhow::anyhow!("{MOST} workers use it already")).with_context(|| format!("--cache {}", cache.display()))
    }

    /// The folder, which has versions where a run directory has them.
    #[must_use]
    pub fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }
}
