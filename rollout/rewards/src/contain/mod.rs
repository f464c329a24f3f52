//! Programs of reward functions, contained: what one may do and take, and that nothing of it outlives the sampler.
//!
//! The sampler starts itself again as `rollout contain PLAN PROGRAM …`, and that starts the program:
//!
//! 1. The [`keeper`] closes every descriptor but the three streams, enters namespaces where it may, and ends with all
//!    below it when the sampler wishes it or is gone, whatever became of that.
//! 2. The [`watcher`] is the first process of the PID namespace, whose end the kernel makes the end of all others. It
//!    counts processes, threads, memory and disk. Without namespaces, watcher and keeper both gather orphans, and each
//!    ends them all when the other is gone.
//! 3. The [`seal`] sets limits, Landlock and seccomp for itself, gives capabilities away and becomes the program.
//!
//! All of that happens in small processes with one thread, so that nothing needs to be done between fork and exec. What
//! they have to say goes to standard error, in lines that begin with [`MARK`]. None of it is a wall against a program
//! that wants to break out: the kernel's whole surface stays open to it.
//!
//! Each of these processes can be tried by itself: `rollout contain` is a hidden command.

mod keeper;
mod namespaces;
mod seal;
mod shared_memory;
mod syscalls;
mod system;
mod tree;
mod watcher;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use rustix::{
    process::{Pid, WaitStatus},
    stdio::{dup2_stdin, dup2_stdout},
    thread::set_name,
};
use serde::{Deserialize, Serialize};
use shared::memory::Size;

/// What lines begin with that come from here and not from the program.
pub const MARK: &str = "tandem-contain: ";

/// What a line says, behind [`MARK`], in which the program's containment is described.
pub const ACTIVE: &str = "active: ";

/// What a line says, behind [`MARK`], that tells why the program has ended.
pub const ENDED: &str = "ended: ";

/// The exit code where the program could not be started, as shells have it.
const NOT_STARTED: u8 = 127;

/// What an exit code is above the number of a signal, as shells have it.
const SIGNALLED: i32 = 128;

/// What a program may do and take.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The process with which everything ends.
    pub parent: u32,
    /// Whether it may use the network.
    pub network: bool,
    /// Where it may write, besides its own folder.
    pub writable: Vec<PathBuf>,
    /// Its own folder, which goes with it.
    pub scratch: PathBuf,
    /// Most bytes of memory, of one process and of all together.
    pub memory: u64,
    /// Most seconds of processor time of a process.
    pub cpu: u64,
    /// Most processes at once.
    pub processes: usize,
    /// Most bytes of a file.
    pub file_size: u64,
    /// Most bytes of all files of its own folder together.
    pub disk: u64,
    /// The keeper, once there is one.
    pub keeper: u32,
    /// Whether it has a PID namespace of its own, which the keeper finds out.
    pub in_namespace: bool,
    /// Whether everything is mounted read-only there but what it may write to, which the watcher finds out.
    pub read_only: bool,
    /// The priority that it runs with, which those that contain it do not share.
    pub nice: i32,
}

/// The steps on the way to the program, each a process or, as the last, the program's own.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Keep,
    /// Finds out whether there may be namespaces, since who has tried in vain is left in half of them; and inside of
    /// them, whether they can be furnished.
    Probe,
    ProbeInside,
    Watch,
    Seal,
}

impl Stage {
    const ALL: [Self; 5] = [Self::Keep, Self::Probe, Self::ProbeInside, Self::Watch, Self::Seal];

    fn word(self) -> &'static str {
        match self {
            Self::Keep => "contain",
            Self::Probe => "contain-probe",
            Self::ProbeInside => "contain-probe-inside",
            Self::Watch => "contain-watch",
            Self::Seal => "contain-seal",
        }
    }
}

/// The command that starts a program in this way: `rollout` is the program that [`run_if_asked`] is in.
///
/// # Errors
/// A path that is no text.
pub fn command<'a>(
    rollout: &Path,
    plan: &Plan,
    program: &'a OsStr,
    args: impl IntoIterator<Item = &'a OsString>,
) -> Result<Command, String> {
    stage(rollout, Stage::Keep, plan, [program].into_iter().chain(args.into_iter().map(OsString::as_os_str)))
}

fn stage<'a>(
    rollout: &Path,
    stage: Stage,
    plan: &Plan,
    words: impl IntoIterator<Item = &'a OsStr>,
) -> Result<Command, String> {
    let plan = serde_json::to_string(plan).map_err(|e| format!("a path of the reward program: {e}"))?;
    let mut command = Command::new(rollout);
    command.arg0("tandem-reward").args([stage.word(), &plan]).args(words);
    Ok(command)
}

/// Does what the command line asks for, if that is a program to be contained. To be called before anything else: the
/// process must have one thread and no descriptors of its own.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let mut words = env::args_os().skip(1);
    let word = words.next()?;
    let stage = Stage::ALL.into_iter().find(|stage| word == stage.word())?;
    let plan = words.next().and_then(|plan| serde_json::from_str(plan.to_str()?).ok());
    let words: Vec<OsString> = words.collect();
    let Some(plan) = plan else {
        return Some(refuse("`contain` is for the sampler alone"));
    };
    if words.is_empty() {
        return Some(refuse("there is no program to be started"));
    }
    // Whoever kills samplers by their name shall not kill what cleans up behind them.
    let _ = set_name(c"tandem-reward");
    Some(match stage {
        Stage::Keep => keeper::run(plan, &words),
        Stage::Probe => success(namespaces::enter().is_ok() && succeeds(Stage::ProbeInside, &plan, &words)),
        Stage::ProbeInside => success(namespaces::furnish(&plan).is_ok()),
        Stage::Watch if plan.in_namespace => watcher::run_in_namespace(&plan, &words),
        Stage::Watch => watcher::run_below_keeper(&plan, &words),
        Stage::Seal => seal::run(&plan, &words),
    })
}

/// Starts a further stage, which has standard input and output from then on: that they are closed is to be seen by the
/// one who has their other ends.
fn start(stage: Stage, plan: &Plan, words: &[OsString]) -> io::Result<Pid> {
    let child = next(stage, plan, words).spawn()?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    Ok(Pid::from_child(&child))
}

/// The command of a further stage. The program is the one that runs, also where its file has been replaced since.
fn next(after: Stage, plan: &Plan, words: &[OsString]) -> Command {
    let words = words.iter().map(OsString::as_os_str);
    stage(Path::new("/proc/self/exe"), after, plan, words).expect("the plan came as text")
}

fn success(done: bool) -> ExitCode {
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether a stage of which nothing else is asked succeeds.
fn succeeds(stage: Stage, plan: &Plan, words: &[OsString]) -> bool {
    next(stage, plan, words).status().is_ok_and(|status| status.success())
}

/// Says something to the sampler, if that is still there.
fn say(kind: &str, text: &str) {
    let _ = io::stderr().write_all(format!("\n{MARK}{kind}{text}\n").as_bytes());
}

fn refuse(reason: &str) -> ExitCode {
    say(ENDED, reason);
    ExitCode::from(NOT_STARTED)
}

/// The exit code that stands for how a program ended, which is told where the code says too little.
fn exit_code(plan: &Plan, end: WaitStatus) -> u8 {
    let code = end.exit_status().unwrap_or_else(|| SIGNALLED + end.terminating_signal().unwrap_or_default());
    // A shell says in its exit code which signal has ended what it ran.
    match code - SIGNALLED {
        libc::SIGXCPU => {
            say(ENDED, &format!("it had used the {} s of processor time that `reward_cpu` allows", plan.cpu))
        }
        libc::SIGXFSZ => {
            say(ENDED, &format!("it wrote a file of more than {} (`reward_file_size`)", Size(plan.file_size)));
        }
        libc::SIGKILL if end.signaled() => {
            say(ENDED, "signal: 9; the kernel ends it like that where memory runs out (`reward_memory`)");
        }
        signal if end.signaled() => say(ENDED, &format!("signal: {signal}")),
        _ => {}
    }
    code as u8
}
