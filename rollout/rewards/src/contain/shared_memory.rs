//! Memory that belongs to no process: memory files, shared memory, and nameless files of the temporary folder.
//!
//! The kernel does not count such memory as data of a process, and counts it as resident only while it is mapped.
//! Objects are found by the descriptors and mappings that keep them alive. Each counts once, however many processes
//! share it.

use std::{
    collections::HashSet,
    ffi::CStr,
    fs::{Metadata, metadata, read_dir, read_link, read_to_string},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};

/// Where POSIX shared memory lies.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Beginnings of links that lead to objects of memory.
const OBJECTS: [&str; 4] = ["/memfd:", "/dev/zero (deleted)", "/SYSV", SHARED_MEMORY];

/// The end of the link to a file that has no name any more.
const NAMELESS: &str = " (deleted)";

/// Bytes of a block, as the system counts those of a file.
const BLOCK: u64 = 512;

/// Memory and files that some processes keep alive.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of files on the disk of the temporary folder that have no name any more.
    pub nameless: u64,
}

/// Adds up what the processes with these ids hold. `own` says that `/dev/shm` is theirs alone, so that all of it
/// counts.
pub fn held(processes: impl IntoIterator<Item = i32>, scratch: &Path, own: bool) -> Held {
    let device = |path: &Path| metadata(path).map(|found| found.dev()).ok();
    let mut count = Count {
        seen: HashSet::new(),
        whole: device(Path::new(SHARED_MEMORY)).filter(|_| own),
        scratch: device(scratch),
        held: Held::default(),
    };
    if own && let Ok(found) = fs::statvfs(SHARED_MEMORY) {
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
        for entry in read_dir(folder).into_iter().flatten().flatten() {
            let Ok(link) = read_link(entry.path()) else { continue };
            let link = link.to_string_lossy();
            let is_memory = is_memory(&link);
            if (is_memory || link.ends_with(NAMELESS))
                && let Ok(found) = metadata(entry.path())
            {
                self.take(&found, is_memory);
            }
        }
    }

    /// Counts mapped objects that have no descriptor any more. The kernel tells their sizes only to those who may look
    /// into every process. For others, the resident part counts with the process.
    fn mappings(&mut self, process: &Path) {
        let maps = read_to_string(process.join("maps")).unwrap_or_default();
        for (range, _) in maps.lines().filter_map(mapping).filter(|(_, name)| is_memory(name)) {
            if let Ok(found) = metadata(process.join("map_files").join(range)) {
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

/// Levels of nested folders that are counted, each with a descriptor that is open meanwhile. A path with so many names
/// may be longer than the system takes, so each folder is opened from the one above it.
const MOST_LEVELS: usize = 200;

/// Number of files and bytes in a folder and all below it. Counting ends once one of them is above `most`. Folders
/// below [`MOST_LEVELS`] count as too many files.
pub fn filled(folder: &Path, most: (u64, u64)) -> (u64, u64) {
    let mut count = (0, 0);
    if let Ok(folder) = fs::openat(fs::CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    {
        fill(&folder, MOST_LEVELS, most, &mut count);
    }
    count
}

fn fill(folder: &OwnedFd, levels: usize, most: (u64, u64), count: &mut (u64, u64)) {
    let Some(levels) = levels.checked_sub(1) else {
        *count = (u64::MAX, count.1);
        return;
    };
    for entry in fs::Dir::read_from(folder).into_iter().flatten().flatten() {
        if [&b"."[..], b".."].contains(&entry.file_name().to_bytes()) {
            continue;
        }
        let name = entry.file_name();
        let Ok(found) = fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        count.0 = count.0.saturating_add(1);
        count.1 += u64::try_from(found.st_blocks).unwrap_or_default() * BLOCK;
        if count.0 > most.0 || count.1 > most.1 {
            return;
        }
        if FileType::from_raw_mode(found.st_mode).is_dir()
            && let Some(inner) = opened(folder, name)
        {
            fill(&inner, levels, most, count);
        }
    }
}

/// Opens a folder even where a program has closed it to everybody: it is the program's own, and so this process's.
fn opened(folder: &OwnedFd, name: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || fs::openat(folder, name, flags, Mode::empty());
    open().ok().or_else(|| {
        fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty()).ok()?;
        open().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, remove_file},
        io::Write,
        process,
    };

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
        remove_file(folder.path().join("x")).unwrap();
        // Other tests may have files without a name, too.
        assert!(held([own], folder.path(), false).nameless >= before.nameless.max(1 << 20));
        assert_eq!(filled(folder.path(), (10, u64::MAX)).0, 0);
    }

    #[test]
    fn files_below_a_path_that_is_longer_than_paths_may_be_count() {
        let root = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut folder = fs::openat(fs::CWD, root.path(), flags, Mode::empty()).unwrap();
        let name = "d".repeat(250);
        for _ in 0..20 {
            fs::mkdirat(&folder, &name, Mode::RWXU).unwrap();
            folder = fs::openat(&folder, &name, flags, Mode::empty()).unwrap();
        }
        let file = fs::openat(&folder, "x", OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
        let mut file = File::from(file);
        file.write_all(&[1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let (files, bytes) = filled(root.path(), (100, u64::MAX));
        assert!(files == 21 && bytes >= 1 << 20, "{files} {bytes}");
        for _ in 0..MOST_LEVELS {
            fs::mkdirat(&folder, "e", Mode::RWXU).unwrap();
            folder = fs::openat(&folder, "e", flags, Mode::empty()).unwrap();
        }
        assert!(filled(root.path(), (1_000_000, u64::MAX)).0 > 1_000_000);
    }
}
