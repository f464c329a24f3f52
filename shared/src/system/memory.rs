//! Main memory.

use std::{fmt, io};

use sysinfo::{
    CGroupLimits, MemoryRefreshKind, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System,
    get_current_pid,
};

/// Where Linux shows shared memory, POSIX's included, as a folder of files.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Bytes that this process could get at most: the machine's memory, or the limit of its control group if that is less.
///
/// # Errors
/// When the system does not tell.
pub fn total() -> io::Result<u64> {
    let (system, group) = look()?;
    known(group.map_or(system.total_memory(), |group| group.total_memory))
}

/// No machine is without memory: without `/proc`, the figures are 0.
fn known(total: u64) -> io::Result<u64> {
    if total == 0 {
        let message = "cannot find out how much memory there is: is /proc mounted?";
        return Err(io::Error::other(message));
    }
    Ok(total)
}

/// Bytes that the system can give without swapping, or the rest of the control group if that is less.
///
/// # Errors
/// When the system does not tell.
pub fn available() -> io::Result<u64> {
    let (system, group) = look()?;
    known(system.total_memory())?;
    let free = system.available_memory();
    // The group's own figure of free memory counts cached files as used; they make room when memory is asked for.
    Ok(group.map_or(free, |group| free.min(group.total_memory.saturating_sub(group.rss))))
}

/// The tightest limit of the control groups that this process is in, in bytes, if there is one.
#[must_use]
pub fn limit() -> Option<u64> {
    let (system, group) = look().ok()?;
    group.map(|group| group.total_memory).filter(|limit| *limit < system.total_memory())
}

/// The machine, and the tightest limit of the control groups that this process is in.
fn look() -> io::Result<(System, Option<CGroupLimits>)> {
    let unknown = |e: &dyn fmt::Display| io::Error::other(format!("cannot find out how much memory there is: {e}"));
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let mut system = System::new_with_specifics(memory).map_err(|e| unknown(&e))?;
    let own = get_current_pid().map_err(|e| unknown(&e))?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, ProcessRefreshKind::nothing());
    let group = system.process(own).and_then(Process::cgroup_limits);
    Ok((system, group))
}

/// Bytes for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Whether a number this small is displayed as nothing.
    #[must_use]
    pub fn is_shown_as_nothing(self) -> bool {
        self.to_string() == Self(0).to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib < 1000.0 { write!(f, "{mib:.1} MiB") } else { write!(f, "{:.2} GiB", mib / 1024.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_figures_is_unknown_and_not_without_memory() {
        assert_eq!(known(7).unwrap(), 7);
        assert!(known(0).unwrap_err().to_string().contains("/proc"));
    }

    #[test]
    fn a_running_machine_has_some_memory_left() {
        assert!(available().unwrap() > 1 << 20);
    }

    #[test]
    fn what_is_left_is_part_of_what_there_is() {
        assert!(available().unwrap() < total().unwrap());
    }
}
