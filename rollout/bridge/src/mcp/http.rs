//! A server over HTTP: one request for each message, answered by JSON or by a stream of events.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    sync::{PoisonError, RwLock},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{RequestBuilder, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::time::timeout;

use super::{
    asks::{self, is_asked},
    client::{Answer, CallError, Era, STATELESS, refused},
    events::Events,
    headers::Mirrored,
    listener::Listener,
};
use crate::{MAX_MESSAGE, http_client};

const SESSION: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";

/// How long a server may take to accept the answer to what it has asked.
const ANSWERING: Duration = Duration::from_secs(10);

/// The way to an address.
#[derive(Debug, Clone)]
pub struct Way {
    client: reqwest::Client,
    address: String,
}

impl Way {
    /// A request with a message.
    fn post(&self, era: &Era, message: &Value) -> RequestBuilder {
        let request = self.client.post(&self.address).header(CONTENT_TYPE, "application/json");
        in_form_of(era, request).body(message.to_string())
    }

    /// A request for the stream on which the server asks.
    pub fn listen(&self, era: &Era) -> RequestBuilder {
        in_form_of(era, self.client.get(&self.address))
    }

    /// Answers a message if the server asks with it. A server without sessions may not ask.
    pub async fn answer(&self, era: &Era, message: &Value) {
        if *era == Era::Stateless {
            return;
        }
        if let Some(answer) = asks::answer(message) {
            // A server that does not take it waits for it in vain, and its call ends by its deadline.
            let _ = timeout(ANSWERING, self.post(era, &answer).send()).await;
        }
    }
}

/// Adds the headers that each request has.
fn in_form_of(era: &Era, request: RequestBuilder) -> RequestBuilder {
    let mut request = request.header("accept", "application/json, text/event-stream");
    match era {
        Era::Stateless => request.header(REVISION, STATELESS),
        Era::Session { revision, id } => {
            let headers = [(REVISION, revision), (SESSION, id)];
            for (header, value) in headers {
                if let Some(value) = value {
                    request = request.header(header, value);
                }
            }
            request
        }
    }
}

/// A server at an address.
#[derive(Debug)]
pub struct Http {
    way: Way,
    /// The arguments that have headers, by tool.
    mirrored: RwLock<HashMap<String, Vec<Mirrored>>>,
}

impl Http {
    /// A server at an address.
    ///
    /// # Errors
    /// When there can be no client.
    pub fn new(address: &str) -> Result<Self, String> {
        let way = Way { client: http_client()?, address: address.to_owned() };
        Ok(Self { way, mirrored: RwLock::default() })
    }

    /// From now on, calls of tools have these arguments in headers too.
    pub fn mirror(&self, mirrored: HashMap<String, Vec<Mirrored>>) {
        *self.mirrored.write().unwrap_or_else(PoisonError::into_inner) = mirrored;
    }

    /// Names and values of the headers for the arguments of a call.
    fn of_arguments(&self, params: &Value) -> Vec<(String, String)> {
        let mirrored = self.mirrored.read().unwrap_or_else(PoisonError::into_inner);
        let of_tool = params["name"].as_str().and_then(|name| mirrored.get(name)).into_iter().flatten();
        of_tool.filter_map(|one| Some((one.header.clone(), one.value(&params["arguments"])?))).collect()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Why it has no answer.
    pub async fn send(&self, era: &Era, message: &Value) -> Result<Answer, CallError> {
        let mut request = self.way.post(era, message);
        if *era == Era::Stateless {
            let names = [("mcp-method", &message["method"]), ("mcp-name", &message["params"]["name"])];
            for (header, name) in names {
                if let Some(name) = name.as_str() {
                    request = request.header(header, &*header_value(name));
                }
            }
            for (header, value) in self.of_arguments(&message["params"]) {
                request = request.header(header, &*header_value(&value));
            }
        }
        let response = request.send().await.map_err(gone)?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && matches!(era, Era::Session { id: Some(_), .. }) {
            return Err(CallError::SessionEnded);
        }
        let session = response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let message = match has_events(&response) {
            true => self.of_stream(era, response, &message["id"]).await?,
            false => of_body(response).await?,
        };
        match message {
            Some(message) if !status.is_success() && message.get("error").is_some() => Err(refused(&message["error"])),
            _ if !status.is_success() => Err(CallError::Gone(format!("the server answers with status {status}"))),
            message => Ok(Answer { message, session }),
        }
    }

    /// The message of a stream that answers a request. What the server asks meanwhile is answered, and others are
    /// passed over.
    async fn of_stream(&self, era: &Era, response: Response, id: &Value) -> Result<Option<Value>, CallError> {
        let mut messages = Messages::of(response);
        while let Some(message) = messages.take().await? {
            if is_asked(&message) {
                self.way.answer(era, &message).await;
            } else if message.get("id") == Some(id) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// From now on, and until the listener is dropped, what the server of a session asks outside of calls is answered.
    pub async fn listen(&self, era: &Era) -> Listener {
        Listener::open(self.way.clone(), era.clone()).await
    }
}

/// Whether an answer is a stream of events.
pub fn has_events(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

/// What stands before and behind a value of a header that is written in Base64.
const ENCODED: [&str; 2] = ["=?base64?", "?="];

/// The value of a header for a text, as the revision without sessions has it: printable ASCII as it is, and all else in
/// Base64. A server compares the value with the name in the body, so what would be read otherwise is encoded too:
/// spaces at the ends, and a text that looks encoded.
fn header_value(text: &str) -> Cow<'_, str> {
    let [before, behind] = ENCODED;
    let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let looks_encoded = text.strip_prefix(before).is_some_and(|rest| rest.ends_with(behind));
    if is_printable && text == text.trim() && !looks_encoded {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{before}{}{behind}", BASE64_STANDARD.encode(text)))
}

fn gone(error: reqwest::Error) -> CallError {
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        reason = format!("{reason}: {inner}");
        cause = inner.source();
    }
    CallError::Gone(reason)
}

fn too_long() -> CallError {
    CallError::Gone(format!("the server's answer is longer than {MAX_MESSAGE} bytes"))
}

/// The message in a body; none in an empty one, or in one that is no JSON.
async fn of_body(mut response: Response) -> Result<Option<Value>, CallError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(gone)? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_MESSAGE {
            return Err(too_long());
        }
    }
    Ok(serde_json::from_slice(&body).ok())
}

/// The messages of a stream of events.
#[derive(Debug)]
pub struct Messages {
    response: Response,
    events: Events,
    /// Those that came in one piece, and are not taken yet.
    come: VecDeque<Value>,
}

impl Messages {
    /// The messages of an answer.
    pub fn of(response: Response) -> Self {
        Self { response, events: Events::default(), come: VecDeque::new() }
    }

    /// The next message; none at the end of the stream. Events that are no JSON are passed over.
    ///
    /// # Errors
    /// A stream that breaks off, or a message that is too long.
    pub async fn take(&mut self) -> Result<Option<Value>, CallError> {
        loop {
            if let Some(message) = self.come.pop_front() {
                return Ok(Some(message));
            }
            if self.events.held() > MAX_MESSAGE {
                return Err(too_long());
            }
            let Some(piece) = self.response.chunk().await.map_err(gone)? else { return Ok(None) };
            let ended = self.events.push(&piece);
            self.come.extend(ended.iter().filter_map(|data| serde_json::from_slice::<Value>(data).ok()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_header_cannot_carry_is_written_in_base64() {
        for (name, value) in [
            ("add", "add"),
            ("", ""),
            ("a b~", "a b~"),
            ("größe", "=?base64?Z3LDtsOfZQ==?="),
            ("日本", "=?base64?5pel5pys?="),
            (" add", "=?base64?IGFkZA==?="),
            ("add ", "=?base64?YWRkIA==?="),
            ("a\nb", "=?base64?YQpi?="),
            ("\u{7f}", "=?base64?fw==?="),
            ("=?base64?YWRk?=", "=?base64?PT9iYXNlNjQ/WVdSaz89?="),
            ("=?base64?=", "=?base64?="),
        ] {
            assert_eq!(header_value(name), value, "{name:?}");
        }
    }
}
