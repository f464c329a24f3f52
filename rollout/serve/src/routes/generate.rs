//! `POST /inference/v1/generate`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use serde_json::{Value, json};

use super::App;
use crate::{desk::Event, error::ApiError, request::generate::Generation};

/// Continues token ids.
pub async fn answer(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let vocab_size = app.tokenizer.model_vocab_size();
    let read = app.read(request, move |app, body| Generation::read(body, &app.model, vocab_size, app.max_model_len));
    let read = read.await?;
    app.in_time(generate(&app, read)).await
}

async fn generate(app: &App, Generation { prompt, sampling, logprobs }: Generation) -> Result<Json<Value>, ApiError> {
    let group = sampling.group(&app.tokenizer, &prompt, app.fresh.next());
    let mut ticket = app.service.begin(app.service.enter()?, vec![group], false);
    let mut ended = Vec::new();
    while let Some((_, event)) = ticket.next().await? {
        if let Event::Ended(sequence) = event {
            ended.push(sequence);
        }
    }
    ended.sort_unstable_by_key(|sequence| sequence.sample);
    let greedy = sampling.params.greedy();
    let choices: Vec<Value> = ended
        .iter()
        .map(|sequence| {
            let tokens = sequence.token_ids.iter().zip(&sequence.logprobs);
            let entry = |(id, figures): (&u32, &shared::TokenLogprob)| {
                let logprob = if greedy { figures.logprob } else { figures.sampling_logprob() };
                json!({ "token": format!("token_id:{id}"), "logprob": logprob.min(0.0) })
            };
            let content = logprobs.then(|| json!({ "content": tokens.map(entry).collect::<Value>() }));
            json!({
                "index": sequence.sample,
                "token_ids": sequence.token_ids,
                "finish_reason": sequence.finish_reason.as_str(),
                "logprobs": content,
            })
        })
        .collect();
    Ok(Json(json!({ "request_id": format!("gen-{:016x}", app.fresh.next()), "choices": choices })))
}
