//! `datasets` of TRL's scripts: several datasets, each with the arguments of `load_dataset`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::rules::Options;

/// One dataset, in TRL's words (`DatasetConfig`). `columns` chooses the columns that rewards see; here they see all of
/// them.
#[derive(Debug, Deserialize)]
struct DatasetEntry {
    path: String,
    name: Option<String>,
    data_dir: Option<String>,
    data_files: Option<Value>,
    split: Option<String>,
    fraction: Option<f64>,
}

/// The list of open-r1's `dataset_mixture` in TRL's words.
pub fn of_open_r1(mut list: Value) -> Value {
    let words = [("id", "path"), ("config", "name"), ("weight", "fraction")];
    for source in list.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for (theirs, ours) in words {
            if let Some(value) = source.remove(theirs) {
                source.insert(ours.to_owned(), value);
            }
        }
    }
    list
}

/// Names that stand for a format; `data_files` then names the files.
const FORMATS: &[&str] = &["parquet", "json", "csv", "arrow"];

const TRAIN: &str = "train";

impl DatasetEntry {
    fn all(list: &Value) -> Result<Vec<Self>, String> {
        let sources: Vec<Self> = Vec::deserialize(list).map_err(|error| error.to_string())?;
        if sources.is_empty() { Err("it is empty".into()) } else { Ok(sources) }
    }

    fn split(&self) -> &str {
        self.split.as_deref().unwrap_or(TRAIN)
    }

    /// The files or folders of the dataset.
    fn paths(&self) -> Result<Vec<String>, String> {
        let files = match &self.data_files {
            None => Vec::new(),
            Some(Value::String(file)) => vec![file.as_str()],
            Some(Value::Array(files)) => files.iter().filter_map(Value::as_str).collect(),
            Some(by_split) => match &by_split[self.split()] {
                Value::String(file) => vec![file.as_str()],
                Value::Array(files) => files.iter().filter_map(Value::as_str).collect(),
                _ => return Err(format!("`data_files` of {} has no files of split `{}`", self.path, self.split())),
            },
        };
        let is_format = FORMATS.contains(&self.path.as_str());
        let mut folder = if is_format { Path::new("").to_owned() } else { self.path.clone().into() };
        folder.extend(&self.data_dir);
        if files.is_empty() && folder.as_os_str().is_empty() {
            return Err(format!("`data_files` is missing for {}", self.path));
        }
        if let Some(pattern) = files.iter().find(|file| file.contains(['*', '?', '['])) {
            return Err(format!(
                "`data_files` has the pattern {pattern}; list the files, or name their folder as `path`"
            ));
        }
        let path = |file: &&str| folder.join(file).display().to_string();
        Ok(if files.is_empty() { vec![folder.display().to_string()] } else { files.iter().map(path).collect() })
    }
}

/// The options that the list leads to; none if options cannot express it, which [`remarks`] explains.
pub fn options(list: &Value) -> Options {
    translated(list).map_or_else(|_| Options::new(), |(options, _)| options)
}

/// Remarks on the list.
pub fn remarks(list: &Value) -> Vec<String> {
    let refused = |reason| vec![format!("`datasets` is left out, name files or folders as `dataset`: {reason}")];
    translated(list).map_or_else(refused, |(_, remarks)| remarks)
}

fn translated(list: &Value) -> Result<(Options, Vec<String>), String> {
    let sources = DatasetEntry::all(list)?;
    let (mut paths, mut weights, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
    for source in &sources {
        let found = source.paths()?;
        let share = source.fraction.map(|fraction| fraction / found.len() as f64);
        weights.extend(found.iter().filter_map(|_| share));
        paths.extend(found);
    }
    let (split, name) = (sources[0].split(), &sources[0].name);
    if sources.iter().any(|source| source.name != *name) {
        return Err("the configurations that they `name` differ".into());
    }
    if sources.iter().any(|source| source.split() != split) {
        return Err("their splits differ".into());
    }
    if split.contains('[') {
        return Err(format!("the split `{split}` is a part of one"));
    }
    if !weights.is_empty() && weights.len() < paths.len() {
        return Err("`fraction` is given for some only".into());
    }
    let mut options = vec![("dataset".to_owned(), paths.into()), ("dataset_train_split".to_owned(), split.into())];
    options.extend(name.iter().map(|name| ("dataset_config".to_owned(), name.as_str().into())));
    if weights.len() > 1 {
        remarks.push(
            "`fraction` keeps the first rows of each dataset in TRL; `dataset_weights` draws from all rows in the same \
             shares"
                .to_owned(),
        );
        options.push(("dataset_weights".to_owned(), weights.into()));
    }
    Ok((options, remarks))
}
