//! Folders: what `save_to_disk` of Hugging Face's datasets writes, and files as on the hub.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{DataError, format::extension, split, table::Files};

/// `state.json` of a dataset that was saved.
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

/// Extensions of files with rows.
const ROWS: &[&str] = &["jsonl", "ndjson", "json", "csv", "tsv", "tab", "parquet", "arrow", "feather"];
/// JSON files that say something about rows and hold none.
const ABOUT: &[&str] = &["dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json"];

/// The files of a folder, those of one split if it has several.
pub fn files(folder: &Path, wanted: &str) -> Result<Files, DataError> {
    if folder.join("dataset_dict.json").is_file() {
        let saved: SavedSplits = parsed(&folder.join("dataset_dict.json"))?;
        let found = saved.splits.iter().find(|name| split::canonical(name) == split::canonical(wanted));
        let name = found.ok_or_else(|| no_split(folder, wanted, &saved.splits))?;
        return Ok(Files { split: Some(name.clone()), ..saved_to_disk(&folder.join(name))? });
    }
    if folder.join("state.json").is_file() {
        return saved_to_disk(folder);
    }
    if folder.join("config.json").is_file() {
        return Err(DataError::content(
            folder,
            "is the directory of a model (it has config.json); name a file or folder of rows",
        ));
    }
    as_on_the_hub(folder, wanted)
}

fn saved_to_disk(folder: &Path) -> Result<Files, DataError> {
    let state: State = parsed(&folder.join("state.json"))?;
    let paths = state.data_files.iter().map(|file| folder.join(&file.filename)).collect();
    Ok(Files { paths, split: None, kind: Some("saved by `save_to_disk`") })
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, DataError> {
    let text = fs::read(path).map_err(DataError::file(path))?;
    serde_json::from_slice(&text).map_err(|error| {
        DataError::content(path, format!("is not what `save_to_disk` of Hugging Face's datasets writes: {error}"))
    })
}

fn no_split(folder: &Path, wanted: &str, found: &[String]) -> DataError {
    let found = found.iter().map(|name| format!("`{name}`")).collect();
    DataError::Split { path: folder.to_owned(), wanted: wanted.to_owned(), found }
}

/// Files by the split in their names; without such names, all are the split `train`.
fn as_on_the_hub(folder: &Path, wanted: &str) -> Result<Files, DataError> {
    let mut splits: BTreeMap<Option<String>, Vec<PathBuf>> = BTreeMap::new();
    for path in below(folder)? {
        let within = path.strip_prefix(folder).unwrap_or(&path);
        splits.entry(split::of(within)).or_default().push(path);
    }
    if splits.is_empty() {
        return Err(DataError::content(
            folder,
            format!("is a folder without files of rows (.{}); name a file or another folder", ROWS.join(", .")),
        ));
    }
    let unnamed = splits.remove(&None);
    if let (true, Some(paths)) = (splits.is_empty(), unnamed) {
        let train = split::canonical(wanted) == "train";
        return if train { one_set(folder, paths, None) } else { Err(no_split(folder, wanted, &["train".into()])) };
    }
    let names: Vec<String> = splits.keys().flatten().cloned().collect();
    match splits.remove(&Some(split::canonical(wanted).to_owned())) {
        Some(paths) => one_set(folder, paths, Some(wanted.to_owned())),
        None => Err(no_split(folder, wanted, &names)),
    }
}

/// Refuses files that would not belong together: of several configurations, or the same rows in several formats.
fn one_set(folder: &Path, paths: Vec<PathBuf>, split: Option<String>) -> Result<Files, DataError> {
    let parents: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    if parents.len() > 1 {
        let named: Vec<String> = parents.iter().map(|parent| parent.display().to_string()).collect();
        return Err(DataError::content(
            folder,
            format!(
                "has rows of one split in several folders, perhaps of several configurations; name one: {}",
                named.join(", ")
            ),
        ));
    }
    let formats: BTreeSet<String> = paths.iter().map(|path| extension(path)).collect();
    if formats.len() > 1 {
        let formats: Vec<String> = formats.into_iter().collect();
        return Err(DataError::content(
            folder,
            format!("has rows of one split in several formats (.{}); name a file of one of them", formats.join(", .")),
        ));
    }
    Ok(Files { paths, split, kind: None })
}

/// The files with rows in a folder and in the folders below it, in the order of their names; hidden ones are left out.
fn below(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries =
        fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(DataError::file(folder))?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            found.extend(below(&path)?);
        } else if ROWS.contains(&extension(&path).as_str()) && !ABOUT.contains(&name.as_str()) {
            found.push(path);
        }
    }
    Ok(found)
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

    fn prompts(dir: &Path, split: &str) -> Result<Vec<String>, String> {
        let table = read(dir, split).map_err(|error| error.to_string())?;
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
    fn files_without_a_split_in_their_names_are_for_training() {
        let dir = folder(&["b.jsonl", "a.jsonl"]);
        assert_eq!(prompts(dir.path(), "train").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert!(prompts(dir.path(), "test").unwrap_err().contains("has no split `test`, but `train`"));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let configurations = folder(&["main/train.jsonl", "socratic/train.jsonl", "main/test.jsonl"]);
        let error = prompts(configurations.path(), "train").unwrap_err();
        assert!(error.contains("name one: ") && error.contains("/main, ") && error.contains("/socratic"), "{error}");
        assert_eq!(prompts(&configurations.path().join("main"), "train").unwrap(), ["main/train.jsonl"]);
        let formats = folder(&["train.jsonl", "train.csv"]);
        assert!(prompts(formats.path(), "train").unwrap_err().contains("several formats (.csv, .jsonl)"));
        let error = prompts(folder(&["model.safetensors", "README.md"]).path(), "train").unwrap_err();
        assert!(error.contains("is a folder without files of rows (.jsonl, "), "{error}");
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
