//! `cargo xtask docs`: pages that are generated from the code, and the guide as a book.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{book, host::Host};

/// The examples of `shared` that print a page, and where it is kept, relative to the root.
const PAGES: [(&str, &str); 5] = [
    ("configuration", "docs/configuration.md"),
    ("losses", "docs/losses.md"),
    ("metrics", "docs/metrics.md"),
    ("notices", "docs/notices.md"),
    ("schema", "docs/run.schema.json"),
];

/// Writes the pages and builds the book.
///
/// # Errors
/// When the crate that describes options, methods and metrics does not build, a page cannot be written, or mdBook
/// fails.
pub fn write(host: &Host) -> Result<()> {
    // The whole workspace is selected: with `--package shared`, dependencies would have other features than for the
    // programs and be compiled again.
    let mut command = host.cargo();
    command.args(["build", "--quiet", "--release", "--locked", "--workspace"]);
    command.args(PAGES.iter().flat_map(|(example, _)| ["--example", *example]));
    let status = command.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the examples that print pages do not build");
    }
    for (example, page) in PAGES {
        let program = host.target.join("release/examples").join(example);
        let output = host.command(&program).output().with_context(|| program.display().to_string())?;
        if !output.status.success() {
            bail!("{page} cannot be made: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let path = host.root.join(page);
        fs::write(&path, output.stdout).with_context(|| path.display().to_string())?;
        eprintln!("{page} is written");
    }
    book::build(host)
}
