//! Environments of the package verifiers (0.4) as agents of a run: each sample is an episode on a server of the
//! package, which asks the policy at the endpoint of the run, with the key of the sample in a header.
//!
//! | room | subject |
//! |---|---|
//! | `connection` | a socket of ZeroMQ |
//! | `episode` | the request for an episode, and the reward in its answers |
//! | `client` | all episodes of a run over one connection: deadlines, aborts, a server that is gone |

mod client;
mod connection;
mod episode;
#[cfg(test)]
mod tests;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::channel::Sender;
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    time::Instant,
};

use self::client::{Address, Asked, Client, Command, PATIENCE};
pub use self::{client::Counts, episode::Policy};
use super::{Outcome, Place, Starter};

/// A server of verifiers, which plays an episode for each sample.
pub struct Verifiers {
    policy: Policy,
    timeout: Duration,
    commands: mpsc::UnboundedSender<Command>,
    next: AtomicU64,
    client: Option<JoinHandle<Counts>>,
}

/// An episode that has begun. Dropping it aborts the episode, unless it has ended.
struct Begun {
    number: u64,
    commands: mpsc::UnboundedSender<Command>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::GiveUp(self.number));
    }
}

impl Verifiers {
    /// The server at `host:port`, whose episodes ask `policy` and may take `timeout` each. A server that is not there
    /// yet has a minute to come.
    ///
    /// # Errors
    /// When no server of verifiers answers there.
    pub fn meet(host: &str, policy: Policy, timeout: Duration) -> Result<Self, String> {
        Self::meet_within(host, policy, timeout, PATIENCE)
    }

    fn meet_within(host: &str, policy: Policy, timeout: Duration, patience: Duration) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime: Runtime = runtime.map_err(|error| error.to_string())?;
        let prefix = shared_http::random().map_err(|error| format!("no random numbers of the system: {error}"))?;
        let address = Address { host: host.to_owned(), patience };
        tracing::info!("asking the server of verifiers at tcp://{host}");
        let connection = runtime.block_on(address.meet(&format!("{prefix}-health")))?;
        let client = Client::new((address, connection), policy.base_url.clone(), prefix);
        let (commands, taken) = mpsc::unbounded_channel();
        let work = move || runtime.block_on(client.work(taken));
        let client = thread::Builder::new().name("verifiers".into()).spawn(work).map_err(|error| error.to_string())?;
        Ok(Self { policy, timeout, commands, next: AtomicU64::new(0), client: Some(client) })
    }

    /// Ends it, and tells how its episodes have ended.
    fn close(&mut self) -> Option<Counts> {
        let _ = self.commands.send(Command::Close);
        self.client.take()?.join().ok()
    }
}

impl Starter for Verifiers {
    fn start(
        &self,
        key: String,
        row: Arc<str>,
        place: Place,
        tell: Sender<(Place, Outcome)>,
    ) -> io::Result<Box<dyn Send>> {
        let request = episode::request(&row, &key, &self.policy).map_err(io::Error::other)?;
        let number = self.next.fetch_add(1, Relaxed);
        let deadline = Instant::now() + self.timeout;
        let seconds = self.timeout.as_secs_f64();
        let late = format!("the episode of verifiers has not ended within {seconds} s (`agent_timeout`)");
        let _ = self.commands.send(Command::Run(number, Asked { request, deadline, late, place, tell }));
        Ok(Box::new(Begun { number, commands: self.commands.clone() }))
    }
}

impl Drop for Verifiers {
    fn drop(&mut self) {
        if let Some(Counts { rewarded, failed, late, given_up, lost }) = self.close() {
            tracing::info!(
                "verifiers: {rewarded} episodes with a reward; {failed} failed, {late} late, {given_up} given up; the \
                 server was lost {lost} times"
            );
        }
    }
}
