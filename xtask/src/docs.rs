//! `cargo xtask docs`: pages that are generated from the code.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::host::Host;

/// The examples of `shared` that print a page, and where it is kept, relative to the root.
const PAGES: [(&str, &str); 5] = [
    ("configuration", "docs/configuration.md"),
    ("losses", "docs/losses.md"),
    ("metrics", "docs/metrics.md"),
    ("notices", "docs/notices.md"),
    ("schema", "docs/run.schema.json"),
];

/// Writes the pages.
///
/// # Errors
/// When the crate that describes options, methods and metrics does not build, or a page cannot be written.
pub fn write(host: &Host) -> Result<()> {
    for (example, page) in PAGES {
        let mut command = host.cargo();
        command.args(["run", "--quiet", "--release", "--locked", "--package", "shared", "--example", example]);
        let output = command.output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("{page} cannot be made: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let path = host.root.join(page);
        let folder = path.parent().context("the page lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&path, output.stdout).with_context(|| path.display().to_string())?;
        eprintln!("{page} is written");
    }
    Ok(())
}
