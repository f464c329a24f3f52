//! Finds the runs in a folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use shared::RunDir;

/// Levels of folders below the named one.
const DEPTH: usize = 4;
/// Most runs of one folder that are listed; the newest ones. Each costs a page some system calls a second.
pub const MOST: usize = 1_000;

/// Whether a folder is that of a run.
pub fn is_run(path: &Path) -> bool {
    let dir = RunDir::new(path);
    dir.metrics().is_file() || (dir.config().is_file() && dir.completions().is_dir())
}

/// The folder itself if it is a run, else the runs in it, the newest first.
pub fn runs(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    look(root, DEPTH, &mut found);
    let changed = |path: &PathBuf| fs::metadata(path).and_then(|folder| folder.modified()).ok();
    found.sort_by_cached_key(|path| std::cmp::Reverse((changed(path), path.clone())));
    found.truncate(MOST);
    found
}

fn look(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if is_run(folder) {
        found.push(folder.to_owned());
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    // A link could lead back up.
    let folders = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for entry in folders {
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            look(&entry.path(), depth, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_in_folders_and_not_in_runs() {
        let root = tempfile::tempdir().unwrap();
        let run = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("metrics.jsonl"), "").unwrap();
            path
        };
        let (a, b) = (run("a"), run("deep/er/b"));
        run("a/checkpoint-1/not");
        run(".hidden/c");
        run("1/2/3/4/too-deep");
        let mut found = runs(root.path());
        found.sort();
        assert_eq!(found, [a.clone(), b]);
        assert_eq!(runs(&a), [a]);
    }
}
