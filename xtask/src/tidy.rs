//! House rules that neither rustfmt nor clippy checks: no notes to self, no ignored tests, module documentation, files
//! of readable length, no paths of one particular machine, a test for every file of golden figures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Longest source file, in lines.
const MAX_LINES: usize = 800;

/// Folders that hold no source.
const SKIPPED: &[&str] = &["target", ".git", ".native", ".device", "golden"];

/// Words that mark unfinished work. They are put together here so that this file passes its own check.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("place", "holder"),
    concat!("#[", "ignore"),
];

/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/fa", "rm/")];

/// Checks every source and text file below `root`.
///
/// # Errors
/// With all findings, one per line.
pub fn check(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    let mut golden_tests = String::new();
    for path in files(root)? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        findings.extend(inspect(&shown, &text));
        if text.contains("fn golden_") {
            golden_tests.push_str(&text);
        }
    }
    let untested =
        figures(&root.join("tests/golden"))?.into_iter().filter(|file| !golden_tests.contains(&quoted(file)));
    findings.extend(untested.map(|file| format!("tests/golden/{file}: no test named golden_… reads these figures")));
    if findings.is_empty() {
        return Ok(());
    }
    findings.sort();
    bail!("{} findings\n{}", findings.len(), findings.join("\n"))
}

/// Names of the files with golden figures.
fn figures(dir: &Path) -> Result<Vec<String>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: std::io::Result<Vec<String>> = names.collect();
    Ok(names?.into_iter().filter(|name| name.ends_with(".json")).collect())
}

/// A file's name as a test writes it.
fn quoted(file: &str) -> String {
    format!("\"{file}\"")
}

/// Rust, TOML, Markdown and shell files below a folder.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry.with_context(|| dir.display().to_string())?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_ref()) {
                found.extend(files(&path)?);
            }
        } else if matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "toml" | "md" | "sh"))
            || path.ends_with(".ci/run")
        {
            found.push(path);
        }
    }
    Ok(found)
}

fn inspect(shown: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut report = |what: String| findings.push(format!("{shown}:{}: {what}", index + 1));
        for word in UNFINISHED.iter().filter(|word| has_word(line, word)) {
            report(format!("`{word}` marks unfinished work"));
        }
        for path in MACHINE_PATHS.iter().filter(|path| has_path(line, path)) {
            report(format!("`{path}` is a path of one machine"));
        }
    }
    if shown.ends_with(".rs") {
        if !text.starts_with("//!") {
            findings.push(format!("{shown}:1: a source file begins with module documentation (`//!`)"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            findings.push(format!("{shown}: {lines} lines, more than {MAX_LINES}: split it by subject"));
        }
    }
    findings
}

/// Whether a word occurs on its own, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part)
            && !line[at + word.len()..].chars().next().is_some_and(|next| part(next) && !word.ends_with('('))
    })
}

/// Whether an absolute path begins with `path`, as opposed to a relative one that contains it.
fn has_path(line: &str, path: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || "_.-$}]*>".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].chars().next_back().is_some_and(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_its_breach() {
        for (line, expected) in [
            (concat!("    todo", "!(\"later\")"), "unfinished"),
            (concat!("// TO", "DO: later"), "unfinished"),
            (concat!("a place", "holder value"), "unfinished"),
            (concat!("#[", "ignore = \"slow\"]"), "unfinished"),
            (concat!("cd \"/wo", "rk/main\""), "one machine"),
        ] {
            let findings = inspect("a.rs", &format!("//! Docs.\n{line}\n"));
            assert_eq!(findings.len(), 1, "{line}: {findings:?}");
            assert!(findings[0].starts_with("a.rs:2: ") && findings[0].contains(expected), "{findings:?}");
        }
        assert!(inspect("a.rs", "fn a() {}\n")[0].contains("module documentation"));
        assert!(inspect("a.rs", &"//!\n".repeat(801))[0].contains("801 lines"));
    }

    #[test]
    fn golden_figures_without_a_test_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tests/golden")).unwrap();
        for file in ["one.json", "two.json", "README.md"] {
            fs::write(dir.path().join("tests/golden").join(file), "{}").unwrap();
        }
        let test = concat!("//! Docs.\n#[test]\nfn gold", "en_one() { golden(\"one.json\") }\n");
        fs::write(dir.path().join("a.rs"), test).unwrap();
        let message = check(dir.path()).unwrap_err().to_string();
        assert!(message.contains("two.json") && !message.contains("one.json"), "{message}");
    }

    #[test]
    fn harmless_text_passes() {
        let text = concat!("//! Docs.\n// dotTO", "DOs and place", "holders\nlet a = \"$HOME/wo", "rk/x\";\n");
        assert_eq!(inspect("a.rs", text), Vec::<String>::new());
        assert_eq!(inspect("a.md", "no module documentation needed\n"), Vec::<String>::new());
    }

    #[test]
    fn build_outputs_and_binary_files_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in [("target/a.rs", "x"), ("src/a.rs", "//! Docs.\n"), ("src/b.bin", "x")] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        assert_eq!(files(dir.path()).unwrap(), [dir.path().join("src/a.rs")]);
        check(dir.path()).unwrap();
        fs::write(dir.path().join("src/c.rs"), "fn c() {}\n").unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("src/c.rs:1"));
    }
}
