//! The further ranks of a run on one host: processes that the first rank starts, gives each batch to, watches and ends.
//!
//! What goes to a rank goes through its standard input, so that it ends with the first one whatever becomes of that. It
//! sends a byte a second through its standard output. Sums go over [`Gloo`].

use std::{
    env, fs,
    io::{BufRead, Read, Write},
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use shared::{PolicyVersion, RolloutGroup, RunDir, channel::frame, config::TrainConfig, heartbeat::Deadlines};

use super::{Gloo, Meeting};
use crate::{
    error::LearnerError,
    step::{StepBatch, Trainer},
};

/// How often a rank gives a sign of life.
const SIGN: Duration = Duration::from_secs(1);
/// A rank that has given none for so long is stopped, and is ended.
const SILENCE: Duration = Duration::from_secs(8);
/// Largest message that a rank takes.
const MOST_BYTES: u64 = 1 << 32;

/// What the first rank asks of the others, as a line of JSON; the groups of a step follow it, a frame each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Step { step: u64, groups: usize },
    LowerLearningRate { factor: f64 },
}

/// The further ranks, as the first one sees them. They are ended when it is dropped.
#[derive(Debug)]
pub struct Crew {
    members: Vec<Member>,
    over: Arc<AtomicBool>,
    meeting: PathBuf,
}

#[derive(Debug)]
struct Member {
    rank: usize,
    child: Arc<Mutex<Child>>,
    orders: ChildStdin,
}

impl Crew {
    /// Starts the ranks that `config` asks for besides the one that calls, from a checkpoint or the beginning, and makes
    /// `trainer` the first of them. Without any it stays alone.
    ///
    /// # Errors
    /// A rank that cannot be started, or does not come.
    pub fn start(
        config: &TrainConfig,
        run_dir: &RunDir,
        checkpoint: Option<&Path>,
        trainer: Trainer,
    ) -> Result<(Trainer, Option<Self>), LearnerError> {
        let count = config.learner_ranks as usize;
        if count == 1 {
            return Ok((trainer, None));
        }
        let meeting = run_dir.logs().join(format!("ranks-{}", process::id()));
        let _ = fs::remove_file(&meeting);
        let mut crew = Self { members: Vec::new(), over: Arc::default(), meeting };
        for rank in 1..count {
            let member = Member::start(rank, run_dir, checkpoint, &crew.meeting, &crew.over)
                .map_err(|e| LearnerError::Peer(format!("rank {rank} of the learner cannot be started: {e}")))?;
            crew.members.push(member);
        }
        let ranks = Gloo::join(&Meeting::File(crew.meeting.clone()), 0, count, deadline(config))?;
        tracing::info!("the learner has {count} ranks");
        Ok((trainer.with_ranks(Arc::new(ranks)), Some(crew)))
    }

    /// Gives all ranks the groups of a step, which this one trains on next. `step` is the number of steps done before it.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn train(&mut self, step: u64, groups: &[RolloutGroup]) -> Result<(), LearnerError> {
        let mut message = line(&Order::Step { step, groups: groups.len() });
        for group in groups {
            let frame = frame::encode(group);
            message.extend((frame.len() as u64).to_le_bytes());
            message.extend(frame);
        }
        self.tell(&message)
    }

    /// As [`Trainer::lower_learning_rate`] on all ranks.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn lower_learning_rate(&mut self, factor: f64) -> Result<(), LearnerError> {
        self.tell(&line(&Order::LowerLearningRate { factor }))
    }

    fn tell(&mut self, message: &[u8]) -> Result<(), LearnerError> {
        for member in &mut self.members {
            let told = member.orders.write_all(message).and_then(|()| member.orders.flush());
            told.map_err(|e| LearnerError::Peer(format!("rank {} of the learner is gone: {e}", member.rank)))?;
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for member in &self.members {
            let mut child = member.child.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_file(&self.meeting);
    }
}

impl Member {
    fn start(
        rank: usize,
        run_dir: &RunDir,
        checkpoint: Option<&Path>,
        meeting: &Path,
        over: &Arc<AtomicBool>,
    ) -> std::io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("rank").arg("--run-dir").arg(run_dir.root()).args(["--rank", &rank.to_string()]);
        command.arg("--meeting").arg(meeting);
        if let Some(checkpoint) = checkpoint {
            command.arg("--checkpoint").arg(checkpoint);
        }
        // Only the first rank shows its progress to the launcher.
        command.env_remove(shared::heartbeat::VARIABLE);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || std::io::Error::other("it has no standard input or output");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let signs = child.stdout.take().ok_or_else(missing)?;
        let child = Arc::new(Mutex::new(child));
        let (watched, over) = (Arc::clone(&child), Arc::clone(over));
        thread::Builder::new().name(format!("rank-{rank}")).spawn(move || watch(rank, signs, &watched, &over))?;
        Ok(Self { rank, child, orders })
    }
}

/// Ends a rank that is silent, and says so of one that has ended.
fn watch(rank: usize, mut signs: ChildStdout, child: &Mutex<Child>, over: &AtomicBool) {
    let (begin, last, ended) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
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
            if silent > SILENCE && !over.load(Ordering::Relaxed) {
                let seconds = silent.as_secs();
                tracing::error!("rank {rank} of the learner has given no sign of life for {seconds} s and is ended");
                let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
                break;
            }
        }
    });
    let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
    if !over.load(Ordering::Relaxed) {
        let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        tracing::error!("rank {rank} of the learner has ended: {how}");
    }
}

/// A further rank: does what the first one says until that is gone.
///
/// # Errors
/// The same as of the first rank's steps; a message that is none.
pub fn serve(
    config: &TrainConfig,
    mut trainer: Trainer,
    rank: usize,
    meeting: &Path,
    mut orders: impl BufRead,
) -> Result<(), LearnerError> {
    let count = config.learner_ranks as usize;
    let ranks = Gloo::join(&Meeting::File(meeting.into()), rank, count, deadline(config))?;
    trainer = trainer.with_ranks(Arc::new(ranks));
    let broken = |e: &dyn std::fmt::Display| LearnerError::Peer(format!("the first rank's message is damaged: {e}"));
    let mut text = String::new();
    while orders.read_line(&mut text).map_err(|e| broken(&e))? > 0 {
        match serde_json::from_str(&text).map_err(|e| broken(&e))? {
            Order::Step { step, groups } => {
                let groups: Result<Vec<RolloutGroup>, LearnerError> =
                    (0..groups).map(|_| read_group(&mut orders)).collect();
                let groups = groups?;
                trainer.step(&StepBatch::new(&groups, config, PolicyVersion(step)), step)?;
            }
            Order::LowerLearningRate { factor } => trainer.lower_learning_rate(factor),
        }
        text.clear();
    }
    Ok(())
}

/// Gives a sign of life every second, for as long as somebody takes it.
///
/// # Errors
/// When there can be no thread.
pub fn show_life() -> std::io::Result<()> {
    let show = || {
        while std::io::stdout().write_all(b".").and_then(|()| std::io::stdout().flush()).is_ok() {
            thread::sleep(SIGN);
        }
        process::exit(1);
    };
    thread::Builder::new().name("life".into()).spawn(show).map(drop)
}

fn read_group(orders: &mut impl BufRead) -> Result<RolloutGroup, LearnerError> {
    let broken = |e: &dyn std::fmt::Display| LearnerError::Peer(format!("a group from the first rank is damaged: {e}"));
    let mut length = [0; 8];
    orders.read_exact(&mut length).map_err(|e| broken(&e))?;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES {
        return Err(broken(&format_args!("it has {length} bytes")));
    }
    let mut bytes = Vec::new();
    orders.by_ref().take(length).read_to_end(&mut bytes).map_err(|e| broken(&e))?;
    frame::decode(&bytes).map_err(|e| broken(&e))
}

fn line(order: &Order) -> Vec<u8> {
    let mut line = serde_json::to_vec(order).expect("names and numbers become JSON");
    line.push(b'\n');
    line
}

/// How long a rank waits for the others: as long as a step may take.
fn deadline(config: &TrainConfig) -> Duration {
    let Deadlines { load, step, .. } = Deadlines::of(config);
    load.max(step)
}
