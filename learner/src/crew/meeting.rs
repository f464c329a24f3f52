//! How the ranks of a learner find each other: by a few keys of a store.
//!
//! A rank says hello until it is answered. The first rank answers when all have come, with the configuration of the run
//! and the name of a new meeting, under which everything else goes on. So it makes no difference which side was started
//! first, or again.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use shared::{
    channel::incarnation,
    config::{TrainConfig, layers},
    generation::rng,
    process::heartbeat::{self, Phase},
};

use crate::{
    error::LearnerError,
    ranks::{TorchStore, Watch, instructions},
};

/// How often a rank that waits looks.
const LOOK: Duration = Duration::from_millis(100);
/// How often the first rank says which ranks it waits for.
const REMINDER: Duration = Duration::from_secs(15);
/// How long a rank waits before it tries again to reach the first one.
const PAUSE: Duration = Duration::from_secs(1);

/// What a rank says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    /// A number that no other process has.
    nonce: u64,
    maker: Maker,
}

/// What a rank's figures depend on. Figures that every rank computes for itself from the same sums must have the same
/// bits.
///
/// Ranks on GPUs need GPUs of one kind as well, but nobody compares these: tch 0.24 gives no name or compute capability
/// of a device, and libtorch's headers for them need CUDA's own headers, which libtorch does not ship.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Maker {
    /// Version of the program.
    build: String,
    /// Vector instructions.
    instructions: String,
}

/// The first rank's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Welcome(Welcome),
    Refusal(String),
}

/// What a rank is told when all have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// Name of the meeting.
    pub prefix: String,
    /// Number of ranks.
    pub count: usize,
    /// Threads of each rank: their number decides how sums are rounded.
    pub threads: usize,
    /// The configuration of the run, as the text of a file.
    pub config: String,
}

impl Maker {
    fn own() -> Self {
        Self { build: env!("CARGO_PKG_VERSION").into(), instructions: instructions() }
    }

    /// Why another process cannot be a rank beside this one.
    fn objection(&self, other: &Self) -> Option<String> {
        if other.build != self.build {
            return Some(format!("is of version {}, and the first one of {}", other.build, self.build));
        }
        (other.instructions != self.instructions).then(|| {
            format!(
                "computes with {}, and the first one with {}, so that they would round differently; give both the \
                 lesser by ATEN_CPU_CAPABILITY (default, avx2, avx512)",
                other.instructions, self.instructions
            )
        })
    }
}

fn hello_of(rank: usize) -> String {
    format!("tandem/hello/{rank}")
}

fn answer_to(nonce: u64) -> String {
    format!("tandem/answer/{nonce:016x}")
}

/// Waits until all further ranks have said hello, and answers. Returns the name of the meeting. `watch` knows of ranks
/// that this one has started.
///
/// # Errors
/// Ranks that do not come within `patience`, or cannot take part, by number.
pub(super) fn gather(
    store: &TorchStore,
    config: &TrainConfig,
    threads: usize,
    patience: Duration,
    mut goes_on: impl FnMut() -> Result<(), LearnerError>,
    watch: &Watch,
) -> Result<String, LearnerError> {
    let (begin, count, own) = (Instant::now(), config.learner_ranks as usize, Maker::own());
    let mut reminded = begin;
    let nonces = loop {
        let (mut nonces, mut absent) = (Vec::new(), Vec::new());
        for rank in 1..count {
            let Some(hello) = store.look(&hello_of(rank))? else {
                absent.push(rank.to_string());
                continue;
            };
            let hello: Hello = serde_json::from_slice(&hello)
                .map_err(|e| LearnerError::Peer(format!("what rank {rank} of the learner says is damaged: {e}")))?;
            if let Some(objection) = own.objection(&hello.maker) {
                answer(store, hello.nonce, &Answer::Refusal(format!("this rank {objection}")))?;
                store.delete(&hello_of(rank))?;
                return Err(LearnerError::Config(format!("rank {rank} of the learner {objection}")));
            }
            nonces.push(hello.nonce);
        }
        if absent.is_empty() {
            break nonces;
        }
        if let Some(missing) = watch.missing() {
            return Err(LearnerError::Peer(missing));
        }
        let absent = absent.join(", ");
        if begin.elapsed() > patience {
            return Err(LearnerError::Peer(format!(
                "rank {absent} of the learner has not come within {} s (`peer_timeout`): start it with `tandem \
                 learner-rank` and its RANK, WORLD_SIZE {count}, MASTER_ADDR and MASTER_PORT",
                patience.as_secs()
            )));
        }
        if reminded.elapsed() > REMINDER {
            reminded = Instant::now();
            tracing::info!("waiting for rank {absent} of the learner's {count}");
        }
        goes_on()?;
        heartbeat::beat(Phase::Wait);
        thread::sleep(LOOK);
    };
    heartbeat::beat(Phase::Load);
    let prefix = format!("tandem/{:016x}", incarnation());
    let welcome = Welcome { prefix: prefix.clone(), count, threads, config: layers::to_toml(config) };
    for (rank, nonce) in (1..).zip(nonces) {
        // A hello that stays would be answered again in the next meeting.
        store.delete(&hello_of(rank))?;
        answer(store, nonce, &Answer::Welcome(welcome.clone()))?;
    }
    Ok(prefix)
}

fn answer(store: &TorchStore, nonce: u64, answer: &Answer) -> Result<(), LearnerError> {
    store.set(&answer_to(nonce), &serde_json::to_vec(answer).expect("names and numbers become JSON"))
}

/// Says hello as `rank` in the store that `open` opens, until it is answered.
///
/// # Errors
/// No answer within `patience`; a refusal.
pub(super) fn come(
    rank: usize,
    patience: Duration,
    open: impl Fn(Duration) -> Result<TorchStore, LearnerError>,
) -> Result<(TorchStore, Welcome), LearnerError> {
    let begin = Instant::now();
    let left = || patience.saturating_sub(begin.elapsed());
    loop {
        // The store of a first rank ends with it, and the next first rank brings a new one.
        let why = match open(left()).and_then(|store| Ok((say_hello(&store, rank, left)?, store))) {
            Ok((Some(Answer::Welcome(welcome)), store)) => return Ok((store, welcome)),
            Ok((Some(Answer::Refusal(why)), _)) => {
                return Err(LearnerError::Config(format!(
                    "the first rank of the learner has no use for this one: {why}"
                )));
            }
            Ok((None, _)) => "it has not answered".to_owned(),
            Err(error) => error.to_string(),
        };
        if left().is_zero() {
            return Err(LearnerError::Config(format!(
                "the first rank of the learner has not come within {} s (--patience): {why}; is `tandem train` running \
                 with these MASTER_ADDR, MASTER_PORT and WORLD_SIZE?",
                patience.as_secs()
            )));
        }
        thread::sleep(PAUSE.min(left()));
    }
}

fn say_hello(store: &TorchStore, rank: usize, left: impl Fn() -> Duration) -> Result<Option<Answer>, LearnerError> {
    let hello = Hello { nonce: rng::hash(&[incarnation(), rank as u64]), maker: Maker::own() };
    store.set(&hello_of(rank), &serde_json::to_vec(&hello).expect("names and numbers become JSON"))?;
    let key = answer_to(hello.nonce);
    while !left().is_zero() {
        if let Some(answer) = store.look(&key)? {
            let damaged = |e| LearnerError::Peer(format!("the first rank's answer is damaged: {e}"));
            return Ok(Some(serde_json::from_slice(&answer).map_err(damaged)?));
        }
        thread::sleep(LOOK);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn config(count: u32) -> TrainConfig {
        TrainConfig { learner_ranks: count, learner_threads: Some(3), ..TrainConfig::default() }
    }

    #[test]
    fn all_are_answered_when_all_have_come() {
        let dir = tempfile::tempdir().unwrap();
        let open = |patience| TorchStore::file(&dir.path().join("store"), patience);
        let store = open(SOON).unwrap();
        let gathered = |patience| gather(&store, &config(3), 5, patience, || Ok(()), &Watch::default());
        thread::scope(|scope| {
            let come = |rank| scope.spawn(move || come(rank, SOON, open).unwrap().1);
            // A rank that died while it waited has left its hello.
            let lost = Hello { nonce: 7, maker: Maker::own() };
            store.set(&hello_of(1), &serde_json::to_vec(&lost).unwrap()).unwrap();
            let second = come(2);
            thread::sleep(Duration::from_millis(300));
            store.delete(&hello_of(1)).unwrap();
            let first = come(1);
            let prefix = gathered(SOON).unwrap();
            let [first, second] = [first, second].map(|rank| rank.join().unwrap());
            assert_eq!(first, second);
            assert_eq!((first.prefix, first.count, first.threads), (prefix, 3, 5));
            assert_eq!(layers::parse(&first.config, "run.toml".as_ref(), &Vec::new()).unwrap(), config(3));
        });
        let error = gathered(Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("rank 1, 2 of the learner") && error.contains("`tandem learner-rank`"), "{error}");
    }

    #[test]
    fn who_would_round_differently_is_refused_on_both_sides() {
        let dir = tempfile::tempdir().unwrap();
        let store = TorchStore::file(&dir.path().join("store"), SOON).unwrap();
        let of = |maker| serde_json::to_vec(&Hello { nonce: 7, maker }).unwrap();
        for (maker, word) in [
            (Maker { build: "0.0.0".into(), ..Maker::own() }, "0.0.0"),
            (Maker { instructions: "SSE".into(), ..Maker::own() }, "ATEN_CPU_CAPABILITY"),
        ] {
            store.set(&hello_of(1), &of(maker)).unwrap();
            let refused = gather(&store, &config(2), 1, SOON, || Ok(()), &Watch::default()).unwrap_err().to_string();
            assert!(refused.contains("rank 1") && refused.contains(word), "{refused}");
            let answer = store.look(&answer_to(7)).unwrap().unwrap();
            assert!(String::from_utf8(answer).unwrap().contains(word));
        }
    }

    #[test]
    fn a_first_rank_that_does_not_come_is_an_error_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let open = |patience| TorchStore::file(&dir.path().join("store"), patience);
        let error = come(1, Duration::from_millis(300), open).unwrap_err().to_string();
        assert!(error.contains("has not come") && error.contains("MASTER_ADDR"), "{error}");
    }
}
