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
    agent::{Sample, Session, Turn},
    answer::{Form, Shape},
    error::ApiError,
    models::Model,
    request::chat::Chat,
};

/// A body that was read; inside a run, with the turn that it asks for.
struct Read {
    chat: Chat,
    turn: Option<Turn>,
}

impl AsRef<Model> for Read {
    fn as_ref(&self) -> &Model {
        &self.chat.model
    }
}

/// Answers the last message of a conversation.
pub async fn answer(
    State(app): State<Arc<App>>,
    Extension(connection): Extension<Connection>,
    request: Request,
) -> Result<Response, ApiError> {
    let sample = request.extensions().get::<Arc<Sample>>().cloned();
    let session = request.extensions().get::<Session>().cloned();
    let read = app.enter(request, move |app, body| {
        let Some((samples, sample)) = app.agents.as_ref().zip(sample) else {
            let mut chat = Chat::read(body, &app.models, &app.tokenizer, Some(app.max_model_len))?;
            chat.sampling.compile(&app.grammars, chat.prompt.start())?;
            app.prepare_names(chat.logprobs);
            return Ok(Read { chat, turn: None });
        };
        // Tokens and room are those that were recorded, and none of a new rendering.
        let mut chat = Chat::read(body, &app.models, &app.tokenizer, None)?;
        let turn = Some(samples.turn(&sample, &mut chat, session.as_ref())?);
        app.prepare_names(chat.logprobs);
        Ok(Read { chat, turn })
    });
    let (place, Read { chat: read, turn }) = read.await?;
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
        Asked { shape, adapter: read.model.adapter, prompts: vec![read.prompt], sampling, echo: false, calling, turn };
    asked.answer(app, place, connection, read.streaming.stream).await
}
