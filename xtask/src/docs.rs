//! `cargo xtask docs`: the pages that are made from the code.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::host::Host;

/// The page of all options, relative to the root.
const CONFIGURATION: &str = "docs/configuration.md";

/// Writes the pages.
///
/// # Errors
/// When the crate that describes the options does not build, or the page cannot be written.
pub fn write(host: &Host) -> Result<()> {
    let mut command = host.cargo();
    command.args(["run", "--quiet", "--release", "--locked", "--package", "shared", "--example", "configuration"]);
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the page of options cannot be made: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let path = host.root.join(CONFIGURATION);
    let folder = path.parent().context("the page lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::write(&path, output.stdout).with_context(|| path.display().to_string())?;
    eprintln!("{CONFIGURATION} is written");
    Ok(())
}
