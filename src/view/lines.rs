//! A growing file of lines, each of which is read once.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// What is new in a file.
pub enum News<'a> {
    /// The file was replaced by one that does not continue it: what was read of it no longer holds.
    Anew,
    /// A whole line, with its end.
    Line(&'a [u8]),
}

/// A file that is followed as it grows.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    inode: u64,
    offset: u64,
    /// The last line that was read. A new file may have the inode of a deleted one, so the line must still be there.
    last: Vec<u8>,
}

impl Lines {
    /// Follows a file that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, inode: 0, offset: 0, last: Vec::new() }
    }

    /// Hands over what was added since. A line without its end is still being written.
    ///
    /// # Errors
    /// Any error of the file system but that there is no file.
    pub fn refresh(&mut self, mut take: impl FnMut(News<'_>)) -> io::Result<()> {
        let mut file = match shared_bounds::open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let metadata = file.metadata()?;
        // A restarted learner writes the file anew, without the steps that it will make again.
        if metadata.ino() != self.inode || metadata.len() < self.offset || !self.goes_on(&mut file)? {
            if self.inode != 0 {
                take(News::Anew);
            }
            *self = Self { inode: metadata.ino(), ..Self::new(std::mem::take(&mut self.path)) };
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut lines = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            self.last.clone_from(&line);
            take(News::Line(&line));
            line.clear();
        }
        Ok(())
    }

    /// Whether a file still has the last line that was read, in its place.
    fn goes_on(&self, file: &mut File) -> io::Result<bool> {
        let mut there = vec![0; self.last.len()];
        file.seek(SeekFrom::Start(self.offset - self.last.len() as u64))?;
        file.read_exact(&mut there)?;
        Ok(there == self.last)
    }
}
