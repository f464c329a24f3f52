//! The process that starts the program and counts what it takes.

use std::{
    ffi::OsString,
    fs,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Signal, getpid, getppid, kill_process_group, set_child_subreaper, set_parent_process_death_signal,
};
use shared::system::memory::Size;
use signal_hook::{
    consts::{SIGCHLD, SIGTERM},
    flag,
};

use super::{
    ENDED, Plan, Stage, exit_code,
    keeper::{Waker, reaped},
    namespaces, refuse, say,
    shared_memory::{self, Held},
    start, tree,
};

/// The exit code of a program that was killed, as shells have it.
const KILLED: u8 = 137;

/// Most files in the temporary folder.
const MOST_FILES: u64 = 100_000;

/// Threads per core that are allowed however few processes are: numeric libraries start that many in each process.
const THREADS_PER_CORE: usize = 4;

/// After a slow measurement, the rest until the next one is this many times as long.
const REST: u32 = 40;
const LONGEST_REST: Duration = Duration::from_secs(5);

/// Runs as the first process of a PID namespace. When it ends, the kernel ends all other processes of the namespace.
pub fn run_in_namespace(plan: &Plan, words: &[OsString]) -> ExitCode {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let plan = match namespaces::furnish(plan) {
        Ok(read_only) => Plan { read_only, ..plan.clone() },
        Err(error) => return refuse(&format!("the namespace cannot be furnished: {error}")),
    };
    match Waker::new(&[SIGCHLD]) {
        Ok(mut waker) => watch(&plan, words, &mut waker, || false),
        Err(error) => refuse(&format!("signals cannot be handled: {error}")),
    }
}

/// Runs without a namespace: gathers orphans, and ends all of them when it ends or the keeper is gone. The keeper does
/// the same when this process is gone. So neither can be killed alone and leave something behind.
pub fn run_below_keeper(plan: &Plan, words: &[OsString]) -> ExitCode {
    let asked = Arc::new(AtomicBool::new(false));
    let waker = flag::register(SIGTERM, Arc::clone(&asked)).and_then(|_| Waker::new(&[SIGTERM, SIGCHLD]));
    let Ok(mut waker) = waker else { return refuse("signals cannot be handled") };
    if set_child_subreaper(Some(getpid())).is_err() {
        return refuse("orphans cannot be gathered");
    }
    let keeper = i32::try_from(plan.keeper).ok();
    let is_alone = || getppid().map(|pid| pid.as_raw_nonzero().get()) != keeper;
    let code = watch(plan, words, &mut waker, || asked.load(Ordering::Relaxed) || is_alone());
    tree::kill_all();
    if is_alone() {
        let _ = fs::remove_dir_all(&plan.scratch);
    }
    code
}

/// Starts the program and watches until it ends, takes too much or is `unwanted`. The caller ends what it leaves
/// behind.
fn watch(plan: &Plan, words: &[OsString], waker: &mut Waker, unwanted: impl Fn() -> bool) -> ExitCode {
    let program = match start(Stage::Seal, plan, words) {
        Ok(program) => program,
        Err(error) => return refuse(&format!("a process cannot be started: {error}")),
    };
    let mut meter = Meter::new(plan);
    loop {
        if let Some(end) = reaped(program) {
            return ExitCode::from(exit_code(plan, end));
        }
        let excess = meter.excess();
        if excess.is_some() || unwanted() {
            // The process group that the program leads goes at once, since no fork escapes that.
            let _ = kill_process_group(program, Signal::KILL);
            excess.iter().for_each(|excess| say(ENDED, excess));
            return ExitCode::from(KILLED);
        }
        waker.sleep();
    }
}

/// Measures what a program takes. Slow measurements are made less often.
struct Meter<'a> {
    plan: &'a Plan,
    threads: usize,
    held: Held,
    /// Bytes of page tables.
    tables: u64,
    next_held: Instant,
    next_filled: Instant,
}

impl<'a> Meter<'a> {
    fn new(plan: &'a Plan) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = plan.processes.max(THREADS_PER_CORE * cores);
        let now = Instant::now();
        Self { plan, threads, held: Held::default(), tables: 0, next_held: now, next_filled: now }
    }

    /// The limit of the plan that is exceeded, in words.
    fn excess(&mut self) -> Option<String> {
        let plan = self.plan;
        let found = tree::below();
        if found.len() > plan.processes {
            return Some(format!("there were more than {} processes of it (`reward_max_processes`)", plan.processes));
        }
        if found.iter().map(|entry| entry.threads).sum::<usize>() > self.threads {
            return Some(format!(
                "there were more than {} threads of it, those of all its processes together (`reward_max_processes`)",
                self.threads
            ));
        }
        let (next, held, tables) = (&mut self.next_held, &mut self.held, &mut self.tables);
        in_time(next, || {
            let processes = found.iter().map(|entry| entry.pid.as_raw_nonzero().get());
            *held = shared_memory::held(processes, &plan.scratch, plan.in_namespace);
            *tables = tree::page_tables(&found);
        });
        let tables = self.tables;
        // Every process has page tables. They count once they are more than processes of this size have.
        let tables = if tables > plan.memory / 8 { tables } else { 0 };
        if tree::memory(&found, self.held.memory, plan.memory).saturating_add(tables) > plan.memory {
            return Some(format!(
                "it took more than {} of memory with all that it started and what it shared (`reward_memory`)",
                Size(plan.memory)
            ));
        }
        let mut filled = (0, 0);
        in_time(&mut self.next_filled, || filled = shared_memory::filled(&plan.scratch, (MOST_FILES, plan.disk)));
        if filled.1 + self.held.nameless > plan.disk {
            return Some(format!(
                "its temporary folder had more than {} in all files together (`reward_disk`)",
                Size(plan.disk)
            ));
        }
        (filled.0 > MOST_FILES).then(|| format!("its temporary folder had more than {MOST_FILES} files"))
    }
}

/// Measures, if it is time to. The rest until the next time depends on how long this one took.
fn in_time(next: &mut Instant, measure: impl FnOnce()) {
    let begun = Instant::now();
    if begun >= *next {
        measure();
        *next = Instant::now() + (begun.elapsed() * REST).min(LONGEST_REST);
    }
}
