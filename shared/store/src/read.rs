//! Reading of objects: whole, or a range of one.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt as _, path::PathBuf};

use futures_util::TryStreamExt as _;
use object_store::{GetOptions, GetRange, GetResultPayload, path::Path};

use crate::{Doing, Store, StoreError, Watch, error::of_file, store::About};

/// The answer to a request for an object.
enum Answer {
    /// A file of this host, which the caller reads.
    File(File, PathBuf, Range<u64>),
    /// The bytes are in the buffer.
    Here,
    /// The object has more bytes than allowed.
    TooMany,
}

impl Store {
    /// Reads an object of at most `most` bytes.
    pub(crate) fn read_whole(&self, object: &Path, most: usize, watch: &dyn Watch) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        self.read(object, None, &mut bytes, most, watch)?;
        Ok(bytes)
    }

    /// Reads a range into a buffer, and returns the length of the whole object. The buffer has fewer bytes if the
    /// object ends before.
    pub(crate) fn read_range(
        &self,
        object: &Path,
        range: Range<u64>,
        buffer: &mut Vec<u8>,
        watch: &dyn Watch,
    ) -> Result<u64, StoreError> {
        let most = (range.end - range.start) as usize;
        self.read(object, Some(GetRange::Bounded(range)), buffer, most, watch)
    }

    fn read(
        &self,
        object: &Path,
        range: Option<GetRange>,
        buffer: &mut Vec<u8>,
        most: usize,
        watch: &dyn Watch,
    ) -> Result<u64, StoreError> {
        let about = About { doing: Doing::Reading, object };
        let too_many = || self.corrupted(object, format!("it has more than {most} bytes"));
        let (length, answer) = self.ask(about, watch, async {
            let found = self.objects().get_opts(object, GetOptions { range, ..GetOptions::default() }).await?;
            let answer = match found.payload {
                GetResultPayload::File(file, path) => Answer::File(file, path, found.range),
                GetResultPayload::Stream(mut stream) => {
                    buffer.clear();
                    loop {
                        match stream.try_next().await? {
                            None => break Answer::Here,
                            Some(bytes) if buffer.len() + bytes.len() > most => break Answer::TooMany,
                            Some(bytes) => buffer.extend_from_slice(&bytes),
                        }
                    }
                }
            };
            Ok((found.meta.size, answer))
        })?;
        match answer {
            Answer::Here => Ok(length),
            Answer::TooMany => Err(too_many()),
            Answer::File(_, _, range) if range.end - range.start > most as u64 => Err(too_many()),
            Answer::File(file, path, range) => match read_at(&file, range, buffer) {
                Ok(()) => Ok(length),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(self.corrupted(object, "it became shorter")),
                Err(e) => Err(of_file(&path, e)),
            },
        }
    }
}

/// Reads a range of a file into a buffer, which then has the size of the range.
pub fn read_at(file: &File, range: Range<u64>, buffer: &mut Vec<u8>) -> io::Result<()> {
    // Not cleared: bytes that are overwritten anyway need not be zeros before.
    buffer.resize((range.end - range.start) as usize, 0);
    file.read_exact_at(buffer, range.start)
}
