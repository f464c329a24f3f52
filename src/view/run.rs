//! A run's identity and its state.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use serde_json::{Map, Value};
use shared::{
    RunDir,
    config::{ConfigError, TrainConfig, layers},
    files::journal,
    metrics::{self, TOTAL_STEPS},
    run::{
        best::Best,
        notices::{self, Notice, NoticeKind},
        records,
    },
};

use crate::records::tail::Tail;

/// How long after its last sign of life a run counts as running, if the system does not tell.
const FRESH: Duration = Duration::from_secs(60);

/// The summary of a run, above its figures.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// See [`name_of`].
    pub name: String,
    /// Its whole path.
    pub path: String,
    model: Option<String>,
    dataset: Option<String>,
    state: State,
    /// Completed steps.
    steps: u64,
    /// Steps that it will make.
    total_steps: Option<f64>,
    /// Its best checkpoint by the evaluations, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    Finished,
    Stopped,
    Removed,
}

impl Overview {
    /// Reads the summary of a run.
    pub fn of(dir: &RunDir) -> Self {
        let config = config(dir).ok().flatten();
        let mut tail = Tail::of_the_last(dir.metrics());
        tail.poll();
        let root = std::path::absolute(dir.root()).unwrap_or_else(|_| dir.root().to_owned());
        Self {
            name: name_of(dir),
            path: root.display().to_string(),
            model: config.as_ref().map(|c| short_path(&c.model)),
            dataset: config.as_ref().map(|c| short_paths(&c.dataset)),
            state: state(dir),
            steps: tail.steps(),
            total_steps: tail.records().last().and_then(|record| record.get(TOTAL_STEPS)),
            best: Best::of(dir).ok().flatten().map(|best| best.to_string()),
        }
    }
}

/// The configuration of a run, if it has one.
fn config(dir: &RunDir) -> Result<Option<TrainConfig>, ConfigError> {
    let path = dir.config();
    path.is_file().then(|| layers::load(Some(&path), &Vec::new())).transpose()
}

fn state(dir: &RunDir) -> State {
    let fresh = |path: PathBuf| {
        fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age < FRESH))
    };
    if !dir.root().is_dir() {
        State::Removed
    } else if dir.finished().exists() {
        State::Finished
    } else if is_locked(&dir.lock()) || fresh(dir.metrics()) {
        State::Running
    } else {
        State::Stopped
    }
}

/// Whether a process holds a lock on a file. It does not take the lock, which a launcher may want at this moment.
fn is_locked(path: &Path) -> bool {
    let (Ok(file), Ok(locks)) = (fs::metadata(path), File::open("/proc/locks")) else { return false };
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!(" {major:02x}:{minor:02x}:{} ", file.ino());
    BufReader::new(locks).lines().map_while(Result::ok).any(|line| line.contains(&id))
}

/// The last two parts of a run's path: enough to recognise the run.
pub fn name_of(dir: &RunDir) -> String {
    short_path(&std::path::absolute(dir.root()).unwrap_or_else(|_| dir.root().to_owned()))
}

/// The last two parts of a path.
fn short_path(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

fn short_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| short_path(path)).collect::<Vec<_>>().join(", ")
}

/// An option of a run.
#[derive(Debug, Serialize)]
pub struct Setting {
    key: String,
    /// As in `config.toml`.
    value: String,
    /// Whether it is not the default.
    chosen: bool,
}

/// The options of a run.
#[derive(Debug, Default, Serialize)]
pub struct Settings {
    /// In the order of its `config.toml`.
    options: Vec<Setting>,
    /// Why there are none.
    problem: Option<String>,
}

/// The options of a run. Options that cannot be read, perhaps those of another version, hide nothing else of the run.
pub fn settings(dir: &RunDir) -> Settings {
    let config = match config(dir) {
        Ok(Some(config)) => config,
        Ok(None) => return Settings { problem: Some("the run has no config.toml".into()), ..Default::default() },
        Err(error) => return Settings { problem: Some(format!("config.toml: {error}")), ..Default::default() },
    };
    let table = |config: &TrainConfig| toml::from_str::<toml::Table>(&layers::to_toml(config)).unwrap_or_default();
    let defaults = table(&TrainConfig::default());
    let setting = |(key, value): (String, toml::Value)| {
        // The folder differs for every run, and says nothing of how the run was made.
        let chosen = key != "output_dir" && defaults.get(&key) != Some(&value);
        Setting { key, value: value.to_string(), chosen }
    };
    Settings { options: table(&config).into_iter().map(setting).collect(), problem: None }
}

/// The notices of a run.
#[derive(Debug, Serialize)]
pub struct Notices {
    notices: Vec<Notice>,
    /// The message that all steps were in vain, if the run has ended so.
    in_vain: Option<String>,
}

/// The notices of a run.
///
/// # Errors
/// Files that cannot be read.
pub fn notices(dir: &RunDir) -> io::Result<Notices> {
    let mut notices = notices::read(&dir.notices())?;
    let config = config(dir).ok().flatten().filter(|_| dir.finished().exists());
    let nothing = match config {
        Some(config) if dir.metrics().is_file() => {
            notices::nothing_learned(&metrics::read(&dir.metrics())?, &notices, &config)
        }
        _ => None,
    };
    let damage = damage(dir, &notices)?;
    notices.extend(damage);
    Ok(Notices { notices, in_vain: nothing.map(|nothing| nothing.to_string()) })
}

/// A notice of damaged or missing records that the run itself has not reported yet.
fn damage(dir: &RunDir, notices: &[Notice]) -> io::Result<Option<Notice>> {
    let told: Vec<&str> = notices.iter().filter(|n| n.kind == NoticeKind::RecordsDamaged).map(|n| &*n.text).collect();
    let mut found = records::examine(dir)?;
    found.retain(|what| !told.iter().any(|text| says(text, what)));
    let text = format!("records of the run are not whole: {}", found.join("; "));
    let remedy = "what is shown here goes without them; look at the disk";
    Ok((!found.is_empty()).then(|| Notice::new(NoticeKind::RecordsDamaged, 0, text, remedy)))
}

/// Whether a notice reports this fault of a journal, `metrics.jsonl: step 1 is missing`. A resume that reported damaged
/// lines and missing steps has written the file without those lines, so only the missing steps are found again.
fn says(text: &str, what: &str) -> bool {
    let Some((name, words)) = what.split_once(": ") else { return text.contains(what) };
    text.split("; ").any(|part| {
        let of_file = part.split_once(&format!("{name}: ")).map(|(_, rest)| rest);
        of_file.is_some_and(|rest| rest == words || rest.ends_with(&format!(", {words}")))
    })
}

/// The results of `compare` for models of the run, the newest first.
///
/// # Errors
/// A file that cannot be read.
pub fn comparisons(dir: &RunDir) -> io::Result<Vec<Value>> {
    let (mut found, _) = journal::read::<Map<String, Value>>(&dir.comparisons())?;
    found.reverse();
    Ok(found.into_iter().map(Value::Object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_running_while_its_lock_is_held_and_finished_when_it_says_so() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path().join("runs/one"));
        dir.create().unwrap();
        fs::write(dir.config(), layers::to_toml(&TrainConfig { model: "/models/a/b".into(), ..Default::default() }))
            .unwrap();
        let lock = File::create(dir.lock()).unwrap();
        assert_eq!(state(&dir), State::Stopped);
        lock.lock().unwrap();
        assert_eq!(state(&dir), State::Running);
        lock.unlock().unwrap();
        assert_eq!(state(&dir), State::Stopped);
        fs::write(dir.finished(), "{}").unwrap();
        let overview = Overview::of(&dir);
        assert_eq!(
            (overview.state, overview.name.as_str(), overview.model.as_deref()),
            (State::Finished, "runs/one", Some("a/b"))
        );
    }

    /// After a resume that reported missing records, their absence is no news.
    #[test]
    fn what_a_run_has_told_of_its_records_is_not_told_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        let lines = |steps: &[u64]| steps.iter().map(|step| format!("{{\"step\":{step}}}\n")).collect::<String>();
        let group = |step: u64| {
            format!("{{\"step\":{step},\"group\":0,\"position\":1,\"prompt_id\":1,\"epoch\":0,\"states\":[]}}\n")
        };
        fs::write(dir.metrics(), lines(&[2, 4])).unwrap();
        fs::write(dir.ledger(), (1..=4).map(group).collect::<String>()).unwrap();
        let damages = || -> Vec<String> {
            let found = notices(&dir).unwrap().notices.into_iter();
            found.filter(|notice| notice.kind == NoticeKind::RecordsDamaged).map(|notice| notice.text).collect()
        };
        assert_eq!(damages(), ["records of the run are not whole: metrics.jsonl: steps 1, 3 are missing"]);
        for told in ["metrics.jsonl: steps 1, 3 are missing", "metrics.jsonl: 2 damaged lines, steps 1, 3 are missing"]
        {
            let text = format!("records of the steps before are not whole: {told}; notices.jsonl: 1 damaged line");
            let notice = Notice::new(NoticeKind::RecordsDamaged, 4, &text, "look at the disk");
            fs::write(dir.notices(), serde_json::to_string(&notice).unwrap() + "\n").unwrap();
            assert_eq!(damages(), [text], "once");
        }
        fs::write(dir.metrics(), lines(&[2])).unwrap();
        fs::write(dir.eval(), "{\n").unwrap();
        let found = damages();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[1],
            "records of the run are not whole: metrics.jsonl: steps 1, 3 to 4 are missing; eval.jsonl: 1 damaged line"
        );
    }

    #[test]
    fn options_that_were_chosen_are_marked() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        assert_eq!(settings(&dir).problem.as_deref(), Some("the run has no config.toml"));
        fs::write(dir.config(), "seed = 1\nlerning_rate = 1.0\n").unwrap();
        let problem = settings(&dir).problem.unwrap();
        assert!(problem.starts_with("config.toml: ") && problem.contains("lerning_rate"), "{problem}");
        let config = TrainConfig { learning_rate: 0.25, ..Default::default() };
        fs::write(dir.config(), layers::to_toml(&config)).unwrap();
        let chosen: Vec<_> =
            settings(&dir).options.into_iter().filter(|s| s.chosen).map(|s| (s.key, s.value)).collect();
        assert_eq!(chosen, [("learning_rate".to_owned(), "0.25".to_owned())]);
    }
}
