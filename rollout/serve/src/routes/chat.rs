//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    response::Response,
};
use shared_http::Connection;

use super::{App, answering::Asked, now};
use crate::{
    answer::{Form, Shape},
    error::ApiError,
    request::chat::Chat,
};

/// Answers the last message of a conversation.
pub async fn answer(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Connection>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = app.enter(request, |app, body| {
        let mut read = Chat::read(body, &app.models, &app.tokenizer, app.max_model_len)?;
        read.sampling.compile(&app.grammars, read.prompt.start())?;
        app.prepare_names(read.top_logprobs);
        Ok(read)
    });
    let (place, read) = read.await?;
    let shape = Shape {
        form: Form::Chat,
        id: format!("chatcmpl-{:016x}", app.fresh.next()),
        created: now(),
        model: read.model.name,
        logprobs: read.logprobs,
        top_logprobs: read.top_logprobs,
        return_token_ids: read.return_token_ids,
        tokens_as_ids: read.tokens_as_ids,
        include_usage: read.streaming.include_usage,
    };
    let Chat { sampling, calling, .. } = read;
    let asked =
        Asked { shape, adapter: read.model.adapter, prompts: vec![read.prompt], sampling, echo: false, calling };
    asked.answer(app, place, connection, read.streaming.stream).await
}
