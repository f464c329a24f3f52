//! The secret token that coordinator and workers share.

use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use crate::FleetError;

/// zenoh wants a user name with it.
pub(crate) const USER: &str = "tandem";
/// Most bytes of a token.
const MOST: u64 = 4096;
/// A shorter token can be guessed by trying.
const SAFE: usize = 16;

/// The token. It is never shown.
pub(crate) struct Token(String);

impl Token {
    /// Reads a file with a token on one line. Warns of a token that others can read or guess.
    pub(crate) fn read(option: &'static str, path: &Path) -> Result<Self, FleetError> {
        let wrong = |reason: String| FleetError::File { option, path: path.into(), reason };
        let text = shared_bounds::read_text(path, MOST).map_err(|e| wrong(e.to_string()))?;
        let word = text.trim();
        if word.is_empty() {
            return Err(wrong(
                "it is empty; write a long random word into it, as `openssl rand -hex 32` makes one".into(),
            ));
        }
        if word.chars().any(char::is_control) {
            return Err(wrong("it has more than one line; the word is to be the only one".into()));
        }
        let others = fs::metadata(path).map_err(|e| wrong(e.to_string()))?.mode() & 0o077;
        if others != 0 {
            tracing::warn!("{option} {}: others on this host can read the token; `chmod 600` it", path.display());
        }
        if word.len() < SAFE {
            tracing::warn!(
                "{option} {}: a token of fewer than {SAFE} characters can be found by trying; write a longer one",
                path.display()
            );
        }
        Ok(Self(word.to_owned()))
    }

    /// The token, for the configuration of a worker's session.
    pub(crate) fn word(&self) -> &str {
        &self.0
    }

    /// The list of users and tokens that a coordinator's session reads when it is opened: an unnamed file that only
    /// this process can read, and that ends with it.
    pub(crate) fn dictionary(&self) -> io::Result<fs::File> {
        let mut file = tempfile::tempfile()?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        writeln!(file, "{USER}:{}", self.0)?;
        Ok(file)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn read(content: &str) -> Result<Token, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, content).unwrap();
        Token::read("`token_file`", &path).map_err(|e| e.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn a_token_is_one_line_that_nothing_shows() {
        let token = read("\n  open sesame: 1 \n").unwrap();
        assert_eq!(token.word(), "open sesame: 1");
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_eq!(
            read(" \n").unwrap_err(),
            "`token_file` FILE: it is empty; write a long random word into it, as `openssl rand -hex 32` makes one"
        );
        assert_eq!(
            read("a\nb\n").unwrap_err(),
            "`token_file` FILE: it has more than one line; the word is to be the only one"
        );
        let missing = Token::read("--token-file", Path::new("/nowhere/token")).unwrap_err().to_string();
        assert_eq!(missing, "--token-file /nowhere/token: No such file or directory (os error 2)");
    }

    #[test]
    fn the_list_for_zenoh_has_no_name_and_is_for_this_user_alone() {
        let file = read("sesame").unwrap().dictionary().unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.nlink()), (0o600, 0));
        let through = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(fs::read_to_string(through).unwrap(), "tandem:sesame\n");
    }
}
