//! The processes of a run.

use std::{fs, path::Path, process::Command};

/// Process ids of the children of a process whose program has this name.
///
/// # Panics
/// When the system does not list its processes.
#[must_use]
pub fn children(parent: u32, program: &str) -> Vec<u32> {
    let of_process = |dir: &Path| -> Option<u32> {
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        let mut fields = tail.split(' ');
        let (state, ppid) = (fields.next()?, fields.next()?);
        (name == program && state != "Z" && ppid == parent.to_string()).then(|| pid.parse().ok())?
    };
    let entries = fs::read_dir("/proc").expect("the system lists its processes");
    entries.filter_map(|entry| of_process(&entry.ok()?.path())).collect()
}

/// Sends a signal, by its name without SIG, to a process.
///
/// # Panics
/// When it is gone.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(sent.expect("there is a program `kill`").success(), "process {pid} is gone");
}
