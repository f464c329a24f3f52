//! Requests to an endpoint in OpenAI's forms.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use ureq::{
    Agent,
    http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER, USER_AGENT},
};

/// The name of this program, as servers read it.
const AGENT: &str = concat!("tandem/", env!("CARGO_PKG_VERSION"));

/// Longest answer, in bytes.
const LONGEST: u64 = 4 << 20;

/// How long a request may take where no deadline is set.
const PATIENCE: Duration = Duration::from_secs(120);

/// The pause before the second attempt; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// Longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Characters of a refusal that a message quotes.
const QUOTED: usize = 200;

/// An answer of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Whether `max_tokens` ended it.
    pub is_cut: bool,
    /// Tokens of question and answer, as the endpoint counts them; 0 where it does not.
    pub tokens: u64,
}

/// Why an attempt gave no answer.
enum Attempt {
    /// Another one would end the same way.
    ForGood(String),
    /// Another one may help, after so much time where the server says it.
    Again(String, Option<Duration>),
    /// The time is over.
    Late,
}

/// A client of an endpoint.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    url: String,
    model: String,
    key: Option<String>,
    max_tokens: usize,
    retries: u32,
}

impl Client {
    /// A client of the model `model` at `base_url`, with its key where there is one.
    ///
    /// # Errors
    /// An address that is not of the web.
    pub fn new(
        base_url: &str,
        model: &str,
        key: Option<String>,
        max_tokens: usize,
        retries: u32,
    ) -> Result<Self, String> {
        if !base_url.starts_with("http://") && !base_url.starts_with("https://") {
            return Err(format!("`judge_base_url` must begin with http:// or https://, and it is {base_url}"));
        }
        // A redirect would take the key to another address.
        let agent = Agent::config_builder().max_redirects(0).http_status_as_error(false).build().into();
        let url = format!("{}/chat/completions", base_url.trim_end_matches('/'));
        Ok(Self { agent, url, model: model.to_owned(), key, max_tokens, retries })
    }

    /// What the model says to a text. Attempts end with the deadline.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn ask(&self, text: &str, deadline: Option<Instant>) -> Result<Answer, String> {
        let way_out = if deadline.is_some() { ": raise `reward_timeout`" } else { "" };
        let deadline = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let (mut pause, mut attempt) = (PAUSE, 0);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let times = if attempt == 0 { String::new() } else { format!(", also at attempt {}", attempt + 1) };
            let (reason, wanted) = match self.attempt(text, left) {
                Ok(answer) => return Ok(answer),
                Err(Attempt::ForGood(reason)) => return Err(reason),
                Err(Attempt::Again(reason, wanted)) => (reason, wanted),
                Err(Attempt::Late) => return Err(format!("no answer from {} in time{times}{way_out}", self.url)),
            };
            let wait = wanted.unwrap_or(pause).min(LONGEST_PAUSE);
            if attempt >= self.retries {
                return Err(format!("{reason}{times}"));
            }
            if Instant::now() + wait >= deadline {
                let late = match wanted {
                    Some(wanted) => format!("it asks for a pause of {} s, beyond the deadline", wanted.as_secs()),
                    None => "there is no time for another attempt".to_owned(),
                };
                return Err(format!("{reason}{times}; {late}{way_out}"));
            }
            thread::sleep(wait);
            pause *= 2;
            attempt += 1;
        }
    }

    fn attempt(&self, text: &str, left: Duration) -> Result<Answer, Attempt> {
        if left.is_zero() {
            return Err(Attempt::Late);
        }
        let content = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        });
        let mut request = self.agent.post(&self.url).header(USER_AGENT, AGENT).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let sent = request.config().timeout_global(Some(left)).build().send(content.to_string().as_bytes());
        let lost = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => Attempt::Late,
            error => Attempt::Again(format!("no answer from {}: {error}", self.url), None),
        };
        let mut response = sent.map_err(lost)?;
        let status = response.status();
        let wanted = response.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let address = response.headers().get(LOCATION).and_then(|address| address.to_str().ok().map(str::to_owned));
        let body = response.body_mut().with_config().limit(LONGEST).read_to_string().map_err(lost)?;
        if let Some(address) = address.filter(|_| status.is_redirection()) {
            return Err(Attempt::ForGood(format!(
                "{} answered {}: it has moved to {}; `judge_base_url` needs that address, without /chat/completions",
                self.url,
                status.as_u16(),
                address.chars().take(QUOTED).collect::<String>()
            )));
        }
        if !status.is_success() {
            let said: Value = serde_json::from_str(&body).unwrap_or_default();
            let said = said["error"]["message"].as_str().unwrap_or(body.trim()).chars().take(QUOTED);
            let reason = format!("{} answered {}: {}", self.url, status.as_u16(), said.collect::<String>());
            let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 409 | 425 | 429);
            return Err(match may_pass {
                true => Attempt::Again(reason, wanted.map(Duration::from_secs)),
                false => Attempt::ForGood(reason),
            });
        }
        answer(&body).ok_or_else(|| {
            let quoted: String = body.trim().chars().take(QUOTED).collect();
            Attempt::ForGood(format!("{} answered `{quoted}`, which has no text of an assistant", self.url))
        })
    }
}

/// The answer of a chat completion.
fn answer(body: &str) -> Option<Answer> {
    let said: Value = serde_json::from_str(body).ok()?;
    let choice = &said["choices"][0];
    let text = choice["message"]["content"].as_str()?.to_owned();
    Some(Answer {
        text,
        is_cut: choice["finish_reason"] == "length",
        tokens: said["usage"]["total_tokens"].as_u64().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_answer_is_survived() {
        let seeds = [
            r#"{"choices": [{"message": {"role": "assistant", "content": "Score: 3"}}], "usage": {"total_tokens": 9}}"#,
            r#"{"choices": []}"#,
            r#"{"choices": [{"message": {"content": null}}], "usage": {"total_tokens": -1}}"#,
        ];
        assert_eq!(answer(seeds[0]), Some(Answer { text: "Score: 3".to_owned(), is_cut: false, tokens: 9 }));
        assert_eq!((answer(seeds[1]), answer(seeds[2])), (None, None));
        harness::fuzz::explore("judge_answers", &seeds.map(|seed| seed.as_bytes().to_vec()), |bytes| {
            let _ = answer(&String::from_utf8_lossy(bytes));
        });
    }
}
