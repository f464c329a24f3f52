//! The routes, and what is asked of every request before its route sees it.

mod adapters;
mod answering;
mod chat;
mod completions;
mod generate;
mod models;
#[cfg(test)]
mod part_tests;
mod reward;
#[cfg(test)]
mod tests;
mod tokens;
#[cfg(test)]
mod tool_tests;

use std::{
    num::NonZero,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::StreamExt;
use rollout::data::Tokenizer;
use rollout_constraint::Grammars;
use shared::generation::rng;
use shared_http::{Connection, equal, is_this_machine};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    agent::{Known, Sample, Samples, Session},
    answer::TokenNames,
    desk::{Place, Service},
    error::ApiError,
    metrics::Metrics,
    models::{Model, Models},
};

/// How long a body may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// The routes of [`router`], by their names in `/metrics`.
const ROUTES: [&str; 11] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/health",
    "/reward",
    "/metrics",
];

/// Routes inside a run.
const IN_RUN: [&str; 6] =
    ["/v1/chat/completions", "/inference/v1/generate", "/v1/models", "/tokenize", "/health", "/reward"];

/// Bounds of a request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes of a body.
    pub body: usize,
    /// Longest time for an answer.
    pub time: Duration,
}

/// What all requests share.
pub struct App {
    /// The model, and adapters on it.
    pub models: Models,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The texts of tokens by themselves.
    pub names: Arc<TokenNames>,
    /// What compiles grammars for it.
    pub grammars: Grammars,
    /// Longest prompt plus completion.
    pub max_model_len: usize,
    /// The engine.
    pub service: Service,
    /// What has happened so far.
    pub metrics: Arc<Metrics>,
    /// What every request must bring along.
    pub key: Option<String>,
    /// Inside a run, the samples by their keys, one of which every request must have.
    pub agents: Option<Arc<Samples>>,
    /// Bounds of a request.
    pub limits: Limits,
    /// Seeds and names.
    pub fresh: Fresh,
    /// Permits for work on texts.
    pub workers: Arc<Semaphore>,
}

/// The name of the model that a request asks, once that is known: for the counts.
#[derive(Debug, Clone, Default)]
struct AskedModel(Arc<OnceLock<Arc<str>>>);

/// A permit for each core.
#[must_use]
pub fn workers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(thread::available_parallelism().map_or(2, NonZero::get)))
}

/// Seeds of requests without one, and names of answers: different ones in every process.
#[derive(Debug)]
pub struct Fresh {
    key: u64,
    count: AtomicU64,
}

impl Fresh {
    /// From random numbers of the system.
    ///
    /// # Errors
    /// When it has none.
    pub fn new() -> std::io::Result<Self> {
        let random = shared_http::random()?;
        Ok(Self { key: rng::hash(&random.bytes().map(u64::from).collect::<Vec<_>>()), count: AtomicU64::new(0) })
    }

    /// The next one.
    pub fn next(&self) -> u64 {
        rng::hash(&[self.key, self.count.fetch_add(1, Relaxed)])
    }
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::answer))
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/inference/v1/generate", post(generate::answer))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(StatusCode::OK))
        .route("/metrics", get(metrics))
        .route("/reward", post(reward::give))
        .fallback(async |request: Request| {
            ApiError::new(StatusCode::NOT_FOUND, format!("there is no route {}", request.uri().path()))
        })
        .method_not_allowed_fallback(async |request: Request| {
            let message = format!("{} is no method of {}", request.method(), request.uri().path());
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.page()).into_response()
}

/// The route of a path, as `/metrics` names it.
fn route(path: &str) -> &'static str {
    let of_model = path.starts_with("/v1/models/").then_some("/v1/models");
    ROUTES.into_iter().find(|route| *route == path).or(of_model).unwrap_or("other")
}

/// Lets a request pass or not, and counts it.
async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let connection: Option<Connection> = request.extensions().get().cloned();
    let _busy = connection.as_ref().map(|connection| {
        connection.has_asked();
        connection.busy()
    });
    let (route, model) = (route(request.uri().path()), AskedModel::default());
    request.extensions_mut().insert(model.clone());
    let judged = match &app.agents {
        None if route == "/reward" => Err(ApiError::new(StatusCode::NOT_FOUND, "rewards are taken inside a run only")),
        None => judge(app.key.as_deref(), route, request.headers()),
        Some(samples) => judge_agent(samples, route, request.headers()).map(|sample| {
            let session = request.headers().get("x-session-id").and_then(|name| name.to_str().ok());
            if let Some(session) = session.map(|name| Session(name.to_owned())) {
                request.extensions_mut().insert(session);
            }
            sample.map(|sample| request.extensions_mut().insert(sample));
        }),
    };
    let response = match judged {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    debug_assert!(route != "other" || !response.status().is_success(), "a route that has no name in `ROUTES`");
    app.metrics.answered(route, model.0.get(), response.status().as_u16());
    response
}

/// With a key, every request but that for the health must have it. Without one, only this machine can connect, and a
/// foreign page in a browser here must not ask through a name that leads here (DNS rebinding).
fn judge(key: Option<&str>, route: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = key else {
        let header = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
        let host = header("host").unwrap_or_default();
        let message = "this endpoint answers to localhost and 127.0.0.1 only; --host with --api-key opens it to others";
        return if is_this_machine(host) { Ok(()) } else { Err(ApiError::new(StatusCode::FORBIDDEN, message)) };
    };
    if route == "/health" || keys(headers).any(|given| equal(given, key)) {
        return Ok(());
    }
    Err(ApiError::no_key("the API key is missing or wrong; it goes into `Authorization: Bearer KEY`"))
}

/// The keys that a request brings along.
fn keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let header = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    [header("x-tandem-sample"), bearer, header("x-api-key")].into_iter().flatten().filter(|key| !key.is_empty())
}

/// Inside a run, every request but that for the health has the key of a sample whose agent is at work.
fn judge_agent(samples: &Samples, route: &str, headers: &HeaderMap) -> Result<Option<Arc<Sample>>, ApiError> {
    if route == "/health" {
        return Ok(None);
    }
    // Clients fill headers that they do not need with keys of their own.
    let known = keys(headers).map(|key| samples.find(key));
    let known = known.reduce(|first, next| if matches!(first, Known::Unknown) { next } else { first });
    let sample = match known.unwrap_or(Known::Unknown) {
        Known::Live(sample) => sample,
        Known::Ended => return Err(ApiError::ended()),
        Known::Unknown => {
            return Err(ApiError::no_key("this is the key of no sample; the key is in the agent's OPENAI_API_KEY"));
        }
    };
    if IN_RUN.contains(&route) {
        return Ok(Some(sample));
    }
    let message = format!("inside a run there are only the routes {}", IN_RUN.join(", "));
    Err(ApiError::new(StatusCode::NOT_FOUND, message))
}

impl App {
    /// The body of a request.
    async fn body(&self, request: Request) -> Result<Bytes, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        // A foreign page cannot send this type without asking first.
        if !kind.trim_start().to_ascii_lowercase().starts_with("application/json") {
            let message = "the header `Content-Type` must be application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| length > self.limits.body) {
            return Err(self.too_big());
        }
        let late =
            || ApiError::new(StatusCode::REQUEST_TIMEOUT, format!("no whole body came within {BODY_PATIENCE:?}"));
        timeout(BODY_PATIENCE, self.collect(request)).await.map_err(|_| late())?
    }

    async fn collect(&self, request: Request) -> Result<Bytes, ApiError> {
        let mut pieces = request.into_body().into_data_stream();
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the body did not arrive as a whole: {error}"))
            })?;
            if body.len() + piece.len() > self.limits.body {
                return Err(self.too_big());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.into())
    }

    fn too_big(&self) -> ApiError {
        let message = format!("the body has more than {} bytes (--max-body-size)", self.limits.body);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// Takes a place in the queue for a request, and reads its body.
    async fn enter<T: AsRef<Model> + Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        read: impl FnOnce(&Self, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Place, T), ApiError> {
        let model: Option<AskedModel> = request.extensions().get().cloned();
        let body = self.body(request).await?;
        let full = |error: ApiError| if self.agents.is_some() { error.full_in_run() } else { error };
        let place = self.service.enter().map_err(full)?;
        let read = self.in_time(self.apart(move |app| read(app, &body))).await?;
        if let Some(AskedModel(model)) = model {
            model.get_or_init(|| Arc::clone(&read.as_ref().name));
        }
        Ok((place, read))
    }

    /// Reads the body of a request that nothing is asked of the engine for.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request,
        read: impl FnOnce(&Self, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let body = self.body(request).await?;
        self.in_time(self.apart(move |app| read(app, &body))).await
    }

    /// Works on a thread apart: long texts take a while to tokenise, and to decode. There is a permit for each core,
    /// and it is kept until the work is done, whether or not the client still waits.
    async fn apart<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.workers).acquire_owned().await.expect("it is never closed");
        let app = Arc::clone(self);
        let worked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&app)
        });
        worked.await.map_err(|error| ApiError::internal(format!("the request cannot be worked on: {error}")))?
    }

    /// Waits for an answer, though not longer than one may take.
    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        timeout(self.limits.time, answer).await.map_err(|_| self.too_late())?
    }

    /// Makes the names of tokens ready, if log-probs are wanted.
    fn prepare_names(&self, logprobs: bool) {
        if logprobs {
            self.names.prepare();
        }
    }

    fn too_late(&self) -> ApiError {
        ApiError::timeout(self.limits.time.as_secs_f64())
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
