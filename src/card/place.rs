//! Where a model, a dataset or a file is from, in words for other people.

use std::{
    env,
    path::{Path, PathBuf},
};

use shared::{
    RunDir,
    config::{hub_name, layers, rewards},
};

/// Runs that a model is followed through to the model that the first one began with.
const MOST_RUNS: usize = 16;

/// Where something is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The Hub.
    Hub {
        /// `owner/name`.
        name: String,
        /// The commit, where it is known.
        commit: Option<String>,
    },
    /// This machine: the last part of the path.
    Local(String),
}

impl Place {
    /// Where what lies at a path is from: a folder of the Hub's cache has a name there.
    pub fn of(path: &Path) -> Self {
        if let Some(name) = hub_name(path) {
            return Self::Hub { name: name.to_owned(), commit: None };
        }
        match shared_hub::name_in_cache(path) {
            Some((name, commit)) => Self::Hub { name, commit: Some(commit) },
            None => Self::Local(last_part(path)),
        }
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        match self {
            Self::Hub { name, .. } | Self::Local(name) => name,
        }
    }

    /// In Markdown, as a link if it is on the Hub; `kind` begins the path of a dataset's page.
    pub fn in_markdown(&self, kind: &str) -> String {
        match self {
            Self::Hub { name, .. } => format!("[{name}](https://huggingface.co/{kind}{name})"),
            Self::Local(name) => format!("`{}` (a local folder or file)", name.replace('`', "")),
        }
    }
}

/// The last part of a path that has a name.
fn last_part(path: &Path) -> String {
    let name = path.components().rev().find_map(|part| match part {
        std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    name.unwrap_or_else(|| "model".to_owned())
}

/// A model, and the models that it goes back to: a checkpoint of another run was made of that run's model.
pub fn lineage(model: &Path) -> Vec<PathBuf> {
    let mut found = vec![model.to_owned()];
    while found.len() < MOST_RUNS {
        let last = found.last().expect("it begins with one");
        let whole = last.canonicalize().unwrap_or_else(|_| last.clone());
        let run = whole.parent().map(RunDir::new).filter(|run| run.config().is_file());
        let config = run.and_then(|run| layers::load(Some(&run.config()), &Vec::new()).ok());
        match config.filter(|config| !config.model.as_os_str().is_empty() && !found.contains(&config.model)) {
            Some(config) => found.push(config.model),
            None => break,
        }
    }
    found
}

/// An entry of `reward_funcs` without paths of this machine.
pub fn of_reward(entry: &str) -> String {
    let entry = match rewards::model_path(entry, Path::new("")) {
        Some(path) => rewards::with_model_path(entry, Path::new(Place::of(&path).name())),
        None => entry.to_owned(),
    };
    let mut public = String::new();
    let mut word = String::new();
    for c in entry.chars() {
        if c.is_whitespace() || matches!(c, ':' | '=' | '"' | '\'' | ',') {
            public.push_str(&of_word(&word));
            public.push(c);
            word.clear();
        } else {
            word.push(c);
        }
    }
    public + &of_word(&word)
}

/// A word that may be a path: its last part, if it is one.
fn of_word(word: &str) -> String {
    let is_path = ["/", "./", "../", "~/"].iter().any(|begin| word.starts_with(begin));
    let is_path = is_path || (word.contains('/') && word.ends_with(".py"));
    if is_path { last_part(Path::new(word)) } else { word.to_owned() }
}

/// A text without this user's folders, wherever they came into it: a last resort behind everything that takes care of
/// single values.
pub fn without_private(mut text: String, run: Option<&Path>) -> String {
    let home = env::var_os("HOME").map(PathBuf::from);
    let folders = [env::current_dir().ok(), run.map(Path::to_owned), run.and_then(|run| run.canonicalize().ok()), home];
    let mut folders: Vec<String> = folders
        .into_iter()
        .flatten()
        .filter(|folder| folder.is_absolute() && folder.components().count() > 1)
        .map(|folder| folder.display().to_string())
        .collect();
    // The longest first, as one may lie in another.
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    for folder in folders {
        text = text.replace(&format!("{folder}/"), "").replace(&folder, "…");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_on_the_hub_are_whole() {
        let commit = "0123456789012345678901234567890123456789";
        let cached = format!("/users/me/.cache/huggingface/hub/models--a--b/snapshots/{commit}");
        let hub = |commit: Option<&str>| Place::Hub { name: "a/b".into(), commit: commit.map(str::to_owned) };
        assert_eq!(Place::of(Path::new(&cached)), hub(Some(commit)));
        assert_eq!(Place::of(Path::new("hf://a/b")), hub(None));
        assert_eq!(Place::of(Path::new("/users/me/models/mine/")), Place::Local("mine".into()));
        assert_eq!(Place::of(Path::new("../..")), Place::Local("model".into()));
        assert_eq!(hub(None).in_markdown("datasets/"), "[a/b](https://huggingface.co/datasets/a/b)");
        for (entry, public) in [
            ("accuracy", "accuracy"),
            ("/users/me/rewards/mine.py:f", "mine.py:f"),
            ("rewards/mine.py:f", "mine.py:f"),
            ("command:run=python3 /users/me/score.py --key=/etc/x", "command:run=python3 score.py --key=x"),
            ("sentence_share:word=and/or", "sentence_share:word=and/or"),
            ("model:path=/users/me/judge:batch=2", "model:path=judge:batch=2"),
            ("command:run=~/bin/score", "command:run=score"),
        ] {
            assert_eq!(of_reward(entry), public);
        }
        let model = format!("model:path={cached}");
        assert_eq!(of_reward(&model), "model:path=a/b");
    }

    #[test]
    fn a_model_is_followed_to_the_one_that_its_first_run_began_with() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let run = |name: &str, model: &str| {
            let folder = root.join(name).join("checkpoint-2");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(root.join(name).join("config.toml"), format!("model = {model:?}\n")).unwrap();
            folder
        };
        let one = run("one", "hf://a/b");
        let two = run("two", one.to_str().unwrap());
        assert_eq!(lineage(&two), [two.clone(), one.clone(), "hf://a/b".into()]);
        assert_eq!(lineage(Path::new("/no/such/model")), [PathBuf::from("/no/such/model")]);
        let circle = run("three", root.join("three/checkpoint-2").to_str().unwrap());
        assert_eq!(lineage(&circle), std::slice::from_ref(&circle));
    }

    #[test]
    fn folders_of_the_user_are_in_no_text() {
        let here = env::current_dir().unwrap();
        let text = format!("see {}/a/b and {}", here.display(), here.display());
        assert_eq!(without_private(text, None), "see a/b and …");
        assert_eq!(without_private("x /secret/runs/one/c".into(), Some(Path::new("/secret/runs/one"))), "x c");
    }
}
