//! The content of a file that is pushed.

use std::{
    fs::File,
    io::{self, Cursor, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

/// A file to push.
#[derive(Debug, Clone)]
pub struct PushFile {
    name: String,
    content: Content,
    size: u64,
}

#[derive(Debug, Clone)]
enum Content {
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

impl PushFile {
    /// A file on disk, under a name in the repository.
    ///
    /// # Errors
    /// A path that leads to no file.
    pub fn of_path(name: impl Into<String>, path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let size = shared_bounds::open(&path)?.metadata()?.len();
        Ok(Self { name: name.into(), content: Content::File(path), size })
    }

    /// A content that is made here.
    #[must_use]
    pub fn of_bytes(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Self { name: name.into(), size: bytes.len() as u64, content: Content::Bytes(bytes) }
    }

    /// Its path in the repository.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All bytes.
    ///
    /// # Errors
    /// A file that cannot be read, or that has another length by now.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader(0, self.size)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// `length` bytes, from a position on.
    ///
    /// # Errors
    /// A file that cannot be opened. Reading fails where the file ends early.
    pub(super) fn reader(&self, from: u64, length: u64) -> io::Result<Exactly> {
        let inner: Box<dyn Read + Send> = match &self.content {
            Content::Bytes(bytes) => {
                let mut cursor = Cursor::new(Arc::clone(bytes));
                cursor.set_position(from);
                Box::new(cursor)
            }
            Content::File(path) => {
                let mut file: File = shared_bounds::open(path)?;
                file.seek(SeekFrom::Start(from))?;
                Box::new(file)
            }
        };
        Ok(Exactly { inner, left: length })
    }
}

/// A reader of a known number of bytes. A file that became shorter meanwhile is an error, as whoever was promised the
/// length would wait for the rest.
pub(super) struct Exactly {
    inner: Box<dyn Read + Send>,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.inner.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter meanwhile"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_file_is_read_and_a_file_that_has_shrunk_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "0123456789").unwrap();
        for file in [PushFile::of_path("f", &path).unwrap(), PushFile::of_bytes("f", *b"0123456789")] {
            assert_eq!((file.name(), file.size()), ("f", 10));
            let mut part = String::new();
            file.reader(3, 4).unwrap().read_to_string(&mut part).unwrap();
            assert_eq!(part, "3456");
        }
        let file = PushFile::of_path("f", &path).unwrap();
        std::fs::write(&path, "0123").unwrap();
        assert!(file.bytes().unwrap_err().to_string().contains("has become shorter"));
        assert!(PushFile::of_path("f", dir.path()).is_err() && PushFile::of_path("f", "/dev/zero").is_err());
    }
}
