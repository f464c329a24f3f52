//! Files and folders left behind by runs whose processes were all killed.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use shared::{
    channel::iox,
    run::{disk_room, versions},
    system::memory::Size,
};

use super::Finding;

const SUBJECT: &str = "leftovers";
const REMEDY: &str = "`tandem doctor --remove-leftovers` removes them";

/// A file or folder in shared memory or in the temporary folder that no living process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leftover {
    /// Its path.
    path: PathBuf,
    /// Its size.
    bytes: u64,
}

/// The leftovers of this user on this machine.
fn find() -> Vec<Leftover> {
    let paths = versions::abandoned().into_iter().chain(iox::abandoned());
    paths.map(|path| Leftover { bytes: disk_room::size(&path), path }).collect()
}

impl Leftover {
    /// Removes it; a leftover that is gone already is no error.
    fn remove(&self) -> io::Result<()> {
        let removed = if self.path.is_dir() { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
    }
}

/// Looks for leftovers, and removes them if `remove` is set.
pub fn examine(remove: bool) -> Finding {
    let found = find();
    if found.is_empty() {
        return Finding::ok(SUBJECT, "none of dead runs");
    }
    let detail = describe(&found);
    if !remove {
        return Finding::warn(SUBJECT, detail, REMEDY);
    }
    let failed: Vec<String> = found.iter().filter_map(|left| left.remove().err()).map(|e| e.to_string()).collect();
    if failed.is_empty() {
        Finding::ok(SUBJECT, format!("removed: {detail}"))
    } else {
        Finding::warn(
            SUBJECT,
            format!("cannot be removed: {}", failed.join(", ")),
            "remove them as the user who ran them",
        )
    }
}

fn describe(found: &[Leftover]) -> String {
    let bytes = Size(found.iter().map(|left| left.bytes).sum());
    // A channel consists of a dozen files whose names begin with the same characters.
    let mut by_run: BTreeMap<PathBuf, Vec<&Path>> = BTreeMap::new();
    for left in found {
        let name = left.path.file_name().unwrap_or_default().to_string_lossy();
        let run: String = name.split('_').take(2).collect::<Vec<_>>().join("_");
        by_run.entry(left.path.with_file_name(run)).or_default().push(&left.path);
    }
    let places = by_run.into_iter().map(|(run, paths)| match paths[..] {
        [path] => path.display().to_string(),
        _ => format!("{}* ({} files)", run.display(), paths.len()),
    });
    format!("{bytes} of dead runs: {}", places.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_listed_with_what_they_take() {
        let of = |path: &str, bytes| Leftover { path: path.into(), bytes };
        let found = [of("/dev/shm/tandem-weights-1", 3 << 20), of("/tmp/tandem_2", 1 << 20)];
        assert_eq!(describe(&found), "4.0 MiB of dead runs: /dev/shm/tandem-weights-1, /tmp/tandem_2");
        let channel = ["/dev/shm/tandem_2_a.data", "/dev/shm/tandem_2_b_1.connection", "/dev/shm/tandem_3_a.data"];
        let found = channel.map(|path| of(path, 1 << 20));
        assert_eq!(describe(&found), "3.0 MiB of dead runs: /dev/shm/tandem_2* (2 files), /dev/shm/tandem_3_a.data");
    }
}
