//! The finished prompts of an evaluation, kept beside its output until the output is whole, so that an interrupted
//! evaluation goes on.
//!
//! A line of JSON identifies the evaluation. Behind it is an entry for each finished prompt: the seconds that had gone
//! by (eight bytes, little-endian), then the group as a frame of the channel, whose checksum shows a torn entry.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use shared::{
    Scored,
    channel::{
        RunId,
        frame::{self, FrameError},
    },
    files::atomic,
};

/// Bytes of the seconds before each frame.
const SECONDS: usize = 8;

/// The file beside `output`.
fn beside(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Refuses, before any work is done, everything that [`Journal::open`] would refuse for any evaluation.
///
/// # Errors
/// With the flag, the path and the way out.
pub fn check(output: &Path, resume: bool) -> anyhow::Result<()> {
    let (shown, partial) = (output.display(), beside(output));
    if resume {
        ensure!(!atomic::is_special(output), "--resume needs a file as --output, and {shown} is none");
        ensure!(
            partial.exists() || !output.exists(),
            "--resume: {shown} is whole, and there is no {} to go on with; leave --resume out to make it anew",
            partial.display()
        );
    } else {
        ensure!(
            !partial.exists(),
            "--output {shown}: an evaluation of it was interrupted; --resume goes on with it, or remove {} to begin \
             anew",
            partial.display()
        );
    }
    Ok(())
}

/// Keeps groups as they are done.
pub struct Journal {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// Seconds of the sessions before.
    seconds: f64,
}

impl Journal {
    /// Begins a journal for `output`, or goes on with the one of the same evaluation, and returns also the finished
    /// groups of that one. `identity` has everything by which evaluations differ, by name.
    ///
    /// # Errors
    /// The journal of another evaluation, with the difference; another process that uses it; any error of the file
    /// system.
    pub fn open(output: &Path, identity: &Map<String, Value>) -> anyhow::Result<(Self, Vec<Scored>)> {
        let path = beside(output);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let opened = file.with_context(|| path.display().to_string())?;
        match opened.try_lock() {
            Err(TryLockError::WouldBlock) => bail!("{}: another process is writing it", path.display()),
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| path.display().to_string()),
            Ok(()) => {}
        }
        let mut journal = Self { path, file: opened, buffer: Vec::new(), seconds: 0.0 };
        let groups = journal.take_up(identity).with_context(|| journal.path.display().to_string())?;
        Ok((journal, groups))
    }

    fn take_up(&mut self, identity: &Map<String, Value>) -> anyhow::Result<Vec<Scored>> {
        let bytes = fs::read(&self.path)?;
        let line = bytes.iter().position(|&byte| byte == b'\n').map(|end| bytes.split_at(end + 1));
        let Some((line, mut rest)) = line else {
            // Nothing was done yet.
            self.file.set_len(0)?;
            serde_json::to_writer(&mut self.file, identity)?;
            self.file.write_all(b"\n")?;
            return Ok(Vec::new());
        };
        let found: Map<String, Value> = serde_json::from_slice(line).context("is not of an evaluation")?;
        if let Some(difference) = difference(&found, identity) {
            bail!(
                "is of an evaluation with another {difference}; name what that was made with, name another --output, \
                 or remove the file to begin anew"
            );
        }
        let mut groups = Vec::new();
        while let Some((seconds, frame, tail)) = entry(rest) {
            match frame::decode_kept(frame) {
                Ok(group) => groups.push(group),
                Err(error @ FrameError::Version { .. }) => {
                    bail!("{error}; go on with the build that wrote it, or remove the file to begin anew")
                }
                // The last entry has its full length, but not all of its bytes have reached the disk.
                Err(_) => break,
            }
            self.seconds = seconds;
            rest = tail;
        }
        if !rest.is_empty() {
            tracing::info!("{}: its last {} bytes are torn and cut off", self.path.display(), rest.len());
        }
        let whole = (bytes.len() - rest.len()) as u64;
        self.file.set_len(whole)?;
        self.file.seek(SeekFrom::Start(whole))?;
        Ok(groups)
    }

    /// Seconds of the sessions before this one.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Appends a finished prompt, `seconds` after this session's begin.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn append(&mut self, group: &Scored, seconds: f64) -> anyhow::Result<()> {
        frame::encode_into(group, RunId::NONE, &mut self.buffer);
        self.buffer.splice(..0, (self.seconds + seconds).to_le_bytes());
        self.file.write_all(&self.buffer).with_context(|| self.path.display().to_string())
    }

    /// Removes the journal, once the output is whole.
    ///
    /// # Errors
    /// Any error of the file system, with the path.
    pub fn finish(self) -> io::Result<()> {
        atomic::remove_file(&self.path)
    }
}

/// Seconds and frame of the first entry, and the bytes behind it; `None` where the entry is incomplete.
fn entry(bytes: &[u8]) -> Option<(f64, &[u8], &[u8])> {
    let (seconds, rest) = bytes.split_first_chunk::<SECONDS>()?;
    let (frame, rest) = rest.split_at_checked(frame::length_of(rest)?)?;
    Some((f64::from_le_bytes(*seconds), frame, rest))
}

/// The first difference between two evaluations: `seed: 5, now 6`.
fn difference(before: &Map<String, Value>, now: &Map<String, Value>) -> Option<String> {
    let absent = Value::Null;
    let of = |map: &Map<String, Value>, key: &str| map.get(key).unwrap_or(&absent).clone();
    let key = now.keys().chain(before.keys()).find(|key| of(before, key) != of(now, key))?;
    Some(format!("{key}: {}, now {}", of(before, key), of(now, key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::generation::testing;

    use super::*;

    fn identity(seed: u64) -> Map<String, Value> {
        json!({ "model": "a1", "seed": seed }).as_object().unwrap().clone()
    }

    fn group(index: u32) -> Scored {
        testing::group(index.into(), vec![testing::completion(0, vec![index; 9])]).into()
    }

    #[test]
    fn groups_come_back_up_to_where_the_file_is_torn() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out.jsonl");
        let (mut journal, groups) = Journal::open(&output, &identity(1)).unwrap();
        assert_eq!(groups, []);
        let begin = beside(&output).metadata().unwrap().len() as usize;
        for index in 0..3 {
            journal.append(&group(index), f64::from(index)).unwrap();
        }
        drop(journal);
        let whole = fs::read(beside(&output)).unwrap();
        let of_each = (whole.len() - begin) / 3;
        for cut in begin..=whole.len() {
            fs::write(beside(&output), &whole[..cut]).unwrap();
            let (mut journal, groups) = Journal::open(&output, &identity(1)).unwrap();
            let there = (cut - begin) / of_each;
            assert_eq!(groups, (0..there as u32).map(group).collect::<Vec<_>>(), "{cut}");
            assert_eq!(journal.seconds(), there.saturating_sub(1) as f64, "{cut}");
            journal.append(&group(7), 1.0).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&output, &identity(1)).unwrap().1.last(), Some(&group(7)), "{cut}");
        }
        for cut in 0..begin {
            fs::write(beside(&output), &whole[..cut]).unwrap();
            drop(Journal::open(&output, &identity(2)).unwrap());
            assert_eq!(Journal::open(&output, &identity(2)).unwrap().1, [], "cut within the first line");
        }
    }

    #[test]
    fn entries_of_older_builds_are_read_and_those_of_newer_ones_are_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out.jsonl");
        drop(Journal::open(&output, &identity(1)).unwrap());
        let line = fs::read(beside(&output)).unwrap();
        let entries = |frame: &[u8]| [&line[..], &1.0_f64.to_le_bytes(), frame, &2.5_f64.to_le_bytes(), frame].concat();
        for frame in [testing::GROUP_OF_8, testing::GROUP_OF_9] {
            fs::write(beside(&output), entries(&testing::bytes(frame))).unwrap();
            let (journal, groups) = Journal::open(&output, &identity(1)).unwrap();
            assert_eq!((groups.len(), groups[1].prompt_id.0, journal.seconds()), (2, 7, 2.5));
        }
        let mut newer = frame::encode(&group(0));
        newer[4..6].copy_from_slice(&(frame::FRAME_VERSION + 1).to_le_bytes());
        let there = entries(&newer);
        fs::write(beside(&output), &there).unwrap();
        let refused = format!("{:#}", Journal::open(&output, &identity(1)).err().unwrap());
        assert!(
            refused.contains(&format!("frame version {}", frame::FRAME_VERSION + 1))
                && refused.contains("remove the file"),
            "{refused}"
        );
        assert_eq!(fs::read(beside(&output)).unwrap(), there, "nothing is cut off");
    }

    #[test]
    fn another_evaluation_and_another_process_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("out.jsonl");
        check(&output, false).unwrap();
        let (journal, _) = Journal::open(&output, &identity(1)).unwrap();
        let refusal = |seed| format!("{:#}", Journal::open(&output, &identity(seed)).err().unwrap());
        assert!(refusal(1).contains("out.jsonl.partial: another process is writing it"));
        assert!(check(&output, false).unwrap_err().to_string().contains("--resume goes on with it"));
        check(&output, true).unwrap();
        drop(journal);
        assert!(refusal(2).contains("out.jsonl.partial: is of an evaluation with another seed: 1, now 2"));
        let (journal, _) = Journal::open(&output, &identity(1)).unwrap();
        fs::write(&output, "").unwrap();
        journal.finish().unwrap();
        assert!(check(&output, true).unwrap_err().to_string().contains("is whole"));
        assert!(check(Path::new("/dev/null"), true).unwrap_err().to_string().contains("needs a file"));
    }
}
