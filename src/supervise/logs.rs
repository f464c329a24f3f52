//! Logs with a bound. The processes write to their log themselves, and reward commands with them, so a log that has
//! grown is copied and cut: whoever has it open to append goes on at its beginning.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use shared::files::atomic::{self, named};

use super::Watch;

/// Bytes of a log after which it is turned over.
const FULL: u64 = 16 << 20;
/// Older parts that are kept, `learner.log.1` being the newest.
const KEPT: u32 = 3;

/// The logs of the pair during a session.
#[derive(Debug, Default)]
pub struct Logs {
    /// That one cannot be kept has been told of.
    told: bool,
}

impl Logs {
    /// Turns over those of these logs that are full. What cannot be kept is told of once.
    pub fn turn_over(&mut self, logs: [&Path; 2], watch: &mut dyn Watch) {
        for log in logs {
            let lost = match turn_over(log) {
                Ok(lost) => lost.then(|| "its older lines are lost, since they could not be copied".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = lost.filter(|_| !std::mem::replace(&mut self.told, true)) {
                watch.say(&format!("warning: {}: {what}", log.display()));
            }
        }
    }
}

/// Turns a log over if it is full. Returns whether it was and could not be copied, since the disk is full as well: what
/// stood there is then lost.
///
/// # Errors
/// When the log cannot be cut.
fn turn_over(log: &Path) -> io::Result<bool> {
    turn_over_at(log, FULL)
}

fn turn_over_at(log: &Path, full: u64) -> io::Result<bool> {
    if fs::metadata(log).map_or(0, |file| file.len()) < full {
        return Ok(false);
    }
    for number in (1..KEPT).rev() {
        let _ = fs::rename(part(log, number), part(log, number + 1));
    }
    let newest = part(log, 1);
    let copied = copy(log, &newest);
    if copied.is_err() {
        let _ = fs::remove_file(&newest);
    }
    atomic::append(log)?.set_len(0).map_err(named(log))?;
    Ok(copied.is_err())
}

fn copy(log: &Path, part: &Path) -> io::Result<()> {
    // The oldest part had this name, or somebody has laid something there: it is replaced and not written through.
    atomic::remove_file(part)?;
    let mut part = fs::File::create_new(part)?;
    io::copy(&mut shared_bounds::open(log)?, &mut part).map(drop)
}

fn part(log: &Path, number: u32) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_full_log_is_turned_over_under_the_hands_of_its_writer_and_a_few_parts_stay() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("learner.log");
        let mut writer = fs::File::options().create(true).append(true).open(&log).unwrap();
        for round in 0..6 {
            for line in 0..10 {
                writeln!(writer, "{round} {line}").unwrap();
                turn_over_at(&log, 40).unwrap();
            }
        }
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(text(&log), "");
        assert_eq!(text(&part(&log, 1)), (0..10).map(|line| format!("5 {line}\n")).collect::<String>());
        assert!(text(&part(&log, KEPT)).starts_with("3 0\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1 + KEPT as usize);
    }

    #[test]
    fn a_log_that_cannot_be_copied_is_cut_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("learner.log");
        fs::write(&log, [b'x'; 50]).unwrap();
        // Nothing can be copied to where a folder is.
        fs::create_dir_all(part(&log, 1).join("folder")).unwrap();
        fs::create_dir_all(part(&log, 2).join("folder")).unwrap();
        fs::create_dir_all(part(&log, 3).join("folder")).unwrap();
        assert!(turn_over_at(&log, 40).unwrap());
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
        assert!(!turn_over_at(&log, 40).unwrap());
    }
}
