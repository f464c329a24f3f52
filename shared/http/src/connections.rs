//! Connections to a server: a bounded number at once, and none keeps its place without requests.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
    pin,
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// Descriptors reserved for everything else, where a process may have few.
const OTHERS: u64 = 40;

/// Pause after the system refuses a connection, and while every place is taken by a request.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, as far as its requests are concerned. Handlers get it as an [`Extension`].
#[derive(Debug, Clone, Default)]
pub struct Connection(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// A whole request has come.
    asked: AtomicBool,
    /// Requests that are being answered.
    running: AtomicUsize,
}

/// Keeps a connection in its place for as long as it lives.
#[derive(Debug)]
pub struct Busy(Connection);

impl Connection {
    /// Notes that a whole request has come.
    pub fn has_asked(&self) {
        self.0.asked.store(true, Ordering::Relaxed);
    }

    /// Notes that a request is being answered: until the result is dropped, the connection gives way to no other.
    #[must_use]
    pub fn busy(&self) -> Busy {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    fn is_half(&self) -> bool {
        !self.0.asked.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of a server.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    patience: Duration,
    open: VecDeque<(Connection, AbortHandle)>,
    tasks: JoinSet<()>,
    closing: watch::Sender<bool>,
}

impl Connections {
    /// At most `most` connections at once, or as many as the process may have. A request may take `patience` to arrive,
    /// and a connection may be open for as long without one.
    #[must_use]
    pub fn new(most: usize, patience: Duration) -> Self {
        let most = within(most, getrlimit(Resource::Nofile).current);
        Self { most, patience, open: VecDeque::new(), tasks: JoinSet::new(), closing: watch::Sender::new(false) }
    }

    /// Answers with `app` for ever. When all places are taken, the oldest connection without a request gives way, else
    /// the oldest that is not [`busy`](Connection::busy): the server stays within reach, whoever else holds connections
    /// open, and clients reconnect by themselves. While all are busy, new connections wait in the system's queue.
    pub async fn accept(&mut self, listener: &TcpListener, app: &Router) -> Infallible {
        loop {
            self.reap();
            if self.open.len() >= self.most && self.gives_way().is_none() {
                sleep(PAUSE).await;
                continue;
            }
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            self.reap();
            if self.open.len() >= self.most
                && let Some((_, task)) = self.gives_way().and_then(|place| self.open.remove(place))
            {
                task.abort();
            }
            let connection = Connection::default();
            let app = app.clone().layer(Extension(connection.clone()));
            let answer = answer(stream, app, self.patience, self.closing.subscribe());
            self.open.push_back((connection, self.tasks.spawn(answer)));
        }
    }

    /// Ends all connections: those without a request at once, the others with the answer to theirs, and after `grace`
    /// also those that are not done by then.
    pub async fn close(mut self, grace: Duration) {
        self.closing.send_replace(true);
        // What is left then ends with the set of tasks.
        let _ = timeout(grace, async { while self.tasks.join_next().await.is_some() {} }).await;
    }

    /// Forgets connections that have ended.
    fn reap(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|(_, task)| !task.is_finished());
    }

    /// The connection that is closed for the sake of another one.
    fn gives_way(&self) -> Option<usize> {
        let place = |is: &dyn Fn(&Connection) -> bool| self.open.iter().position(|(connection, _)| is(connection));
        place(&Connection::is_half).or_else(|| place(&|connection| !connection.is_busy()))
    }
}

/// Answers one connection; its errors are ignored.
async fn answer(stream: TcpStream, app: Router, patience: Duration, mut closing: watch::Receiver<bool>) {
    // An answer in small pieces (server-sent events) must not wait for the client to confirm the piece before.
    let _ = stream.set_nodelay(true);
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    let connection = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        _ = closing.wait_for(|closing| *closing) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Connections allowed, of `most`, in a process that may have so many descriptors.
fn within(most: usize, descriptors: Option<u64>) -> usize {
    let room = descriptors.map_or(most as u64, |all| all.saturating_sub(OTHERS)).max(4);
    usize::try_from(room).map_or(most, |room| room.min(most))
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const MOST: usize = 64;

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
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                Connections::new(MOST, patience).accept(&listener, &app).await
            })
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
        assert_eq!([None, Some(1024), Some(64), Some(20)].map(|descriptors| within(64, descriptors)), [64, 64, 24, 4]);
        assert_eq!(within(2, Some(20)), 2, "never more than are asked for");
    }

    async fn request(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        stream
    }

    async fn all_of(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    /// Two places, both taken by requests that are answered when they may be, and a third client.
    #[tokio::test]
    async fn a_request_keeps_its_place_and_is_answered_before_the_end_if_there_is_time() {
        for in_time in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let go = watch::Sender::new(false);
            let gate = go.subscribe();
            let wait = move |Extension(connection): Extension<Connection>| {
                let mut gate = gate.clone();
                async move {
                    connection.has_asked();
                    let _busy = connection.busy();
                    let _ = gate.wait_for(|go| *go).await;
                    "done"
                }
            };
            let app = Router::new().route("/", get(wait));
            let mut connections = Connections::new(2, Duration::from_secs(60));
            let clients = async {
                let streams = [request(address).await, request(address).await];
                sleep(Duration::from_millis(200)).await;
                let mut third = request(address).await;
                let waits = timeout(Duration::from_millis(300), third.read(&mut [0])).await;
                assert!(waits.is_err(), "it waits until there is a place");
                streams
            };
            let streams = tokio::select! {
                never = connections.accept(&listener, &app) => match never {},
                streams = clients => streams,
            };
            let grace = if in_time { Duration::from_secs(60) } else { Duration::from_millis(200) };
            let begun = Instant::now();
            let answers = async {
                sleep(Duration::from_millis(100)).await;
                go.send_replace(in_time);
                let mut answers = Vec::new();
                for stream in streams {
                    answers.push(all_of(stream).await.contains("done"));
                }
                answers
            };
            let (answers, ()) = tokio::join!(answers, connections.close(grace));
            assert_eq!(answers, [in_time; 2]);
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
    }
}
