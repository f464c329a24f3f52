//! Hashes of files, in the forms that the Hub gives.

use std::{
    io::{self, Read, Write},
    path::Path,
};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A content's hash, as the Hub gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256, of files in large-file storage.
    Sha256(String),
    /// Git's object id of the content, for all other files.
    Git(String),
}

impl Hash {
    /// In hexadecimal digits, the Hub's name for the content.
    pub fn text(&self) -> &str {
        let (Self::Sha256(text) | Self::Git(text)) = self;
        text
    }

    /// Whether a file has that content.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_of(&self, path: &Path) -> io::Result<bool> {
        let mut file = shared_bounds::open(path)?;
        let length = file.metadata()?.len();
        let found = match self {
            Self::Sha256(_) => Self::sha256_of(&mut file)?,
            Self::Git(_) => Self::git_of(&mut file, length)?,
        };
        Ok(found.same_as(self))
    }

    /// The SHA-256 of a content.
    ///
    /// # Errors
    /// A content that cannot be read.
    pub fn sha256_of(content: &mut dyn Read) -> io::Result<Self> {
        digest(Sha256::new(), content).map(Self::Sha256)
    }

    /// Git's object id of a content of this length.
    ///
    /// # Errors
    /// A content that cannot be read.
    pub fn git_of(content: &mut dyn Read, length: u64) -> io::Result<Self> {
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {length}\0"));
        digest(hasher, content).map(Self::Git)
    }

    /// Whether both are the same hash of the same kind.
    pub fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sha256(one), Self::Sha256(two)) | (Self::Git(one), Self::Git(two)) => one.eq_ignore_ascii_case(two),
            (Self::Sha256(_), Self::Git(_)) | (Self::Git(_), Self::Sha256(_)) => false,
        }
    }
}

fn digest<D: Digest + Write>(mut hasher: D, content: &mut dyn Read) -> io::Result<String> {
    io::copy(content, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of `git hash-object` and `sha256sum`.
    #[test]
    fn hashes_are_those_of_git_and_sha256() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "hello\n").unwrap();
        let git = |text: &str| Hash::Git(text.to_owned()).is_of(&path).unwrap();
        assert!(git("ce013625030ba8dba906f756967f9e9ca394464a") && !git("ce013625030ba8dba906f756967f9e9ca394464b"));
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert!(Hash::Sha256(sha.to_uppercase()).is_of(&path).unwrap());
        assert!(!Hash::Sha256(sha.replace('5', "6")).is_of(&path).unwrap());
    }
}
