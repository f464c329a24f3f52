//! What a program or library for x86-64 Linux needs from other libraries, read from its file.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

/// Size of the header of a section, and of an entry of the dynamic section.
const SECTION: usize = 64;
const ENTRY: usize = 16;
/// Types of sections.
const DYNAMIC: u32 = 6;
const VERSIONS_NEEDED: u32 = 0x6fff_fffe;
/// Tags of entries of the dynamic section.
const END: u64 = 0;
const NEEDED: u64 = 1;
const RUN_PATH: u64 = 29;

/// A symbol version that a file needs of a library, such as `GLIBC_2.34` of `libc.so.6`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The library that has it.
    pub library: String,
    /// Its name.
    pub name: String,
}

/// The content of a file in the executable and linkable format.
#[derive(Debug, Clone, Copy)]
pub struct Elf<'a>(&'a [u8]);

/// A section, as its header describes it.
#[derive(Debug, Clone, Copy)]
struct Section {
    kind: u32,
    offset: usize,
    size: usize,
    /// The section with its texts.
    link: usize,
    /// How many entries it has, where sections say so.
    count: usize,
}

impl<'a> Elf<'a> {
    /// Takes a file of 64 bits, with the lowest byte first.
    ///
    /// # Errors
    /// When it is another file.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "it is no ELF file for x86-64");
        Ok(Self(bytes))
    }

    /// Names of the libraries that it is linked with.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn needed(self) -> Result<Vec<String>> {
        let places = self.dynamic(NEEDED)?;
        places.into_iter().map(|place| self.text(place)).collect()
    }

    /// Where in the file the folders stand in which it looks for libraries (RUNPATH); nowhere if it has none.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn run_path(self) -> Result<Option<Range<usize>>> {
        let Some(&place) = self.dynamic(RUN_PATH)?.first() else { return Ok(None) };
        Ok(Some(place..place + self.text(place)?.len()))
    }

    /// The symbol versions that it needs.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn versions(self) -> Result<Vec<Version>> {
        let mut found = Vec::new();
        for (section, texts) in self.sections(VERSIONS_NEEDED)? {
            let mut at = section.offset;
            for _ in 0..section.count {
                let library = self.text(texts + self.word(at + 4)?)?;
                let mut version = at + self.word(at + 8)?;
                for _ in 0..self.half(at + 2)? {
                    let name = self.text(texts + self.word(version + 8)?)?;
                    found.push(Version { library: library.clone(), name });
                    version += self.word(version + 12)?;
                }
                at += self.word(at + 12)?;
            }
        }
        Ok(found)
    }

    /// Places of the texts that entries of the dynamic section with that tag name.
    fn dynamic(self, tag: u64) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        for (section, texts) in self.sections(DYNAMIC)? {
            for at in (section.offset..section.offset + section.size).step_by(ENTRY) {
                let found = self.long(at)?;
                if found == END {
                    break;
                }
                if found == tag {
                    places.push(texts + self.size(at + 8)?);
                }
            }
        }
        Ok(places)
    }

    /// The sections of a type, each with the place of its texts.
    fn sections(self, kind: u32) -> Result<Vec<(Section, usize)>> {
        let count = self.half(0x3c)?;
        let sections = (0..count).map(|index| self.section(index)).collect::<Result<Vec<Section>>>()?;
        let with_texts = |section: &Section| -> Result<(Section, usize)> {
            let texts = sections.get(section.link).context("a section names another one that is not there")?;
            Ok((*section, texts.offset))
        };
        sections.iter().filter(|section| section.kind == kind).map(with_texts).collect()
    }

    fn section(self, index: usize) -> Result<Section> {
        let at = self.size(0x28)?.saturating_add(index * SECTION);
        let (offset, size) = (self.size(at + 0x18)?, self.size(at + 0x20)?);
        let kind = u32::try_from(self.word(at + 4)?).context("a word has four bytes")?;
        let is_in_file = kind != DYNAMIC && kind != VERSIONS_NEEDED
            || offset.checked_add(size).is_some_and(|end| end <= self.0.len());
        ensure!(is_in_file, "a section goes beyond the end of the file");
        Ok(Section { kind, offset, size, link: self.word(at + 0x28)?, count: self.word(at + 0x2c)? })
    }

    fn text(self, at: usize) -> Result<String> {
        let rest = self.0.get(at..).context("a text is beyond the end of the file")?;
        let end = rest.iter().position(|byte| *byte == 0).context("a text has no end")?;
        Ok(str::from_utf8(&rest[..end]).context("a name is no UTF-8")?.to_owned())
    }

    fn bytes<const N: usize>(self, at: usize) -> Result<[u8; N]> {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk());
        found.copied().context("the file is cut off")
    }

    fn half(self, at: usize) -> Result<usize> {
        Ok(u16::from_le_bytes(self.bytes(at)?).into())
    }

    fn word(self, at: usize) -> Result<usize> {
        Ok(u32::from_le_bytes(self.bytes(at)?) as usize)
    }

    fn long(self, at: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(at)?))
    }

    /// A number that must lie within the file; so sums of two never overflow.
    fn size(self, at: usize) -> Result<usize> {
        let number = usize::try_from(self.long(at)?).unwrap_or(usize::MAX);
        Ok(number.min(usize::MAX / 4))
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    /// The program of this very test.
    fn own() -> Vec<u8> {
        fs::read(env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn libraries_and_versions_of_a_program_are_read() {
        let bytes = own();
        let elf = Elf::new(&bytes).unwrap();
        assert!(elf.needed().unwrap().iter().any(|name| name == "libc.so.6"));
        let versions = elf.versions().unwrap();
        // The first version of glibc for the processor.
        let first = if cfg!(target_arch = "aarch64") { "GLIBC_2.17" } else { "GLIBC_2.2.5" };
        let of_libc = Version { library: "libc.so.6".to_owned(), name: first.to_owned() };
        assert!(versions.contains(&of_libc), "{versions:?}");
        let is_whole = |version: &Version| {
            let (name, number) = version.name.rsplit_once('_').unwrap();
            !name.is_empty() && number.split('.').all(|part| part.parse::<u32>().is_ok())
        };
        assert!(versions.iter().all(is_whole), "{versions:?}");
    }

    #[test]
    fn other_and_damaged_files_are_refused() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF\x01\x01\x01\x00"] {
            assert!(Elf::new(bytes).unwrap_err().to_string().contains("no ELF file"));
        }
        let bytes = own();
        for length in [8, 63, bytes.len() / 2] {
            let elf = Elf::new(&bytes[..length]).unwrap();
            assert!(elf.versions().is_err() && elf.needed().is_err(), "{length}");
        }
        // Headers that lead far outside.
        let mut bytes = bytes;
        bytes[0x28..0x30].fill(0xff);
        assert!(Elf::new(&bytes).unwrap().versions().is_err());
    }
}
