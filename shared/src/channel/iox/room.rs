//! Room in shared memory. A file there may be larger than what is left of the memory: the system notices when a page is
//! touched that it cannot give, and ends the process with SIGBUS. So there is asked beforehand whether there is room, and the
//! pages are taken before anything is written to them.

use std::{
    cell::Cell,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use crate::{
    atomic,
    channel::ChannelError,
    memory::{SHARED_MEMORY, Size},
};

/// What the ports of a topic and the connection between two of them take at most, besides the frames.
const FIXED: u64 = 1 << 20;

/// The segments of a run whose names begin with this.
pub(super) fn segments(prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).map(|e| e.path()).collect()
}

/// The room of one port.
#[derive(Debug)]
pub(super) struct Room {
    prefix: String,
    /// Ports at the other end, and the longest frame, that there is room for.
    taken: Cell<(usize, usize)>,
}

impl Room {
    /// Asks for the room of a port that is about to be made, with `frames` of `length` bytes.
    pub fn new(prefix: &str, frames: usize, length: usize) -> Result<Self, ChannelError> {
        require(FIXED + bytes(frames, length))?;
        Ok(Self { prefix: prefix.to_owned(), taken: Cell::new((0, length)) })
    }

    /// Has `work` make use of a port with so many `peers` at the other end, for a frame of `length` bytes. If either is more
    /// than before, segments are made or grow: there must be room for them, and it is taken before anybody writes there.
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

    /// Takes the pages of all segments of the run.
    pub fn take(&self) -> Result<(), ChannelError> {
        for path in segments(&self.prefix) {
            // One that is gone meanwhile needs none.
            let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
            let Ok(metadata) = file.metadata() else { continue };
            if metadata.blocks() * 512 >= metadata.len() {
                continue;
            }
            // Where the system cannot do this, the question beforehand has to be enough.
            let taken = fallocate(&file, FallocateFlags::empty(), 0, metadata.len());
            if let Err(Errno::NOSPC | Errno::NOMEM) = taken {
                return Err(full(metadata.len()));
            }
        }
        Ok(())
    }
}

/// A segment has a place for every frame that waits, is lent or is being written, in sizes of powers of two.
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
        "{SHARED_MEMORY} is full: {} are needed and {} are free; enlarge it (docker run --shm-size=1g), or remove what dead \
         runs left there (`tandem doctor --remove-leftovers`)",
        Size(bytes),
        Size(free)
    ))
}
