//! Groups in a file: frames of the channel, each behind its length.
//!
//! In a checkpoint of a run with `max_staleness`, such a file holds what was in flight at the sampler: groups that the
//! learner had not trained on, by their positions, each one with its finished completions. A kept step holds its groups
//! with their places.

use std::{
    io::{self, Write},
    path::Path,
};

use super::{
    RunId,
    frame::{self, FrameError, Kept},
};
use crate::files::atomic;

/// Largest file that is read as a whole. Written files are far smaller.
const MOST_BYTES: u64 = 4 << 30;

/// Bytes before each frame: its length, little-endian.
const LENGTH: usize = 8;

/// A file of groups that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GroupsError {
    /// The file is missing, or the system does not give it.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is larger than any that is written.
    #[error("has {0} bytes, more than any such file")]
    TooLarge(u64),
    /// The file ends too early.
    #[error("ends within a group")]
    CutOff,
    /// A group is damaged, or of another version of this program.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Writes groups in one visible step; returns the hash of the file.
///
/// # Errors
/// Any error of the file system.
pub fn write_groups<'a, M: Kept + 'a>(path: &Path, groups: impl IntoIterator<Item = &'a M>) -> io::Result<[u8; 32]> {
    let (mut hasher, mut frame) = (blake3::Hasher::new(), Vec::new());
    atomic::write_with(path, |file| {
        for group in groups {
            frame::encode_into(group, RunId::NONE, &mut frame);
            for bytes in [&(frame.len() as u64).to_le_bytes()[..], &frame] {
                hasher.update(bytes);
                file.write_all(bytes)?;
            }
        }
        Ok::<_, io::Error>(())
    })?;
    Ok(*hasher.finalize().as_bytes())
}

/// Reads a file of [`write_groups`]; one of any content is safe to pass.
///
/// # Errors
/// The fault of the file.
pub fn read_groups<M: Kept>(path: &Path) -> Result<Vec<M>, GroupsError> {
    let length = path.metadata()?.len();
    if length > MOST_BYTES {
        return Err(GroupsError::TooLarge(length));
    }
    let bytes = shared_bounds::read(path, MOST_BYTES)?;
    let (mut rest, mut groups) = (bytes.as_slice(), Vec::new());
    while let Some((length, tail)) = rest.split_first_chunk::<LENGTH>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (frame, tail) = tail.split_at_checked(length).ok_or(GroupsError::CutOff)?;
        groups.push(frame::decode_kept(frame)?);
        rest = tail;
    }
    if rest.is_empty() { Ok(groups) } else { Err(GroupsError::CutOff) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Group, files::run_dir::IN_FLIGHT_FILE, generation::testing};

    #[test]
    fn groups_come_back_and_a_damaged_file_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(IN_FLIGHT_FILE);
        let group = |index: u32| {
            let completions = (0..index).map(|sample| testing::completion(sample, vec![1; 9])).collect();
            testing::group(index.into(), completions)
        };
        let groups: Vec<Group> = (0..4).map(group).collect();
        let hash = write_groups(&path, &groups).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(hash, *blake3::hash(&bytes).as_bytes());
        assert_eq!(read_groups::<Group>(&path).unwrap(), groups);
        for at in [0, 4, 7, 8, 20, 100, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            fs::write(&path, damaged).unwrap();
            assert!(read_groups::<Group>(&path).is_err(), "a bit of byte {at} is another");
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(read_groups::<Group>(&path).is_err() || at == 0, "cut behind {at} bytes");
        }
        write_groups::<Group>(&path, []).unwrap();
        assert_eq!(read_groups::<Group>(&path).unwrap(), []);
        fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert!(matches!(read_groups::<Group>(&path).unwrap_err(), GroupsError::TooLarge(_)));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read_groups::<Group>(&path).unwrap_err(), GroupsError::Io(_)));
    }
}
