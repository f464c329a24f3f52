//! The one client of a run: it asks the server for episodes, waits for their ends and for the end of their time, and
//! comes back to a server that was gone.

use std::{
    collections::BTreeMap,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crossbeam::channel::Sender;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinHandle},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    connection::{Connection, ConnectionError, Message},
    episode::{self, Episode},
};
use crate::agent::{Outcome, Place};

/// How long a server may take to answer `health`: its one loop works on episodes too.
const HEALTH: Duration = Duration::from_secs(10);
/// Time between two tries to reach a server.
const PAUSE: Duration = Duration::from_millis(250);
/// A map without entries in msgpack.
const EMPTY_MAP: u8 = 0x80;
/// How long the server of a run may be away, at its start and later.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where a server is, and how it is told from others in messages.
#[derive(Debug, Clone)]
pub struct Address {
    /// `host:port`.
    pub host: String,
    /// How long it may be away.
    pub patience: Duration,
}

impl Address {
    /// Connects to a server that is well.
    async fn join(&self, request_id: &str) -> Result<Connection, String> {
        let mut connection = Connection::open(&self.host).await.map_err(|error| error.to_string())?;
        connection.send(&[request_id.as_bytes(), b"health", &[EMPTY_MAP]]);
        let healthy = async {
            loop {
                let message = connection.next().await.map_err(|error| error.to_string())?;
                if let [id, kind, reply] = &message[..]
                    && id.as_slice() == request_id.as_bytes()
                    && kind.as_slice() == b"reply"
                {
                    return episode::is_well(reply).map_err(|error| error.to_string());
                }
            }
        };
        let late = || Err(format!("it has not answered `health` within {} s", HEALTH.as_secs()));
        match timeout(HEALTH, healthy).await.unwrap_or_else(|_| late())? {
            true => Ok(connection),
            false => Err("it says that it is not well".into()),
        }
    }

    /// Connects to a server that may come later.
    ///
    /// # Errors
    /// When none has come in time.
    pub async fn meet(&self, request_id: &str) -> Result<Connection, String> {
        let begun = Instant::now();
        loop {
            match self.join(request_id).await {
                Ok(connection) => return Ok(connection),
                Err(error) if begun.elapsed() > self.patience => return Err(self.absent(&error)),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    fn absent(&self, error: &str) -> String {
        let seconds = self.patience.as_secs_f64();
        format!("no server of verifiers has answered at tcp://{} for {seconds} s: {error}", self.host)
    }
}

/// An episode that is asked for.
pub struct Asked {
    /// The bytes of the request.
    pub request: Vec<u8>,
    /// When its time is over.
    pub deadline: Instant,
    /// What is said then.
    pub late: String,
    /// The sample that hears of its end.
    pub place: Place,
    /// Who hears of it.
    pub tell: Sender<(Place, Outcome)>,
}

/// What a client is told to do.
pub enum Command {
    /// Asks for an episode, by a number of its own.
    Run(u64, Asked),
    /// Forgets an episode.
    GiveUp(u64),
    /// Ends.
    Close,
}

/// How episodes have ended, and how often the server was lost.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Those with a reward.
    pub rewarded: u64,
    /// Those without.
    pub failed: u64,
    /// Those that took too long.
    pub late: u64,
    /// Those that nobody wanted any more.
    pub given_up: u64,
    /// Connections that ended.
    pub lost: u64,
}

/// The search for a server, with the last reason why there is none.
type Search = (JoinHandle<Connection>, Arc<Mutex<String>>);

/// An episode that has not ended.
struct Open {
    asked: Asked,
    episode: Episode,
    /// Until when a server may come, as long as none has been asked.
    unsent: Option<Instant>,
}

/// The client.
pub struct Client {
    address: Address,
    /// Where agents ask the policy.
    base_url: String,
    /// What the ids of its requests begin with: a server with several processes tells requests of all its clients by
    /// their ids alone.
    prefix: String,
    connection: Option<Connection>,
    search: Option<Search>,
    open: BTreeMap<u64, Open>,
    /// Episodes that a lost server may still play.
    lost: Vec<u64>,
    counts: Counts,
}

impl Client {
    /// A client with a first connection.
    #[must_use]
    pub fn new((address, connection): (Address, Connection), base_url: String, prefix: String) -> Self {
        let (open, lost, counts) = (BTreeMap::new(), Vec::new(), Counts::default());
        Self { address, base_url, prefix, connection: Some(connection), search: None, open, lost, counts }
    }

    /// Works until it is told to end.
    pub async fn work(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Counts {
        loop {
            let due = self.open.values().map(Open::due).min();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Run(number, asked)) => self.run(number, asked),
                    Some(Command::GiveUp(number)) => self.give_up(number),
                    Some(Command::Close) | None => return self.close().await,
                },
                message = heard(self.connection.as_mut()) => match message {
                    Ok(message) => self.hear(&message),
                    Err(error) => self.lose(&error.to_string()),
                },
                connection = found(self.search.as_mut()) => {
                    self.search = None;
                    match connection {
                        Ok(connection) => self.regain(connection),
                        Err(error) => self.lose(&error.to_string()),
                    }
                }
                () = over(due) => self.expire(),
            }
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.prefix)
    }

    fn run(&mut self, number: u64, asked: Asked) {
        let mut open = Open { asked, episode: Episode::default(), unsent: None };
        match &self.connection {
            Some(connection) => send(connection, &self.id(number), &open),
            None => open.unsent = Some(Instant::now() + self.address.patience),
        }
        self.open.insert(number, open);
    }

    /// Aborts an episode on the server, which may be one that has ended there.
    fn abort(&self, number: u64) {
        let id = self.id(number);
        if let (Some(connection), Ok(request)) = (&self.connection, episode::cancel(&id)) {
            connection.send(&[format!("{id}-cancel").as_bytes(), b"cancel", &request]);
        }
    }

    fn give_up(&mut self, number: u64) {
        if let Some(open) = self.open.remove(&number) {
            self.counts.given_up += 1;
            self.abort(number);
            open.tell(Outcome::Failed("the sampler gave it up".into()));
        }
    }

    /// The end of an episode.
    fn end(&mut self, number: u64, outcome: impl FnOnce(Episode) -> Outcome) {
        let Some(Open { asked, episode, .. }) = self.open.remove(&number) else { return };
        let outcome = outcome(episode);
        let count = match &outcome {
            Outcome::Failed(_) => &mut self.counts.failed,
            Outcome::Late(_) => &mut self.counts.late,
            Outcome::Done(_) | Outcome::Rewarded(_) => &mut self.counts.rewarded,
        };
        *count += 1;
        let _ = asked.tell.send((asked.place, outcome));
    }

    /// A message of the server. One about an episode that has ended means nothing any more.
    fn hear(&mut self, message: &Message) {
        let [id, kind, data] = &message[..] else { return };
        let number = id.strip_prefix(self.prefix.as_bytes()).and_then(|rest| rest.strip_prefix(b"-"));
        let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse::<u64>().ok());
        let Some(number) = number else { return };
        let Some(open) = self.open.get_mut(&number) else { return };
        match &kind[..] {
            b"delta" => {
                if let Err(error) = open.episode.take(data) {
                    self.abort(number);
                    self.end(number, |_| Outcome::Failed(error.to_string()));
                }
            }
            b"reply" => {
                let base_url = self.base_url.clone();
                self.end(number, |episode| episode.end(data, &base_url));
            }
            _ => {}
        }
    }

    /// The server is gone, with all episodes that it was asked for.
    fn lose(&mut self, error: &str) {
        self.connection = None;
        self.counts.lost += 1;
        let lost: Vec<u64> = self.open.iter().filter(|(_, open)| open.unsent.is_none()).map(|(at, _)| *at).collect();
        let reason = format!("the server of verifiers at tcp://{} is gone: {error}", self.address.host);
        tracing::warn!("{reason}; {} episodes have no reward, and it is looked for again", lost.len());
        for &number in &lost {
            self.end(number, |_| Outcome::Failed(reason.clone()));
        }
        self.lost.extend(lost);
        let last = Arc::new(Mutex::new(error.to_owned()));
        let (address, request_id, why) = (self.address.clone(), format!("{}-health", self.prefix), Arc::clone(&last));
        let search = tokio::spawn(async move {
            loop {
                match address.join(&request_id).await {
                    Ok(connection) => return connection,
                    Err(error) => *why.lock().unwrap_or_else(PoisonError::into_inner) = error,
                }
                sleep(PAUSE).await;
            }
        });
        self.search = Some((search, last));
    }

    fn regain(&mut self, connection: Connection) {
        tracing::info!("the server of verifiers at tcp://{} is there again", self.address.host);
        let prefix = self.prefix.clone();
        for (number, open) in &mut self.open {
            if open.unsent.take().is_some() {
                send(&connection, &format!("{prefix}-{number}"), open);
            }
        }
        self.connection = Some(connection);
        // It may be the connection alone that was lost.
        std::mem::take(&mut self.lost).into_iter().for_each(|number| self.abort(number));
    }

    /// Ends episodes whose time is over, or that no server has come for.
    fn expire(&mut self) {
        let now = Instant::now();
        let over: Vec<u64> = self.open.iter().filter(|(_, open)| open.due() <= now).map(|(at, _)| *at).collect();
        for number in over {
            let Some(open) = self.open.get_mut(&number) else { continue };
            if open.asked.deadline <= now {
                let late = std::mem::take(&mut open.asked.late);
                self.abort(number);
                self.end(number, |_| Outcome::Late(late));
            } else {
                let why = |(_, last): &Search| last.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let reason = self.address.absent(&self.search.as_ref().map(why).unwrap_or_default());
                self.end(number, |_| Outcome::Failed(reason));
            }
        }
    }

    async fn close(mut self) -> Counts {
        let open: Vec<u64> = self.open.keys().copied().collect();
        open.into_iter().for_each(|number| self.give_up(number));
        if let Some((search, _)) = self.search.take() {
            search.abort();
        }
        if let Some(connection) = self.connection.take() {
            connection.close().await;
        }
        self.counts
    }
}

impl Open {
    /// When it ends without an answer.
    fn due(&self) -> Instant {
        self.unsent.map_or(self.asked.deadline, |until| until.min(self.asked.deadline))
    }

    fn tell(self, outcome: Outcome) {
        // Without a sampler nobody wants to know.
        let _ = self.asked.tell.send((self.asked.place, outcome));
    }
}

async fn heard(connection: Option<&mut Connection>) -> Result<Message, ConnectionError> {
    match connection {
        Some(connection) => connection.next().await,
        None => pending().await,
    }
}

async fn found(search: Option<&mut Search>) -> Result<Connection, JoinError> {
    match search {
        Some((search, _)) => search.await,
        None => pending().await,
    }
}

async fn over(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

fn send(connection: &Connection, id: &str, open: &Open) {
    connection.send(&[id.as_bytes(), b"run", &open.asked.request]);
}
