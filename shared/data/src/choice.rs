//! Chooses the files of a split and configuration in a folder that is laid out as on the Hugging Face Hub. It looks at
//! names alone, so that no other file need be downloaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::{
    DataError,
    card::{self, Configuration},
    extension, split,
};

/// The file that describes a dataset.
pub const CARD: &str = "README.md";

/// Extensions of files with rows.
const ROWS: &[&str] = &["jsonl", "ndjson", "json", "csv", "tsv", "tab", "parquet", "arrow", "feather"];
/// JSON files that say something about rows and hold none.
const ABOUT: &[&str] = &["dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json"];

/// Which rows of a dataset to take: a split of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection<'a> {
    /// The split, if there are several.
    pub split: &'a str,
    /// The configuration, if there are several.
    pub config: Option<&'a str>,
}

/// A split of a configuration.
impl<'a> From<(&'a str, Option<&'a str>)> for Selection<'a> {
    fn from((split, config): (&'a str, Option<&'a str>)) -> Self {
        Self { split, config }
    }
}

/// A split of the only configuration, or of the default.
impl<'a> From<&'a str> for Selection<'a> {
    fn from(split: &'a str) -> Self {
        Self { split, config: None }
    }
}

/// The files of a part, and its split if there are several. `folder` is named in errors; `names` are the files in it,
/// as seen from it, with `/` between folders; `card` is the text of its [`CARD`].
///
/// # Errors
/// No such split or configuration, or files that do not belong together.
pub fn choose(
    folder: &Path,
    names: &[String],
    card: Option<&str>,
    part: Selection<'_>,
) -> Result<(Vec<String>, Option<String>), DataError> {
    let with_rows = |name: &&String| {
        let path = Path::new(name);
        let about = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| ABOUT.contains(&name));
        ROWS.contains(&extension::of(path).as_str()) && !about
    };
    let names: Vec<&String> = names.iter().filter(with_rows).collect();
    if names.is_empty() {
        return Err(DataError::content(
            folder,
            format!("is a folder without files of rows (.{}); name a file or another folder", ROWS.join(", .")),
        ));
    }
    let unreadable = |reason| DataError::content(folder, format!("the head of its {CARD} cannot be read: {reason}"));
    let declared = card.map(card::configurations).transpose().map_err(unreadable)?.unwrap_or_default();
    let chosen = if declared.is_empty() {
        by_names(folder, within(folder, names, part.config)?, part.split, false)
    } else {
        let configuration = configuration(folder, &declared, part.config)?;
        match configuration.splits() {
            Some(splits) => by_patterns(folder, &names, &splits, part.split),
            None => by_names(folder, below(names, configuration.folder()), part.split, true),
        }
    }?;
    match chosen.0.iter().find_map(|name| split::missing_shard(name, &chosen.0)) {
        Some(missing) => Err(DataError::content(folder, format!("{missing} is missing, of which there are others"))),
        None => Ok(chosen),
    }
}

fn configuration<'a>(
    folder: &Path,
    declared: &'a [Configuration],
    wanted: Option<&str>,
) -> Result<&'a Configuration, DataError> {
    let named = |name: &str| declared.iter().find(|one| one.name == name);
    let names = || declared.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    match (wanted, declared) {
        (Some(wanted), _) => named(wanted).ok_or_else(|| no_configuration(folder, wanted, &names())),
        (None, [one]) => Ok(one),
        (None, _) => declared.iter().find(|one| one.default).or_else(|| named("default")).ok_or_else(|| {
            let names = names().join(", ");
            DataError::content(folder, format!("has several configurations; `dataset_config` chooses one: {names}"))
        }),
    }
}

fn no_configuration(folder: &Path, wanted: &str, found: &[String]) -> DataError {
    let found: Vec<String> = found.iter().map(|name| format!("`{name}`")).collect();
    let found = if found.is_empty() {
        "its files have no configurations".to_owned()
    } else {
        format!("but {}", found.join(", "))
    };
    DataError::content(folder, format!("has no configuration `{wanted}` (`dataset_config`), {found}"))
}

/// The files of a configuration that no card declares: those in the folder of its name.
fn within<'a>(folder: &Path, names: Vec<&'a String>, wanted: Option<&str>) -> Result<Vec<&'a String>, DataError> {
    let Some(wanted) = wanted else { return Ok(names) };
    let folders: BTreeSet<String> =
        names.iter().filter_map(|name| name.split_once('/')).map(|(first, _)| first.to_owned()).collect();
    let found = below(names, Some(wanted));
    if found.is_empty() { Err(no_configuration(folder, wanted, &Vec::from_iter(folders))) } else { Ok(found) }
}

fn below<'a>(mut names: Vec<&'a String>, folder: Option<&str>) -> Vec<&'a String> {
    names.retain(|name| folder.is_none_or(|folder| Path::new(name).starts_with(folder)));
    names
}

type Chosen = (Vec<String>, Option<String>);

/// Files by the patterns that a card has for each split.
fn by_patterns(
    folder: &Path,
    names: &[&String],
    splits: &[(String, Vec<String>)],
    wanted: &str,
) -> Result<Chosen, DataError> {
    let same = |name: &str| split::canonical(name) == split::canonical(wanted);
    let Some((split, patterns)) = splits.iter().find(|(name, _)| same(name)) else {
        return Err(DataError::no_split(folder, wanted, &Vec::from_iter(splits.iter().map(|(name, _)| name.clone()))));
    };
    let meant = |name: &&&String| patterns.iter().any(|pattern| card::matches(pattern, name));
    let paths: Vec<String> = names.iter().filter(meant).map(|name| (*name).clone()).collect();
    if paths.is_empty() {
        let patterns = patterns.join("`, `");
        return Err(DataError::content(
            folder,
            format!("has no files `{patterns}` of rows, which its {CARD} promises"),
        ));
    }
    Ok((paths, Some(split.clone())))
}

/// Files by the split in their names; without such names, all are the split `train`. `is_declared` says whether a card
/// has chosen the files.
fn by_names(folder: &Path, names: Vec<&String>, wanted: &str, is_declared: bool) -> Result<Chosen, DataError> {
    let mut splits: BTreeMap<Option<String>, Vec<String>> = BTreeMap::new();
    for name in names {
        splits.entry(split::of(Path::new(name))).or_default().push(name.clone());
    }
    let unnamed = splits.remove(&None);
    if let (true, Some(paths)) = (splits.is_empty(), unnamed) {
        let train = split::canonical(wanted) == "train";
        let refusal = || DataError::no_split(folder, wanted, &["train".into()]);
        return if train { one_set(folder, paths, None, is_declared) } else { Err(refusal()) };
    }
    let found: Vec<String> = splits.keys().flatten().cloned().collect();
    match splits.remove(&Some(split::canonical(wanted).to_owned())) {
        Some(paths) => one_set(folder, paths, Some(wanted.to_owned()), is_declared),
        None => Err(DataError::no_split(folder, wanted, &found)),
    }
}

/// Refuses files that would not belong together: of several configurations, or the same rows in several formats.
fn one_set(folder: &Path, names: Vec<String>, split: Option<String>, is_declared: bool) -> Result<Chosen, DataError> {
    let parents: BTreeSet<&Path> = names.iter().filter_map(|name| Path::new(name).parent()).collect();
    if parents.len() > 1 {
        // `dataset_config` is the name of a folder, or one that a card declares.
        let way = if is_declared || parents.contains(Path::new("")) {
            "name a file, or one of these folders, as the dataset"
        } else {
            "`dataset_config` chooses one"
        };
        let name =
            |parent: &&Path| if parent.as_os_str().is_empty() { ".".into() } else { parent.display().to_string() };
        let named: Vec<String> = parents.iter().map(name).collect();
        let named = named.join(", ");
        return Err(DataError::content(
            folder,
            format!("has rows of one split in several folders, perhaps of several configurations; {way}: {named}"),
        ));
    }
    let formats: BTreeSet<String> = names.iter().map(|name| extension::of(Path::new(name))).collect();
    if formats.len() > 1 {
        let formats: Vec<String> = formats.into_iter().collect();
        return Err(DataError::content(
            folder,
            format!("has rows of one split in several formats (.{}); name a file of one of them", formats.join(", .")),
        ));
    }
    Ok((names, split))
}
