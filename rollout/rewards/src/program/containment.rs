//! The containment of programs, and what messages say of it when a program fails.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use regex::Regex;
use rustix::process::getpriority_process;
use shared::{
    config::RewardHost,
    system::memory::{self, Size},
};
use tempfile::TempDir;

use crate::contain::{self, Plan};

/// Variables of the environment that every program gets, by their whole names: a variable that merely begins like one
/// of them may hold a secret. Interpreters find themselves and their libraries with these variables, and none of them
/// holds a secret.
const USUAL: [&str; 69] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NUMERIC",
    "LC_TIME",
    "LC_ADDRESS",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_NAME",
    "LC_PAPER",
    "LC_TELEPHONE",
    "TZ",
    "TZDIR",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_CACHE_PATH",
    "CUDA_CACHE_DISABLE",
    "CUDA_CACHE_MAXSIZE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VERSION",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_DYNAMIC",
    "OMP_NESTED",
    "OMP_MAX_ACTIVE_LEVELS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_SCHEDULE",
    "OMP_STACKSIZE",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "MKL_DYNAMIC",
    "MKL_THREADING_LAYER",
    "MKL_INTERFACE_LAYER",
    "MKL_SERVICE_FORCE_INTEL",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
];

/// The folder of a cache that is read more than written, below the folder of caches.
const HUB_CACHE: &str = "huggingface";

/// How long the first process may take to say how it is contained.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Words in the errors of programs that show which bound was in the way, in lower case.
const NETWORK: [&str; 6] = [
    "network is down",
    "name resolution",
    "resolve host",
    "name or service not known",
    "nodename nor servname",
    "getaddrinfo",
];
const WRITING: [&str; 3] = ["permission denied", "read-only file system", "eacces"];
const MEMORY: [&str; 5] =
    ["memoryerror", "cannot allocate memory", "bad_alloc", "out of memory", "can't start new thread"];
const FILE_SIZE: [&str; 2] = ["file too large", "efbig"];

const MODULE: [&str; 1] = ["modulenotfounderror"];

/// Finds the variable of the environment that an error names: errors of Python, of libraries and of the shell.
static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
    let name = r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)";
    let pattern = format!(
        r"the environment variable `([^`]+)` is not set|KeyError: ['\x22]{name}['\x22]|(?i:environment(?: variables?)?)\W+(?:\w+\W+){{0,3}}?{name}|{name}\W+(?i:(?:as an? )?environment variable)|{name}: (?:unbound variable|parameter (?:not set|null))"
    );
    Regex::new(&pattern).expect("a valid pattern")
});

/// The variable of the environment that an error asks for.
pub(super) fn hidden_variable(words: &str) -> Option<&str> {
    let found = VARIABLE.captures(words)?;
    found.iter().skip(1).flatten().next().map(|name| name.as_str())
}

/// How the first process of this program was contained, once it has said so.
static ACTIVE: Mutex<Option<String>> = Mutex::new(None);

/// Whether a process was started.
static STARTED: AtomicBool = AtomicBool::new(false);

/// How programs of reward functions are contained, in one line; `None` where no program was started.
#[must_use]
pub fn contained() -> Option<String> {
    let begun = Instant::now();
    loop {
        let active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if active.is_some() || !STARTED.load(Ordering::Relaxed) || begun.elapsed() > FIRST_WORD {
            return active;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Takes a process's description of its containment; the first one goes to the log.
pub(super) fn is_active(words: &str) {
    let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if active.is_none() {
        tracing::info!("programs of reward functions run with {words}");
        *active = Some(words.to_owned());
    }
}

/// The permissions and limits of a function's processes.
#[derive(Debug)]
pub struct Containment {
    plan: Plan,
    environment: Vec<(OsString, OsString)>,
}

impl Containment {
    /// The containment that the host asks for.
    ///
    /// # Errors
    /// A folder that is not there.
    pub fn of(host: &RewardHost) -> Result<Self, String> {
        let bounds = &host.bounds;
        let writable: Vec<PathBuf> = bounds
            .writable
            .iter()
            .map(|path| match path.canonicalize() {
                Ok(path) => Ok(path),
                Err(error) => Err(format!("`reward_writable`: {}: {error}", path.display())),
            })
            .collect::<Result<_, _>>()?;
        let plan = Plan {
            parent: process::id(),
            network: bounds.network,
            writable,
            scratch: PathBuf::new(),
            memory: bounds.memory.or_else(|| Some(memory::total().ok()? / 2)).unwrap_or(u64::MAX),
            cpu: bounds.cpu,
            processes: bounds.processes,
            file_size: bounds.file_size,
            disk: bounds.disk,
            keeper: 0,
            in_namespace: false,
            read_only: false,
            nice: getpriority_process(None).unwrap_or_default(),
        };
        Ok(Self { plan, environment: environment(&bounds.env, env::vars_os()) })
    }

    /// The command that starts a program, and the folder that the program may write to. Dropping the folder removes it.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn command(&self, program: &Path, args: &[OsString], dir: &Path) -> Result<(Command, TempDir), String> {
        let fail = |reason: String| format!("`{}` cannot be started: {reason}", program.display());
        if !dir.is_dir() {
            return Err(fail(format!("{} is no folder", dir.display())));
        }
        if !is_found(program, &self.environment) {
            return Err(fail("there is no such program".to_owned()));
        }
        let scratch = tempfile::Builder::new().prefix("tandem-reward-").tempdir();
        let scratch =
            scratch.map_err(|e| fail(format!("no temporary folder in {}: {e}", env::temp_dir().display())))?;
        let plan = Plan { scratch: scratch.path().to_owned(), ..self.plan.clone() };
        let mut command =
            contain::command(&rollout().map_err(fail)?, &plan, program.as_os_str(), args).map_err(fail)?;
        command.current_dir(dir).env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Caches go into the temporary folder unless the user names others. Python writes no compiled modules beside
        // sources.
        let folders = ["TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR"].map(|name| (name, scratch.path().as_os_str()));
        for (name, value) in folders.into_iter().chain([("PYTHONDONTWRITEBYTECODE", OsStr::new("1"))]) {
            if self.environment.iter().all(|(other, _)| other != name) {
                command.env(name, value);
            }
        }
        STARTED.store(true, Ordering::Relaxed);
        Ok((command, scratch))
    }

    /// A reason of failure, with the option of the containment that may have caused it. `words` is searched for the
    /// cause.
    pub fn explained(&self, reason: String, words: &str) -> String {
        let variable = hidden_variable(words).map(str::to_owned);
        let words = words.to_lowercase();
        let has = |signs: &[&str]| signs.iter().any(|sign| words.contains(sign));
        let plan = &self.plan;
        let option = if !plan.network && has(&NETWORK) {
            "reward programs have no network unless `reward_network` is true".to_owned()
        } else if has(&MEMORY) {
            format!("reward programs may take {} of memory (`reward_memory`)", Size(plan.memory))
        } else if has(&FILE_SIZE) {
            format!("reward programs may write files of {} (`reward_file_size`)", Size(plan.file_size))
        } else if has(&WRITING) {
            "reward programs may write to their temporary folder (TMPDIR) and to `reward_writable` only".to_owned()
        } else if let Some(variable) = variable {
            format!(
                "reward programs get no variable of the environment but usual ones: `reward_env = [\"{variable}\"]` \
                 adds it"
            )
        } else if has(&MODULE) {
            "`reward_python` names the interpreter that has the module, such as .venv/bin/python".to_owned()
        } else {
            return reason;
        };
        format!("{reason}; {option}")
    }
}

/// The program that contains others: this one, or `rollout` of the same build.
fn rollout() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|e| e.to_string())?;
    if ["rollout", "rollout-fleet", "rollout-serve"].map(|name| Some(OsStr::new(name))).contains(&own.file_stem()) {
        // This works also where a new file has replaced it on the disk.
        return Ok("/proc/self/exe".into());
    }
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("rollout")).find(|path| path.is_file());
    beside.ok_or_else(|| {
        let build = "cargo build --release --workspace --bin rollout";
        format!("`rollout` is not beside {}: build it with `{build}`", own.display())
    })
}

/// Whether there is a program of that name, which is looked up as the shell does.
fn is_found(program: &Path, environment: &[(OsString, OsString)]) -> bool {
    if program.components().count() > 1 {
        return program.is_file();
    }
    let path = environment.iter().find(|(name, _)| name == "PATH");
    path.is_none_or(|(_, path)| env::split_paths(path).any(|folder| folder.join(program).is_file()))
}

/// The variables that a program gets.
fn environment(named: &[String], all: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let is_meant = |name: &str, pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    let patterns = || USUAL.into_iter().chain(named.iter().map(String::as_str));
    let is_kept = |name: &OsStr| name.to_str().is_some_and(|name| patterns().any(|pattern| is_meant(name, pattern)));
    let (mut kept, mut home, mut caches) = (Vec::new(), None, None);
    for (name, value) in all {
        match name.to_str() {
            Some("HOME") => home = Some(Path::new(&value).join(".cache")),
            Some("XDG_CACHE_HOME") => caches = Some(PathBuf::from(&value)),
            _ => {}
        }
        if is_kept(&name) || name == "HF_HOME" {
            kept.push((name, value));
        }
    }
    // Earlier downloads stay readable, though the folder of caches is another one.
    if let Some(caches) = caches.or(home).filter(|_| !kept.iter().any(|(name, _)| name == "HF_HOME")) {
        kept.push(("HF_HOME".into(), caches.join(HUB_CACHE).into()));
    }
    kept
}

#[cfg(test)]
#[path = "containment_tests.rs"]
mod tests;
