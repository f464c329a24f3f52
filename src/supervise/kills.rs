//! Processes that the kernel has killed for lack of memory.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use shared::system::memory::{Size, limit};

/// Where Linux mounts control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Number of processes that the kernel has killed for lack of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kills {
    /// In the control group of this process; none if its counter cannot be read.
    group: Option<u64>,
    /// On the whole machine, since it was started.
    machine: u64,
}

/// Why the kernel killed a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Its control group had reached its limit, in bytes.
    Group(u64),
    /// The machine had no memory left.
    Machine,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(limit) => write!(f, "killed for memory by the limit of its control group, {}", Size(*limit)),
            Self::Machine => f.write_str("killed by the kernel, most likely for lack of memory"),
        }
    }
}

impl Kills {
    /// The present counters; 0 if the system does not tell.
    #[must_use]
    pub fn now() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let machine = counter(Path::new("/proc/vmstat"));
        Self { group: of_group(Path::new(GROUPS), &own), machine: machine.unwrap_or(0) }
    }

    /// Why the kernel may have killed a process since `before`, if it killed any.
    #[must_use]
    pub fn since(self, before: Self) -> Option<Shortage> {
        self.since_with(before, limit())
    }

    fn since_with(self, before: Self, limit: Option<u64>) -> Option<Shortage> {
        // The machine's counter includes other users' processes.
        let killed = match (self.group, before.group) {
            (Some(now), Some(before)) => now > before,
            _ => self.machine > before.machine,
        };
        killed.then(|| limit.map_or(Shortage::Machine, Shortage::Group))
    }
}

/// The counter of the group that `/proc/self/cgroup` names, of version 2 or 1. A container may see its own group as the
/// root and yet be told a path from outside.
fn of_group(root: &Path, own: &str) -> Option<u64> {
    let folders = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?.trim_start_matches('/'));
        let (mounts, file): (&[&str], _) = match controllers {
            "" => (&["", "unified"], "memory.events"),
            list if list.split(',').any(|name| name == "memory") => (&["memory"], "memory.oom_control"),
            _ => return None,
        };
        let candidates = mounts.iter().flat_map(|mount| [root.join(mount).join(path), root.join(mount)]);
        Some(candidates.map(|folder| folder.join(file)).collect::<Vec<PathBuf>>())
    });
    folders.flatten().find_map(|file| counter(&file))
}

fn counter(file: &Path) -> Option<u64> {
    let counters = fs::read_to_string(file).ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_of_the_own_group_is_found_in_either_version() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("memory/job/7/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write("memory/memory.oom_control", "oom_kill 9\n");
        let of = |own| of_group(root.path(), own);
        assert_eq!(of("5:cpu:/x\n4:memory:/job/7\n0::/\n"), Some(3));
        assert_eq!(of("4:memory:/docker/seen/from/outside\n"), Some(9));
        assert_eq!(of("0::/job\n"), None);
        write("job/memory.events", "low 0\noom 4\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(of("0::/job\n"), Some(2));
    }

    #[test]
    fn the_kills_of_other_groups_are_not_ours() {
        let of = |group, machine| Kills { group, machine };
        let limit = Some(512 << 20);
        assert_eq!(of(Some(1), 8).since_with(of(Some(1), 7), limit), None);
        assert_eq!(of(Some(2), 8).since_with(of(Some(1), 7), limit), Some(Shortage::Group(512 << 20)));
        assert_eq!(of(Some(2), 8).since_with(of(Some(1), 7), None), Some(Shortage::Machine));
        assert_eq!(of(None, 8).since_with(of(None, 7), None), Some(Shortage::Machine));
        let words = Shortage::Group(512 << 20).to_string();
        assert_eq!(words, "killed for memory by the limit of its control group, 512.0 MiB");
    }
}
