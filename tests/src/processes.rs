//! Running processes: found by their command lines, or by their parents.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// How long processes may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ids of the processes whose command lines begin with `program` and contain a path. For a reward function's program,
/// this finds the program itself and not the processes that contain it, whose command lines begin otherwise.
#[must_use]
pub fn with(program: &str, path: &Path) -> Vec<u32> {
    let path = path.as_os_str().as_encoded_bytes();
    let number = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let is_meant = line.starts_with(program.as_bytes()) && line.windows(path.len()).any(|part| part == path);
        is_meant.then(|| entry.file_name().to_str()?.parse().ok())?
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(number).collect()
}

/// Waits until there are `count` such processes.
///
/// # Panics
/// When that takes too long.
pub fn wait_for(count: usize, program: &str, path: &Path) {
    let begun = Instant::now();
    while with(program, path).len() != count {
        assert!(begun.elapsed() < PATIENCE, "not {count} but {} processes {program}", with(program, path).len());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Process ids of a process's children that run a program of this name.
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
/// When the process is gone.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(sent.expect("there is a program `kill`").success(), "process {pid} is gone");
}
