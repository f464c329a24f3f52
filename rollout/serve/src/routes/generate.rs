//! `POST /inference/v1/generate`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use rollout::engine::FinishedSequence;
use rollout_constraint::Start;
use serde_json::{Value, json};

use super::App;
use crate::{
    answer::logprob_of,
    desk::{Event, Place, Wish},
    error::ApiError,
    request::generate::Generation,
};

/// Continues token ids.
pub async fn answer(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let vocab_size = app.tokenizer.model_vocab_size();
    let read = app.enter(request, move |app, body| {
        let mut read = Generation::read(body, &app.models, vocab_size, app.max_model_len)?;
        read.sampling.compile(&app.grammars, Start::WithinText)?;
        Ok(read)
    });
    let (place, read) = read.await?;
    app.in_time(generate(&app, place, read)).await
}

async fn generate(
    app: &Arc<App>,
    place: Place,
    Generation { model, prompt, sampling, logprobs }: Generation,
) -> Result<Json<Value>, ApiError> {
    let group = sampling.group(&app.tokenizer, &prompt, app.fresh.next());
    let wish = Wish { adapter: model.adapter, ..Wish::default() };
    let mut ticket = app.service.begin(place, vec![group], wish)?;
    let mut ended = Vec::new();
    while let Some((_, event)) = ticket.next().await? {
        if let Event::Ended(sequence) = event {
            ended.push(sequence);
        }
    }
    ended.sort_unstable_by_key(|sequence| sequence.sample);
    let greedy = sampling.params.greedy();
    app.apart(move |app| Ok(answered(app, &ended, greedy, logprobs))).await
}

fn answered(app: &App, ended: &[FinishedSequence], greedy: bool, logprobs: bool) -> Json<Value> {
    let choices: Vec<Value> = ended
        .iter()
        .map(|sequence| {
            let tokens = sequence.token_ids.iter().zip(&sequence.logprobs);
            let entry = |(id, figures): (&u32, &shared::TokenLogprob)| {
                json!({ "token": format!("token_id:{id}"), "logprob": logprob_of(figures, greedy).min(0.0) })
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
    Json(json!({ "request_id": format!("gen-{:016x}", app.fresh.next()), "choices": choices }))
}
