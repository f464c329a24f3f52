//! A server over HTTP: one request for each message, answered by JSON or by a stream of events.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::{Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;

use super::{
    client::{Answer, CallError, Era, STATELESS, refused},
    events::Events,
    headers::Mirrored,
};
use crate::{MAX_MESSAGE, http_client};

const SESSION: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";

/// A server at an address.
#[derive(Debug)]
pub struct Http {
    client: reqwest::Client,
    address: String,
    /// The arguments that have headers, by tool.
    mirrored: RwLock<HashMap<String, Vec<Mirrored>>>,
}

impl Http {
    /// A server at an address.
    ///
    /// # Errors
    /// When there can be no client.
    pub fn new(address: &str) -> Result<Self, String> {
        Ok(Self { client: http_client()?, address: address.to_owned(), mirrored: RwLock::default() })
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
        let mut request = self.client.post(&self.address).header("accept", "application/json, text/event-stream");
        request = request.header(CONTENT_TYPE, "application/json");
        match era {
            Era::Stateless => {
                request = request.header(REVISION, STATELESS);
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
            Era::Session { revision, id } => {
                let headers = [(REVISION, revision), (SESSION, id)];
                for (header, value) in headers {
                    if let Some(value) = value {
                        request = request.header(header, value);
                    }
                }
            }
        }
        let response = request.body(message.to_string()).send().await.map_err(gone)?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && matches!(era, Era::Session { id: Some(_), .. }) {
            return Err(CallError::SessionEnded);
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let session = header(SESSION);
        let has_events = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let message = if has_events { of_stream(response, &message["id"]).await? } else { of_body(response).await? };
        match message {
            Some(message) if !status.is_success() && message.get("error").is_some() => Err(refused(&message["error"])),
            _ if !status.is_success() => Err(CallError::Gone(format!("the server answers with status {status}"))),
            message => Ok(Answer { message, session }),
        }
    }
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

/// The message of a stream that answers a request. Others are passed over.
async fn of_stream(mut response: Response, id: &Value) -> Result<Option<Value>, CallError> {
    let mut events = Events::default();
    while let Some(piece) = response.chunk().await.map_err(gone)? {
        for data in events.push(&piece) {
            let message: Option<Value> = serde_json::from_slice(&data).ok();
            if let Some(message) = message.filter(|message| message.get("id") == Some(id)) {
                return Ok(Some(message));
            }
        }
        if events.held() > MAX_MESSAGE {
            return Err(too_long());
        }
    }
    Ok(None)
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
