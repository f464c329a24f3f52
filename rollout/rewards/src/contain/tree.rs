//! The processes below this one.

use std::{collections::HashSet, fs, thread, time::Duration};

use rustix::{
    io::Errno,
    param::page_size,
    process::{Pid, Signal, WaitOptions, getpid, kill_process, wait},
};

/// Most passes that stop processes. Another pass is needed only if a process was born between two looks.
const PASSES: usize = 1000;

/// Milliseconds that killed processes may take to be gone.
const PATIENCE: u32 = 5000;

pub struct Entry {
    /// The process id.
    pub pid: Pid,
    parent: i32,
    /// How many threads it has.
    pub threads: usize,
    /// Resident bytes, memory that it shares with others included.
    memory: u64,
}

/// Reads the text of a `/proc/*/stat`.
fn entry(stat: &str) -> Option<Entry> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    // The name of the program may have spaces and brackets.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let pages: u64 = fields.get(21)?.parse().ok()?;
    Some(Entry {
        pid: Pid::from_raw(pid)?,
        parent: fields.get(1)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        memory: pages * page_size() as u64,
    })
}

/// All processes below this one; in a PID namespace of its own, `/proc` has no others.
pub fn below() -> Vec<Entry> {
    let is_process = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
    let mut others: Vec<Entry> =
        processes.filter_map(|process| entry(&fs::read_to_string(process.path().join("stat")).ok()?)).collect();
    let mut known = HashSet::from([getpid().as_raw_nonzero().get()]);
    let mut found = Vec::new();
    loop {
        let (new, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|entry| known.contains(&entry.parent));
        if new.is_empty() {
            return found;
        }
        known.extend(new.iter().map(|entry| entry.pid.as_raw_nonzero().get()));
        found.extend(new);
        others = rest;
    }
}

/// Bytes of the page tables of these processes. They grow also with addresses that a process only reads, which are no
/// memory of its own.
pub fn page_tables(processes: &[Entry]) -> u64 {
    let of = |entry: &Entry| {
        let told = fs::read_to_string(format!("/proc/{}/status", entry.pid.as_raw_nonzero())).unwrap_or_default();
        let line = told.lines().find_map(|line| line.strip_prefix("VmPTE:")?.trim().strip_suffix(" kB"));
        line.and_then(|line| line.parse::<u64>().ok()).unwrap_or_default() * 1024
    };
    processes.iter().map(of).sum()
}

/// Bytes of memory of these processes, each counted once, with `shared` bytes in objects that they hold. An upper bound
/// is enough where it is within `most`. Only beyond it, shared memory is told from each process's own, since that takes
/// long.
pub fn memory(processes: &[Entry], shared: u64, most: u64) -> u64 {
    let at_most = processes.iter().map(|entry| entry.memory).sum::<u64>() + shared;
    if at_most <= most {
        return at_most;
    }
    let parts: Vec<(u64, u64)> = processes.iter().map(proportional).collect();
    let own: u64 = parts.iter().map(|(own, _)| own).sum();
    // Mapped parts of the objects are among the shared bytes, unless this process may not look at them.
    own + shared.max(parts.iter().map(|(_, shared)| shared).sum())
}

/// The proportional share of memory of a process, in bytes: all but objects in memory, and these alone.
fn proportional(entry: &Entry) -> (u64, u64) {
    let told = fs::read_to_string(format!("/proc/{}/smaps_rollup", entry.pid.as_raw_nonzero())).unwrap_or_default();
    let bytes = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))?;
        Some(line.parse::<u64>().ok()? * 1024)
    };
    let (Some(all), shared) = (bytes("Pss:"), bytes("Pss_Shmem:").unwrap_or_default()) else {
        return (entry.memory, 0);
    };
    (all.saturating_sub(shared), shared)
}

/// Kills all processes below this one and waits until none is left. This process must gather orphans.
pub fn kill_all() {
    // Stopped processes start no more, so this ends even for a program that only starts processes.
    let mut stopped = HashSet::new();
    for _ in 0..PASSES {
        let new: Vec<Pid> = below().into_iter().map(|entry| entry.pid).filter(|pid| stopped.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            let _ = kill_process(pid, Signal::STOP);
        }
    }
    for _ in 0..PATIENCE {
        for entry in below() {
            let _ = kill_process(entry.pid, Signal::KILL);
        }
        while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        if matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 9 1000 3 18446744073709551615";
        let entry = entry(stat).unwrap();
        assert_eq!((entry.pid.as_raw_nonzero().get(), entry.parent, entry.threads), (42, 7, 1));
        assert_eq!(entry.memory, 3 * page_size() as u64);
    }

    #[test]
    fn a_process_has_page_tables() {
        let own = Entry { pid: getpid(), parent: 0, threads: 1, memory: 0 };
        let bytes = page_tables(&[own]);
        assert!((1024..1 << 30).contains(&bytes), "{bytes}");
    }
}
