//! Memory that is no process's own: what lies in memory files, in shared memory and in the temporary folder without a name.
//!
//! The kernel counts it neither as data of a process nor, as long as it is not mapped, as resident. It is found by the
//! descriptors and mappings that keep it alive, and each object counts once, whoever shares it.

use std::{
    collections::HashSet,
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::statvfs;

/// Where POSIX shared memory lies.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// What a link to an object of memory begins with.
const OBJECTS: [&str; 4] = ["/memfd:", "/dev/zero (deleted)", "/SYSV", SHARED_MEMORY];

/// What the link of a file ends with that has no name any more.
const NAMELESS: &str = " (deleted)";

/// Bytes of a block, as the system counts those of a file.
const BLOCK: u64 = 512;

/// What is kept alive by some processes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of files on the disk of the temporary folder that have no name any more.
    pub nameless: u64,
}

/// Adds up what the processes of these numbers hold. `own` is whether `/dev/shm` is theirs alone, so that all of it counts.
pub fn held(processes: impl IntoIterator<Item = i32>, scratch: &Path, own: bool) -> Held {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let mut count = Count {
        seen: HashSet::new(),
        whole: device(Path::new(SHARED_MEMORY)).filter(|_| own),
        scratch: device(scratch),
        held: Held::default(),
    };
    if own && let Ok(found) = statvfs(SHARED_MEMORY) {
        count.held.memory += (found.f_blocks - found.f_bfree) * found.f_frsize;
    }
    for process in processes {
        let folder = PathBuf::from(format!("/proc/{process}"));
        count.descriptors(&folder.join("fd"));
        count.mappings(&folder);
    }
    count.held
}

struct Count {
    seen: HashSet<(u64, u64)>,
    /// A file system that is counted as a whole.
    whole: Option<u64>,
    scratch: Option<u64>,
    held: Held,
}

impl Count {
    fn descriptors(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let link = link.to_string_lossy();
            let is_memory = is_memory(&link);
            if (is_memory || link.ends_with(NAMELESS))
                && let Ok(found) = fs::metadata(entry.path())
            {
                self.take(&found, is_memory);
            }
        }
    }

    /// What is mapped and has no descriptor any more. Only who may look into every process is told how much it is; else what
    /// of it is resident counts with the process.
    fn mappings(&mut self, process: &Path) {
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        for (range, _) in maps.lines().filter_map(mapping).filter(|(_, name)| is_memory(name)) {
            if let Ok(found) = fs::metadata(process.join("map_files").join(range)) {
                self.take(&found, true);
            }
        }
    }

    fn take(&mut self, found: &Metadata, is_memory: bool) {
        if Some(found.dev()) == self.whole || !self.seen.insert((found.dev(), found.ino())) {
            return;
        }
        let bytes = found.blocks() * BLOCK;
        if is_memory {
            self.held.memory += bytes;
        } else if Some(found.dev()) == self.scratch && found.nlink() == 0 {
            self.held.nameless += bytes;
        }
    }
}

fn is_memory(link: &str) -> bool {
    OBJECTS.iter().any(|begin| link.starts_with(begin))
}

/// Range and name of a line of `/proc/*/maps`, the range as `map_files` writes it: without leading zeros.
fn mapping(line: &str) -> Option<(String, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let name = &rest[rest.find('/')?..];
    let (from, to) = range.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some((format!("{:x}-{:x}", number(from)?, number(to)?), name))
}

/// Files and bytes of a folder with all below it, as far as they are no more than these.
pub fn filled(folder: &Path, most: (u64, u64)) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in opened(&folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            files += 1;
            bytes += found.blocks() * BLOCK;
            if found.is_dir() {
                folders.push(entry.path());
            }
        }
        if files > most.0 || bytes > most.1 {
            break;
        }
    }
    (files, bytes)
}

/// A folder that a program has closed to everybody is opened again: it is the program's own, and so this process's.
fn opened(folder: &Path) -> Option<fs::ReadDir> {
    use std::os::unix::fs::PermissionsExt;
    fs::read_dir(folder).ok().or_else(|| {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).ok()?;
        fs::read_dir(folder).ok()
    })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write, process};

    use super::*;

    #[test]
    fn a_mapping_is_named_as_its_link_is() {
        let line = "7f00dead0000-7f00deae0000 rw-s 00000000 00:01 2053     /memfd:a b (deleted)";
        assert_eq!(mapping(line), Some(("7f00dead0000-7f00deae0000".to_owned(), "/memfd:a b (deleted)")));
        assert_eq!(mapping("00400000-00401000 r-xp 0 fe:00 9 /bin/x").unwrap().0, "400000-401000");
        assert_eq!(mapping("7ffc0000-7ffd0000 rw-p 00000000 00:00 0    [stack]"), None);
    }

    #[test]
    fn files_without_a_name_and_folders_that_are_closed_count() {
        let folder = tempfile::tempdir().unwrap();
        let own = i32::try_from(process::id()).unwrap();
        let before = held([own], folder.path(), false);
        let mut file = File::create(folder.path().join("x")).unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let (files, bytes) = filled(folder.path(), (10, u64::MAX));
        assert!(files == 1 && bytes >= 1 << 20, "{files} {bytes}");
        fs::remove_file(folder.path().join("x")).unwrap();
        // Other tests may have files without a name, too.
        assert!(held([own], folder.path(), false).nameless >= before.nameless.max(1 << 20));
        assert_eq!(filled(folder.path(), (10, u64::MAX)).0, 0);
    }
}
