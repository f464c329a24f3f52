//! A coordinator that answers by itself, and workers for it.

use std::{
    env, fs,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shared::channel::{
    ChannelError,
    fleet::{CoordinatorEnd, CoordinatorEvent, Orders, Report, WorkerEnd},
};
use shared_fleet::{FleetError, JoinOptions, ListenOptions, RefusedCalls, ZenohCoordinator, ZenohWorker, init_logging};
use tempfile::TempDir;

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The coordinator's number in these tests.
pub const COORDINATOR: u64 = 7;

pub fn listen(endpoint: &str) -> ListenOptions {
    let endpoint = endpoint.parse().unwrap();
    ListenOptions { endpoint, token_file: None, certificate: None, private_key: None, client_ca: None }
}

/// Options for a coordinator on loopback at a port that is free.
pub fn loopback() -> ListenOptions {
    listen("tcp/127.0.0.1:0")
}

/// A port of loopback that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// How a worker joins a coordinator at this address.
pub fn at(address: SocketAddr) -> JoinOptions {
    JoinOptions::to(&format!("tcp/{address}")).unwrap()
}

/// A folder with a file that holds a token.
pub fn token_file(word: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, format!("{word}\n")).unwrap();
    (dir, path)
}

/// A coordinator on a thread of its own. It answers each call with the number of the worker as its only lease.
pub struct Serving {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<ZenohCoordinator>>,
}

impl Serving {
    pub fn new(options: &ListenOptions) -> Self {
        Self::with(options, |report| Orders {
            coordinator: COORDINATOR,
            leases: vec![report.worker],
            ..Orders::default()
        })
    }

    pub fn with(options: &ListenOptions, answer: impl Fn(&Report) -> Orders + Send + 'static) -> Self {
        init_logging("info", RefusedCalls::Explained);
        let mut coordinator = ZenohCoordinator::open(options).unwrap();
        let endpoint = coordinator.endpoint().clone();
        let (over, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (ends, tell) = (Arc::clone(&over), Arc::clone(&told));
        let thread = thread::spawn(move || {
            while !ends.load(Relaxed) {
                let words = match coordinator.next(Duration::from_millis(10)).unwrap() {
                    Some(CoordinatorEvent::Call(call)) => {
                        let orders = answer(call.report());
                        call.answer(&orders);
                        continue;
                    }
                    Some(CoordinatorEvent::Gone(worker)) => format!("gone {worker}"),
                    Some(CoordinatorEvent::Refused { from, reason }) => format!("{from}: {reason}"),
                    None => continue,
                };
                tell.lock().unwrap().push(words);
            }
            coordinator
        });
        let address = format!("{}:{}", endpoint.host, endpoint.port).parse().unwrap();
        Self { address, over, told, thread: Some(thread) }
    }

    /// How a worker joins it.
    pub fn join_options(&self) -> JoinOptions {
        at(self.address)
    }

    pub fn join(&self, worker: u64) -> ZenohWorker {
        join(&self.join_options(), worker).unwrap()
    }

    /// Events other than calls.
    pub fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    /// Waits until an event comes for which `holds` is true.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        wait_for(what, || self.told().into_iter().find(|words| holds(words)))
    }

    /// Stops answering.
    pub fn stop(mut self) -> ZenohCoordinator {
        self.over.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The variable that says that a test has a process of its own.
const ALONE: &str = "TANDEM_TEST_ALONE";

/// Runs a test in a process of its own, for tests that count things or log in another way. Returns whether this process
/// is that one.
pub fn alone(test: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let [written, logged] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{written}{logged}");
    print!("{written}");
    false
}

/// Joins at once or not at all.
pub fn join(options: &JoinOptions, worker: u64) -> Result<ZenohWorker, FleetError> {
    ZenohWorker::join(options, worker, Duration::from_secs(5))
}

pub fn report(worker: u64) -> Report {
    Report { worker, name: format!("worker {worker}"), ..Report::default() }
}

/// A call that must be answered.
pub fn call(end: &mut ZenohWorker, worker: u64) {
    let orders = end.exchange(&report(worker), PATIENCE).unwrap();
    assert_eq!((orders.coordinator, orders.leases), (COORDINATOR, vec![worker]));
}

/// Calls until one is answered.
pub fn call_again(end: &mut ZenohWorker, worker: u64) -> Vec<ChannelError> {
    let mut errors = Vec::new();
    wait_for("an answer", || match end.exchange(&report(worker), Duration::from_secs(2)) {
        Ok(orders) => {
            assert_eq!(orders.leases, [worker]);
            Some(())
        }
        Err(error) => {
            errors.push(error);
            None
        }
    });
    errors
}

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
