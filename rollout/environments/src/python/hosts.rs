//! The processes with a run's environments.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use rollout_rewards::program::{Containment, IMPORT, LIBRARY, interpreter, located};
use serde_json::{Value, json};
use shared::config::RewardHost;
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use super::{
    Greeting, InPython, Named,
    host::{FirstLine, Host, Invocation},
};
use crate::{Failure, Sample, StartError};

/// What the interpreter runs behind [`LIBRARY`].
const PROGRAM: &str = concat!("\n\n", include_str!("schemas.py"), "\n\n", include_str!("host.py"));

/// Most calls of functions that are not async at once in a process; each takes a thread. Where the limit of processes
/// and threads is low, a quarter of it.
const THREADS: usize = 64;

/// How often a process is looked after.
const LOOK: Duration = Duration::from_secs(1);

/// How much longer than a function a process may take to say that it is alive.
const GRACE: Duration = Duration::from_secs(5);

/// The processes.
pub struct Hosts {
    invocation: Arc<Invocation>,
    wanted: usize,
    runtime: Handle,
    seats: Mutex<Seats>,
    /// Entries of the raters.
    raters: Vec<String>,
}

#[derive(Default)]
struct Seats {
    hosts: Vec<Arc<Host>>,
    /// Where the conversations of a group are, and how many there are.
    groups: HashMap<u64, (Arc<Host>, usize)>,
    /// Where each conversation is, with the number of its episode.
    places: HashMap<Sample, (Arc<Host>, u64)>,
    /// The number of the last episode.
    last: u64,
}

/// The place of a conversation in a process.
pub struct Seat {
    /// The process.
    pub host: Arc<Host>,
    /// The number of its episode.
    pub episode: u64,
    sample: Sample,
}

impl Hosts {
    /// Starts the processes with these functions and classes, and waits until the first one has imported them.
    ///
    /// # Errors
    /// What is wrong, with file and line where there are any.
    pub fn start(
        python: &InPython<'_>,
        host: &RewardHost,
        limit: Duration,
        runtime: Handle,
    ) -> Result<(Arc<Self>, Greeting), StartError> {
        let fail = |reason: String| StartError::Python { reason, words: Vec::new() };
        let invocation = Arc::new(invocation(python, host, limit).map_err(fail)?);
        let raters = python.raters.iter().map(|named| named.entry.clone()).collect();
        let hosts = Self { invocation, wanted: host.processes.max(1), runtime, seats: Mutex::default(), raters };
        let start = || hosts.start_host().map_err(|e| fail(format!("{e}; `reward_python` names the interpreter")));
        let (first, greeting) = start()?;
        let mut all = vec![first];
        for _ in 1..hosts.wanted {
            all.push(start()?.0);
        }
        hosts.seats().hosts = all;
        let greeting = match greeting.recv_timeout(IMPORT) {
            Ok(greeting) => greeting.map_err(|failure| refused(&hosts.invocation.label, failure))?,
            Err(_) => {
                let label = &hosts.invocation.label;
                return Err(fail(format!("{label}: not imported within {} s", IMPORT.as_secs())));
            }
        };
        Ok((Arc::new(hosts), greeting))
    }

    /// Entries of the raters, in order.
    pub fn raters(&self) -> &[String] {
        &self.raters
    }

    /// Where open conversations are, each with the number of its episode.
    pub fn places(&self, samples: &[Sample]) -> Vec<Option<(Arc<Host>, u64)>> {
        let seats = self.seats();
        samples.iter().map(|sample| seats.places.get(sample).cloned()).collect()
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_host(&self) -> Result<(Arc<Host>, FirstLine), String> {
        let (host, greeting) = Host::start(&self.invocation)?;
        self.runtime.spawn(look_after(Arc::downgrade(&host), self.invocation.timeout));
        Ok((host, greeting))
    }

    /// A place for a conversation: in the process of its group, else in the one with the fewest conversations.
    /// Processes that are gone are replaced.
    ///
    /// # Errors
    /// When no process can be started.
    pub fn enter(&self, sample: Sample) -> Result<Seat, Failure> {
        let mut seats = self.seats();
        seats.last += 1;
        let episode = seats.last;
        let host = match seats.groups.get_mut(&sample.tag) {
            Some((host, live)) if !host.is_over() => {
                *live += 1;
                Arc::clone(host)
            }
            _ => {
                let host = self.free(&mut seats)?;
                seats.groups.insert(sample.tag, (Arc::clone(&host), 1));
                host
            }
        };
        host.live.fetch_add(1, Ordering::Relaxed);
        seats.places.insert(sample, (Arc::clone(&host), episode));
        Ok(Seat { host, episode, sample })
    }

    fn free(&self, seats: &mut Seats) -> Result<Arc<Host>, Failure> {
        seats.hosts.retain(|host| !host.is_over());
        let usable: Vec<&Arc<Host>> = seats.hosts.iter().filter(|host| !host.is_retired()).collect();
        if usable.len() >= self.wanted {
            let least = usable.into_iter().min_by_key(|host| host.live.load(Ordering::Relaxed));
            return Ok(Arc::clone(least.expect("at least one is wanted")));
        }
        tracing::info!("`{}`: another process is started", self.invocation.label);
        let broken = |reason| Failure::Broken { environment: String::new(), reason, traceback: None };
        let (host, _) = self.start_host().map_err(broken)?;
        seats.hosts.push(Arc::clone(&host));
        Ok(host)
    }

    /// Ends the episode of a conversation. A process that gets no new groups ends with its last conversation.
    pub fn leave(&self, seat: Seat) {
        let Seat { host, episode, sample } = seat;
        // Nobody waits for the answer.
        drop(host.ask(json!({"do": "close", "episode": episode})));
        let mut seats = self.seats();
        if let Some((of_group, live)) = seats.groups.get_mut(&sample.tag)
            && Arc::ptr_eq(of_group, &host)
        {
            *live -= 1;
            if *live == 0 {
                seats.groups.remove(&sample.tag);
            }
        }
        // The sample may have been opened once more.
        if seats.places.get(&sample).is_some_and(|(_, last)| *last == episode) {
            seats.places.remove(&sample);
        }
        if host.live.fetch_sub(1, Ordering::Relaxed) == 1 && host.is_retired() {
            seats.hosts.retain(|other| !Arc::ptr_eq(other, &host));
        }
    }
}

/// Ends a process that answers nothing, not even that it is alive.
async fn look_after(host: Weak<Host>, limit: Duration) {
    let patience = limit + GRACE;
    loop {
        sleep(LOOK).await;
        let Some(host) = host.upgrade().filter(|host| !host.is_over()) else { return };
        if host.is_overdue() && timeout(patience, host.ask(json!({"do": "ping"}))).await.is_err() {
            host.end_stuck(patience);
            return;
        }
    }
}

fn invocation(python: &InPython<'_>, host: &RewardHost, limit: Duration) -> Result<Invocation, String> {
    let InPython { tools, classes, raters } = python;
    let (program, dir) = interpreter(host)?;
    let entry = |named: &Named| -> Result<Value, String> {
        let in_entry = |reason| format!("{}: {reason}", named.entry);
        let (kind, place) = located(&named.place, &dir).map_err(in_entry)?;
        let place = place.into_string().map_err(|place| in_entry(format!("{} is no text", place.display())))?;
        Ok(json!({"entry": named.entry, "kind": kind, "place": place, "name": named.name}))
    };
    let class = |(key, named): &(Option<&str>, &Named)| -> Result<Value, String> {
        let mut entry = entry(named)?;
        entry["key"] = (*key).into();
        Ok(entry)
    };
    let config = json!({
        "tools": tools.iter().map(|named| entry(named)).collect::<Result<Vec<_>, String>>()?,
        "environments": classes.iter().map(class).collect::<Result<Vec<_>, String>>()?,
        "rewards": raters.iter().map(|named| entry(named)).collect::<Result<Vec<_>, String>>()?,
        "timeout": limit.as_secs_f64(),
        "threads": THREADS.min(host.bounds.processes / 4).max(1),
    });
    let mut names: Vec<&str> = Vec::new();
    for named in tools.iter().copied().chain(classes.iter().map(|(_, named)| *named)) {
        if !names.contains(&named.entry.as_str()) {
            names.push(&named.entry);
        }
    }
    let args = vec!["-c".into(), format!("{LIBRARY}{PROGRAM}").into(), config.to_string().into()];
    let containment = Containment::of(host)?;
    Ok(Invocation { label: names.join(", "), program, args, dir, containment, timeout: limit })
}

/// Why the first process could not begin.
fn refused(label: &str, failure: Failure) -> StartError {
    let words = failure.words();
    let reason = match failure {
        Failure::Broken { reason, .. } => reason,
        failure => failure.of(label).to_string(),
    };
    StartError::Python { reason, words }
}
