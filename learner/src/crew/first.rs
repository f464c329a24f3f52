//! The further ranks of a run, from the first one's side. It starts them, or they come to it. It gives them each batch,
//! and tells them when the run is over.

use std::{
    fs,
    io::Read,
    path::PathBuf,
    process::{self, Child, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use shared::{
    Placed, RunDir,
    channel::frame,
    config::{TrainConfig, torchrun::Torchrun},
};

use super::{content::agree_on_model, meeting::gather};
use crate::{
    cores,
    error::LearnerError,
    ranks::{CONNECT, Gloo, Ranks, SIGN, SILENCE, Signs, TorchStore, Watch},
    trained::Among,
};

/// An order of the first rank to the others, as a line of JSON. The groups of a step follow it, a frame each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The next step.
    Step {
        /// Steps done before it.
        step: u64,
        /// Number of groups that follow.
        groups: usize,
    },
    /// As [`crate::step::Trainer::lower_learning_rate`].
    LowerLearningRate {
        /// Factor of the rate.
        factor: f64,
    },
    /// The others give their parts of a checkpoint.
    Save,
    /// The first rank begins anew, and the others are to come again.
    Again,
    /// The run is over.
    End,
}

/// The further ranks, as the first one sees them. Dropping it ends the ranks that the first one has started.
#[derive(Debug)]
pub struct Crew {
    ranks: Arc<Gloo>,
    children: Children,
    /// Signs of life of ranks that the first one has not started.
    _signs: Option<Signs>,
    _store: TorchStore,
}

/// Ranks that this one has started.
#[derive(Debug)]
struct Children {
    list: Vec<Arc<Mutex<Child>>>,
    over: Arc<AtomicBool>,
    meeting: PathBuf,
}

impl Crew {
    /// Called by the first rank: starts the further ranks that `config` asks for, or waits for them if torchrun's
    /// variables say that others start them. There is no crew if the first rank is alone. All ranks then open their
    /// models (`checkpoint::open_rank`).
    ///
    /// # Errors
    /// A rank that cannot be started, does not come, or has another model; when `stop` is set.
    pub fn start(
        config: &TrainConfig,
        run_dir: &RunDir,
        stop: &AtomicBool,
    ) -> Result<(Among, Option<Self>), LearnerError> {
        if config.learner_ranks == 1 {
            return Ok((Among::default(), None));
        }
        let told = Torchrun::of_run(config).map_err(|e| LearnerError::Config(e.to_string()))?;
        let crew = match &told {
            Some(told) => Self::of_others(config, told, stop)?,
            None => Self::of_children(config, run_dir, stop)?,
        };
        tracing::info!("the learner has {} ranks", config.learner_ranks);
        Ok((Among { ranks: Arc::clone(&crew.ranks) as _, shards: config.shard_optimizer }, Some(crew)))
    }

    fn of_children(config: &TrainConfig, run_dir: &RunDir, stop: &AtomicBool) -> Result<Self, LearnerError> {
        let meeting = run_dir.logs().join(format!("ranks-{}", process::id()));
        let _ = fs::remove_file(&meeting);
        let store = TorchStore::file(&meeting, CONNECT)?;
        let watch = Watch::on();
        let mut children = Children { list: Vec::new(), over: Arc::default(), meeting };
        for rank in 1..config.learner_ranks as usize {
            children
                .start(rank, &watch)
                .map_err(|e| LearnerError::Peer(format!("rank {rank} of the learner cannot be started: {e}")))?;
        }
        let ranks = Self::meet(config, &store, None, "127.0.0.1", stop, watch)?.0;
        Ok(Self { ranks, children, _signs: None, _store: store })
    }

    fn of_others(config: &TrainConfig, told: &Torchrun, stop: &AtomicBool) -> Result<Self, LearnerError> {
        let (host, port) = (&*told.master_addr, told.master_port);
        let store = if told.agent_listens {
            TorchStore::reach(host, port, CONNECT)
        } else {
            TorchStore::keep(host, port, CONNECT)
        }?;
        let (ranks, signs) = Self::meet(config, &store, Some(told), host, stop, Arc::default())?;
        agree_on_model(&*ranks, config)?;
        let children = Children { list: Vec::new(), over: Arc::default(), meeting: PathBuf::new() };
        Ok(Self { ranks, children, _signs: signs, _store: store })
    }

    /// Waits for the others and joins them.
    fn meet(
        config: &TrainConfig,
        store: &TorchStore,
        told: Option<&Torchrun>,
        host: &str,
        stop: &AtomicBool,
        watch: Arc<Watch>,
    ) -> Result<(Arc<Gloo>, Option<Signs>), LearnerError> {
        let goes_on = || match stop.load(Ordering::Relaxed) {
            true => Err(LearnerError::Peer("it was asked to end while it waited for the other ranks".into())),
            false => Ok(()),
        };
        let threads = Torchrun::threads_of_rank(config).unwrap_or_else(cores::all);
        let patience = Duration::from_secs_f64(config.peer_timeout);
        let prefix = gather(store, config, threads, patience, goes_on, &watch)?;
        let place = [0, config.learner_ranks as usize];
        let signs = told.map(|_| Signs::start(store, &prefix, place)).transpose()?;
        let watch = signs.as_ref().map_or(watch, Signs::watch);
        Ok((Arc::new(Gloo::join(store, &prefix, place, host, CONNECT, watch)?), signs))
    }

    /// Gives all ranks the groups of a step, which this one trains on next. `step` is the number of steps done before
    /// it.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn train(&mut self, step: u64, groups: &[Placed]) -> Result<(), LearnerError> {
        let mut message = line(&Order::Step { step, groups: groups.len() });
        for group in groups {
            let frame = frame::encode(group);
            message.extend((frame.len() as u64).to_le_bytes());
            message.extend(frame);
        }
        self.tell(message)
    }

    /// As [`crate::step::Trainer::lower_learning_rate`] on all ranks.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn lower_learning_rate(&mut self, factor: f64) -> Result<(), LearnerError> {
        self.tell(line(&Order::LowerLearningRate { factor }))
    }

    /// Asks all ranks for their part of a checkpoint that this one writes next.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn save(&mut self) -> Result<(), LearnerError> {
        self.tell(line(&Order::Save))
    }

    /// Lets the others go: for good, or until this one has begun anew.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn end(self, for_good: bool) -> Result<(), LearnerError> {
        // From now on, nobody reports that they have ended.
        self.children.over.store(true, Ordering::Relaxed);
        self.tell(line(if for_good { &Order::End } else { &Order::Again }))
    }

    fn tell(&self, message: Vec<u8>) -> Result<(), LearnerError> {
        self.ranks.bytes_of_first(message).map(drop)
    }
}

impl Children {
    fn start(&mut self, rank: usize, watch: &Arc<Watch>) -> std::io::Result<()> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rank", "--rank", &rank.to_string()]).arg("--meeting").arg(&self.meeting);
        // Only the first rank shows its progress to the launcher.
        command.env_remove(shared::process::heartbeat::VARIABLE);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let signs = child.stdout.take().ok_or_else(|| std::io::Error::other("it has no standard output"))?;
        let child = Arc::new(Mutex::new(child));
        self.list.push(Arc::clone(&child));
        let (watch, over) = (Arc::clone(watch), Arc::clone(&self.over));
        let attend = move || attend(rank, signs, &child, &watch, &over);
        thread::Builder::new().name(format!("rank-{rank}")).spawn(attend).map(drop)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for child in &self.list {
            let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = child.kill();
            let _ = child.wait();
        }
        if !self.list.is_empty() {
            let _ = fs::remove_file(&self.meeting);
        }
    }
}

/// Ends a rank that is silent, and reports a rank that has ended. A rank sends a byte a second through its standard
/// output.
fn attend(rank: usize, mut signs: ChildStdout, child: &Mutex<Child>, watch: &Watch, over: &AtomicBool) {
    let (begin, last, ended) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let name = |what: String| {
        if !over.load(Ordering::Relaxed) {
            watch.name(what);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while signs.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {
                last.store(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
        while !ended.load(Ordering::Relaxed) {
            thread::sleep(SIGN / 4);
            let silent = begin.elapsed().saturating_sub(Duration::from_millis(last.load(Ordering::Relaxed)));
            if silent > SILENCE {
                name(format!("rank {rank} of the learner has given no sign of life for {} s", silent.as_secs()));
                let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
                break;
            }
        }
    });
    let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
    let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
    name(format!("rank {rank} of the learner has ended: {how}"));
}

fn line(order: &Order) -> Vec<u8> {
    let mut line = serde_json::to_vec(order).expect("names and numbers become JSON");
    line.push(b'\n');
    line
}
