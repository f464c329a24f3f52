//! Running processes, by what stands in their command lines.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long processes may take to begin or to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// The numbers of processes that have a path in their command lines, which begin with `program`. In that of a program of a
/// reward function it also stands for those that contain it, whose command lines begin otherwise.
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

/// Waits until there are as many of these processes.
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
