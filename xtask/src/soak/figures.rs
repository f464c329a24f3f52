//! Resources that a run takes of the machine, as the system reports them.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

/// One measurement of a run.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Seconds since the beginning.
    pub seconds: f64,
    /// Completed steps.
    pub steps: u64,
    /// Launcher, learner and sampler. A process that is being started counts as empty.
    processes: [Process; 3],
    segments: usize,
    kept_bytes: u64,
    record_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    resident: u64,
    descriptors: usize,
    threads: usize,
}

/// A figure that is plotted and judged.
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Unit of its values.
    pub unit: &'static str,
    /// Growth that is tolerated.
    pub slack: f64,
    /// Its value in a measurement.
    pub value: fn(&Figures) -> f64,
}

const MIB: f64 = 1_048_576.0;

/// Figures that must not grow.
pub const SERIES: [Series; 9] = [
    Series { name: "memory of the launcher", unit: "MiB", slack: 2.0, value: |f| f.processes[0].resident as f64 / MIB },
    Series { name: "memory of the learner", unit: "MiB", slack: 8.0, value: |f| f.processes[1].resident as f64 / MIB },
    Series { name: "memory of the sampler", unit: "MiB", slack: 8.0, value: |f| f.processes[2].resident as f64 / MIB },
    Series { name: "descriptors of the launcher", unit: "", slack: 1.0, value: |f| f.processes[0].descriptors as f64 },
    Series { name: "descriptors of learner and sampler", unit: "", slack: 4.0, value: |f| f.both(|p| p.descriptors) },
    Series { name: "threads of learner and sampler", unit: "", slack: 2.0, value: |f| f.both(|p| p.threads) },
    Series { name: "entries in shared memory", unit: "", slack: 4.0, value: |f| f.segments as f64 },
    Series { name: "disk: checkpoints, logs, tokens", unit: "MiB", slack: 1.0, value: |f| f.kept_bytes as f64 / MIB },
    Series {
        name: "disk: records, a step",
        unit: "KiB",
        slack: 1.0,
        value: |f| f.record_bytes as f64 / 1024.0 / f.steps.max(1) as f64,
    },
];

impl Figures {
    /// Measures the launcher with this process id, its children and the run's folder.
    pub fn of(launcher: u32, run: &Path, since: Duration) -> Self {
        let children = children(launcher);
        let named = |name: &str| children.iter().copied().find(|child| command_of(*child) == name);
        let process = |number: Option<u32>| number.and_then(Process::of).unwrap_or_default();
        let processes = [process(Some(launcher)), process(named("learner")), process(named("rollout"))];
        let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
        let (mut kept_bytes, mut record_bytes) = (0, 0);
        for (path, bytes) in files(run) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_record = ["metrics.jsonl", "eval.jsonl", "ledger.jsonl", "notices.jsonl"].contains(&&*name)
                || ["step-", "events."].iter().any(|kind| name.starts_with(kind));
            *(if is_record { &mut record_bytes } else { &mut kept_bytes }) += bytes;
        }
        let steps = metrics.lines().count() as u64;
        Self { seconds: since.as_secs_f64(), steps, processes, segments: segments(), kept_bytes, record_bytes }
    }

    fn both(&self, pick: fn(&Process) -> usize) -> f64 {
        self.processes[1..].iter().map(pick).sum::<usize>() as f64
    }
}

impl Process {
    fn of(number: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{number}"));
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        Some(Self {
            resident: field("VmRSS:")? * 1024,
            descriptors: fs::read_dir(folder.join("fd")).ok()?.count(),
            threads: field("Threads:")? as usize,
        })
    }
}

fn command_of(number: u32) -> String {
    fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default().trim().to_owned()
}

fn children(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Entries of this project in shared memory, of any run.
pub fn segments() -> usize {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("tandem")).count()
}

/// All files below a folder with their lengths; files that are removed meanwhile are left out.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => found.extend(files(&entry.path())),
            Ok(metadata) => found.push((entry.path(), metadata.len())),
            Err(_) => {}
        }
    }
    found
}

/// Writes all measurements as a table.
///
/// # Errors
/// Any error of the file system.
pub fn write(path: &Path, seen: &[Figures]) -> Result<()> {
    let names: Vec<&str> = SERIES.iter().map(|series| series.name).collect();
    let mut text = format!("seconds;steps;{}\n", names.join(";"));
    for figures in seen {
        let values: Vec<String> = SERIES.iter().map(|series| format!("{:.1}", (series.value)(figures))).collect();
        let _ = writeln!(text, "{:.0};{};{}", figures.seconds, figures.steps, values.join(";"));
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_a_folder_are_seen_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("completions")).unwrap();
        for (name, bytes) in
            [("metrics.jsonl", "{}\n{}\n"), ("completions/step-1.jsonl", "1234"), ("config.toml", "12")]
        {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let figures = Figures::of(std::process::id(), dir.path(), Duration::from_secs(3));
        assert_eq!((figures.steps, figures.record_bytes, figures.kept_bytes), (2, 10, 2));
        assert!(figures.processes[0].resident > 1 << 20 && figures.processes[0].descriptors > 2, "{figures:?}");
        assert_eq!(figures.processes[1].threads, 0, "there is no learner");
        write(&dir.path().join("samples.csv"), &[figures]).unwrap();
        let text = fs::read_to_string(dir.path().join("samples.csv")).unwrap();
        assert!(text.lines().nth(1).unwrap().starts_with("3;2;"), "{text}");
    }
}
