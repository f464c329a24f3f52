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
    agent::{Sample, Turn},
    answer::logprob_of,
    desk::{Event, Place, Wish},
    error::ApiError,
    models::Model,
    request::generate::Generation,
};

/// Continues token ids.
pub async fn answer(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let vocab_size = app.tokenizer.model_vocab_size();
    let sample = request.extensions().get::<Arc<Sample>>().cloned();
    let read = app.enter(request, move |app, body| {
        let mut read = Generation::read(body, &app.models, vocab_size, app.max_model_len)?;
        let turn = match app.agents.as_ref().zip(sample) {
            Some((samples, sample)) => Some(samples.turn_of_ids(&sample, &mut read)?),
            None => None,
        };
        read.sampling.compile(&app.grammars, Start::WithinText)?;
        Ok(Read { asked: read, turn })
    });
    let (place, Read { asked, turn }) = read.await?;
    app.in_time(generate(&app, place, asked, turn)).await
}

/// A body that was read; inside a run, with the turn that it asks for.
struct Read {
    asked: Generation,
    turn: Option<Turn>,
}

impl AsRef<Model> for Read {
    fn as_ref(&self) -> &Model {
        &self.asked.model
    }
}

async fn generate(
    app: &Arc<App>,
    place: Place,
    Generation { model, prompt, sampling, logprobs }: Generation,
    mut turn: Option<Turn>,
) -> Result<Json<Value>, ApiError> {
    let group = sampling.group(&app.tokenizer, &prompt, app.fresh.next());
    let group = if let Some(turn) = &turn { turn.group(group) } else { group };
    let from = turn.as_mut().and_then(Turn::take_state);
    let wish = Wish { adapter: model.adapter, from, keep: turn.is_some(), ..Wish::default() };
    let mut ticket = app.service.begin(place, vec![group], wish)?;
    let mut ended = Vec::new();
    while let Some((_, event)) = ticket.next().await? {
        if let Event::Ended { sequence, state } = event {
            if let Some(turn) = &mut turn {
                turn.ended(&sequence, state, "", &[]);
            }
            ended.push(sequence);
        }
    }
    ended.sort_unstable_by_key(|sequence| sequence.sample);
    let greedy = sampling.params.greedy();
    let is_turn = turn.is_some();
    app.apart(move |app| Ok(answered(app, &ended, greedy, logprobs, is_turn))).await
}

/// The answer. The turn of a sample is its only choice, whatever the index of the sample.
fn answered(app: &App, ended: &[FinishedSequence], greedy: bool, logprobs: bool, is_turn: bool) -> Json<Value> {
    let choices: Vec<Value> = ended
        .iter()
        .map(|sequence| {
            let tokens = sequence.token_ids.iter().zip(&sequence.logprobs);
            let entry = |(id, figures): (&u32, &shared::TokenLogprob)| {
                json!({ "token": format!("token_id:{id}"), "logprob": logprob_of(figures, greedy).min(0.0) })
            };
            let content = logprobs.then(|| json!({ "content": tokens.map(entry).collect::<Value>() }));
            json!({
                "index": if is_turn { 0 } else { sequence.sample },
                "token_ids": sequence.token_ids,
                "finish_reason": sequence.finish_reason.as_str(),
                "logprobs": content,
            })
        })
        .collect();
    Json(json!({ "request_id": format!("gen-{:016x}", app.fresh.next()), "choices": choices }))
}
