//! Follows `metrics.jsonl` while the learner writes it.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use shared::metrics::{MetricRecord, STEP};

/// Newest records that are kept: more than any line on the terminal refers to.
pub const KEPT: usize = 64;
/// Bytes at the end of a file from which those records are read: a resumed run may have a long past.
const WINDOW: u64 = 1 << 20;

/// Completed steps by a record.
pub fn step_of(record: &MetricRecord) -> u64 {
    record.get(STEP).unwrap_or(0.0) as u64
}

/// The newest records of a growing file. A restarted learner replaces the file by a shorter one; the tail then reads it
/// anew.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    inode: u64,
    offset: u64,
    window: u64,
    records: Vec<MetricRecord>,
}

impl Tail {
    /// Follows a file that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, inode: 0, offset: 0, window: WINDOW, records: Vec::new() }
    }

    /// Reads what was added. A file that cannot be read now adds nothing.
    pub fn poll(&mut self) {
        let Ok(metadata) = fs::metadata(&self.path) else {
            return;
        };
        if metadata.ino() != self.inode || metadata.len() < self.offset {
            self.inode = metadata.ino();
            // Half a line at the beginning is no record.
            self.offset = metadata.len().saturating_sub(self.window);
            self.records.clear();
        }
        if metadata.len() == self.offset {
            return;
        }
        let mut bytes = Vec::new();
        let read = shared_bounds::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut bytes)
        });
        // A line without its end is still being written.
        let (Ok(_), Some(end)) = (read, bytes.iter().rposition(|byte| *byte == b'\n')) else {
            return;
        };
        self.records.extend(bytes[..end].split(|byte| *byte == b'\n').filter_map(MetricRecord::from_line));
        self.records.drain(..self.records.len().saturating_sub(KEPT));
        self.offset += end as u64 + 1;
    }

    /// The newest records.
    pub fn records(&self) -> &[MetricRecord] {
        &self.records
    }

    /// Completed steps.
    pub fn steps(&self) -> u64 {
        self.records.last().map_or(0, step_of)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use super::*;

    #[test]
    fn follows_growth_waits_for_whole_lines_and_notices_a_replaced_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut tail = Tail::new(path.clone());
        tail.poll();
        assert_eq!(tail.steps(), 0);

        let mut file = File::create(&path).unwrap();
        file.write_all(b"{\"step\":1}\n{\"step\":2}\n{\"st").unwrap();
        tail.poll();
        assert_eq!((tail.steps(), tail.records().len()), (2, 2));
        file.write_all(b"ep\":3}\n").unwrap();
        tail.poll();
        assert_eq!((tail.steps(), tail.records().len()), (3, 3));

        shared::files::atomic::write(&path, b"{\"step\":1}\n").unwrap();
        tail.poll();
        assert_eq!((tail.steps(), tail.records().len()), (1, 1));
    }
    #[test]
    fn of_a_long_run_only_the_end_is_read_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"step\":{step}}}\n");
        let mut file = File::create(&path).unwrap();
        (1..=200).for_each(|step| file.write_all(line(step).as_bytes()).unwrap());
        let mut tail = Tail { window: 100, ..Tail::new(path) };
        tail.poll();
        let steps = |tail: &Tail| tail.records().iter().filter_map(|r| r.get(STEP)).collect::<Vec<_>>();
        assert_eq!(steps(&tail), (194..=200).map(f64::from).collect::<Vec<_>>());
        (201..=400).for_each(|step| file.write_all(line(step).as_bytes()).unwrap());
        tail.poll();
        assert_eq!((tail.steps(), tail.records().len()), (400, KEPT));
    }
}
