//! Files that are read as a whole.

use std::{
    fs::{Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Reads a file of at most `most` bytes. What is no file, such as a pipe or `/dev/zero`, may never end, and is not opened
/// for longer than it takes to see that; only what was handed to the process itself, such as `/dev/stdin` or `<(...)` of a
/// shell, may be a pipe.
///
/// # Errors
/// Those of the file system; that it is no file; that it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let handed_over = path == Path::new("/dev/stdin") || path.starts_with("/dev/fd");
    // Opening a device may do something, and a socket cannot be opened.
    let is_file =
        |metadata: &Metadata| metadata.is_file() || metadata.is_dir() || handed_over && metadata.file_type().is_fifo();
    let refusal = |metadata: &Metadata| {
        let is_socket = metadata.file_type().is_socket();
        let reason = if is_socket { "is a socket, not a file" } else { "is a pipe or device, not a file" };
        io::Error::new(ErrorKind::InvalidInput, reason)
    };
    let before = path.metadata()?;
    if !is_file(&before) {
        return Err(refusal(&before));
    }
    // Without this, opening a pipe waits for whoever may write into it.
    let flags = if handed_over { 0 } else { libc::O_NONBLOCK };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !is_file(&metadata) {
        return Err(refusal(&metadata));
    }
    let mut bytes = Vec::new();
    if metadata.len() <= most {
        bytes.reserve_exact(metadata.len() as usize);
        // It may be growing.
        file.take(most + 1).read_to_end(&mut bytes)?;
    }
    if metadata.len().max(bytes.len() as u64) > most {
        let reason = format!("is {} bytes long, and at most {most} are read", metadata.len().max(most + 1));
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// As [`read`], for text.
///
/// # Errors
/// As [`read`], or text that is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(ErrorKind::InvalidData, "is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::fd::AsRawFd};

    use super::*;

    #[test]
    fn a_pipe_that_the_process_was_given_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"abc").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_text(Path::new(&path), 3).unwrap(), "abc");
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_what_is_no_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "abc").unwrap();
        assert_eq!(read_text(&path, 3).unwrap(), "abc");
        let error = read(&path, 2).unwrap_err();
        assert_eq!(error.to_string(), "is 3 bytes long, and at most 2 are read");
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 3).unwrap_err().to_string(), "is not UTF-8 text");

        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), Path::new("/dev/tty")] {
            assert_eq!(read(path, 3).unwrap_err().to_string(), "is a pipe or device, not a file");
        }
        assert_eq!(read(&socket, 3).unwrap_err().to_string(), "is a socket, not a file");
        assert_eq!(read(dir.path(), 3).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(read(&dir.path().join("none"), 3).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
