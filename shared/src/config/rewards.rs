//! Entries of `reward_funcs`, as far as all programs must agree on them.
//!
//! An entry is `name`, or `name:key=value:key=value`; a colon within a value is written `\:`. A Python function is
//! `file.py:function`, `file.py` if the file has only one function, or `module.function` as on TRL's command line.

use std::path::{Path, PathBuf};

/// A reward function in Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonFunction {
    /// Place of the function.
    pub place: PythonPlace,
    /// Its name; none if the file should have one function only.
    pub function: Option<String>,
}

/// Place of a Python function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonPlace {
    /// In a file.
    File(PathBuf),
    /// In a module that Python can import.
    Module(String),
}

impl PythonFunction {
    /// The Python function that an entry names, if it names one.
    #[must_use]
    pub fn parse(entry: &str) -> Option<Self> {
        let parts = parts(entry);
        let (place, rest) = parts.split_first()?;
        if place.ends_with(".py") {
            let function = (!rest.is_empty()).then(|| rest.join(":"));
            return Some(Self { place: PythonPlace::File(place.into()), function });
        }
        let (module, function) = place.rsplit_once('.')?;
        let dotted = rest.is_empty() && place.split('.').all(is_identifier);
        dotted.then(|| Self { place: PythonPlace::Module(module.to_owned()), function: Some(function.to_owned()) })
    }

    /// The name without its place; the file's name if no function is named.
    fn short_name(&self) -> String {
        self.function.clone().unwrap_or_else(|| self.place.stem())
    }
}

impl PythonPlace {
    fn stem(&self) -> String {
        match self {
            Self::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Module(name) => name.clone(),
        }
    }
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_') && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The parts of an entry between colons; `\:` stands for a colon within a part. While the entry is split, a character
/// that no text has replaces it, and also the colon of `hf://`.
#[must_use]
pub fn parts(entry: &str) -> Vec<String> {
    entry.replace("\\:", "\0").replace("=hf://", "=hf\0//").split(':').map(|part| part.replace('\0', ":")).collect()
}

/// The reward model of an entry, `model:path=…`: its path, or its name on the Hub as `hf://owner/name`, seen from the
/// folder that relative paths start from.
#[must_use]
pub fn model_path(entry: &str, folder: &Path) -> Option<PathBuf> {
    let parts = parts(entry);
    let (name, settings) = parts.split_first()?;
    if name.trim_end_matches("_reward") != "model" {
        return None;
    }
    let path = settings.iter().find_map(|setting| setting.strip_prefix("path="))?;
    Some(super::on_hub(path, folder).map_or_else(|| folder.join(path), PathBuf::from))
}

/// The same entry with its model at another path.
#[must_use]
pub fn with_model_path(entry: &str, path: &Path) -> String {
    let part = |part: &String| {
        let part = if part.starts_with("path=") { format!("path={}", path.display()) } else { part.clone() };
        part.replace(':', "\\:")
    };
    parts(entry).iter().map(part).collect::<Vec<_>>().join(":")
}

/// The name of an entry alone: the function's, without parameters or place.
#[must_use]
pub fn short_name(entry: &str) -> String {
    let named = || entry.split(':').next().unwrap_or_default().to_owned();
    PythonFunction::parse(entry).map_or_else(named, |python| python.short_name())
}

/// Names of the entries in metrics: the short name where it is unique, else a Python function with its file or module,
/// and at last the whole entry.
#[must_use]
pub fn names(entries: &[String]) -> Vec<String> {
    let qualified = |entry: &String| match PythonFunction::parse(entry) {
        Some(PythonFunction { place, function: Some(function) }) => format!("{}.{function}", place.stem()),
        _ => entry.clone(),
    };
    let short: Vec<String> = entries.iter().map(|entry| short_name(entry)).collect();
    let qualified: Vec<String> = entries.iter().map(qualified).collect();
    let alone = |names: &[String], name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let name = |(index, entry): (usize, &String)| {
        let shown = [&short, &qualified].into_iter().find(|names| alone(names, &names[index]));
        shown.map_or_else(|| entry.clone(), |names| names[index].clone())
    };
    entries.iter().enumerate().map(name).collect()
}

/// Settings for the processes of reward functions.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardHost {
    /// The folder in which programs are started, and from which relative paths start.
    pub dir: PathBuf,
    /// The Python interpreter: a name that is looked up as by the shell, or a path.
    pub python: String,
    /// Processes of each function.
    pub processes: usize,
    /// Limits of each process.
    pub bounds: RewardBounds,
    /// Where judges are asked.
    pub judge: JudgeEndpoint,
    /// Whether the run has environments; functions in Python that ask for them are called where these are.
    pub with_environments: bool,
}

/// The endpoint of judges, in OpenAI's forms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JudgeEndpoint {
    /// Its address, up to `/chat/completions`.
    pub base_url: Option<String>,
    /// The name of a model there.
    pub model: Option<String>,
    /// The variable of the environment with its key.
    pub api_key_env: String,
}

/// Rights and limits of a process of a reward function, including all that it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardBounds {
    /// Whether it may use the network.
    pub network: bool,
    /// Variables of the environment that it gets in addition to the usual ones; a name that ends in `*` stands for all
    /// variables that begin so.
    pub env: Vec<String>,
    /// Folders that it may write in, in addition to its own temporary folder.
    pub writable: Vec<PathBuf>,
    /// Most bytes of memory; half of the machine's memory if not given.
    pub memory: Option<u64>,
    /// Most seconds of processor time.
    pub cpu: u64,
    /// Most processes at once.
    pub processes: usize,
    /// Most bytes of a file.
    pub file_size: u64,
    /// Most bytes of all files of its temporary folder together.
    pub disk: u64,
}

impl RewardHost {
    /// A path in an entry: absolute as it stands, else relative to the folder.
    #[must_use]
    pub fn path(&self, path: &Path) -> PathBuf {
        self.dir.join(path)
    }

    /// The interpreter in a form that can be started from any folder.
    #[must_use]
    pub fn interpreter(&self) -> PathBuf {
        if self.python.contains('/') { self.path(Path::new(&self.python)) } else { PathBuf::from(&self.python) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn python(place: PythonPlace, function: Option<&str>) -> Option<PythonFunction> {
        Some(PythonFunction { place, function: function.map(str::to_owned) })
    }

    #[test]
    fn files_and_modules_are_told_from_rules_and_programs() {
        let file = |path: &str| PythonPlace::File(path.into());
        let module = |name: &str| PythonPlace::Module(name.into());
        for (entry, found) in [
            ("my_rewards.py:format_reward", python(file("my_rewards.py"), Some("format_reward"))),
            ("/a/b.py", python(file("/a/b.py"), None)),
            (r"c\:d/b.py:f", python(file("c:d/b.py"), Some("f"))),
            ("my_lib.rewards.f", python(module("my_lib.rewards"), Some("f"))),
            ("gsm8k", None),
            ("length:target=9.5", None),
            ("command:run=python3 reward.py", None),
            ("model:path=/m/x.py", None),
            ("../weights", None),
        ] {
            assert_eq!(PythonFunction::parse(entry), found, "{entry}");
        }
    }

    #[test]
    fn a_reward_model_is_a_folder_or_a_name_on_the_hub() {
        let of = |entry: &str| model_path(entry, Path::new("/w"));
        assert_eq!(of("model:path=rm:batch=2"), Some("/w/rm".into()));
        assert_eq!(of("model:path=/m/rm"), Some("/m/rm".into()));
        for entry in ["model:path=org/RM-7B", "model:batch=2:path=hf://org/RM-7B", r"model:path=hf\://org/RM-7B"] {
            assert_eq!(of(entry), Some("hf://org/RM-7B".into()), "{entry}");
        }
        assert_eq!((of("gsm8k"), of("length:target=9"), of("my.py:model")), (None, None, None));
        let entry = with_model_path("model:path=hf://org/RM-7B:separator=a\\:b", Path::new("/c:d/x"));
        assert_eq!(parts(&entry), ["model", "path=/c:d/x", "separator=a:b"]);
    }

    #[test]
    fn entries_are_called_by_their_names_where_those_differ() {
        let names = |entries: &[&str]| super::names(&entries.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["format", "model:path=/m"]), ["format", "model"]);
        assert_eq!(names(&["length:target=9", "length:target=5"]), ["length:target=9", "length:target=5"]);
        assert_eq!(names(&["a/r.py:f", "s.py", "lib.x.g"]), ["f", "s", "g"]);
        assert_eq!(names(&["a/r.py:f", "s.py:f", "format"]), ["r.f", "s.f", "format"]);
        assert_eq!(names(&["a/r.py:f", "b/r.py:f"]), ["a/r.py:f", "b/r.py:f"]);
    }

    #[test]
    fn an_interpreter_is_looked_up_or_relative_to_the_folder() {
        let default = TrainConfig::default().reward_host();
        let host = |name: &str| RewardHost { dir: "/w".into(), python: name.into(), ..default.clone() };
        let python = |name: &str| host(name).interpreter();
        assert_eq!(python("python3"), Path::new("python3"));
        assert_eq!(python(".venv/bin/python"), Path::new("/w/.venv/bin/python"));
        assert_eq!(python("/usr/bin/python3"), Path::new("/usr/bin/python3"));
    }
}
