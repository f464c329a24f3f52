//! Refusals, in the form of OpenAI's API.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// Seconds after which a client may try again, where the queue is full.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// A request that is not answered, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, for a person.
    pub message: String,
    /// The field that is to blame.
    pub param: Option<String>,
    /// The reason, for a program.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// A refusal without a field or a code.
    #[must_use]
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A request that makes no sense, because of a field.
    #[must_use]
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A request that is too long for the model.
    #[must_use]
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// The queue is full.
    #[must_use]
    pub fn full(queue: usize) -> Self {
        let message = format!("{queue} prompts are waiting already (--max-queue); try again later");
        Self { code: Some("queue_full"), ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// The queue is full inside a run.
    #[must_use]
    pub fn full_in_run(self) -> Self {
        let message = "too many requests of agents wait already; try again later".to_owned();
        Self { status: StatusCode::SERVICE_UNAVAILABLE, message, ..self }
    }

    /// A request without a key that is known.
    #[must_use]
    pub fn no_key(message: &str) -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// A sample of a run that has ended.
    #[must_use]
    pub fn ended() -> Self {
        Self::new(StatusCode::CONFLICT, "the sample of this key has ended")
    }

    /// The request took longer than one may.
    #[must_use]
    pub fn timeout(seconds: f64) -> Self {
        let message = format!("the request took longer than {seconds} s (--request-timeout)");
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    /// Something that is not the client's fault.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The engine has ended.
    #[must_use]
    pub fn engine_gone() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped")
    }

    /// The body of the answer.
    #[must_use]
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.code == Some("queue_full") {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}
