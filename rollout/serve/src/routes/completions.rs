//! `POST /v1/completions`.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use rollout_constraint::Start;
use shared_http::Connection;

use super::{App, answering::Asked, now};
use crate::{
    answer::{Form, Shape},
    error::ApiError,
    request::completion::Completion,
};

/// Completes prompts.
pub async fn answer(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Connection>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = app.enter(request, |app, body| {
        let mut read = Completion::read(body, &app.models, &app.tokenizer, app.max_model_len)?;
        read.sampling.compile(&app.grammars, Start::WithinText)?;
        app.prepare_names(read.logprobs.is_some());
        Ok(read)
    });
    let (place, read) = read.await?;
    let shape = Shape {
        form: Form::Text,
        id: format!("cmpl-{:016x}", app.fresh.next()),
        created: now(),
        model: read.model.name,
        logprobs: read.logprobs.is_some(),
        top_logprobs: read.logprobs.unwrap_or(0),
        return_token_ids: read.return_token_ids,
        tokens_as_ids: read.tokens_as_ids,
        include_usage: read.streaming.include_usage,
    };
    let Completion { prompts, sampling, echo, .. } = read;
    let asked = Asked { shape, adapter: read.model.adapter, prompts, sampling, echo, calling: None, turn: None };
    asked.answer(app, place, connection, read.streaming.stream).await
}
