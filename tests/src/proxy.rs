//! A TCP proxy on this machine, whose connection can be made slow, narrow or broken. The kernel of test machines cannot
//! delay packets.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{self, Receiver, SyncSender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Most bytes that are forwarded at a time.
const PIECE: usize = 16 << 10;
/// Most pieces of one direction that are on the way.
const ON_THE_WAY: usize = 2048;
/// How often waiting code checks whether the wait is over.
const LOOK: Duration = Duration::from_millis(2);

/// Properties of the way in each direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Way {
    /// Delay of a byte.
    pub delay: Duration,
    /// Bytes per second on each connection.
    pub bytes_per_s: Option<u64>,
}

/// The proxy. When it is dropped, it cuts its connections and ends.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    way: Mutex<Way>,
    /// Nothing passes, and no end is notified.
    hole: AtomicBool,
    /// New connections are cut until this moment.
    closed_until: Mutex<Option<Instant>>,
    /// Both ends of each connection.
    connections: Mutex<Vec<[TcpStream; 2]>>,
    passed: AtomicU64,
    over: AtomicBool,
}

impl Proxy {
    /// A proxy for this address, without any fault, on a free port of loopback.
    ///
    /// # Panics
    /// When this machine has no loopback.
    #[must_use]
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            target,
            way: Mutex::default(),
            hole: AtomicBool::new(false),
            closed_until: Mutex::default(),
            connections: Mutex::default(),
            passed: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        let accepts = thread::spawn(move || accept(&listener, &shared));
        Self { address, state, accepts: Some(accepts) }
    }

    /// The address of the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the properties of the way for all bytes from now on.
    pub fn set(&self, way: Way) {
        *held(&self.state.way) = way;
    }

    /// Cuts all connections. New ones pass.
    pub fn cut(&self) {
        self.state.cut();
    }

    /// Cuts all connections, and new ones for this time.
    pub fn cut_for(&self, time: Duration) {
        *held(&self.state.closed_until) = Some(Instant::now() + time);
        self.state.cut();
    }

    /// While it is a hole, nothing passes and no end is notified. Bytes that were on the way arrive afterwards.
    pub fn hole(&self, is: bool) {
        self.state.hole.store(is, Relaxed);
    }

    /// Bytes that have passed, in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Relaxed);
        // Wakes the thread that waits for the next connection.
        drop(TcpStream::connect(self.address));
        if let Some(accepts) = self.accepts.take() {
            drop(accepts.join());
        }
        self.state.cut();
    }
}

impl State {
    fn cut(&self) {
        for end in held(&self.connections).drain(..).flatten() {
            drop(end.shutdown(Shutdown::Both));
        }
    }

    fn is_closed(&self) -> bool {
        held(&self.closed_until).is_some_and(|until| Instant::now() < until)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with it")
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for near in listener.incoming().flatten() {
        if state.over.load(Relaxed) {
            return;
        }
        if !state.is_closed() {
            // An error because an end went away does not matter.
            drop(connect(near, state));
        }
    }
}

fn connect(near: TcpStream, state: &Arc<State>) -> io::Result<()> {
    let far = TcpStream::connect(state.target)?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
    }
    held(&state.connections).push([near.try_clone()?, far.try_clone()?]);
    pass(near.try_clone()?, far.try_clone()?, state);
    pass(far, near, state);
    Ok(())
}

/// Forwards bytes from one end to the other, until either is closed.
fn pass(from: TcpStream, to: TcpStream, state: &Arc<State>) {
    let (sender, receiver) = mpsc::sync_channel(ON_THE_WAY);
    let (near, far) = (Arc::clone(state), Arc::clone(state));
    thread::spawn(move || enter(from, &sender, &near));
    thread::spawn(move || leave(to, &receiver, &far));
}

/// Bytes, and the time at which they must arrive.
type Piece = (Instant, Vec<u8>);

fn enter(mut from: TcpStream, sender: &SyncSender<Piece>, state: &State) {
    let mut bytes = vec![0; PIECE];
    // When the last byte so far is through the bottleneck.
    let mut free = Instant::now();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let way = *held(&state.way);
        free = free.max(Instant::now());
        if let Some(rate) = way.bytes_per_s {
            free += Duration::from_secs_f64(count as f64 / rate as f64);
        }
        if sender.send((free + way.delay, bytes[..count].to_vec())).is_err() {
            return;
        }
        // A sender that fills a narrow way has to wait.
        thread::sleep(free.saturating_duration_since(Instant::now()));
    }
}

fn leave(mut to: TcpStream, receiver: &Receiver<Piece>, state: &State) {
    for (at, bytes) in receiver {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        while state.hole.load(Relaxed) && !state.over.load(Relaxed) {
            thread::sleep(LOOK);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
        state.passed.fetch_add(bytes.len() as u64, Relaxed);
    }
    drop(to.shutdown(Shutdown::Write));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends everything back.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut &stream));
            }
        });
        address
    }

    fn through(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Time until so many bytes are back.
    fn round(stream: &mut TcpStream, bytes: usize) -> io::Result<Duration> {
        let start = Instant::now();
        let mut to = stream.try_clone()?;
        let sender = thread::spawn(move || to.write_all(&vec![7; bytes]));
        let mut back = vec![0; bytes];
        stream.read_exact(&mut back)?;
        sender.join().unwrap()?;
        assert!(back.iter().all(|&byte| byte == 7));
        Ok(start.elapsed())
    }

    #[test]
    fn a_way_is_as_long_and_as_narrow_as_it_is_told() {
        let proxy = Proxy::to(echo());
        let mut stream = through(&proxy);
        round(&mut stream, 1 << 20).unwrap();
        assert_eq!(proxy.passed(), 2 << 20);
        proxy.set(Way { delay: Duration::from_millis(50), bytes_per_s: None });
        assert!(round(&mut stream, 10).unwrap() >= Duration::from_millis(100));
        proxy.set(Way { delay: Duration::ZERO, bytes_per_s: Some(1 << 20) });
        assert!(round(&mut stream, 1 << 18).unwrap() >= Duration::from_millis(240));
    }

    #[test]
    fn a_cut_ends_what_is_there_and_a_hole_holds_it_up() {
        let proxy = Proxy::to(echo());
        let mut stream = through(&proxy);
        round(&mut stream, 10).unwrap();
        proxy.cut();
        assert!(round(&mut stream, 10).is_err());
        round(&mut through(&proxy), 10).unwrap();

        proxy.cut_for(Duration::from_millis(200));
        let start = Instant::now();
        assert!(round(&mut through(&proxy), 10).is_err());
        let deadline = start + Duration::from_secs(20);
        while round(&mut through(&proxy), 10).is_err() {
            assert!(Instant::now() < deadline);
        }
        assert!(start.elapsed() >= Duration::from_millis(190));

        let mut stream = through(&proxy);
        round(&mut stream, 10).unwrap();
        proxy.hole(true);
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        stream.write_all(b"7").unwrap();
        assert!(stream.read(&mut [0]).is_err());
        proxy.hole(false);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"7");
    }
}
