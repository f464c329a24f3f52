//! A run's options, its notices and the comparisons of its models.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::{Map, Value};
use shared::{
    RunDir,
    config::{ConfigError, TrainConfig, layers},
    files::journal,
    metrics,
    run::{
        notices::{self, Notice, NoticeKind},
        records,
    },
};

/// The configuration of a run, if it has one.
pub(super) fn config(dir: &RunDir) -> Result<Option<TrainConfig>, ConfigError> {
    let path = dir.config();
    path.is_file().then(|| layers::load(Some(&path), &Vec::new())).transpose()
}

/// The last two parts of a run's path: enough to recognise the run.
pub fn name_of(dir: &RunDir) -> String {
    short_path(&std::path::absolute(dir.root()).unwrap_or_else(|_| dir.root().to_owned()))
}

/// The last two parts of a path.
pub(super) fn short_path(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

pub(super) fn short_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| short_path(path)).collect::<Vec<_>>().join(", ")
}

/// An option of a run.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub(super) key: String,
    /// As in `config.toml`.
    pub(super) value: String,
    /// Whether it is not the default.
    pub(super) chosen: bool,
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
    Settings { options: options(&config), problem: None }
}

/// All options of a configuration.
pub(super) fn options(config: &TrainConfig) -> Vec<Setting> {
    let table = |config: &TrainConfig| toml::from_str::<toml::Table>(&layers::to_toml(config)).unwrap_or_default();
    let defaults = table(&TrainConfig::default());
    let setting = |(key, value): (String, toml::Value)| {
        // The folder differs for every run, and says nothing of how the run was made.
        let chosen = key != "output_dir" && defaults.get(&key) != Some(&value);
        Setting { key, value: value.to_string(), chosen }
    };
    table(config).into_iter().map(setting).collect()
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
    let in_vain = in_vain(dir, &notices)?;
    let damage = damage(dir, &notices)?;
    notices.extend(damage);
    Ok(Notices { notices, in_vain })
}

/// The message that all steps of a finished run were in vain, if they were.
fn in_vain(dir: &RunDir, notices: &[Notice]) -> io::Result<Option<String>> {
    let config = config(dir).ok().flatten().filter(|_| dir.finished().exists() && dir.metrics().is_file());
    let Some(config) = config else { return Ok(None) };
    Ok(notices::nothing_learned(&metrics::read(&dir.metrics())?, notices, &config).map(|nothing| nothing.to_string()))
}

/// Whether a finished run has learned nothing. One that cannot be read has no such judgement.
pub(super) fn has_learned_nothing(dir: &RunDir) -> bool {
    notices::read(&dir.notices()).and_then(|notices| in_vain(dir, &notices)).is_ok_and(|vain| vain.is_some())
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
    use std::fs;

    use super::*;

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
