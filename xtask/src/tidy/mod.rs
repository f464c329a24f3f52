//! House rules that neither rustfmt nor clippy checks. Each rule has a file of its own and a line in [`RULES`].

mod circles;
mod golden;
mod length;
mod links;
mod machine;
mod methods;
mod one_loop;
mod orphans;
mod sources;
mod unfinished;
mod unsafe_code;
mod width;

use std::path::Path;

use anyhow::{Result, bail};

use sources::Sources;

/// A rule: takes the sources and returns the violations, a line each, beginning with file and line number.
type Rule = fn(&Sources) -> Vec<String>;

/// All rules.
const RULES: &[Rule] = &[
    unfinished::check,
    machine::check,
    methods::check,
    length::check,
    golden::check,
    unsafe_code::check,
    circles::check,
    one_loop::check,
    orphans::check,
    width::check,
    links::check,
];

/// Checks the files of the source tree at `root`.
///
/// # Errors
/// With all findings, one per line.
pub fn check(root: &Path) -> Result<()> {
    let sources = Sources::read(root)?;
    let mut findings: Vec<String> = RULES.iter().flat_map(|rule| rule(&sources)).collect();
    if findings.is_empty() {
        return Ok(());
    }
    findings.sort();
    bail!("{} findings\n{}", findings.len(), findings.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_rule_is_applied_and_names_file_and_line() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("a.rs", concat!("//! Docs.\n// TO", "DO: later\n").to_owned()),
            ("b.md", concat!("see\n/ho", "me/somebody/notes\n").to_owned()),
            ("c.rs", "fn c() {}\n".to_owned()),
            ("tests/golden/d.json", "{}".to_owned()),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let message = check(root.path()).unwrap_err().to_string();
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines.len(), 5, "{message}");
        for (line, begin) in
            lines.iter().zip(["4 findings", "a.rs:2: ", "b.md:2: ", "c.rs:1: ", "tests/golden/d.json: "])
        {
            assert!(line.starts_with(begin), "{message}");
        }
    }
}
