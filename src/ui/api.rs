//! Answers to the page's requests.

use std::{
    io,
    sync::{Arc, PoisonError},
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::server::{Run, Shared};
use crate::view::{catalogue, completions, curves::Figures, overview::Overview, pairs, run, search, tokens, workers};

pub fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/charts", get(async || Json(catalogue::charts())))
        .route("/runs", get(runs))
        .route(
            "/runs/{id}/overview",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| Ok(run.overview())).await),
        )
        .route("/runs/{id}/curves", get(curves))
        .route(
            "/runs/{id}/notices",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| run::notices(&run.dir)).await),
        )
        .route(
            "/runs/{id}/comparisons",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| run::comparisons(&run.dir)).await),
        )
        .route(
            "/runs/{id}/workers",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| Ok(workers::of(&run.dir))).await),
        )
        .route(
            "/runs/{id}/settings",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| Ok(run::settings(&run.dir))).await),
        )
        .route(
            "/runs/{id}/pairs",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| pairs::pairs(&run.dir)).await),
        )
        .route(
            "/runs/{id}/steps",
            get(async |State(shared), Path(id)| of_run(shared, id, |run| run.dir.logged_steps()).await),
        )
        .route("/runs/{id}/steps/{step}", get(step))
        .route("/runs/{id}/steps/{step}/{position}/{sample}", get(sample))
        .route("/runs/{id}/search", get(find))
}

/// A request that cannot be answered, in words for the page.
enum Failure {
    NotFound(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::NotFound(what) => (StatusCode::NOT_FOUND, what.to_owned()),
            Self::Io(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}

type Answer<T> = Result<Json<T>, Failure>;

/// Reads files on a thread apart from the server's own.
async fn of_run<T: Serialize + Send + 'static>(
    shared: Arc<Shared>,
    id: usize,
    read: impl FnOnce(&Run) -> io::Result<T> + Send + 'static,
) -> Answer<T> {
    let run = shared.run(id).ok_or(Failure::NotFound("there is no such run"))?;
    let read = tokio::task::spawn_blocking(move || read(&run));
    Ok(Json(read.await.map_err(io::Error::other)??))
}

async fn runs(State(shared): State<Arc<Shared>>) -> Answer<Vec<Overview>> {
    let look = tokio::task::spawn_blocking(move || shared.look().iter().map(|run| run.overview()).collect());
    Ok(Json(look.await.map_err(io::Error::other)?))
}

/// The part that the page has already.
#[derive(Deserialize)]
struct Known {
    #[serde(default)]
    steps: usize,
    #[serde(default)]
    evaluations: usize,
    /// The generation of that part.
    generation: Option<u64>,
    /// Keys of metrics that it draws although no chart shows them, a JSON list.
    also: Option<String>,
}

async fn curves(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<usize>,
    Query(known): Query<Known>,
) -> Answer<Figures> {
    of_run(shared, id, move |run| {
        let mut steps = run.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut evaluations = run.evaluations.lock().unwrap_or_else(PoisonError::into_inner);
        steps.refresh()?;
        evaluations.refresh()?;
        let generation = steps.generation() + evaluations.generation();
        let goes_on = known.generation == Some(generation);
        let after = |count: usize| if goes_on { count } else { 0 };
        let also: Vec<String> = known.also.and_then(|also| serde_json::from_str(&also).ok()).unwrap_or_default();
        let others = steps.others();
        let steps = steps.part(after(known.steps), &also);
        Ok(Figures { generation, steps, evaluations: evaluations.part(after(known.evaluations), &[]), others })
    })
    .await
}

async fn step(State(shared): State<Arc<Shared>>, Path((id, step)): Path<(usize, u64)>) -> Answer<completions::Step> {
    let found = of_run(shared, id, move |run| {
        let found = completions::of_step(&run.dir, step)?;
        let removed = found.is_none() && run.dir.logged_steps()?.first().is_some_and(|first| step < *first);
        Ok((found, removed))
    });
    let (found, removed) = found.await?.0;
    found.map(Json).ok_or(Failure::NotFound(if removed {
        "the completions of this step were removed, since the run's records had reached their limit \
         (`records_size_limit`)"
    } else {
        "the completions of this step are not kept (`log_completions`)"
    }))
}

async fn sample(
    State(shared): State<Arc<Shared>>,
    Path((id, step, position, sample)): Path<(usize, u64, u64, u64)>,
) -> Answer<Value> {
    let found = of_run(shared, id, move |run| {
        let tokenizer = run.tokenizer();
        let tokenizer = tokenizer.as_deref();
        let Some(row) = completions::one(&run.dir, tokenizer, step, position, sample)? else { return Ok(None) };
        let id = row.get("group").and_then(Value::as_u64).map(|group| (group, sample));
        let tokens = match id {
            Some(id) => tokens::some(&run.dir, tokenizer, step, &[id])?.remove(&id),
            None => None,
        };
        Ok(Some(json!({ "row": row, "tokens": tokens })))
    });
    found.await?.0.map(Json).ok_or(Failure::NotFound("there is no such completion"))
}

#[derive(Deserialize)]
struct Wanted {
    q: String,
}

async fn find(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<usize>,
    Query(wanted): Query<Wanted>,
) -> Answer<search::Found> {
    of_run(shared, id, move |run| search::search(&run.dir, &wanted.q)).await
}
