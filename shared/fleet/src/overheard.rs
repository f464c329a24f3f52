//! What zenoh says of itself. Its lines are written for those who know it, some hold secrets, and a stranger on the
//! network can cause any number of them. So they are bounded. Refused connections, of which it speaks nowhere else, may
//! be handed to those who can say what they mean ([`overhear`]).
//!
//! Understanding its lines is a convenience, and holds for one version of zenoh, so the workspace pins that version and
//! a program chooses ([`RefusedCalls`]). Nothing else hangs on it: who is let in is decided by zenoh, and a worker that
//! is refused is told why.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use shared::logging;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    filter::{FilterExt, LevelFilter, Targets, dynamic_filter_fn},
    layer::{Context, Filter},
    registry::LookupSpan,
};

/// Where it says what becomes of connections: the handshake (and, at the lowest level, with whom) and TLS before it.
const OVERHEARD: [(&str, LevelFilter); 2] =
    [("zenoh_transport::unicast::establishment::accept", LevelFilter::TRACE), ("zenoh_link_tls", LevelFilter::WARN)];
/// Where it writes what no log is to have, from below these levels on: its configuration with the word in it, and what
/// the word could be found from.
const SECRET: [(&str, Level); 2] =
    [("zenoh::api::session", Level::INFO), ("zenoh_transport::unicast::establishment", Level::DEBUG)];
/// What is said in other words by those who open a session, and what is no news: that it gossips with nobody. Of these,
/// what could be overheard is news to a program that does not.
const KNOWN: [&str; 4] = [
    "zenoh_transport::unicast::establishment",
    "zenoh_link_tls",
    "zenoh::net::runtime::orchestrator",
    "zenoh::net::routing::hat",
];
/// So many of its lines are written in [`SPELL`].
const MOST_LINES: usize = 10;
const SPELL: Duration = Duration::from_secs(60);

/// How a program tells of connections that zenoh turned away before the coordinator heard of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCalls {
    /// By zenoh's own warnings, and the coordinator hears nothing of them: for workers, and for a zenoh whose lines are
    /// not known.
    AsLogged,
    /// The coordinator hears who was refused and why, in words of ours
    /// ([`CoordinatorEvent::Refused`](shared::channel::fleet::CoordinatorEvent::Refused)), which are made of zenoh's.
    Explained,
}

/// As [`logging::init_from`], for a program that opens sessions.
pub fn init_logging(level: &str, refused: RefusedCalls) {
    let explained = refused == RefusedCalls::Explained;
    logging::init_with(
        level,
        |asked, words| Box::new(bounded(asked, words.contains("zenoh"), explained)),
        if explained { vec![Box::new(layer())] } else { Vec::new() },
    );
}

/// Hears a record: its target and its message.
pub(crate) type Listener = dyn Fn(&str, &str) + Send + Sync;

static LISTENERS: Mutex<Vec<Weak<Listener>>> = Mutex::new(Vec::new());

/// Calls this with what zenoh says of connections that it accepts or refuses, for as long as somebody holds it. It is
/// called on zenoh's threads, and only in a program whose log was set up for it ([`RefusedCalls::Explained`]).
pub(crate) fn overhear(listener: &Arc<Listener>) {
    let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    listeners.retain(|listener| listener.strong_count() > 0);
    listeners.push(Arc::downgrade(listener));
}

/// The layer that hands records to listeners.
fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    Hear.with_filter(Targets::new().with_targets(OVERHEARD))
}

struct Hear;

impl<S: Subscriber> Layer<S> for Hear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Not held while they are called, so that they may do what they like.
        let listeners: Vec<_> = {
            let listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.iter().filter_map(Weak::upgrade).collect()
        };
        if listeners.is_empty() {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        listeners.iter().for_each(|listener| listener(event.metadata().target(), &message.0));
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// What of the records that `inner` lets pass is written. Whoever has named zenoh wants to see its lines. What is
/// `explained` is not written in zenoh's words too.
fn bounded<S>(inner: impl Filter<S> + 'static, named: bool, explained: bool) -> impl Filter<S> {
    let lines = Mutex::new(Lines::default());
    inner.and(dynamic_filter_fn(move |of, _| {
        if !of.target().starts_with("zenoh") {
            return true;
        }
        if SECRET.iter().any(|(target, level)| of.target().starts_with(target) && of.level() > level) {
            return false;
        }
        named || (wanted(of, explained) && lines.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now()))
    }))
}

/// Whether it is worth a line where nobody has asked for zenoh's.
fn wanted(of: &Metadata<'_>, explained: bool) -> bool {
    let known = KNOWN.iter().any(|target| of.target().starts_with(target));
    let is_news = !explained && OVERHEARD.iter().any(|(target, _)| of.target().starts_with(target));
    *of.level() <= Level::WARN && (!known || is_news)
}

/// The lines of a spell.
#[derive(Default)]
struct Lines {
    since: Option<Instant>,
    written: usize,
}

impl Lines {
    fn admit(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= SPELL) {
            *self = Self { since: Some(now), written: 0 };
        }
        self.written += 1;
        self.written <= MOST_LINES
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::{EnvFilter, Registry, fmt, layer::SubscriberExt};

    use super::*;

    /// What is written and what is overheard while `work` runs.
    fn heard(asked: &str, refused: RefusedCalls, work: impl FnOnce()) -> (String, Vec<(String, String)>) {
        // Whoever listens hears what others do.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&written);
        let writer = move || Into(Arc::clone(&to));
        let lines = fmt::layer().with_writer(writer).with_ansi(false).without_time();
        let explained = refused == RefusedCalls::Explained;
        let subscriber = Registry::default()
            .with(lines.with_filter(bounded(EnvFilter::new(asked), asked.contains("zenoh"), explained)))
            .with(explained.then(layer));
        let records = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&records);
        let listener: Arc<Listener> =
            Arc::new(move |target, message| into.lock().unwrap().push((target.to_owned(), message.to_owned())));
        overhear(&listener);
        tracing::subscriber::with_default(subscriber, work);
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        drop(listener);
        (written, Arc::into_inner(records).unwrap().into_inner().unwrap())
    }

    struct Into(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Into {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn all_kinds() {
        tracing::info!("ours");
        tracing::info!(target: "zenoh::net", "all is well");
        tracing::debug!(target: "zenoh::api::session", "Config: the word");
        tracing::trace!(target: "zenoh_transport::unicast::establishment::accept", "link {}", 7);
        tracing::error!(target: "zenoh_transport::unicast::establishment::accept", "refused");
        tracing::warn!(target: "zenoh_link_tls::unicast", "no certificate");
        tracing::warn!(target: "zenoh::net::routing::hat::peer", "no gossip");
        for index in 0..100 {
            tracing::warn!(target: "zenoh::net::routing", "oops {index}");
        }
    }

    #[test]
    fn lines_of_zenoh_are_bounded_and_refusals_are_handed_on() {
        let (written, records) = heard("info", RefusedCalls::Explained, all_kinds);
        assert_eq!(written.lines().count(), 1 + MOST_LINES, "{written}");
        assert!(
            written.contains("ours")
                && !written.contains("gossip")
                && written.contains("oops 9")
                && !written.contains("oops 10"),
            "{written}"
        );
        let accept = OVERHEARD[0].0.to_owned();
        let expected =
            [(accept.clone(), "link 7"), (accept, "refused"), ("zenoh_link_tls::unicast".into(), "no certificate")];
        assert_eq!(records, expected.map(|(target, message)| (target, message.to_owned())));
    }

    #[test]
    fn where_refusals_are_not_explained_zenoh_has_the_word() {
        let (written, records) = heard("info", RefusedCalls::AsLogged, all_kinds);
        assert_eq!(records, []);
        assert_eq!(written.lines().count(), 1 + MOST_LINES, "{written}");
        assert!(written.contains("refused") && written.contains("no certificate"), "{written}");
        assert!(
            !written.contains("gossip") && !written.contains("link 7") && !written.contains("the word"),
            "{written}"
        );
    }

    #[test]
    fn whoever_asks_for_them_sees_them_all_but_the_secrets() {
        let (written, _) = heard("zenoh=trace,zenoh::api::session=trace", RefusedCalls::Explained, all_kinds);
        assert!(written.contains("all is well") && written.contains("oops 99") && written.contains("refused"));
        assert!(!written.contains("the word") && !written.contains("link 7") && !written.contains("ours"), "{written}");
        let (written, _) = heard("trace", RefusedCalls::Explained, all_kinds);
        assert!(!written.contains("the word") && written.contains("ours"), "{written}");
    }
}
