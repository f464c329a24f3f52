//! Folders: as `save_to_disk` of Hugging Face's datasets writes them, or laid out as on the Hub.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use shared_bounds::OneLine;

use crate::{DataError, Selection, choice, split};

/// Most bytes of a file that describes the others.
const MOST_BYTES: u64 = 16 << 20;
/// Most levels of folders.
const MOST_DEPTH: usize = 16;
/// Most files in a folder and below.
const MOST_FILES: usize = 100_000;

/// The files of a dataset.
#[derive(Debug)]
pub struct Files {
    /// In the order in which they are read.
    pub paths: Vec<PathBuf>,
    /// Their split, if the dataset has several.
    pub split: Option<String>,
    /// The library that wrote them, if the folder names it.
    pub kind: Option<&'static str>,
}

impl Files {
    /// The files of a path: a file, or a part of a folder.
    pub fn of(path: &Path, part: Selection<'_>) -> Result<Self, DataError> {
        let metadata = path.metadata().map_err(DataError::file(path))?;
        match metadata.is_dir() {
            true => files(path, part),
            false => Ok(Self { paths: vec![path.to_owned()], split: None, kind: None }),
        }
    }
}

/// `state.json` of a saved dataset.
#[derive(Deserialize)]
struct State {
    #[serde(rename = "_data_files")]
    data_files: Vec<DataFile>,
}

#[derive(Deserialize)]
struct DataFile {
    filename: String,
}

/// `dataset_dict.json` of several splits that were saved together.
#[derive(Deserialize)]
struct SavedSplits {
    splits: Vec<String>,
}

/// The files of a folder; those of one split if it has several.
fn files(folder: &Path, part: Selection<'_>) -> Result<Files, DataError> {
    let wanted = part.split;
    if folder.join("dataset_dict.json").exists() {
        let saved: SavedSplits = parsed(&folder.join("dataset_dict.json"))?;
        let found = saved.splits.iter().find(|name| split::canonical(name) == split::canonical(wanted));
        let name = found.ok_or_else(|| DataError::no_split(folder, wanted, &saved.splits))?;
        return Ok(Files { split: Some(name.clone()), ..saved_to_disk(&folder.join(name))? });
    }
    if folder.join("state.json").exists() {
        return saved_to_disk(folder);
    }
    if folder.join("config.json").is_file() {
        return Err(DataError::content(
            folder,
            "is the directory of a model (it has config.json); name a file or folder of rows",
        ));
    }
    let card = card(&folder.join(choice::CARD))?;
    let mut found = Vec::new();
    below(folder, "", 0, &mut found)?;
    let (paths, split) = choice::choose(folder, &found, card.as_deref(), part)?;
    Ok(Files { paths: paths.iter().map(|path| folder.join(path)).collect(), split, kind: None })
}

/// The text of a card, if there is one. The card says which files count, so a card that cannot be read is an error.
fn card(path: &Path) -> Result<Option<String>, DataError> {
    match shared_bounds::read_text(path, MOST_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => Ok(None),
        Err(error) => Err(DataError::file(path)(error)),
    }
}

fn saved_to_disk(folder: &Path) -> Result<Files, DataError> {
    let state: State = parsed(&folder.join("state.json"))?;
    let beside = |file: &DataFile| Path::new(&file.filename).file_name() == Some(file.filename.as_ref());
    if let Some(file) = state.data_files.iter().find(|file| !beside(file)) {
        let reason = format!("names `{}`, which is not the name of a file beside it", OneLine(&file.filename));
        return Err(DataError::content(&folder.join("state.json"), reason));
    }
    let paths = state.data_files.iter().map(|file| folder.join(&file.filename)).collect();
    Ok(Files { paths, split: None, kind: Some("saved by `save_to_disk`") })
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, DataError> {
    let text = shared_bounds::read(path, MOST_BYTES).map_err(DataError::file(path))?;
    serde_json::from_slice(&text).map_err(|error| {
        DataError::content(path, format!("is not what `save_to_disk` of Hugging Face's datasets writes: {error}"))
    })
}

/// The files in a folder and in the folders below it, as seen from it, in the order of their names; hidden ones are
/// left out. Links may form a circle, hence the bound on depth.
fn below(folder: &Path, within: &str, depth: usize, found: &mut Vec<String>) -> Result<(), DataError> {
    let here = folder.join(within);
    let entries =
        fs::read_dir(&here).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(DataError::file(&here))?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let name = if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") };
        if path.is_dir() {
            if depth == MOST_DEPTH {
                let reason = format!("is {MOST_DEPTH} folders deep, as with a link to a folder above");
                return Err(DataError::content(&folder.join(&name), reason));
            }
            below(folder, &name, depth + 1, found)?;
        } else {
            found.push(name);
        }
        if found.len() > MOST_FILES {
            return Err(DataError::content(folder, format!("holds more than {MOST_FILES} files; name a folder in it")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        read,
        testing::{fixture, values},
    };

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{{\"prompt\": \"{file}\"}}\n")).unwrap();
        }
        dir
    }

    fn prompts(dir: &Path, part: impl Into<Selection<'static>>) -> Result<Vec<String>, String> {
        let table = read(dir, part.into()).map_err(|error| error.to_string())?;
        Ok(values(table).iter().map(|row| row["prompt"].as_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_folder_as_on_the_hub_gives_the_files_of_a_split_in_order() {
        let dir = folder(&[
            "README.md",
            ".cache/train.jsonl",
            "dataset_infos.json",
            "data/train-00001-of-00002.jsonl",
            "data/train-00000-of-00002.jsonl",
            "data/test-00000-of-00001.jsonl",
        ]);
        let shards = ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"];
        assert_eq!(prompts(dir.path(), "train").unwrap(), shards);
        assert_eq!(prompts(dir.path(), "test").unwrap(), ["data/test-00000-of-00001.jsonl"]);
        assert_eq!(read(dir.path(), "train").unwrap().about, "JSON lines, split `train`, 2 files, 2 rows");
        let error = prompts(dir.path(), "validation").unwrap_err();
        assert!(error.contains("has no split `validation`, but `test`, `train`; `dataset_train_split`"), "{error}");
        assert_eq!(crate::count(dir.path(), "train").unwrap(), 2);
    }

    #[test]
    fn folders_that_go_round_in_circles_are_refused() {
        let dir = folder(&["data/train.jsonl"]);
        for name in ["a", "b"] {
            std::os::unix::fs::symlink("..", dir.path().join("data").join(name)).unwrap();
        }
        let error = prompts(dir.path(), "train").unwrap_err();
        assert!(error.ends_with(": is 16 folders deep, as with a link to a folder above"), "{error}");
    }

    #[test]
    fn a_saved_dataset_names_files_beside_it_only() {
        let dir = folder(&["a.arrow"]);
        fs::write(dir.path().join("state.json"), r#"{"_data_files": [{"filename": "../../etc/passwd"}]}"#).unwrap();
        let error = prompts(dir.path(), "train").unwrap_err();
        assert!(
            error.contains("state.json: names `../../etc/passwd`, which is not the name of a file beside it"),
            "{error}"
        );
    }

    /// A pipe waits for whoever writes into it, a socket cannot be opened: nothing waits for them, wherever they lie.
    #[test]
    fn what_is_no_file_in_a_folder_is_refused() {
        for name in ["train.jsonl", "README.md", "state.json", "dataset_dict.json"] {
            let dir = folder(&["train-1.jsonl"]);
            let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(name)).unwrap();
            let error = prompts(dir.path(), "train").unwrap_err();
            assert!(error.ends_with(&format!("{name}: cannot be read: is a socket, not a file")), "{error}");
        }
    }

    #[test]
    fn files_without_a_split_in_their_names_are_for_training() {
        let dir = folder(&["b.jsonl", "a.jsonl"]);
        assert_eq!(prompts(dir.path(), "train").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert!(prompts(dir.path(), "test").unwrap_err().contains("has no split `test`, but `train`"));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let configurations = folder(&["main/train.jsonl", "socratic/train.jsonl", "main/test.jsonl"]);
        let error = prompts(configurations.path(), "train").unwrap_err();
        assert!(error.contains("`dataset_config` chooses one: main, socratic"), "{error}");
        assert_eq!(prompts(&configurations.path().join("main"), "train").unwrap(), ["main/train.jsonl"]);
        let part = |config| Selection { split: "train", config: Some(config) };
        assert_eq!(prompts(configurations.path(), part("socratic")).unwrap(), ["socratic/train.jsonl"]);
        let error = prompts(configurations.path(), part("no")).unwrap_err();
        assert!(error.contains("has no configuration `no` (`dataset_config`), but `main`, `socratic`"), "{error}");
        let mixed = folder(&["train.jsonl", "old/train.jsonl"]);
        let error = prompts(mixed.path(), "train").unwrap_err();
        assert!(error.contains("name a file, or one of these folders, as the dataset: ., old"), "{error}");
        let formats = folder(&["train.jsonl", "train.csv"]);
        assert!(prompts(formats.path(), "train").unwrap_err().contains("several formats (.csv, .jsonl)"));
        let error = prompts(folder(&["model.safetensors", "README.md"]).path(), "train").unwrap_err();
        assert!(error.contains("is a folder without files of rows (.jsonl, "), "{error}");
    }

    #[test]
    fn a_card_says_which_files_are_a_split_of_a_configuration() {
        let dir = folder(&["a.jsonl", "b.jsonl", "sub/c-1.jsonl", "sub/c-2.jsonl"]);
        let card = |more: &str| {
            let text = format!(
                "---\nconfigs:\n- config_name: easy\n  data_files:\n  - split: train\n    path: b.jsonl\n  - split: \
                 dev\n    path: a.jsonl\n{more}---\n"
            );
            fs::write(dir.path().join("README.md"), text).unwrap();
        };
        card("");
        assert_eq!(prompts(dir.path(), "train").unwrap(), ["b.jsonl"]);
        assert_eq!(prompts(dir.path(), "validation").unwrap(), ["a.jsonl"]);
        assert!(prompts(dir.path(), "test").unwrap_err().contains("has no split `test`, but `train`, `dev`"));
        card("- config_name: hard\n  data_files: sub/c-*\n");
        let error = prompts(dir.path(), "train").unwrap_err();
        assert!(error.contains("has several configurations; `dataset_config` chooses one: easy, hard"), "{error}");
        let part = |config, split| Selection { split, config: Some(config) };
        assert_eq!(prompts(dir.path(), part("hard", "train")).unwrap(), ["sub/c-1.jsonl", "sub/c-2.jsonl"]);
        card("- config_name: hard\n  default: true\n  data_dir: sub\n");
        assert_eq!(prompts(dir.path(), "train").unwrap(), ["sub/c-1.jsonl", "sub/c-2.jsonl"]);
        card("- config_name: gone\n  data_files: gone/*\n");
        let error = prompts(dir.path(), part("gone", "train")).unwrap_err();
        assert!(error.contains("no files `gone/*`"), "{error}");
    }

    /// Written by Hugging Face's datasets.
    #[test]
    fn saved_datasets_are_read() {
        let one = read(&fixture("saved"), "train").unwrap();
        assert_eq!(one.about, "saved by `save_to_disk`, 2 rows");
        let train = read(&fixture("saved_splits"), "train").unwrap();
        assert_eq!(train.about, "saved by `save_to_disk`, split `train`, 2 rows");
        assert_eq!(values(train), values(one));
        assert_eq!(read(&fixture("saved_splits"), "test").unwrap().rows.len(), 1);
        let error = read(&fixture("saved_splits"), "dev").unwrap_err().to_string();
        assert!(error.contains("has no split `dev`, but `train`, `test`"), "{error}");
    }
}
