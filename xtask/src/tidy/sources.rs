//! The files of the project, without the outputs of builds and runs beside them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// Output folders, for an archive of the sources that git does not know.
const OUTPUTS: &[&str] = &["target", ".git", ".native", ".device", "runs"];

/// A file of text.
pub struct Source {
    /// Path relative to the root.
    pub path: String,
    pub text: String,
}

/// All files of the project.
pub struct Sources {
    /// Their paths, relative to the root.
    pub paths: Vec<String>,
    /// Files that people write: Rust, TOML, Markdown, shell.
    pub texts: Vec<Source>,
}

impl Sources {
    /// The files that git tracks below `root`; if `root` is no checkout or git cannot be run, all files outside of
    /// [`OUTPUTS`].
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let found = match tracked(root) {
            Some(found) => found,
            None => below(root)?,
        };
        let mut sources = Self { paths: Vec::new(), texts: Vec::new() };
        // A file that was deleted and is still in the index cannot be checked.
        for path in found.into_iter().filter(|path| path.is_file()) {
            let relative = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if is_written_by_people(&relative) {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                sources.texts.push(Source { path: relative.clone(), text });
            }
            sources.paths.push(relative);
        }
        Ok(sources)
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &Source> {
        self.texts.iter().filter(|source| source.path.ends_with(".rs"))
    }
}

fn is_written_by_people(path: &str) -> bool {
    matches!(Path::new(path).extension().and_then(|e| e.to_str()), Some("rs" | "toml" | "md" | "sh"))
        || path == ".ci/run"
}

fn tracked(root: &Path) -> Option<Vec<PathBuf>> {
    // Without this, git would look for a repository in the folders above, where the archive may have been unpacked.
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let list = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(list.split_terminator('\0').map(|path| root.join(path)).collect())
}

fn below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry.with_context(|| dir.display().to_string())?;
        if !entry.file_type()?.is_dir() {
            found.push(entry.path());
        } else if !OUTPUTS.iter().any(|output| entry.file_name() == *output) {
            found.extend(below(&entry.path())?);
        }
    }
    found.sort();
    Ok(found)
}

/// Production code of a file: without comments, strings and the tests at its end. Line numbers stay the same.
pub fn code(text: &str) -> String {
    let tests = text.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(|&at| {
        let item = text[at..].lines().nth(1).unwrap_or_default();
        item.contains("mod ") && item.ends_with('{')
    });
    let text = &text[..tests.unwrap_or(text.len())];
    let mut code = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let bare = line.split("//").next().unwrap_or_default();
        let mut outside = true;
        for part in bare.split('"') {
            code.push_str(if outside { part } else { "" });
            outside = !outside;
        }
        if !code.ends_with('\n') {
            code.push('\n');
        }
    }
    code
}

#[cfg(test)]
pub mod testing {
    use super::{Source, Sources};

    /// Sources of one file.
    pub fn one(path: &str, text: &str) -> Sources {
        let texts = vec![Source { path: path.to_owned(), text: text.to_owned() }];
        Sources { paths: vec![path.to_owned()], texts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree after `cargo xtask demo`, with a file of the user's own and a binary file.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in
            ["src/a.rs", "src/b.bin", "target/a.rs", "runs/demo/run.toml", "runs/demo/run/config.toml", "run.toml"]
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        root
    }

    fn git(root: &Path, args: &[&str]) {
        let mut git = Command::new("git");
        // git sets these when a hook runs the tests.
        for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(variable);
        }
        assert!(git.arg("-C").arg(root).args(args).status().expect("git is installed").success());
    }

    fn paths(root: &Path) -> (Vec<String>, Vec<String>) {
        let sources = Sources::read(root).unwrap();
        (sources.paths, sources.texts.into_iter().map(|source| source.path).collect())
    }

    #[test]
    fn a_run_and_other_untracked_files_of_a_checkout_are_nobodys_sources() {
        let root = tree();
        git(root.path(), &["init", "--quiet"]);
        git(root.path(), &["add", "src"]);
        assert_eq!(paths(root.path()), (vec!["src/a.rs".into(), "src/b.bin".into()], vec!["src/a.rs".into()]));
        git(root.path(), &["add", "runs"]);
        assert!(
            paths(root.path()).1.contains(&"runs/demo/run.toml".into()),
            "what is tracked is looked at wherever it is"
        );
        fs::remove_file(root.path().join("src/a.rs")).unwrap();
        assert!(!paths(root.path()).0.contains(&"src/a.rs".into()));
    }

    #[test]
    fn in_an_archive_all_is_looked_at_but_runs_and_build_outputs() {
        let root = tree();
        let texts = vec!["run.toml".into(), "src/a.rs".into()];
        assert_eq!(paths(root.path()), (vec!["run.toml".into(), "src/a.rs".into(), "src/b.bin".into()], texts));
    }
}
