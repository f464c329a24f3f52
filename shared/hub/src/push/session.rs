//! Requests of one push, tried again where that helps.

use std::{
    io::{self, Read},
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use ureq::{Body, http::Response};

use super::{
    MAIN, PushError, PushOrder,
    words::{MOST_ANSWER, Reply, later, words},
};
use crate::{
    Hub,
    error::without_secrets,
    request::{Client, RequestError},
};

/// How often a request is made that comes to nothing.
pub(super) const ATTEMPTS: u32 = 4;

/// Time before the second attempt; each further one waits twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time that a server may ask to wait: the Hub counts requests in windows of five minutes.
const LONGEST: Duration = Duration::from_secs(300);

/// Waiting for so long is told.
const WORTH_TELLING: Duration = Duration::from_secs(10);

/// How long the Hub may take for an answer, without the content that is sent.
const ANSWER: Duration = Duration::from_secs(60);

/// Bytes of a request's content that take a second on a slow line.
const SLOW: u64 = 50_000;

/// How often a wait looks whether the user has had enough.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// An attempt without an answer.
#[derive(Debug)]
pub(super) enum Trial {
    /// Another attempt would end the same way.
    Final(PushError),
    /// Another attempt may end better.
    Passing {
        /// What happened.
        reason: String,
        /// Where, if redirects have led elsewhere.
        elsewhere: Option<String>,
    },
}

impl Trial {
    /// What happened where the request was sent to.
    pub fn passing(reason: String) -> Self {
        Self::Passing { reason, elsewhere: None }
    }
}

/// One push.
pub(super) struct Session<'a> {
    pub hub: &'a Hub,
    pub order: &'a PushOrder<'a>,
    pub client: Client,
    pub bar: ProgressBar,
}

impl<'a> Session<'a> {
    pub fn new(hub: &'a Hub, order: &'a PushOrder<'a>) -> Self {
        let bar = ProgressBar::no_length();
        let style = "{msg} {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        bar.set_message(order.repo.to_owned());
        let client = Client::new(&hub.settings.endpoint, hub.settings.token.clone());
        Self { hub, order, client, bar }
    }

    /// The Hub's address for messages.
    pub fn endpoint(&self) -> String {
        self.hub.settings.shown_endpoint()
    }

    /// The page of the branch.
    pub fn page(&self) -> String {
        let PushOrder { repo, revision, .. } = self.order;
        let tree = if *revision == MAIN { String::new() } else { format!("/tree/{revision}") };
        format!("{}/{repo}{tree}", self.endpoint())
    }

    /// A path of the Hub's routes for the repository.
    pub fn api(&self, rest: &str) -> String {
        format!("/api/models/{}{rest}", self.order.repo)
    }

    /// The branch as a part of a path.
    pub fn revision(&self) -> String {
        // Its other characters need no escape.
        self.order.revision.replace('/', "%2F")
    }

    pub fn token(&self) -> Option<&str> {
        self.hub.settings.token.as_deref()
    }

    /// The owner of the repository, and its name.
    pub fn owner_and_name(&self) -> (&str, &str) {
        self.order.repo.split_once('/').expect("the name was checked")
    }

    /// The Hub's answer to a question.
    pub fn get(&self, what: &str, path: &str) -> Result<Reply, PushError> {
        self.persistently(what, &self.endpoint(), &mut || self.read(what, self.client.get(path, &[], Some(ANSWER))))
    }

    /// The Hub's answer to JSON, by a path of its own or at an address that it has named.
    pub fn post_json(&self, what: &str, to: &str, content: &Value) -> Result<Reply, PushError> {
        self.post(what, to, &[("Content-Type", "application/json")], content.to_string().as_bytes())
    }

    /// As [`Session::post_json`], for other contents.
    pub fn post(&self, what: &str, to: &str, headers: &[(&str, &str)], content: &[u8]) -> Result<Reply, PushError> {
        let place = if to.starts_with('/') { self.endpoint() } else { without_secrets(to) };
        self.persistently(what, &place, &mut || self.post_once(what, to, headers, content))
    }

    /// One attempt of [`Session::post`].
    pub fn post_once(&self, what: &str, to: &str, headers: &[(&str, &str)], content: &[u8]) -> Result<Reply, Trial> {
        let within = ANSWER + Duration::from_secs(content.len() as u64 / SLOW);
        self.read(what, self.client.post(to, headers, content, within))
    }

    fn read(&self, what: &str, response: Result<Response<Body>, RequestError>) -> Result<Reply, Trial> {
        let reply = read(response, self.token());
        reply.map_err(|error| self.trial(what, error))
    }

    /// What an attempt without an answer means.
    pub fn trial(&self, what: &str, error: NoReply) -> Trial {
        match error {
            NoReply::Request(error) if error.is_for_good() => Trial::Final(PushError::Answer {
                what: what.to_owned(),
                endpoint: self.endpoint(),
                reason: error.to_string(),
            }),
            NoReply::Request(RequestError::Elsewhere { to, error }) => {
                Trial::Passing { reason: error.to_string(), elsewhere: Some(to) }
            }
            NoReply::Request(error) => Trial::passing(error.to_string()),
            NoReply::Io(error) => Trial::passing(error.to_string()),
        }
    }

    /// Tries until there is an answer that another attempt would not better.
    pub fn persistently(
        &self,
        what: &str,
        place: &str,
        once: &mut dyn FnMut() -> Result<Reply, Trial>,
    ) -> Result<Reply, PushError> {
        let (what_, place_) = (|| what.to_owned(), || place.to_owned());
        let mut attempt = 1;
        loop {
            let is_last = attempt == ATTEMPTS;
            let mut wait = pause_after(attempt);
            match once() {
                Ok(reply) if !reply.is_passing() => return Ok(reply),
                Ok(Reply { later: Some(later), .. }) if later > LONGEST => {
                    return Err(PushError::Later { what: what_(), endpoint: place_(), seconds: later.as_secs() });
                }
                Ok(Reply { status, words: reason, .. }) if is_last => {
                    return Err(PushError::Busy { what: what_(), place: place_(), status, reason, times: attempt });
                }
                Ok(reply) => wait = reply.later.unwrap_or(wait),
                Err(Trial::Final(error)) => return Err(error),
                Err(Trial::Passing { reason, elsewhere }) if is_last => {
                    let place = elsewhere.unwrap_or_else(place_);
                    return Err(PushError::Cut { what: what_(), place, reason, times: attempt });
                }
                Err(Trial::Passing { .. }) => (),
            }
            self.pause(what, wait)?;
            attempt += 1;
        }
    }

    /// Waits, unless the user has had enough.
    pub fn pause(&self, what: &str, wait: Duration) -> Result<(), PushError> {
        if wait >= WORTH_TELLING {
            (self.hub.tell)(&format!("{what}: the server wants to be asked again in {} s", wait.as_secs()));
        }
        let begin = Instant::now();
        while begin.elapsed() < wait {
            if (self.hub.interrupted)() {
                return Err(PushError::Interrupted);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// What a refusal means.
    pub fn refused(&self, what: &str, place: &str, reply: Reply) -> PushError {
        let (what, endpoint, reason) = (what.to_owned(), self.endpoint(), reply.words);
        match reply.status {
            401 => PushError::Token { endpoint, reason },
            403 => PushError::Permission { what, owner: self.owner_and_name().0.to_owned(), endpoint, reason },
            404 => PushError::NotFound { what, endpoint, reason },
            409 => PushError::Conflict { what, reason },
            412 => PushError::Moved { repo: self.order.repo.to_owned() },
            status => PushError::Status { what, place: place.to_owned(), status, reason },
        }
    }

    /// The answer as JSON of a known form.
    pub fn parsed<T: serde::de::DeserializeOwned>(&self, what: &str, reply: &Reply) -> Result<T, PushError> {
        serde_json::from_slice(&reply.body).map_err(|error| self.strange(what, error.to_string()))
    }

    /// An answer that the Hub does not give.
    pub fn strange(&self, what: &str, reason: String) -> PushError {
        PushError::Answer { what: what.to_owned(), endpoint: self.endpoint(), reason }
    }

    /// Has the Hub look at the head of the card, before anything is sent that it would refuse together with the card.
    pub fn validate_card(&self) -> Result<(), PushError> {
        let Some(card) = self.order.files.iter().find(|file| file.name() == "README.md") else { return Ok(()) };
        let what = "the head of README.md";
        let bytes = card.bytes().map_err(|reason| PushError::Io { file: card.name().to_owned(), reason })?;
        let question = json!({ "content": String::from_utf8_lossy(&bytes), "repoType": "model" });
        let reply = self.post_json(what, "/api/validate-yaml", &question)?;
        match reply.status {
            400 => return Err(PushError::Card { endpoint: self.endpoint(), reason: reply.words }),
            401 => return Err(self.refused(what, &self.endpoint(), reply)),
            // A mirror without that route.
            status if !(200..300).contains(&status) => return Ok(()),
            _ => (),
        }
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        for warning in answer["warnings"].as_array().into_iter().flatten() {
            if let Some(text) = warning["message"].as_str() {
                (self.hub.tell)(&format!("warning: README.md: {}", words(text, b"", self.token())));
            }
        }
        Ok(())
    }
}

/// Why there is no whole answer.
#[derive(Debug)]
pub(super) enum NoReply {
    Request(RequestError),
    Io(io::Error),
}

/// Reads an answer.
pub(super) fn read(response: Result<Response<Body>, RequestError>, token: Option<&str>) -> Result<Reply, NoReply> {
    let response = response.map_err(NoReply::Request)?;
    let header = |key: &str| {
        let value = response.headers().get(key).map(|value| String::from_utf8_lossy(value.as_bytes()));
        value.unwrap_or_default().into_owned()
    };
    let (status, code) = (response.status().as_u16(), header("X-Error-Code"));
    let later = later(&header("Retry-After"), &header("RateLimit"));
    let (said, etag) = (header("X-Error-Message"), header("ETag"));
    let mut body = Vec::new();
    response.into_body().into_reader().take(MOST_ANSWER).read_to_end(&mut body).map_err(NoReply::Io)?;
    let words = words(&said, &body, token);
    Ok(Reply { status, code, words, later, etag, body })
}

/// How long to wait after an attempt that came to nothing.
pub(super) fn pause_after(attempt: u32) -> Duration {
    PAUSE * 2u32.pow(attempt - 1)
}
