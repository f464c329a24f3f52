//! A proxy of a server that counts bytes, cuts connections, changes bits, or falls silent.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

/// A proxy in front of a server.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    /// Bytes from the server.
    down: AtomicU64,
    /// Bytes to the server.
    up: AtomicU64,
    /// Bytes from the server after which a connection is cut.
    cut_after: AtomicU64,
    /// Connections that are still to be cut.
    cuts: AtomicU64,
    /// Bits that are still to be changed on the way from the server, each after as many bytes as a cut.
    flips: AtomicU64,
    /// Whether nothing passes any more.
    silent: AtomicBool,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            server,
            down: AtomicU64::new(0),
            up: AtomicU64::new(0),
            cut_after: AtomicU64::new(u64::MAX),
            cuts: AtomicU64::new(0),
            flips: AtomicU64::new(0),
            silent: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                shared.connect(client);
            }
        });
        Self { address, state }
    }

    /// Cuts `times` connections, each after `after` bytes from the server.
    pub fn cut(&self, after: u64, times: u64) {
        self.state.cut_after.store(after, Ordering::SeqCst);
        self.state.cuts.store(times, Ordering::SeqCst);
    }

    /// Changes `times` bits, each after `after` bytes from the server on a connection.
    pub fn flip(&self, after: u64, times: u64) {
        self.state.cut_after.store(after, Ordering::SeqCst);
        self.state.flips.store(times, Ordering::SeqCst);
    }

    /// How many connections are still to be cut.
    pub fn cuts_left(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// From now on, nothing passes.
    pub fn silence(&self) {
        self.state.silent.store(true, Ordering::SeqCst);
    }

    /// Bytes from and to the server since the last call.
    pub fn passed(&self) -> (u64, u64) {
        (self.state.down.swap(0, Ordering::SeqCst), self.state.up.swap(0, Ordering::SeqCst))
    }
}

impl State {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (down, up) = (Arc::clone(self), Arc::clone(self));
        thread::spawn(move || down.pass(server, client, &down.down, true));
        thread::spawn(move || up.pass(client_too, server_too, &up.up, false));
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, count: &AtomicU64, may_cut: bool) {
        let (mut buffer, mut here) = (vec![0; 64 << 10], 0);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            here += read as u64;
            if self.silent.load(Ordering::SeqCst) {
                continue;
            }
            let due = may_cut && here >= self.cut_after.load(Ordering::SeqCst);
            if due && takes_one(&self.cuts) {
                break;
            }
            if due && takes_one(&self.flips) {
                buffer[read / 2] ^= 1;
            }
            count.fetch_add(read as u64, Ordering::SeqCst);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        for end in [from, to] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn takes_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}
