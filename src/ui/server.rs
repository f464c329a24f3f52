//! The server: the parts that all answers share.

use std::{
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use shared::RunDir;
use shared_http::{Connection, Connections};
use shared_tokenizer::TextTokenizer;

use super::{
    access::{Access, Verdict},
    api, events,
};
use crate::view::{
    assets,
    curves::Curves,
    found,
    overview::{Followed, Overview},
    tokens,
};

/// Most connections at once. A browser needs six, and one more for the events of each open page.
const MOST: usize = 64;

/// How long a request may take to arrive, and how long a connection may be open without one.
const PATIENCE: Duration = Duration::from_secs(10);

/// State that all requests share.
pub struct Shared {
    roots: Vec<PathBuf>,
    access: Access,
    /// Runs, by their numbers in addresses. Numbers never change: a new run is added at the end.
    runs: Mutex<Vec<Arc<Run>>>,
}

/// A run, and those of its figures that have been read.
pub struct Run {
    pub dir: RunDir,
    pub steps: Mutex<Curves>,
    pub evaluations: Mutex<Curves>,
    /// Its row of the table of runs.
    row: Mutex<Followed>,
    tokenizer: Mutex<Option<Arc<TextTokenizer>>>,
}

impl Run {
    fn new(path: PathBuf) -> Self {
        let dir = RunDir::new(path);
        let (steps, evaluations) = (Curves::new(dir.metrics()), Curves::new(dir.eval()));
        let row = Mutex::new(Followed::new(dir.clone()));
        let (steps, evaluations) = (Mutex::new(steps), Mutex::new(evaluations));
        Self { dir, steps, evaluations, row, tokenizer: Mutex::default() }
    }

    /// The run as it is now.
    pub fn overview(&self) -> Overview {
        self.row.lock().unwrap_or_else(PoisonError::into_inner).overview()
    }

    /// The tokenizer of its model. It is read once; if it was missing, it is tried again.
    pub fn tokenizer(&self) -> Option<Arc<TextTokenizer>> {
        let mut known = self.tokenizer.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            *known = tokens::tokenizer(&self.dir).map(Arc::new);
        }
        known.clone()
    }
}

impl Shared {
    /// Runs below these folders.
    pub fn new(roots: Vec<PathBuf>, access: Access) -> Self {
        let shared = Self { roots, access, runs: Mutex::default() };
        shared.look();
        shared
    }

    /// Finds runs that are new.
    pub fn look(&self) -> Vec<Arc<Run>> {
        let found: Vec<PathBuf> = self.roots.iter().flat_map(|root| found::runs(root)).collect();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        for path in found {
            if !runs.iter().any(|run| run.dir.root() == path) {
                runs.push(Arc::new(Run::new(path)));
            }
        }
        runs.clone()
    }

    /// The known runs.
    pub fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A run by its number.
    pub fn run(&self, id: usize) -> Option<Arc<Run>> {
        self.runs().get(id).cloned()
    }
}

/// Answers until the process is interrupted.
///
/// # Errors
/// When the system does not let it listen.
pub fn serve(listener: TcpListener, shared: Shared) -> Result<()> {
    listener.set_nonblocking(true)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the server")?;
    let app = router(Arc::new(shared));
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut connections = Connections::new(MOST, PATIENCE);
        tokio::select! {
            never = connections.accept(&listener, &app) => match never {},
            stopped = stop() => stopped.context("cannot wait for an interrupt"),
        }
    });
    // The server does not wait for a file that is being read, perhaps on a disk that no longer answers.
    runtime.shutdown_background();
    served
}

async fn stop() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        stopped = tokio::signal::ctrl_c() => stopped,
        _ = terminated.recv() => Ok(()),
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(|| asset("index.html")))
        .route(
            "/assets/{name}",
            get(|axum::extract::Path(name): axum::extract::Path<String>| async move { asset(&name).await }),
        )
        .nest("/api", api::routes())
        .route("/api/events", get(events::stream))
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

async fn asset(name: &str) -> Response {
    match assets::find(name) {
        Some(asset) => ([(header::CONTENT_TYPE, asset.kind)], asset.text).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

/// Scripts, styles and data come from this server alone, and no page may frame ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Lets a request pass or not, and says what browsers may do with the answer.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    request.extensions().get().into_iter().for_each(Connection::has_asked);
    let mut response = match shared.access.judge(request.uri(), request.headers()) {
        Verdict::Allowed => next.run(request).await,
        Verdict::Welcome => {
            // The token leaves the address, so that no history and no screenshot has it.
            let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
            let cookie = shared.access.cookie().and_then(|cookie| HeaderValue::from_str(&cookie).ok());
            response.headers_mut().extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
            response
        }
        Verdict::WrongHost => {
            (StatusCode::FORBIDDEN, "this page answers to localhost and 127.0.0.1 only; --host opens it to others\n")
                .into_response()
        }
        Verdict::NoToken => {
            (StatusCode::UNAUTHORIZED, "open the address that `tandem ui` has printed, with its token\n")
                .into_response()
        }
    };
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    response.headers_mut().extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}
