//! Metric records: one flat JSON object per step in `metrics.jsonl`, with TRL's keys.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use serde_json::{Map, Value};

/// A flat set of named numbers, in insertion order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricRecord {
    values: Map<String, Value>,
}

impl MetricRecord {
    /// Adds a number. A value that is no finite number is stored as `null`, since JSON has no word for it.
    pub fn set(&mut self, key: impl Into<String>, value: f64) -> &mut Self {
        self.values.insert(key.into(), serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number));
        self
    }

    /// Adds a whole number.
    pub fn count(&mut self, key: impl Into<String>, value: u64) -> &mut Self {
        self.values.insert(key.into(), value.into());
        self
    }

    /// The number under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<f64> {
        self.values.get(key).and_then(Value::as_f64)
    }

    /// All keys and values.
    #[must_use]
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The record that a line of the file holds; nothing when the line is torn or no JSON object.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<Self> {
        match serde_json::from_slice(line) {
            Ok(Value::Object(values)) => Some(Self { values }),
            _ => None,
        }
    }

    fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self.values).expect("a map of numbers is valid JSON");
        line.push(b'\n');
        line
    }

    /// Takes over every entry of another record.
    pub fn extend(&mut self, other: Self) {
        self.values.extend(other.values);
    }
}

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
        let known = if path.exists() { read(path)? } else { Vec::new() };
        let kept: Vec<u8> = known
            .into_iter()
            .filter(|r| r.get("step").is_some_and(|s| s <= completed_steps as f64))
            .flat_map(|r| r.to_line())
            .collect();
        crate::atomic::write(path, &kept)?;
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

/// Reads every whole record; a torn last line is left out.
///
/// # Errors
/// Any error of the file system.
pub fn read(path: &Path) -> io::Result<Vec<MetricRecord>> {
    Ok(fs::read(path)?.split(|byte| *byte == b'\n').filter_map(MetricRecord::from_line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64, reward: f64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count("step", step).set("reward", reward);
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
        let steps: Vec<_> = read(&path).unwrap().iter().map(|r| (r.get("step"), r.get("reward"))).collect();
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
        assert_eq!(read(&path).unwrap()[0].get("reward"), None);
    }
}
