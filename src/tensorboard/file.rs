//! Event files: records of a length, its checksum, an event and its checksum (tensorflow/core/lib/io/record_writer.h).

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read, Write},
    iter,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use prost::Message;
use shared::{files::atomic::named, run::disk_room::EVENTS_PREFIX as PREFIX};

use super::proto::{Event, FILE_VERSION, START, SessionLog, Summary, Value};

/// An event file that is being written.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
    written: u64,
}

impl EventFile {
    /// Begins a file whose steps from `first` on replace those of earlier files in TensorBoard.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn create(folder: &Path, first: u64) -> io::Result<Self> {
        let host = sysinfo::System::host_name().unwrap_or_else(|_| "localhost".to_owned());
        let process = std::process::id();
        // TensorBoard reads the files in the order of their names.
        let newest = files(folder)?.last().and_then(|path| began(path)).unwrap_or(0);
        let seconds = (now() as u64).max(newest + 1);
        let path = folder.join(format!("{PREFIX}{seconds:010}.{host}.{process}"));
        // The file is new, so never a link.
        let file = OpenOptions::new().append(true).create_new(true).open(&path).map_err(named(&path))?;
        let mut file = Self { path, file, written: 0 };
        file.write(&Event { file_version: Some(FILE_VERSION.into()), ..Event::default() })?;
        file.restart(first)?;
        Ok(file)
    }

    /// Voids everything from a step on.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn restart(&mut self, first: u64) -> io::Result<()> {
        let session_log = Some(SessionLog { status: START });
        self.write(&Event { step: first as i64, session_log, ..Event::default() })
    }

    /// Adds the values of a step.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn add(&mut self, step: u64, value: Vec<Value>) -> io::Result<()> {
        if value.is_empty() {
            return Ok(());
        }
        self.write(&Event { step: step as i64, summary: Some(Summary { value }), ..Event::default() })
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let event = Event { wall_time: now(), ..event.clone() }.encode_to_vec();
        let length = (event.len() as u64).to_le_bytes();
        let record = [&length[..], &checksum(&length), &event, &checksum(&event)].concat();
        self.written += record.len() as u64;
        self.file.write_all(&record).map_err(named(&self.path))
    }

    /// Bytes in the file.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// The event files of a folder in TensorBoard's order.
///
/// # Errors
/// When the folder cannot be listed.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(named(folder))? {
        let entry = entry?;
        // Opening a pipe of that name would never end.
        if entry.file_type()?.is_file() && entry.file_name().to_string_lossy().starts_with(PREFIX) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Whole events of a file, one at a time; the rest behind a torn or damaged event is left out.
///
/// # Errors
/// When the file cannot be opened.
pub fn read(path: &Path) -> io::Result<impl Iterator<Item = Event> + use<>> {
    let mut file = BufReader::new(shared_bounds::open(path).map_err(named(path))?);
    Ok(iter::from_fn(move || next(&mut file)))
}

fn next(file: &mut impl Read) -> Option<Event> {
    let (mut length, mut sum, mut event_sum) = ([0; 8], [0; 4], [0; 4]);
    file.read_exact(&mut length).ok()?;
    file.read_exact(&mut sum).ok()?;
    if checksum(&length) != sum {
        return None;
    }
    let mut event = Vec::new();
    file.take(u64::from_le_bytes(length)).read_to_end(&mut event).ok()?;
    file.read_exact(&mut event_sum).ok()?;
    (checksum(&event) == event_sum).then(|| Event::decode(&*event).ok()).flatten()
}

/// CRC-32C, masked as TensorFlow masks it.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Seconds since 1970, from the name of a file.
fn began(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_up_to_what_is_torn() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(dir.path(), 3).unwrap();
        file.add(3, vec![Value::scalar("train/reward".into(), 0.0)]).unwrap();
        file.add(4, Vec::new()).unwrap();
        file.add(4, vec![Value::texts("samples".into(), vec!["a".into()])]).unwrap();
        let path = &files(dir.path()).unwrap()[0];
        let events: Vec<Event> = read(path).unwrap().collect();
        assert_eq!(events.iter().map(|event| event.step).collect::<Vec<_>>(), [0, 3, 3, 4]);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!(events[2].summary.as_ref().unwrap().value[0].simple_value, Some(0.0), "0 is a value");
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(path).unwrap().count(), 3);
        let mut flipped = bytes.clone();
        flipped[20] ^= 1;
        fs::write(path, &flipped).unwrap();
        assert_eq!(read(path).unwrap().count(), 0);
    }

    #[test]
    fn a_later_file_comes_later() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(format!("{PREFIX}9999999999"))).unwrap();
        (0..3).for_each(|first| drop(EventFile::create(dir.path(), first).unwrap()));
        let starts: Vec<i64> =
            files(dir.path()).unwrap().iter().map(|path| read(path).unwrap().nth(1).unwrap().step).collect();
        assert_eq!(starts, [0, 1, 2]);
    }

    #[test]
    fn checksums_are_tensorflows() {
        // The length 24, with which every file begins that starts with "brain.Event:2" and a time.
        assert_eq!(checksum(&24_u64.to_le_bytes()), [0xa3, 0x7f, 0x4b, 0x22]);
    }
}
