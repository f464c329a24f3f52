//! The restrictions that a process sets for itself before it becomes the program: limits, Landlock, seccomp.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules};
use rustix::{
    process::{
        Resource, Rlimit, Signal, getrlimit, getuid, set_parent_process_death_signal, setpriority_process, setrlimit,
        setsid,
    },
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};
use shared::system::memory::Size;

use super::{ACTIVE, Plan, refuse, say, shared_memory::SHARED_MEMORY, syscalls};

/// Seconds of processor time between the soft limit, which sends a signal, and the hard one, which kills.
const GRACE: u64 = 5;

/// Processes and threads that may be added to those of the machine at the start of a program.
const MORE_TASKS: u64 = 4096;

/// Devices that programs write to as a matter of course.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The newest interface of Landlock that was tried. An older kernel applies the parts that it knows.
const KNOWN: ABI = ABI::V6;

/// Becomes the program of `words`.
pub fn run(plan: &Plan, words: &[OsString]) -> ExitCode {
    if !plan.in_namespace {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let _ = setpriority_process(None, plan.nice);
    // The scheduler divides time among sessions. So however many processes the program has, the watcher's session keeps
    // its share.
    let _ = setsid();
    // Where memory runs out, the kernel ends the program before the sampler.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    say(ACTIVE, &seal(plan));
    let mut command = std::process::Command::new(&words[0]);
    if getuid().is_root() {
        // As root, tar would give files to their owners, which the seal refuses.
        command.env("TAR_OPTIONS", "--no-same-owner");
    }
    let error = command.args(&words[1..]).exec();
    refuse(&format!("`{}` cannot be started: {error}", words[0].display()))
}

/// Seals this process. Returns in words which limits hold and which the system does not allow.
fn seal(plan: &Plan) -> String {
    let mut active = Vec::new();
    let mut missing = Vec::new();
    active.push(match limit(plan) {
        Ok(()) => format!(
            "at most {} of memory, {} s of processor time, {} processes, files of {} and {} together",
            Size(plan.memory),
            plan.cpu,
            plan.processes,
            Size(plan.file_size),
            Size(plan.disk)
        ),
        Err(error) => {
            missing.push(format!("limits of a process ({error})"));
            format!("at most {} of memory and {} processes", Size(plan.memory), plan.processes)
        }
    });
    match files(plan) {
        Ok(RulesetStatus::NotEnforced) => missing.push("read-only files (Landlock)".to_owned()),
        Ok(status) => {
            active.push(format!("writing only to {}", writable_words(plan)));
            if status == RulesetStatus::PartiallyEnforced {
                missing.push("the newer parts of Landlock".to_owned());
            }
        }
        Err(error) => missing.push(format!("read-only files (Landlock: {error})")),
    }
    match give_up_capabilities().map_err(Into::into).and_then(|()| syscalls::refuse_all(plan)) {
        Ok(()) => {
            active.push("no capabilities, no devices".to_owned());
            if !plan.read_only {
                missing.push("a read-only view of files (so calls that change modes and times do nothing)".to_owned());
            }
        }
        Err(error) => missing.push(format!("no capabilities and fewer system calls (seccomp: {error})")),
    }
    if plan.network {
        active.push("with network (`reward_network`)".to_owned());
    } else {
        match syscalls::no_network() {
            Ok(()) => active.push("no network".to_owned()),
            Err(error) => missing.push(format!("no network (seccomp: {error})")),
        }
    }
    if plan.in_namespace {
        active.push("a PID namespace".to_owned());
    } else {
        missing.push("namespaces".to_owned());
    }
    let missing = if missing.is_empty() {
        String::new()
    } else {
        format!("; this system does not allow: {}", missing.join(", "))
    };
    format!("{}{missing}", active.join(", "))
}

fn writable_words(plan: &Plan) -> String {
    let shared = plan.in_namespace.then(|| format!("its own {SHARED_MEMORY}"));
    let named = plan.writable.iter().map(|path| path.display().to_string());
    let all: Vec<String> = ["a temporary folder".to_owned()].into_iter().chain(shared).chain(named).collect();
    all.join(" and ")
}

/// Sets the limits of a process. Memory is limited by private writable pages and not by addresses: interpreters reserve
/// gigabytes of addresses that they never touch.
fn limit(plan: &Plan) -> rustix::io::Result<()> {
    set_limit(Resource::Data, plan.memory, plan.memory)?;
    set_limit(Resource::Cpu, plan.cpu, plan.cpu.saturating_add(GRACE))?;
    set_limit(Resource::Fsize, plan.file_size, plan.file_size)?;
    set_limit(Resource::Core, 0, 0)?;
    // No higher priority than now, and no real-time priority.
    set_limit(Resource::Nice, 0, 0)?;
    set_limit(Resource::Rtprio, 0, 0)?;
    // This limit counts the user's processes on the whole machine, and does not count root's. So it is only a second
    // line behind the watcher, for programs that multiply faster than the watcher looks.
    let all = tasks().saturating_add(MORE_TASKS);
    set_limit(Resource::Nproc, all, all)
}

/// Processes and threads of the machine.
fn tasks() -> u64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let tasks = load.split(' ').nth(3).and_then(|tasks| tasks.split_once('/')?.1.parse().ok());
    tasks.unwrap_or(u64::MAX)
}

/// Lowers a limit; one that is lower already stays.
fn set_limit(resource: Resource, soft: u64, hard: u64) -> rustix::io::Result<()> {
    let now = getrlimit(resource);
    let lower = |now: Option<u64>, most: u64| Some(now.map_or(most, |now| now.min(most)));
    setrlimit(resource, Rlimit { current: lower(now.current, soft), maximum: lower(now.maximum, hard) })
}

/// Gives up all capabilities, also as root: starting a program brings none back.
fn give_up_capabilities() -> rustix::io::Result<()> {
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().iter() {
        // A process that may not do this has no capabilities and gets none.
        let _ = remove_capability_from_bounding_set(capability);
    }
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Bounds access to files by Landlock. Reading and executing stay as they are, since nobody knows where an interpreter
/// has its libraries. Writing is allowed beneath a few folders only, and signals only to the program's own processes.
/// Without a namespace, the machine's shared memory, with the channel and the weights of the run, cannot be opened for
/// reading either: a process that has it open can lock it.
fn files(plan: &Plan) -> Result<RulesetStatus, landlock::RulesetError> {
    let all = AccessFs::from_write(KNOWN);
    // A device file made by the program would be a device of the machine.
    let writing = all & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let handled = if plan.in_namespace { all } else { all | AccessFs::ReadFile };
    let ruleset = Ruleset::default().handle_access(handled)?.scope(Scope::Signal)?;
    let ruleset = if plan.network { ruleset } else { ruleset.scope(Scope::AbstractUnixSocket)? };
    let folders = plan.writable.iter().chain([&plan.scratch]);
    let mut ruleset = ruleset.create()?;
    if !plan.in_namespace {
        ruleset = ruleset.add_rules(path_beneath_rules(all_but_shared_memory(), AccessFs::ReadFile))?;
        ruleset = ruleset.add_rules(path_beneath_rules(folders.clone(), AccessFs::ReadFile))?;
    }
    let status = ruleset
        .add_rules(path_beneath_rules(folders, writing))?
        // Without a namespace, this folder is the machine's.
        .add_rules(path_beneath_rules(plan.in_namespace.then_some(SHARED_MEMORY), writing))?
        .add_rules(path_beneath_rules(DEVICES, writing))?
        .restrict_self()?;
    Ok(status.ruleset)
}

/// The folders and files that together hold everything on the machine but shared memory.
fn all_but_shared_memory() -> Vec<PathBuf> {
    let shared = Path::new(SHARED_MEMORY);
    let mut found = Vec::new();
    // In each folder above shared memory, the entries that do not lead to it.
    for folder in shared.ancestors().skip(1) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(entries.filter(|path| !shared.starts_with(path)));
    }
    // A link into shared memory would open it again.
    found.retain(|path| path.canonicalize().is_ok_and(|path| !shared.starts_with(&path) && !path.starts_with(shared)));
    found
}
