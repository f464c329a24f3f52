//! What a server says, fit for a message.

use std::time::Duration;

use serde_json::Value;

/// Most characters of a server's words that are repeated.
const MOST: usize = 300;

/// Most bytes of an answer that are read.
pub(super) const MOST_ANSWER: u64 = 256 << 20;

/// An answer that was read.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The Hub's word for the kind of a refusal.
    pub code: String,
    /// The server's words, without the token.
    pub words: String,
    /// When the server wants to be asked again.
    pub later: Option<Duration>,
    /// The tag of a part that was stored.
    pub etag: String,
    /// The content.
    pub body: Vec<u8>,
}

impl Reply {
    /// Whether it is what was asked for.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether another attempt may end better.
    pub fn is_passing(&self) -> bool {
        self.status == 429 || self.status >= 500
    }
}

/// The words of a server for what it refuses: those of its header, else those in its JSON, in one line, without the
/// token.
pub(super) fn words(header: &str, body: &[u8], token: Option<&str>) -> String {
    let of_body = || -> Option<String> {
        let json: Value = serde_json::from_slice(body).ok()?;
        let found = ["error", "message"].into_iter().find_map(|key| {
            let said = &json[key];
            said.as_str().or_else(|| said["message"].as_str()).map(str::to_owned)
        });
        found.or_else(|| json["errors"][0]["message"].as_str().map(str::to_owned))
    };
    let said = if header.is_empty() { of_body().unwrap_or_default() } else { header.to_owned() };
    let mut said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(token) = token.filter(|token| !token.is_empty()) {
        said = said.replace(token, "…");
    }
    if said.is_empty() {
        return "without words".to_owned();
    }
    match said.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &said[..at]),
        None => said,
    }
}

/// How long to wait by the headers of an answer: `Retry-After` in seconds, or `t` of `RateLimit`.
pub(super) fn later(retry_after: &str, rate_limit: &str) -> Option<Duration> {
    let of_limit = || rate_limit.split([';', ',']).find_map(|part| part.trim().strip_prefix("t=")?.trim().parse().ok());
    retry_after.trim().parse().ok().or_else(of_limit).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_words_are_one_line_without_the_token() {
        let of = |header: &str, body: &str| words(header, body.as_bytes(), Some("hf_secret"));
        assert_eq!(of("no\n hf_secret  here", "{}"), "no … here");
        assert_eq!(of("", "{\"error\": \"a\"}"), "a");
        assert_eq!(of("", "{\"error\": {\"message\": \"b\"}}"), "b");
        assert_eq!(of("", "{\"message\": \"c\"}"), "c");
        assert_eq!(of("", "{\"errors\": [{\"message\": \"d\"}]}"), "d");
        assert_eq!(of("", "<html>"), "without words");
        assert_eq!(of(&"ä".repeat(400), "").chars().count(), MOST + 1);
    }

    #[test]
    fn times_to_wait_are_those_of_both_headers() {
        assert_eq!(later("7", ""), Some(Duration::from_secs(7)));
        assert_eq!(later("", "\"api\";r=0;t=55"), Some(Duration::from_secs(55)));
        assert_eq!(later("soon", "x"), None);
    }
}
