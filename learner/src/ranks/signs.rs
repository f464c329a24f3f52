//! Signs of life: who is missing among the ranks.
//!
//! A rank that computes for a long time takes part in no collective operation, so a thread of its own shows that it
//! lives.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::TorchStore;
use crate::error::LearnerError;

/// How often a rank gives a sign of life.
pub(crate) const SIGN: Duration = Duration::from_secs(1);
/// A rank that has given no sign of life for so long is stopped, or gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(8);

/// Whether a rank is missing.
#[derive(Debug, Default)]
pub struct Watch {
    is_on: AtomicBool,
    missing: Mutex<Option<String>>,
}

impl Watch {
    /// A watch that names a missing rank within seconds. The default watch names none.
    #[must_use]
    pub fn on() -> Arc<Self> {
        Arc::new(Self { is_on: true.into(), missing: Mutex::default() })
    }

    /// Whether a rank that is missing will be named.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The report on the rank that was missing first.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for [`Self::missing`]: a rank finds a connection broken some seconds before it is known whose connection
    /// it was.
    #[must_use]
    pub(crate) fn missing_within(&self, patience: Duration) -> Option<String> {
        let begin = Instant::now();
        loop {
            let missing = self.missing();
            if missing.is_some() || !self.is_on() || begin.elapsed() >= patience {
                return missing;
            }
            thread::sleep(SIGN / 10);
        }
    }

    /// Reports that a rank is missing. Only the first report counts.
    pub(crate) fn name(&self, what: String) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.is_none() {
            tracing::error!("{what}");
            *missing = Some(what);
        }
    }

    /// From now on, a rank that is gone is not missing.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }
}

/// A rank's signs of life in a store that all see. It looks for the signs of the others as well.
#[derive(Debug)]
pub struct Signs {
    watch: Arc<Watch>,
    prefix: String,
    rank: usize,
    over: Arc<AtomicBool>,
}

/// Times of the last signs, in milliseconds from the beginning.
struct Heard {
    begin: Instant,
    /// Of the store, and so of the host that keeps it.
    store: AtomicU64,
    /// Of each rank.
    ranks: Vec<AtomicU64>,
}

impl Heard {
    fn now(&self, of: &AtomicU64) {
        of.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Seconds for which nothing was heard, if that is too long.
    fn silence(&self, of: &AtomicU64) -> Option<u64> {
        let silent = self.begin.elapsed().saturating_sub(Duration::from_millis(of.load(Ordering::Relaxed)));
        (silent > SILENCE).then_some(silent.as_secs())
    }
}

impl Signs {
    /// Begins to give signs under `prefix`, which all ranks of one meeting share, and to look for the signs of the
    /// others.
    ///
    /// # Errors
    /// A store that is gone; a thread that cannot be started.
    pub fn start(store: &TorchStore, prefix: &str, [rank, count]: [usize; 2]) -> Result<Self, LearnerError> {
        let signs = Self { watch: Watch::on(), prefix: prefix.into(), rank, over: Arc::default() };
        let heard = Arc::new(Heard {
            begin: Instant::now(),
            store: AtomicU64::new(0),
            ranks: (0..count).map(|_| AtomicU64::new(0)).collect(),
        });
        let (own, place) = (store.again()?, [rank, count]);
        let (watch, over, prefix) = (Arc::clone(&signs.watch), Arc::clone(&signs.over), prefix.to_owned());
        let listener = Arc::clone(&heard);
        thread::Builder::new().name("signs".into()).spawn(move || {
            if let Err(error) = exchange(&own, &prefix, place, &listener, &watch, &over)
                && !over.load(Ordering::Relaxed)
            {
                watch.name(format!("rank 0 of the learner is gone: {error}"));
            }
        })?;
        // A look at a store whose host is stopped does not return, so another thread looks at the clock.
        let (watch, over) = (Arc::clone(&signs.watch), Arc::clone(&signs.over));
        thread::Builder::new().name("silence".into()).spawn(move || look_at_clock(&heard, rank, &watch, &over))?;
        Ok(signs)
    }

    /// The watch that names a missing rank to this one.
    #[must_use]
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Tells the others why this rank ends, so that they need not wait for its silence.
    pub fn leave(&self, store: &TorchStore, why: &str) {
        // If the store is gone, the others know.
        let _ = store.set(&gone(&self.prefix, self.rank), why.as_bytes());
    }
}

impl Drop for Signs {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.watch.end();
    }
}

fn gone(prefix: &str, rank: usize) -> String {
    format!("{prefix}/gone/{rank}")
}

/// Gives signs and looks for the signs of the others, until it is over.
fn exchange(
    store: &TorchStore,
    prefix: &str,
    [own, count]: [usize; 2],
    heard: &Heard,
    watch: &Watch,
    over: &AtomicBool,
) -> Result<(), LearnerError> {
    let life = |rank: usize| format!("{prefix}/life/{rank}");
    let mut last: Vec<Option<Vec<u8>>> = vec![None; count];
    for number in 0u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        store.set(&life(own), number.to_string().as_bytes())?;
        for rank in (0..count).filter(|&rank| rank != own) {
            if let Some(why) = store.look(&gone(prefix, rank))? {
                watch.name(format!("rank {rank} of the learner has ended: {}", String::from_utf8_lossy(&why)));
            }
            let sign = store.look(&life(rank))?;
            if sign != last[rank] {
                heard.now(&heard.ranks[rank]);
                last[rank] = sign;
            }
        }
        heard.now(&heard.store);
        thread::sleep(SIGN);
    }
    Ok(())
}

fn look_at_clock(heard: &Heard, own: usize, watch: &Watch, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) && watch.missing().is_none() {
        thread::sleep(SIGN / 4);
        let silent =
            |rank: usize, seconds: u64| format!("rank {rank} of the learner has given no sign of life for {seconds} s");
        let late = |&(rank, of): &(usize, &AtomicU64)| rank != own && heard.silence(of).is_some();
        // Without the store no rank is heard, so rank 0, on whose host it lies, is named.
        let missing = match heard.silence(&heard.store) {
            Some(seconds) => Some(silent(0, seconds)),
            None => heard
                .ranks
                .iter()
                .enumerate()
                .find(late)
                .and_then(|(rank, of)| heard.silence(of).map(|seconds| silent(rank, seconds))),
        };
        if let Some(missing) = missing.filter(|_| !over.load(Ordering::Relaxed)) {
            watch.name(missing);
        }
    }
}
