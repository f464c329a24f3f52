//! Main memory.

use std::io;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Bytes that the system can give without swapping, or the rest of the control group if that is less.
///
/// # Errors
/// When the system does not tell.
pub fn available() -> io::Result<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory)
        .map_err(|e| io::Error::other(format!("cannot find out how much memory is free: {e}")))?;
    let free = system.available_memory();
    // The group's own figure of free memory counts cached files as used; they make room when memory is asked for.
    Ok(system.cgroup_limits().map_or(free, |group| free.min(group.total_memory.saturating_sub(group.rss))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_running_machine_has_some_memory_left() {
        assert!(super::available().unwrap() > 1 << 20);
    }
}
