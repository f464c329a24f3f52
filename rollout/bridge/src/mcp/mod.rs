//! Tools of a server of MCP: over HTTP, or of a program by its standard input and output.
//!
//! The server is asked in the form of revision 2026-07-28 (`server/discover`, no session). One that does not know it
//! gets `initialize`, and has a session and streams of events. In a session, what the server asks is answered: a sign
//! of life to `ping`, and an error to all else. Tools keep nothing between two calls as far as the bridge knows, so an
//! episode is nothing. Arguments that a tool marks for headers are sent there too. A result with `isError`, and an
//! error of the protocol about a call, are replies that count as failed.

mod asks;
mod client;
mod events;
mod headers;
mod http;
mod listener;
mod program;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::lines::{Call, Peer, Queued, Reply, Step, tool};
use client::{CallError, Client, Wire};
use headers::Mirrored;

/// Most pages of a list of tools.
const MAX_PAGES: usize = 100;

/// The code of an error about headers that are not those which the tool asks for.
const HEADER_MISMATCH: i64 = -32020;

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It does not answer, or speaks something else.
    #[error("no server of MCP answers at {server}: {reason}")]
    Silent {
        /// Its address, or its command line.
        server: String,
        /// Why not.
        reason: String,
    },
    /// It has no list of tools.
    #[error("the tools of {server} cannot be listed: {reason}")]
    NoTools {
        /// Its address, or its command line.
        server: String,
        /// Why not.
        reason: String,
    },
    /// Its list of tools is empty.
    #[error("{server} lists no tools, and a policy could call none: take the entry away, or give the server tools")]
    Empty {
        /// Its address, or its command line.
        server: String,
    },
}

/// A server.
#[derive(Debug)]
pub struct Mcp {
    client: Client,
    tools: Vec<Value>,
    remarks: Vec<String>,
}

impl Mcp {
    /// Asks a server what it has: one at an address that begins with `http://`, or the one that a command line for
    /// `/bin/sh` starts. An address of another scheme is refused, since a shell would take it for a file.
    ///
    /// # Errors
    /// A server that does not answer, or has no tools.
    pub async fn meet(server: &str) -> Result<Self, StartError> {
        let silent = |reason: String| StartError::Silent { server: server.to_owned(), reason };
        let wire = match scheme(server).as_deref() {
            None => Wire::started(server),
            Some("http") => Wire::to(server),
            Some("https") => Err("the bridge speaks no TLS; write http://HOST:PORT/PATH".to_owned()),
            Some(other) => Err(format!(
                "the bridge does not speak `{other}`; write http://HOST:PORT/PATH, or the command line of a server"
            )),
        };
        let client = Client::meet(wire.map_err(silent)?).await.map_err(|error| silent(error.to_string()))?;
        let no_tools = |reason: String| StartError::NoTools { server: server.to_owned(), reason };
        let Listed { tools, mirrored, remarks } = list(&client).await.map_err(no_tools)?;
        if tools.is_empty() {
            let empty = StartError::Empty { server: server.to_owned() };
            return Err(remarks.into_iter().next().map_or(empty, no_tools));
        }
        client.mirror(mirrored);
        Ok(Self { client, tools, remarks })
    }

    /// Why tools of its list are left out.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// JSON schemas of its tools.
    #[must_use]
    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// The revision of the protocol that the server speaks.
    #[must_use]
    pub fn revision(&self) -> String {
        self.client.revision()
    }

    async fn call(&self, call: Call) -> Result<Reply, String> {
        let arguments = match call.arguments {
            Value::Object(arguments) => arguments,
            Value::Null => Map::new(),
            _ => return Ok(Reply::failed("the arguments are no object")),
        };
        let params = json!({"name": call.name, "arguments": arguments});
        let mut answer = self.client.ask("tools/call", params.clone()).await;
        if matches!(answer, Err(CallError::Refused { code: HEADER_MISMATCH, .. }))
            && let Ok(Listed { mirrored, .. }) = list(&self.client).await
        {
            // The tool marks other arguments than when it was listed.
            self.client.mirror(mirrored);
            answer = self.client.ask("tools/call", params).await;
        }
        match answer {
            Ok(result) => Ok(reply(&result)),
            Err(CallError::Refused { message, .. }) => Ok(Reply::failed(message)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Peer for Mcp {
    type Episode = ();

    async fn open(&self, _: Map<String, Value>, _: Queued) -> Result<((), Option<String>), String> {
        Ok(((), None))
    }

    async fn step(&self, (): &mut (), calls: Vec<Call>) -> Result<Step, String> {
        let replies = join_all(calls.into_iter().map(|call| self.call(call))).await;
        Ok(Step { replies: replies.into_iter().collect::<Result<_, _>>()?, ..Step::default() })
    }

    fn score(&self, (): &()) -> Option<f64> {
        None
    }

    async fn close(&self, (): ()) {}

    async fn gone(&self) -> Option<String> {
        self.client.gone().await
    }
}

/// The scheme of an address in small letters, whose case means nothing; none for a command line, also where an address
/// stands in it.
fn scheme(server: &str) -> Option<String> {
    let (scheme, _) = server.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then(|| scheme.to_ascii_lowercase())
}

/// The tools of a server.
#[derive(Debug, Default)]
struct Listed {
    /// Their JSON schemas.
    tools: Vec<Value>,
    /// Their arguments that have headers.
    mirrored: HashMap<String, Vec<Mirrored>>,
    /// Why others are left out.
    remarks: Vec<String>,
}

impl Listed {
    /// Adds a tool; with `has_headers`, calls of it have headers, and a tool that marks them wrongly is left out.
    fn add(&mut self, listed: &Value, has_headers: bool) -> Option<()> {
        let schema = schema(listed)?;
        let name = listed["name"].as_str()?;
        match Mirrored::of(&listed["inputSchema"]) {
            _ if !has_headers => self.tools.push(schema),
            Ok(mirrored) => {
                self.mirrored.insert(name.to_owned(), mirrored);
                self.tools.push(schema);
            }
            Err(reason) => self.remarks.push(format!("the tool {name} is left out: {reason}")),
        }
        Some(())
    }
}

/// All tools, page by page.
async fn list(client: &Client) -> Result<Listed, String> {
    let (mut found, mut params) = (Listed::default(), json!({}));
    for _ in 0..MAX_PAGES {
        let page = client.ask("tools/list", params).await.map_err(|error| error.to_string())?;
        let listed = page["tools"].as_array().ok_or("there is no list")?;
        for listed in listed {
            found.add(listed, client.has_headers()).ok_or("a tool needs a name and a schema of its input")?;
        }
        match &page["nextCursor"] {
            Value::String(cursor) => params = json!({"cursor": cursor}),
            _ => return Ok(found),
        }
    }
    Err(format!("the list has more than {MAX_PAGES} pages"))
}

fn schema(listed: &Value) -> Option<Value> {
    let description = listed["description"].as_str().unwrap_or_default();
    Some(tool(listed["name"].as_str()?, description, listed["inputSchema"].as_object()?))
}

/// The texts of a result. What is no text cannot be given to the policy. Each revision wants `content`, also beside
/// `structuredContent`, so a result without it is no success.
fn reply(result: &Value) -> Reply {
    if result["resultType"] == "input_required" {
        return Reply::failed("the tool asks for more input, which nobody can give");
    }
    let failed = result["isError"] == Value::Bool(true);
    let Some(blocks) = result["content"].as_array() else {
        let what = if result["content"].is_null() { "no `content`" } else { "a `content` that is no list" };
        return Reply::failed(format!("the result of the tool has {what}"));
    };
    let texts: Option<Vec<&str>> = blocks.iter().map(|block| block["text"].as_str()).collect();
    match texts {
        None => Reply::failed("the tool returned what is no text"),
        Some(texts) if texts.is_empty() && !result["structuredContent"].is_null() => {
            Reply { text: result["structuredContent"].to_string(), failed }
        }
        Some(texts) => Reply { text: texts.join("\n"), failed },
    }
}
