//! Contains the programs of reward functions: bounds what a program may do and take, and ends all of it with the
//! sampler.
//!
//! The sampler starts itself again as `rollout contain PLAN PROGRAM …`, and that starts the program:
//!
//! 1. The [`keeper`] closes every descriptor but the three streams and enters namespaces where it may. It ends itself
//!    and all processes below it when the sampler asks for that or is gone, however the sampler ended.
//! 2. The [`watcher`] is the first process of the PID namespace: when it ends, the kernel ends all others there. It
//!    counts processes, threads, memory and disk. Without namespaces, watcher and keeper both gather orphans, and each
//!    ends all of them when the other is gone.
//! 3. The [`seal`] sets limits, Landlock and seccomp for itself, gives capabilities away and becomes the program.
//!
//! These are small processes with one thread, so nothing needs to be done between fork and exec. Their messages go to
//! standard error, in lines that begin with [`MARK`]. The containment is no wall against a program that wants to break
//! out: the kernel's whole surface stays open to it.
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
use shared::system::memory::Size;

/// The beginning of lines that the containment writes and not the program.
pub const MARK: &str = "tandem-contain: ";

/// Follows [`MARK`] in the line that describes the program's containment.
pub const ACTIVE: &str = "active: ";

/// Follows [`MARK`] in a line that says why the program has ended.
pub const ENDED: &str = "ended: ";

/// The exit code where the program could not be started, as shells have it.
const NOT_STARTED: u8 = 127;

/// Added to the number of a signal in an exit code, as in shells.
const SIGNALLED: i32 = 128;

/// The permissions and limits of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The sampler's process id: everything ends with it.
    pub parent: u32,
    /// Whether it may use the network.
    pub network: bool,
    /// Where it may write, besides its own folder.
    pub writable: Vec<PathBuf>,
    /// Its own folder, which is removed when it ends.
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
    /// The keeper's process id, once there is one.
    pub keeper: u32,
    /// Whether it is in a PID namespace of its own, as the keeper finds out.
    pub in_namespace: bool,
    /// Whether everything but its writable folders is mounted read-only, as the watcher finds out.
    pub read_only: bool,
    /// Its nice value. The keeper and the watcher have a higher priority.
    pub nice: i32,
}

/// The steps on the way to the program. Each runs in a process; the last one becomes the program.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Keep,
    /// Finds out whether namespaces may be entered and furnished. A process that has tried in vain is left in half of
    /// them, so the attempt has a process of its own.
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

/// The command that starts a program contained. `rollout` is the path of a program that calls [`run_if_asked`].
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

/// Runs the stage of containment that the command line names, if it names one. To be called before anything else: the
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
    // A user who kills samplers by name must not kill the processes that clean up behind them.
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

/// Starts a further stage, which takes over standard input and output. This process drops its own copies, so that the
/// other ends notice when the stage closes them.
fn start(stage: Stage, plan: &Plan, words: &[OsString]) -> io::Result<Pid> {
    let child = next(stage, plan, words).spawn()?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    Ok(Pid::from_child(&child))
}

/// The command of a further stage. It runs the executable of this process, also where the file has been replaced since.
fn next(after: Stage, plan: &Plan, words: &[OsString]) -> Command {
    let words = words.iter().map(OsString::as_os_str);
    stage(Path::new("/proc/self/exe"), after, plan, words).expect("the plan came as text")
}

fn success(done: bool) -> ExitCode {
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a stage and returns whether it succeeds.
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

/// The exit code for the end of a program. Where the code says too little, a line to the sampler says more.
fn exit_code(plan: &Plan, end: WaitStatus) -> u8 {
    let code = end.exit_status().unwrap_or_else(|| SIGNALLED + end.terminating_signal().unwrap_or_default());
    // A shell puts the signal that ended its command into its own exit code.
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
