//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use serde_json::{Value, json};

use super::App;
use crate::{error::ApiError, request::tokens};

/// The tokens of a prompt or of a conversation.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let ids = app.read(request, |app, body| tokens::tokenize(body, &app.models, &app.tokenizer)).await?;
    Ok(Json(json!({ "count": ids.len(), "max_model_len": app.max_model_len, "tokens": ids })))
}

/// The text of tokens.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let text = app.read(request, |app, body| tokens::detokenize(body, &app.models, &app.tokenizer)).await?;
    Ok(Json(json!({ "prompt": text })))
}
