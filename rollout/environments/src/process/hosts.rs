//! The processes of one kind, with a run's environments.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use serde_json::Map;
use tokio::{runtime::Handle, time::sleep};

use super::{
    answer::{Greeting, PROTOCOL},
    host::{FirstLine, Host, Invocation, Manner},
};
use crate::{Failure, Sample, StartError};

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
    /// Starts so many processes. The channel gets what the first one says.
    ///
    /// # Errors
    /// Why one cannot be started.
    pub fn start(invocation: Invocation, wanted: usize, runtime: Handle) -> Result<(Arc<Self>, FirstLine), StartError> {
        let hosts = Self { invocation: Arc::new(invocation), wanted, runtime, seats: Mutex::default() };
        let way_out = match hosts.invocation.manner {
            Manner::Python => "; `reward_python` names the interpreter",
            Manner::Program => "",
        };
        let fail = |reason: String| StartError::Process { reason: format!("{reason}{way_out}"), words: Vec::new() };
        let (first, greeting) = hosts.start_host().map_err(fail)?;
        let mut all = vec![first];
        for _ in 1..wanted {
            all.push(hosts.start_host().map_err(fail)?.0);
        }
        hosts.seats().hosts = all;
        Ok((Arc::new(hosts), greeting))
    }

    /// Waits for the first line of the first process.
    ///
    /// # Errors
    /// What is wrong, with file and line where there are any.
    pub fn greeted(&self, first_line: &FirstLine) -> Result<Greeting, StartError> {
        let Invocation { label, manner, loading, .. } = &*self.invocation;
        let Ok(greeting) = first_line.recv_timeout(*loading) else {
            let seconds = loading.as_secs();
            let reason = match manner {
                Manner::Python => format!("{label}: not imported within {seconds} s"),
                Manner::Program => format!(
                    "{label}: its first line has not come within {seconds} s; a program with environments begins \
                     with {{\"protocol\": {PROTOCOL}, …}}, and flushes its output after each line"
                ),
            };
            return Err(StartError::Process { reason, words: Vec::new() });
        };
        greeting.map_err(|failure| {
            let words = failure.words();
            let reason = match failure {
                Failure::Broken { reason, .. } if *manner == Manner::Python => reason,
                failure => failure.of(label).to_string(),
            };
            StartError::Process { reason, words }
        })
    }

    /// Entries of the raters, in order.
    pub fn raters(&self) -> &[String] {
        &self.invocation.raters
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
        drop(host.ask((episode, "close"), Map::new(), None));
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
        if host.is_overdue() && !host.is_alive(patience).await {
            host.end_stuck(patience);
            return;
        }
    }
}
