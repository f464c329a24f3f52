//! A configuration in which names on the Hub are replaced by the folders of their files.

use std::path::{Path, PathBuf};

use shared::config::{TrainConfig, hub_name, on_hub, rewards};
use shared_data::Selection;

use crate::{Hub, HubError, Snapshot, repository::is_hash};

/// Replaces the names in a configuration and returns a line for each. Names of a resumed run, whose resolved
/// configuration is `before`, keep their commits.
///
/// # Errors
/// The first name that cannot be used, with its option.
pub fn locate(
    config: &mut TrainConfig,
    before: Option<&TrainConfig>,
    hub: &Hub,
) -> Result<Vec<String>, (&'static str, HubError)> {
    let mut told = Vec::new();
    // If another revision is asked for than before, that revision counts.
    let (same_model, same_data) = before.map_or((false, false), |before| {
        (before.model_revision == config.model_revision, before.dataset_revision == config.dataset_revision)
    });
    let mut put = |option: &'static str, path: &mut PathBuf, revision: &str, part: Option<Selection<'_>>| {
        let Some(name) = hub_name(path).map(str::to_owned) else { return Ok(()) };
        let same = match option {
            "critic_model" | "reward_funcs" => true,
            "model" => same_model,
            _ => same_data,
        };
        let mut paths = before.filter(|_| same).cloned().unwrap_or_default();
        let models = paths.reward_funcs.clone();
        let models = models.iter().filter_map(|entry| rewards::model_path(entry, Path::new("")));
        let known = paths.paths_mut().map(|path| path.clone()).chain(models);
        let commit = known.into_iter().find_map(|path| commit_of(&path, part.is_some(), &name));
        let revision = commit.as_deref().unwrap_or(revision);
        let found = match part {
            None => hub.model(&name, revision),
            Some(part) => hub.dataset(&name, revision, part),
        };
        let Snapshot { path: folder, commit, downloaded } = found.map_err(|error| (option, error))?;
        let downloaded = if downloaded == 0 {
            "from the cache".to_owned()
        } else {
            format!("{} MB downloaded", downloaded.div_ceil(1_000_000))
        };
        told.push(format!("{option} {name}: commit {commit}, {downloaded}"));
        *path = folder;
        Ok(())
    };
    let config_name = config.dataset_config.clone();
    let part = |split| Some(Selection { split, config: config_name.as_deref() });
    put("model", &mut config.model, &config.model_revision, None)?;
    if let Some(critic) = &mut config.critic_model {
        put("critic_model", critic, MAIN, None)?;
    }
    let folder = config.reward_dir.clone().unwrap_or_default();
    for entry in &mut config.reward_funcs {
        let Some(mut path) = rewards::model_path(entry, &folder).filter(|path| hub_name(path).is_some()) else {
            continue;
        };
        put("reward_funcs", &mut path, MAIN, None)?;
        *entry = rewards::with_model_path(entry, &path);
    }
    for path in config.dataset.iter_mut() {
        put("dataset", path, &config.dataset_revision, part(&config.dataset_train_split))?;
    }
    if let Some(path) = &mut config.eval_dataset {
        put("eval_dataset", path, &config.dataset_revision, part(&config.dataset_test_split))?;
    }
    Ok(told)
}

/// The branch to take if none is named.
const MAIN: &str = "main";

/// The commit of a name's folder in a cache, `…/models--owner--name/snapshots/commit`.
fn commit_of(path: &Path, dataset: bool, name: &str) -> Option<String> {
    let folder = format!("{}--{}", if dataset { "datasets" } else { "models" }, name.replace('/', "--"));
    let mut parts = path.iter().rev().map(|part| part.to_str());
    let (commit, snapshots, repository) = (parts.next()??, parts.next()??, parts.next()??);
    (snapshots == "snapshots" && repository == folder).then(|| commit.to_owned())
}

/// The name on the Hub of the repository that a path in a cache of the Hub belongs to, and the commit:
/// `…/models--owner--name/snapshots/commit`, or what is below it.
#[must_use]
pub fn name_in_cache(path: &Path) -> Option<(String, String)> {
    let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap_or_default()).collect();
    parts.windows(3).find_map(|window| {
        let [repository, "snapshots", commit] = window else { return None };
        let name = ["models--", "datasets--"].into_iter().find_map(|kind| repository.strip_prefix(kind))?;
        // No owner and no name has two dashes in a row.
        let name = name.replace("--", "/");
        is_hash(commit).then(|| (name, (*commit).to_owned()))
    })
}

/// The folder of a model that a command line names by path or by name.
///
/// # Errors
/// A name that cannot be used.
pub fn locate_model(path: &Path) -> Result<PathBuf, HubError> {
    of_command_line(path, |hub, name| hub.model(name, MAIN))
}

/// The path of a dataset that a command line names by path or by name.
///
/// # Errors
/// A name that cannot be used.
pub fn locate_dataset(path: &Path, part: Selection<'_>) -> Result<PathBuf, HubError> {
    of_command_line(path, |hub, name| hub.dataset(name, MAIN, part))
}

fn of_command_line(
    path: &Path,
    find: impl FnOnce(&Hub, &str) -> Result<Snapshot, HubError>,
) -> Result<PathBuf, HubError> {
    let marked = path.to_str().and_then(|text| on_hub(text, Path::new(""))).map(PathBuf::from);
    let Some(name) = marked.as_deref().and_then(hub_name) else { return Ok(path.to_owned()) };
    find(&Hub::of_command(), name).map(|snapshot| snapshot.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_the_cache_has_its_commit() {
        let path = Path::new("/c/hub/models--Qwen--Q2/snapshots/abc");
        assert_eq!(commit_of(path, false, "Qwen/Q2").as_deref(), Some("abc"));
        assert_eq!(commit_of(path, true, "Qwen/Q2"), None);
        assert_eq!(commit_of(path, false, "Qwen/Q3"), None);
        assert_eq!(commit_of(Path::new("/c/hub/models--Qwen--Q2/blobs/abc"), false, "Qwen/Q2"), None);
    }

    #[test]
    fn a_path_in_the_cache_has_its_name() {
        let commit = "0123456789012345678901234567890123456789";
        for (path, name) in [
            (format!("/c/hub/models--Qwen--Q2-0.5B/snapshots/{commit}"), Some("Qwen/Q2-0.5B")),
            (format!("/c/hub/datasets--openai--gsm8k/snapshots/{commit}/main/train.parquet"), Some("openai/gsm8k")),
            (format!("/c/hub/datasets--squad/snapshots/{commit}"), Some("squad")),
            ("/c/hub/models--Qwen--Q2/snapshots/mine".to_owned(), None),
            (format!("/c/hub/models--Qwen--Q2/blobs/{commit}"), None),
            ("/users/me/models/mine".to_owned(), None),
        ] {
            let found = name_in_cache(Path::new(&path));
            assert_eq!(found.as_ref().map(|(name, _)| name.as_str()), name, "{path}");
            assert!(found.is_none_or(|(_, found)| found == commit));
        }
    }
}
