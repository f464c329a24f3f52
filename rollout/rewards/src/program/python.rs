//! Reward functions in Python, with TRL's signature, in processes of the user's interpreter.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use shared::config::{
    RewardHost,
    rewards::{PythonFunction, PythonPlace},
};

use super::{
    Containment, Invocation, Program,
    process::{AskError, Greeting},
};
use crate::{Reward, RewardError, RewardFunction};

/// Functions that programs of the user's interpreter share: own descriptors for lines, imports, failures in one line.
pub const LIBRARY: &str = include_str!("host.py");

/// The program that the interpreter runs.
const HOST: &str = concat!(include_str!("host.py"), "\n\nsys.exit(main())\n");

/// How long a file may take to be imported.
pub const IMPORT: Duration = Duration::from_secs(300);

/// Imports the function that the entry `spec` names. The name of the result has the function's place and name, also
/// where the entry has the place only. In a run with environments, a function that asks for them is called where they
/// are, and keeps no process here.
///
/// # Errors
/// What is wrong, with the last words of the interpreter.
pub fn load(spec: &str, function: &PythonFunction, host: &RewardHost) -> Result<RewardFunction, RewardError> {
    let fail = |(reason, words)| RewardError::Python { name: spec.to_owned(), reason, words };
    let silent = |reason| (reason, Vec::new());
    let invocation = invocation(spec, function, host).map_err(silent).map_err(fail)?;
    let started = Program::start(invocation, host.processes);
    let program = started.map_err(|e| silent(format!("{e}; `reward_python` names the interpreter"))).map_err(fail)?;
    let Greeting { name, asks_for_environments } = imported(&program).map_err(fail)?;
    let name = if function.function.is_some() { spec.to_owned() } else { format!("{spec}:{name}") };
    let is_rater = asks_for_environments && host.with_environments;
    if is_rater {
        program.idle().clear();
    }
    Ok(RewardFunction { name, columns: &[], own: true, is_rater, reward: Arc::new(program) as Arc<dyn Reward> })
}

fn invocation(spec: &str, function: &PythonFunction, host: &RewardHost) -> Result<Invocation, String> {
    let (program, dir) = interpreter(host)?;
    let (kind, place) = located(&function.place, &dir)?;
    let name = function.function.clone().unwrap_or_default();
    let args = vec!["-c".into(), HOST.into(), kind.into(), place, name.into()];
    let containment = Containment::of(host)?;
    Ok(Invocation { label: spec.to_owned(), program, args, dir, greets: true, containment })
}

/// The user's interpreter, and the folder that it is started in, both as they can be found from anywhere.
///
/// # Errors
/// When the working directory cannot be found.
pub fn interpreter(host: &RewardHost) -> Result<(PathBuf, PathBuf), String> {
    let dir = std::path::absolute(&host.dir).map_err(|e| format!("{}: {e}", host.dir.display()))?;
    // The process starts in that folder, where a relative path would be looked for once more.
    let program = RewardHost { dir: dir.clone(), ..host.clone() }.interpreter();
    Ok((program, dir))
}

/// The kind of a place, `file` or `module`, and the place as a program in the folder finds it.
///
/// # Errors
/// A file that is not there.
pub fn located(place: &PythonPlace, dir: &Path) -> Result<(&'static str, OsString), String> {
    match place {
        PythonPlace::File(path) => {
            let path = dir.join(path);
            if !path.is_file() {
                return Err(format!("{}: no such file", path.display()));
            }
            Ok(("file", path.into_os_string()))
        }
        PythonPlace::Module(name) => Ok(("module", name.into())),
    }
}

/// Waits until the first process has imported the function. Returns what it says then, or the reason of the failure and
/// the last words.
fn imported(program: &Program) -> Result<Greeting, (String, Vec<String>)> {
    let mut process = program.idle().remove(0);
    match process.greeting(Instant::now().checked_add(IMPORT)) {
        Ok(greeting) => {
            program.keep(process);
            Ok(greeting)
        }
        Err(AskError::Refused { reason, traceback }) => {
            let words: Vec<String> = traceback.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
            Err((program.explained(reason, &words), words))
        }
        Err(AskError::Late) => Err((format!("not imported within {} s", IMPORT.as_secs()), program.words.lines())),
        Err(error) => Err((program.explained_error(&error), program.words.lines())),
    }
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;
