//! Settings of the Hub from the environment: the variables of Hugging Face's own library.

use std::{
    env,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::error::without_secrets;

/// The Hub's address, the cache, and the user's token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `HF_ENDPOINT`, without a slash at its end.
    pub endpoint: String,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `huggingface` of `XDG_CACHE_HOME` or `~/.cache`.
    pub cache: PathBuf,
    /// `HF_TOKEN`, or the content of the file `HF_TOKEN_PATH`, or of `token` in `HF_HOME`.
    pub token: Option<String>,
    /// Why the token's file exists but cannot be read.
    pub unread: Option<String>,
    /// The variable that forbids the network: `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
    pub offline: Option<&'static str>,
    /// How long a download may be silent: `HF_HUB_DOWNLOAD_TIMEOUT`, in seconds.
    pub patience: Duration,
}

/// Most bytes of a token's file.
const MOST_TOKEN: u64 = 1 << 16;

/// More than the 10 s of Hugging Face's library, as here a timeout ends a download.
const PATIENCE: Duration = Duration::from_secs(60);

impl Settings {
    /// The settings in the environment of this process.
    #[must_use]
    pub fn from_env() -> Self {
        Self::of(|name| env::var(name).ok())
    }

    /// The Hub's address for messages.
    pub(crate) fn shown_endpoint(&self) -> String {
        without_secrets(&self.endpoint)
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let path = |name: &str| given(name).map(PathBuf::from);
        let caches = || path("XDG_CACHE_HOME").unwrap_or_else(|| path("HOME").unwrap_or_default().join(".cache"));
        let home = path("HF_HOME").unwrap_or_else(|| caches().join("huggingface"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let (token, unread) = match given("HF_TOKEN") {
            Some(token) => (Some(token), None),
            None => saved(&token_file),
        };
        let yes = |text: String| ["1", "on", "yes", "true"].contains(&text.to_ascii_lowercase().as_str());
        let seconds = given("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
        Self {
            endpoint: given("HF_ENDPOINT")
                .map_or_else(|| "https://huggingface.co".to_owned(), |text| text.trim_end_matches('/').to_owned()),
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            token: token.filter(|token| !token.is_empty()),
            unread,
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter().find(|name| given(name).is_some_and(yes)),
            patience: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(PATIENCE),
        }
    }
}

/// The token of a file; or why there is none though the file exists.
fn saved(file: &Path) -> (Option<String>, Option<String>) {
    match shared_bounds::read_text(file, MOST_TOKEN) {
        Ok(text) => (Some(text.trim().to_owned()), None),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => (None, None),
        Err(error) => (None, Some(format!("{} {error}", file.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Settings {
        Settings::of(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn variables_are_those_of_hugging_faces_library() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        std::fs::write(dir.path().join("token"), "saved\n").unwrap();
        let bare = of(&[("HOME", "/u")]);
        assert_eq!((bare.endpoint.as_str(), bare.token, bare.offline), ("https://huggingface.co", None, None));
        assert_eq!((bare.cache, bare.patience), ("/u/.cache/huggingface/hub".into(), PATIENCE));
        let there = of(&[("HF_HOME", home), ("HF_ENDPOINT", "http://mirror/"), ("TRANSFORMERS_OFFLINE", "True")]);
        assert_eq!((there.cache, there.token.as_deref()), (dir.path().join("hub"), Some("saved")));
        assert_eq!((there.endpoint.as_str(), there.offline), ("http://mirror", Some("TRANSFORMERS_OFFLINE")));
        let named = [
            ("HF_HOME", home),
            ("HF_HUB_CACHE", "/cache"),
            ("HF_TOKEN", "own"),
            ("HF_HUB_OFFLINE", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0.5"),
        ];
        let named = of(&named);
        assert_eq!((named.cache, named.token.as_deref(), named.offline), ("/cache".into(), Some("own"), None));
        assert_eq!(named.patience, Duration::from_millis(500));
    }

    #[test]
    fn a_file_of_a_token_that_cannot_be_read_is_named() {
        let read = |place: &str| {
            let settings = of(&[("HF_TOKEN_PATH", place)]);
            (settings.token, settings.unread)
        };
        assert_eq!(read("/no/such/token"), (None, None));
        assert_eq!(read("/dev/zero"), (None, Some("/dev/zero is a pipe or device, not a file".to_owned())));
        assert_eq!(of(&[("HF_TOKEN_PATH", "/dev/zero"), ("HF_TOKEN", "own")]).unread, None);
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("token");
        std::fs::write(&long, "x".repeat(1 << 17)).unwrap();
        let (token, unread) = read(long.to_str().unwrap());
        assert!(token.is_none() && unread.unwrap().contains("at most 65536 are read"));
    }
}
