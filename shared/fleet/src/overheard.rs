//! zenoh's own log. Its lines are written for those who know it, some hold secrets, and a stranger on the network can
//! cause any number of them. So they are bounded. Its log alone tells of refused connections, so those lines may be
//! handed to code that can explain them ([`overhear`]).
//!
//! Understanding its lines is a convenience and holds for one version of zenoh. So the workspace pins that version, and
//! each program chooses ([`RefusedCalls`]). Nothing else depends on the lines: zenoh decides who is let in, and a
//! refused worker is told why.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use shared::process::logging;
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

/// Where zenoh logs the fate of connections: in the handshake (and, at the lowest level, with the peer) and in TLS
/// before it.
const OVERHEARD: [(&str, LevelFilter); 2] =
    [("zenoh_transport::unicast::establishment::accept", LevelFilter::TRACE), ("zenoh_link_tls", LevelFilter::WARN)];
/// Where zenoh logs secrets, at levels more verbose than these: its configuration, which holds the token, and data from
/// which the token could be found.
const SECRET: [(&str, Level); 2] =
    [("zenoh::api::session", Level::INFO), ("zenoh_transport::unicast::establishment", Level::DEBUG)];
/// Lines that the code that opens a session says in other words, and lines that are no news: that zenoh gossips with
/// nobody. Of these, the lines that could be overheard are news in a program that does not explain them.
const KNOWN: [&str; 4] = [
    "zenoh_transport::unicast::establishment",
    "zenoh_link_tls",
    "zenoh::net::runtime::orchestrator",
    "zenoh::net::routing::hat",
];
/// Lines of zenoh's that are written in each [`SPELL`].
const MOST_LINES: usize = 10;
const SPELL: Duration = Duration::from_secs(60);

/// How a program reports connections that zenoh refused before the coordinator heard of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCalls {
    /// By zenoh's own warnings, without the coordinator: for workers, and for a zenoh whose lines are not known.
    AsLogged,
    /// The coordinator hears who was refused and why, in words of ours
    /// ([`CoordinatorEvent::Refused`](shared::channel::fleet::CoordinatorEvent::Refused)) that are derived from
    /// zenoh's.
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

/// Hears a log record: its target and its message.
pub(crate) type Listener = dyn Fn(&str, &str) + Send + Sync;

static LISTENERS: Mutex<Vec<Weak<Listener>>> = Mutex::new(Vec::new());

/// Calls `listener` with zenoh's lines about connections that it accepts or refuses, as long as somebody holds the
/// listener. It is called on zenoh's threads, and only in a program whose log was set up for it
/// ([`RefusedCalls::Explained`]).
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
        // The lock is not held during the calls, so listeners may do anything.
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

/// Which of the records that `inner` lets pass are written. A user who has named zenoh in the filter wants to see its
/// lines. Records that are `explained` are not written in zenoh's words as well.
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

/// Whether a record is worth a line though the user has not asked for zenoh's.
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

    /// The log, and the lines that are overheard, while `work` runs.
    fn heard(asked: &str, refused: RefusedCalls, work: impl FnOnce()) -> (String, Vec<(String, String)>) {
        // Listeners also hear sessions of other tests.
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
