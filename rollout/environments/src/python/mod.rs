//! Tools and environments in Python as TRL takes them, in [processes](crate::process) of the user's interpreter, which
//! run [`host.py`](host.py). The conversations of a group share a process, so that a rater, a reward function that asks
//! for `environments`, sees all their instances.

mod rating;
#[cfg(test)]
mod tests;

use std::time::Duration;

use rollout_rewards::program::{Containment, IMPORT, LIBRARY, interpreter, located};
use serde_json::{Value, json};
use shared::config::{RewardHost, rewards::PythonPlace};

use crate::process::{Invocation, Manner};
pub use rating::{Rating, rate};

/// What the interpreter runs behind [`LIBRARY`].
const PROGRAM: &str =
    concat!("\n\n", include_str!("schemas.py"), "\n\n", include_str!("entries.py"), "\n\n", include_str!("host.py"));

/// Most calls of functions that are not async at once in a process; each takes a thread. Where the limit of processes
/// and threads is low, a quarter of it.
const THREADS: usize = 64;

/// A function or a class that an entry names.
#[derive(Debug, Clone)]
pub struct Named {
    /// The entry.
    pub entry: String,
    /// Where it is.
    pub place: PythonPlace,
    /// Its name there.
    pub name: String,
}

/// All that a process imports.
#[derive(Debug, Default)]
pub struct InPython<'a> {
    /// Functions.
    pub tools: Vec<&'a Named>,
    /// Classes, each with the name that chooses it.
    pub classes: Vec<(Option<&'a str>, &'a Named)>,
    /// Reward functions that ask for environments.
    pub raters: Vec<&'a Named>,
}

impl InPython<'_> {
    /// How a process with these functions and classes is started. A function may take `limit`.
    ///
    /// # Errors
    /// A file that is not there.
    pub fn invocation(&self, host: &RewardHost, limit: Duration) -> Result<Invocation, String> {
        let Self { tools, classes, raters } = self;
        let (program, dir) = interpreter(host)?;
        let entry = |named: &Named| -> Result<Value, String> {
            let in_entry = |reason| format!("{}: {reason}", named.entry);
            let (kind, place) = located(&named.place, &dir).map_err(in_entry)?;
            let place = place.into_string().map_err(|place| in_entry(format!("{} is no text", place.display())))?;
            Ok(json!({"entry": named.entry, "kind": kind, "place": place, "name": named.name}))
        };
        let class = |(key, named): &(Option<&str>, &Named)| -> Result<Value, String> {
            let mut entry = entry(named)?;
            entry["key"] = (*key).into();
            Ok(entry)
        };
        let config = json!({
            "tools": tools.iter().map(|named| entry(named)).collect::<Result<Vec<_>, String>>()?,
            "environments": classes.iter().map(class).collect::<Result<Vec<_>, String>>()?,
            "rewards": raters.iter().map(|named| entry(named)).collect::<Result<Vec<_>, String>>()?,
            "timeout": limit.as_secs_f64(),
            "threads": THREADS.min(host.bounds.processes / 4).max(1),
        });
        let mut names: Vec<&str> = Vec::new();
        for named in tools.iter().copied().chain(classes.iter().map(|(_, named)| *named)) {
            if !names.contains(&named.entry.as_str()) {
                names.push(&named.entry);
            }
        }
        let args = vec!["-c".into(), format!("{LIBRARY}{PROGRAM}").into(), config.to_string().into()];
        Ok(Invocation {
            manner: Manner::Python,
            label: names.join(", "),
            program,
            args,
            dir,
            containment: Containment::of(host)?,
            timeout: limit,
            loading: IMPORT,
            raters: raters.iter().map(|named| named.entry.clone()).collect(),
        })
    }
}
