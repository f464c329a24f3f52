//! The files of metric records, one JSON object per line.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::MetricRecord;
use crate::files::{
    atomic::{self, named},
    journal::{self, Found, Steps},
};

/// Appends records to `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Opens the file for a run that goes on after `completed_steps` steps: records of later steps, damaged lines and a
    /// torn last line that a killed process left are cut off. Afterwards, the remaining records and the file's name are
    /// on disk.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn open(path: &Path, completed_steps: u64) -> io::Result<Self> {
        Self::open_and_look(path, 0, completed_steps).map(|(file, _)| file)
    }

    /// As [`MetricsFile::open`], without the records of steps before `first`; and what was found.
    ///
    /// # Errors
    /// As [`MetricsFile::open`].
    pub fn open_and_look(path: &Path, first: u64, completed_steps: u64) -> io::Result<(Self, Found)> {
        let mut steps = Steps::default();
        let skipped = journal::keep::<MetricRecord>(path, first, completed_steps, |record| steps.add(record))?;
        Ok((Self { path: path.to_owned(), file: atomic::append(path)? }, Found { skipped, steps }))
    }

    /// Appends one record as one line.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn append(&mut self, record: &MetricRecord) -> io::Result<()> {
        self.file.write_all(&record.to_line()).map_err(named(&self.path))
    }

    /// Waits until every record is on disk, so that nothing written later outlives them in a power loss.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(named(&self.path))
    }
}

/// Reads every whole record; [`journal::read`] says how many lines are left out. A file that is not there has none.
///
/// # Errors
/// Any error of the file system, with the path.
pub fn read(path: &Path) -> io::Result<Vec<MetricRecord>> {
    journal::read(path).map(|(records, _)| records)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;
    use crate::metrics::{REWARD, STEP};

    fn record(step: u64, reward: f64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count(STEP, step).set(REWARD, reward);
        record
    }

    #[test]
    fn a_restart_cuts_off_later_steps_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut file = MetricsFile::open(&path, 0).unwrap();
        for step in 1..=4 {
            file.append(&record(step, 0.1 * step as f64)).unwrap();
        }
        drop(file);
        let mut raw = OpenOptions::new().append(true).open(&path).unwrap();
        raw.write_all(b"{\"step\":5,\"rew\xc3").unwrap();

        assert_eq!(read(&path).unwrap().len(), 4);
        let mut file = MetricsFile::open(&path, 2).unwrap();
        file.append(&record(3, 0.5)).unwrap();
        let steps: Vec<_> = read(&path).unwrap().iter().map(|r| (r.get(STEP), r.get(REWARD))).collect();
        assert_eq!(steps, [(Some(1.0), Some(0.1)), (Some(2.0), Some(0.2)), (Some(3.0), Some(0.5))]);
    }

    #[test]
    fn records_are_brought_to_disk() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(&dir.path().join("metrics.jsonl"), 0).unwrap();
        file.append(&record(1, 0.5)).unwrap();
        file.sync().unwrap();
        // This file is on no disk.
        let nothing = OpenOptions::new().append(true).open("/dev/null").unwrap();
        let nowhere = MetricsFile { path: "/dev/null".into(), file: nothing };
        let error = nowhere.sync().unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains("/dev/null"), "{error}");
    }

    #[test]
    fn what_is_no_finite_number_becomes_null() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        MetricsFile::open(&path, 0).unwrap().append(&record(1, f64::NAN)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1,\"reward\":null}\n");
        assert_eq!(read(&path).unwrap()[0].get(REWARD), None);
    }
}
