//! The other programs of the workspace, found beside this one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Path of a program in the folder of the running executable.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find the running executable")?;
    find_in(own.parent().unwrap_or(Path::new(".")), name)
}

fn find_in(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    if !path.is_file() {
        bail!("`{name}` is not beside `tandem` in {}: build it with `cargo build --release`", folder.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let error = find_in(dir.path(), "learner").unwrap_err().to_string();
        assert!(error.contains("`learner`") && error.contains(&dir.path().display().to_string()), "{error}");
        std::fs::write(dir.path().join("learner"), "").unwrap();
        assert_eq!(find_in(dir.path(), "learner").unwrap(), dir.path().join("learner"));
    }
}
