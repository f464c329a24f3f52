//! The files of metric records, one JSON object per line.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

use super::{MetricRecord, STEP};
use crate::atomic;

/// Appends records to `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsFile(File);

impl MetricsFile {
    /// Opens the file for a run that goes on after `completed_steps` steps: records of later steps and a torn last
    /// line, left by a process that was killed, are cut off. What is kept is on disk afterwards, as is the file's name.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open(path: &Path, completed_steps: u64) -> io::Result<Self> {
        let is_known = |record: MetricRecord| record.get(STEP).is_some_and(|step| step <= completed_steps as f64);
        atomic::keep_lines(path, |line| MetricRecord::from_line(line).is_some_and(is_known))?;
        Ok(Self(OpenOptions::new().append(true).open(path)?))
    }

    /// Appends one record as one line.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn append(&mut self, record: &MetricRecord) -> io::Result<()> {
        self.0.write_all(&record.to_line())
    }

    /// Waits until every record is on disk, so that nothing that is written afterwards outlives them in a power loss.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Shows every whole record, one at a time: a long run has a long past. A torn last line is left out.
///
/// # Errors
/// Any error of the file system.
pub fn for_each(path: &Path, mut show: impl FnMut(MetricRecord)) -> io::Result<()> {
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        MetricRecord::from_line(&line?).into_iter().for_each(&mut show);
    }
    Ok(())
}

/// Reads every whole record; a torn last line is left out.
///
/// # Errors
/// Any error of the file system.
pub fn read(path: &Path) -> io::Result<Vec<MetricRecord>> {
    let mut records = Vec::new();
    for_each(path, |record| records.push(record))?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::metrics::REWARD;

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
        // No disk is behind this one.
        let nowhere = MetricsFile(OpenOptions::new().append(true).open("/dev/null").unwrap());
        assert_eq!(nowhere.sync().unwrap_err().kind(), io::ErrorKind::InvalidInput);
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
