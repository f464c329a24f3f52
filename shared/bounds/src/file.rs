//! Opening and reading of regular files. A pipe, a device or a link in the place of a file is refused at once.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Opens a file for reading, whatever its length. A pipe or a device such as `/dev/zero` may never end, and is not kept
/// open for longer than it takes to see its kind; only a path that was handed to the process itself, such as
/// `/dev/stdin` or `<(...)` of a shell, may be a pipe.
///
/// # Errors
/// Those of the file system; also a path that leads to no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let handed_over = path == Path::new("/dev/stdin") || path.starts_with("/dev/fd");
    // Opening a device may do something, and a socket cannot be opened.
    let before = path.metadata()?;
    if !(before.is_dir() || handed_over && before.file_type().is_fifo()) {
        require_file(&before)?;
    }
    // Without this, opening a pipe waits for a writer.
    let flags = if handed_over { 0 } else { libc::O_NONBLOCK };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| in_words(error, path.metadata()))?;
    let metadata = file.metadata()?;
    if handed_over && metadata.file_type().is_fifo() {
        return Ok(file);
    }
    require_file(&metadata)?;
    Ok(file)
}

/// Opens a file of the program's own to append to it, and makes the file if it is missing. The call follows no link: in
/// a folder of somebody else's, a link may lead to a file of the user's.
///
/// # Errors
/// Those of the file system; a link, a pipe or anything else that is no file.
pub fn append(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = OpenOptions::new().create(true).append(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| in_words(error, fs::symlink_metadata(path)))?;
    require_file(&file.metadata()?)?;
    Ok(file)
}

/// Refuses a path that must not be replaced by a file: anything that exists and is no regular file. Links are not
/// followed.
///
/// # Errors
/// Those of the file system; a link, a pipe, a device or a folder.
pub fn require_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) => require_file(&metadata),
    }
}

/// What a path leads to, if it is no regular file, in words that follow its name.
#[must_use]
pub fn what_is_no_file(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_symlink() {
        Some("is a link, which is not written through; remove it, or put a file in its place")
    } else if kind.is_dir() {
        Some("is a folder, not a file")
    } else if kind.is_socket() {
        Some("is a socket, not a file")
    } else {
        Some("is a pipe or device, not a file")
    }
}

fn require_file(metadata: &Metadata) -> io::Result<()> {
    match what_is_no_file(metadata) {
        None => Ok(()),
        Some(_) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Some(what) => Err(io::Error::new(ErrorKind::InvalidInput, what)),
    }
}

/// The system's error about a link, a pipe without a reader, a socket or a missing device, in words that name what is
/// `there`.
fn in_words(error: io::Error, there: io::Result<Metadata>) -> io::Error {
    if !matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO)) {
        return error;
    }
    match there.map(|there| require_file(&there)) {
        Ok(Err(what)) => what,
        _ => error,
    }
}

/// Reads a file of at most `most` bytes. As with [`open`], it must be a regular file.
///
/// # Errors
/// Those of [`open`]; a file that is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let metadata = file.metadata()?;
    let mut bytes = Vec::new();
    if metadata.len() <= most {
        bytes.reserve_exact(metadata.len() as usize);
        // The file may be growing.
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
/// As [`read`]; also text that is not UTF-8.
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

    #[test]
    fn what_a_program_writes_of_its_own_is_a_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "abc").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        append(&at("file")).unwrap().write_all(b"def").unwrap();
        append(&at("new")).unwrap().write_all(b"def").unwrap();
        assert_eq!((fs::read(at("file")).unwrap(), fs::read(at("new")).unwrap()), (b"abcdef".into(), b"def".into()));
        for (name, words) in [
            ("link", "a link"),
            ("dangling", "a link"),
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("folder", "irectory"),
        ] {
            let errors = [append(&at(name)).map(drop), require_replaceable(&at(name))];
            for error in errors.map(|result| result.unwrap_err().to_string()) {
                assert!(error.contains(words), "{name}: {error}");
            }
        }
        assert!(append(Path::new("/dev/null")).is_err());
        assert!(!at("none").exists(), "nothing is made through a link");
        require_replaceable(&at("file")).unwrap();
        require_replaceable(&at("absent")).unwrap();
        assert_eq!(open(&at("socket")).unwrap_err().to_string(), "is a socket, not a file");
        assert_eq!(open(&at("link")).unwrap().metadata().unwrap().len(), 6, "a link may be read through");
    }
}
