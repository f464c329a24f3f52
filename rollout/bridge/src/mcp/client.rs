//! Requests to a server, in the form of the revision that it speaks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{headers::Mirrored, http::Http, listener::Listener, program::Program};

/// The revision without sessions.
pub const STATELESS: &str = "2026-07-28";

/// The newest revision with sessions. A server may choose an older one.
const WITH_SESSION: &str = "2025-11-25";

/// How long a server may take to say that it knows the revision without sessions.
const DISCOVERY: Duration = Duration::from_secs(10);

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server refuses the request.
    #[error("{message} (code {code})")]
    Refused {
        /// The code of JSON-RPC.
        code: i64,
        /// The server's words.
        message: String,
    },
    /// The server has forgotten the session.
    #[error("the server has ended the session")]
    SessionEnded,
    /// There is no answer.
    #[error("{0}")]
    Gone(String),
}

/// The way to a server.
#[derive(Debug)]
pub enum Wire {
    /// Over HTTP.
    Http(Http),
    /// A program.
    Program(Program),
}

impl Wire {
    /// The way to an address.
    ///
    /// # Errors
    /// When there can be no client.
    pub fn to(address: &str) -> Result<Self, String> {
        Http::new(address).map(Self::Http)
    }

    /// The way to a program that is started by a command line.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn started(line: &str) -> Result<Self, String> {
        Program::start(line).map(Self::Program).map_err(|error| error.to_string())
    }

    /// Sends a message. A request, which has an id, gets the answer to it.
    async fn send(&self, era: &Era, message: &Value) -> Result<Answer, CallError> {
        match self {
            Self::Http(http) => http.send(era, message).await,
            Self::Program(program) => program.send(message).await,
        }
    }

    /// Answers what the server of a session asks outside the answers to requests. A program asks where it answers.
    async fn listen(&self, era: &Era) -> Option<Arc<Listener>> {
        match self {
            Self::Http(http) => Some(Arc::new(http.listen(era).await)),
            Self::Program(_) => None,
        }
    }
}

/// How a server is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Era {
    /// Every request says what it needs.
    Stateless,
    /// There is a session of this revision, with a name where the server gives one.
    Session {
        /// The revision.
        revision: Option<String>,
        /// The name, over HTTP.
        id: Option<String>,
    },
}

/// How a server is spoken to at present, and whoever answers what it asks meanwhile.
#[derive(Debug, Clone)]
struct Spoken {
    era: Era,
    /// Of a session over HTTP.
    listener: Option<Arc<Listener>>,
}

/// What a server has answered.
#[derive(Debug, Default)]
pub struct Answer {
    /// The message; none where it answers nothing.
    pub message: Option<Value>,
    /// The name of the session that it has begun.
    pub session: Option<String>,
}

/// A server that is asked.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    spoken: Mutex<Spoken>,
    last: AtomicU64,
}

impl Client {
    /// Finds out what a server speaks.
    ///
    /// # Errors
    /// When it answers in neither form.
    pub async fn meet(wire: Wire) -> Result<Self, CallError> {
        let spoken = Mutex::new(Spoken { era: Era::Stateless, listener: None });
        let client = Self { wire, spoken, last: AtomicU64::new(0) };
        let found = timeout(DISCOVERY, client.ask_once("server/discover", json!({}))).await;
        let knows = |found: &Value| {
            let versions = found["supportedVersions"].as_array();
            versions.is_some_and(|versions| versions.iter().any(|version| version == STATELESS))
        };
        if !matches!(&found, Ok(Ok(found)) if knows(found)) {
            client.begin_session().await?;
        }
        Ok(client)
    }

    /// Whether calls have arguments in headers: over HTTP, in the revision without sessions.
    pub fn has_headers(&self) -> bool {
        matches!(self.wire, Wire::Http(_)) && self.spoken().era == Era::Stateless
    }

    /// From now on, calls of tools have these arguments in headers too.
    pub fn mirror(&self, mirrored: HashMap<String, Vec<Mirrored>>) {
        if let Wire::Http(http) = &self.wire {
            http.mirror(mirrored);
        }
    }

    /// How the server ended, if it is a program that has ended.
    pub async fn gone(&self) -> Option<String> {
        match &self.wire {
            Wire::Program(program) if program.has_ended() => Some(program.end().await),
            _ => None,
        }
    }

    /// The revision that is spoken.
    pub fn revision(&self) -> String {
        match self.spoken().era {
            Era::Stateless => STATELESS.to_owned(),
            Era::Session { revision, .. } => revision.unwrap_or_else(|| WITH_SESSION.to_owned()),
        }
    }

    /// The result of a request. A session that the server has forgotten is begun anew, once.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, method: &str, params: Value) -> Result<Value, CallError> {
        match self.ask_once(method, params.clone()).await {
            Err(CallError::SessionEnded) => {
                self.begin_session().await?;
                self.ask_once(method, params).await
            }
            result => result,
        }
    }

    async fn begin_session(&self) -> Result<(), CallError> {
        // Others go on with the era that they know until this one is ready.
        let about = json!({"protocolVersion": WITH_SESSION, "capabilities": {}, "clientInfo": about()});
        let (result, session) = self.exchange(&Era::Session { revision: None, id: None }, "initialize", about).await?;
        let revision = result["protocolVersion"].as_str().unwrap_or(WITH_SESSION).to_owned();
        let era = Era::Session { revision: Some(revision), id: session };
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.wire.send(&era, &told).await?;
        let listener = self.wire.listen(&era).await;
        *self.spoken.lock().unwrap_or_else(PoisonError::into_inner) = Spoken { era, listener };
        Ok(())
    }

    async fn ask_once(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let Spoken { era, listener } = self.spoken();
        let found = self.exchange(&era, method, params).await;
        // The session of this request is listened to until here, even if another one has begun meanwhile.
        drop(listener);
        found.map(|(result, _)| result)
    }

    async fn exchange(&self, era: &Era, method: &str, mut params: Value) -> Result<(Value, Option<String>), CallError> {
        if *era == Era::Stateless {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientInfo": about(),
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let Answer { message, session } = self.wire.send(era, &message).await?;
        let mut message = message.ok_or_else(|| CallError::Gone(format!("`{method}` has no answer")))?;
        if let Some(error) = message.get("error").filter(|error| !error.is_null()) {
            return Err(refused(error));
        }
        let result = message.get_mut("result").map(Value::take);
        let result = result.ok_or_else(|| CallError::Gone(format!("the answer to `{method}` has no result")))?;
        Ok((result, session))
    }

    fn spoken(&self) -> Spoken {
        self.spoken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The client's name.
fn about() -> Value {
    json!({"name": "tandem", "version": env!("CARGO_PKG_VERSION")})
}

/// An error of JSON-RPC.
pub fn refused(error: &Value) -> CallError {
    let message = error["message"].as_str().unwrap_or("no reason").to_owned();
    CallError::Refused { code: error["code"].as_i64().unwrap_or_default(), message }
}
