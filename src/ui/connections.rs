//! Connections to the page: a small number at once, and none keeps its place without requests.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustix::process::{Resource, getrlimit};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::sleep,
};

/// Most connections at once. A browser needs six, and one more for the events of each open page.
const MOST: usize = 64;

/// Descriptors reserved for everything else, where a process may have few.
const OTHERS: u64 = 40;

/// How long a request may take to arrive, and how long a connection may be open without one.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the system refuses a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, as far as its requests are concerned.
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<AtomicBool>);

impl Connection {
    /// Notes that a whole request has come.
    pub fn has_asked(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_half(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

/// Answers with `app` for ever. When all places are taken, the oldest connection without a request gives way, else the
/// oldest: the page stays within reach, whoever else holds connections open, and a browser reconnects by itself.
pub async fn serve(listener: TcpListener, app: Router, patience: Duration) -> Infallible {
    let most = most(getrlimit(Resource::Nofile).current);
    let mut open: VecDeque<(Connection, AbortHandle)> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        open.retain(|(_, task)| !task.is_finished());
        if open.len() >= most {
            let half = open.iter().position(|(connection, _)| connection.is_half());
            open.remove(half.unwrap_or(0)).into_iter().for_each(|(_, task)| task.abort());
        }
        let connection = Connection::default();
        let app = app.clone().layer(Extension(connection.clone()));
        open.push_back((connection, tokio::spawn(answer(stream, app, patience)).abort_handle()));
    }
}

/// Answers one connection; its errors are ignored.
async fn answer(stream: TcpStream, app: Router, patience: Duration) {
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    let _ = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)).await;
}

/// Connections allowed in a process that may have so many descriptors.
fn most(descriptors: Option<u64>) -> usize {
    let room = descriptors.map_or(MOST as u64, |all| all.saturating_sub(OTHERS));
    usize::try_from(room).unwrap_or(MOST).clamp(4, MOST)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{self, SocketAddr},
        thread,
        time::Instant,
    };

    use axum::routing::get;

    use super::*;

    /// A page that says `here`, with the middleware that notes requests.
    fn start(patience: Duration) -> SocketAddr {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let here = |Extension(connection): Extension<Connection>| async move {
                connection.has_asked();
                "here"
            };
            let app = Router::new().route("/", get(here));
            runtime.block_on(async { serve(TcpListener::from_std(listener).unwrap(), app, patience).await })
        });
        address
    }

    fn half(address: SocketAddr) -> net::TcpStream {
        let mut stream = net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: ").unwrap();
        stream
    }

    fn ask(stream: &mut net::TcpStream) -> String {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 1000];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    fn ends_within(stream: &mut net::TcpStream, time: Duration) -> bool {
        stream.set_read_timeout(Some(time)).unwrap();
        let begun = Instant::now();
        // An error page may come before the end.
        let _ = stream.read_to_end(&mut Vec::new());
        begun.elapsed() < time
    }

    #[test]
    fn half_requests_end_by_themselves_and_so_do_idle_connections() {
        let address = start(Duration::from_millis(300));
        let mut streams = [half(address), net::TcpStream::connect(address).unwrap(), half(address)];
        let mut idle = net::TcpStream::connect(address).unwrap();
        assert!(ask(&mut idle).contains("here"));
        // A byte now and then is not a whole request either.
        let mut slow = streams[2].try_clone().unwrap();
        thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(50))
            }
        });
        for stream in streams.iter_mut().chain([&mut idle]) {
            assert!(ends_within(stream, Duration::from_secs(10)));
        }
    }

    #[test]
    fn the_page_is_within_reach_however_many_half_requests_there_are() {
        let address = start(Duration::from_secs(60));
        let held: Vec<net::TcpStream> = (0..300).map(|_| half(address)).collect();
        let mut stream = net::TcpStream::connect(address).unwrap();
        assert!(ask(&mut stream).contains("here"));
        // The oldest connections gave way.
        let mut held = held;
        assert!(ends_within(&mut held[0], Duration::from_secs(10)));
        // A connection that has sent a request stays as long as there are others.
        let _more: Vec<net::TcpStream> = (0..100).map(|_| half(address)).collect();
        assert!(ask(&mut stream).contains("here"));
    }

    #[test]
    fn few_descriptors_mean_few_connections() {
        assert_eq!([None, Some(1024), Some(64), Some(20)].map(most), [64, 64, 24, 4]);
    }
}
