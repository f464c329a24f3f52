//! The archive: a compressed tar file whose bytes follow from names and contents alone.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, write::GzEncoder};

/// A file of a package.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its path in the package, with slashes.
    pub path: String,
    /// What is in it.
    pub content: Content,
    /// Whether it is run as a program.
    pub is_program: bool,
}

/// The bytes of a file of a package.
#[derive(Debug, Clone)]
pub enum Content {
    /// Those of a file.
    File(PathBuf),
    /// These.
    Bytes(Vec<u8>),
}

impl Entry {
    /// A file that is copied.
    pub fn file(path: impl Into<String>, from: PathBuf) -> Self {
        Self { path: path.into(), content: Content::File(from), is_program: false }
    }

    /// A file with this text.
    pub fn text(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), content: Content::Bytes(text.into().into_bytes()), is_program: false }
    }

    /// The same file below a folder of another package.
    pub fn below(&self, folder: &str) -> Self {
        Self { path: format!("{folder}/{}", self.path), ..self.clone() }
    }

    /// Its number of bytes.
    ///
    /// # Errors
    /// When the file is not there.
    pub fn size(&self) -> Result<u64> {
        match &self.content {
            Content::File(path) => Ok(fs::metadata(path).with_context(|| path.display().to_string())?.len()),
            Content::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Writes its bytes, and returns how many they were.
    ///
    /// # Errors
    /// When the file cannot be read or the target not be written.
    pub fn copy(&self, target: &mut impl Write) -> Result<u64> {
        match &self.content {
            Content::File(path) => {
                let file = File::open(path).with_context(|| path.display().to_string())?;
                // In large pieces: hundreds of megabytes pass here.
                let mut file = BufReader::with_capacity(1 << 20, file);
                io::copy(&mut file, target).with_context(|| path.display().to_string())
            }
            Content::Bytes(bytes) => {
                target.write_all(bytes)?;
                Ok(bytes.len() as u64)
            }
        }
    }
}

/// Size of a block of a tar file.
const BLOCK: usize = 512;
/// Longest name of a file, and longest path of its folder.
const NAME: usize = 100;
const FOLDER: usize = 155;

/// Writes an archive of these files below the folder `root`, all of them changed at `time` (seconds since 1970) and
/// root's.
///
/// # Errors
/// When a file cannot be read, a path is too long, or the disk is full.
pub fn write(entries: &[Entry], root: &str, time: u64, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| to.display().to_string())?;
    let mut tar = GzEncoder::new(BufWriter::new(file), Compression::best());
    let mut entries: Vec<Entry> = entries.iter().map(|entry| entry.below(root)).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    for entry in &entries {
        let size = entry.size()?;
        tar.write_all(&header(&entry.path, size, entry.is_program, time)?)?;
        let written = entry.copy(&mut tar)?;
        ensure!(written == size, "{} changed while it was packed", entry.path);
        let rest = size.next_multiple_of(BLOCK as u64) - size;
        tar.write_all(&vec![0; usize::try_from(rest)?])?;
    }
    tar.write_all(&[0; 2 * BLOCK])?;
    tar.finish().and_then(|mut file| file.flush()).with_context(|| to.display().to_string())
}

/// The header of a file in the format `ustar`, which every tar reads.
fn header(path: &str, size: u64, is_program: bool, time: u64) -> Result<[u8; BLOCK]> {
    let (folder, name) = match path.len() {
        ..=NAME => ("", path),
        _ => path.rsplit_once('/').unwrap_or(("", path)),
    };
    ensure!(name.len() <= NAME && folder.len() <= FOLDER, "{path} is too long a path for an archive");
    ensure!(size < 1 << 33, "{path} is too large for an archive");
    ensure!(time < 1 << 33, "{time} s after 1970 is too late for an archive");
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, if is_program { "0000755\0" } else { "0000644\0" });
    // Owner and group.
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, &format!("{time:011o}\0"));
    // The sum of all bytes, with spaces in its own place.
    put(148, "        ");
    // A plain file.
    put(156, "0");
    put(257, "ustar\x0000");
    put(265, "root");
    put(297, "root");
    put(345, folder);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("library");
        fs::write(&library, vec![7; 1000]).unwrap();
        let long = format!("docs/{}/{}.md", "d".repeat(90), "n".repeat(60));
        let program = Entry { is_program: true, ..Entry::text("bin/tandem", "program") };
        let entries = [program, Entry::file("bin/liba.so", library), Entry::text(long.clone(), "text")];
        let archive = dir.path().join("a.tar.gz");
        write(&entries, "root", 86_400, &archive).unwrap();

        let tar = |words: &[&str]| {
            let mut command = Command::new("tar");
            command.env("TZ", "UTC").args(words).arg("--file").arg(&archive).arg("--directory").arg(dir.path());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let listed = tar(&["--list", "--gzip", "--verbose"]);
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        let first = ["-rw-r--r--", "root/root", "1000", "1970-01-02", "00:00", "root/bin/liba.so"];
        assert_eq!(lines[0], first);
        assert_eq!((lines[1][0], lines[1][5]), ("-rwxr-xr-x", "root/bin/tandem"));
        assert_eq!(lines[2][5], format!("root/{long}"));
        tar(&["--extract", "--gzip"]);
        assert_eq!(fs::read(dir.path().join("root/bin/liba.so")).unwrap(), [7; 1000]);
        assert_eq!(fs::read_to_string(dir.path().join("root").join(long)).unwrap(), "text");
    }

    #[test]
    fn what_an_archive_cannot_hold_is_refused() {
        let long = "n".repeat(NAME + 1);
        assert!(header(&long, 0, false, 0).unwrap_err().to_string().contains("too long a path"));
        assert!(header("a", 1 << 33, false, 0).unwrap_err().to_string().contains("too large"));
        assert!(header("a", 0, false, 1 << 33).unwrap_err().to_string().contains("too late"));
    }
}
