//! Room in shared memory. A file there may be larger than the memory that is left: the system notices only when a
//! process touches a page that it cannot give, and ends the process with SIGBUS. So the room is checked beforehand, and
//! the pages are taken before anything is written to them.

use std::{
    cell::Cell,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use crate::{
    channel::ChannelError,
    files::atomic,
    system::memory::{SHARED_MEMORY, Size},
};

/// Most bytes of a topic's ports and the connection between two of them, without the frames.
const FIXED: u64 = 1 << 20;
/// How long a living process may need from creating a segment to giving it a size; normally microseconds.
const SIZING: Duration = Duration::from_millis(100);

/// The segments of a run whose names begin with this.
pub(super) fn segments(prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).map(|e| e.path()).collect()
}

/// Removes segments without a size, and returns whether there were any: their creator was killed, or the system refused
/// it the size. iceoryx2 0.10 waits for that size without a time limit, both at the other end and when it clears away a
/// dead process.
pub(super) fn remove_unsized(prefix: &str) -> bool {
    let unsized_segments = || {
        let empty = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0);
        segments(prefix).into_iter().filter(empty).collect::<Vec<_>>()
    };
    let mut suspects = unsized_segments();
    if suspects.is_empty() {
        return false;
    }
    thread::sleep(SIZING);
    let still = unsized_segments();
    suspects.retain(|path| still.contains(path));
    for path in &suspects {
        tracing::debug!("removing {}, which never got a size", path.display());
        let _ = fs::remove_file(path);
    }
    !suspects.is_empty()
}

/// The room of one port.
#[derive(Debug)]
pub(super) struct Room {
    prefix: String,
    /// Number of ports at the other end, and length of the longest frame, for which there is room.
    taken: Cell<(usize, usize)>,
}

impl Room {
    /// Checks the room for a port that is about to be made, with `frames` frames of `length` bytes.
    pub fn new(prefix: &str, frames: usize, length: usize) -> Result<Self, ChannelError> {
        require(FIXED + bytes(frames, length))?;
        Ok(Self { prefix: prefix.to_owned(), taken: Cell::new((0, length)) })
    }

    /// Lets `work` use a port with `peers` ports at the other end, for a frame of `length` bytes. If either number is
    /// larger than before, segments are made or grow: the room for them is checked, and their pages are taken before
    /// anybody writes there.
    pub fn with<T>(
        &self,
        peers: usize,
        (frames, length): (usize, usize),
        work: impl FnOnce() -> Result<T, ChannelError>,
    ) -> Result<T, ChannelError> {
        let (known, longest) = self.taken.get();
        let longer = length > longest;
        if !longer && peers <= known {
            self.taken.set((peers, longest));
            return work();
        }
        require(FIXED + if longer { bytes(frames, length) } else { 0 })?;
        let done = work()?;
        self.take()?;
        self.taken.set((peers, longest.max(length)));
        Ok(done)
    }

    /// Takes the pages of all segments of the run. None of them may be without a size: iceoryx2 would make a port
    /// without its connection, and never try again.
    pub fn take(&self) -> Result<(), ChannelError> {
        if remove_unsized(&self.prefix) {
            return Err(ChannelError::Transport(format!(
                "a segment in {SHARED_MEMORY} got no size: files may be too small here (`ulimit -f`), or a process was \
                 killed while it made the segment"
            )));
        }
        for path in segments(&self.prefix) {
            // A segment that was removed meanwhile needs no room.
            let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            if metadata.blocks() * 512 >= metadata.len() {
                continue;
            }
            // Where the system cannot allocate pages, the check beforehand must suffice.
            let taken = fallocate(&file, FallocateFlags::empty(), 0, metadata.len());
            if let Err(Errno::NOSPC | Errno::NOMEM) = taken {
                return Err(full(metadata.len()));
            }
        }
        Ok(())
    }
}

/// A segment has a place for every frame that waits, is lent or is being written; sizes are powers of two.
fn bytes(frames: usize, length: usize) -> u64 {
    (frames as u64 + 4) * (length as u64).next_power_of_two()
}

fn require(bytes: u64) -> Result<(), ChannelError> {
    let free = atomic::free_space(Path::new(SHARED_MEMORY)).map_err(|e| ChannelError::Transport(e.to_string()))?;
    if bytes > free { Err(full(bytes)) } else { Ok(()) }
}

fn full(bytes: u64) -> ChannelError {
    let free = atomic::free_space(Path::new(SHARED_MEMORY)).unwrap_or(0);
    ChannelError::Transport(format!(
        "{SHARED_MEMORY} is full: {} are needed and {} are free; enlarge it (docker run --shm-size=1g), or remove what \
         dead runs left there (`tandem doctor --remove-leftovers`)",
        Size(bytes),
        Size(free)
    ))
}
