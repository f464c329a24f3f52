//! Sockets and signals.

use std::{io, net::TcpListener, process, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::Router;
use shared::process::exit::ENDED_BY_SIGNAL;
use shared_http::Connections;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};

/// How long a request may take to arrive, and how long a connection may be open without one.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// How a server ends, and how many it serves.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most connections at once.
    pub connections: usize,
    /// Time for requests that are being answered at the end.
    pub grace: Duration,
}

/// Answers requests until a signal asks it to end, or `over` says that there is no engine any more. Requests that are
/// being answered then have the time of grace; a second signal ends the process at once.
///
/// # Errors
/// When the system does not let it listen.
pub fn serve(listener: TcpListener, app: &Router, bounds: Bounds, over: &Arc<Notify>) -> Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the server")?;
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut signals = Signals::new().context("cannot wait for signals")?;
        let mut connections = Connections::new(bounds.connections, HEAD_PATIENCE);
        tokio::select! {
            never = connections.accept(&listener, app) => match never {},
            () = signals.next() => (),
            () = over.notified() => (),
        }
        // From now on, connections are refused.
        drop(listener);
        tokio::select! {
            () = connections.close(bounds.grace) => (),
            () = signals.next() => process::exit(ENDED_BY_SIGNAL.into()),
        }
        anyhow::Ok(())
    });
    // A text that is being tokenised is not waited for.
    runtime.shutdown_background();
    served
}

/// Signals that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => (),
            _ = self.interrupt.recv() => (),
        }
    }
}
