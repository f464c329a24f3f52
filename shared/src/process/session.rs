//! The configuration that a launcher passes to the processes of one start of a run. Until that start has made a step,
//! the run directory stays as it was: a start that fails leaves no trace of its options.

use std::{env, fs, io, path::PathBuf};

use crate::{
    RunDir,
    config::{ConfigError, TrainConfig, layers},
    files::atomic::{self, named},
};

/// Environment variable with the path of the resolved configuration of this start.
pub const CONFIG_VARIABLE: &str = "TANDEM_CONFIG";

/// The configuration of this start: the launcher's, else that of the run directory.
///
/// # Errors
/// A file that cannot be read, or that is no configuration.
pub fn config(run_dir: &RunDir) -> Result<TrainConfig, ConfigError> {
    layers::load(Some(&handed_over().unwrap_or_else(|| run_dir.config())), &Vec::new())
}

/// Makes the configuration of this start the run's, and removes the mark that the run is finished: for the learner,
/// once its first step is made.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn take_over(run_dir: &RunDir) -> io::Result<()> {
    if let Some(path) = handed_over() {
        let text = fs::read(&path).map_err(named(&path))?;
        let known = shared_bounds::read(&run_dir.config(), text.len() as u64);
        if known.is_ok_and(|known| known == text) {
            return run_dir.reopen();
        }
        atomic::write(&run_dir.config(), &text)?;
    }
    run_dir.reopen()
}

fn handed_over() -> Option<PathBuf> {
    env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}
