//! Splits, by the names of files and folders, as the Hugging Face hub has them.

use std::path::Path;

/// Words for a split in names, each with the split's name.
const WORDS: &[(&str, &[&str])] = &[
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The split of a file, by its path below the dataset's folder: the text before `-00000-of-00002`, else a word for a
/// split in its name or in that of a folder on the way, the nearest first.
pub fn of(path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.split('.').next()?;
    if let Some(name) = before_shard(stem).filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) {
        return Some(canonical(name).to_owned());
    }
    let folders = path.parent()?.components().rev().filter_map(|folder| folder.as_os_str().to_str());
    std::iter::once(stem).chain(folders).find_map(word_in).map(str::to_owned)
}

/// The name of a split in the spelling of the hub: `dev` is `validation`.
pub fn canonical(name: &str) -> &str {
    WORDS.iter().find(|(_, words)| words.contains(&name)).map_or(name, |(split, _)| split)
}

/// `train` of `train-00000-of-00002`.
fn before_shard(stem: &str) -> Option<&str> {
    let mut parts = stem.rsplitn(4, '-');
    let (count, of, index, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (of == "of" && number(count) && number(index)).then_some(name)
}

/// The first missing shard of the set that `name` belongs to: `train-00000-of-00002` is one of two.
pub fn missing_shard(name: &str, names: &[String]) -> Option<String> {
    let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (&name[..=folder.len()], file));
    let (stem, ending) = file.split_once('.').unwrap_or((file, ""));
    let begin = before_shard(stem)?;
    let (_, count) = stem.rsplit_once('-')?;
    let shard = |index: usize| format!("{folder}{begin}-{index:0width$}-of-{count}.{ending}", width = count.len());
    (0..count.parse().ok()?).map(shard).find(|shard| !names.contains(shard))
}

fn word_in(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphabetic());
    let split = |word: &str| WORDS.iter().find(|(_, words)| words.contains(&word)).map(|(split, _)| *split);
    words.filter(|word| !word.is_empty()).find_map(split)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_is_missing_is_named() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let missing = |list: &[&str]| missing_shard(list[0], &names(list));
        let (first, last) = ("data/train-00000-of-00002.jsonl.gz", "data/train-00001-of-00002.jsonl.gz");
        assert_eq!(missing(&[first, last]), None);
        assert_eq!(missing(&[first]).as_deref(), Some(last));
        assert_eq!(missing(&[last]).as_deref(), Some(first));
        assert_eq!(missing(&["train-00000-of-00001.parquet"]), None);
        assert_eq!(missing(&["train.parquet"]), None);
    }

    #[test]
    fn splits_are_told_by_names() {
        for (path, split) in [
            ("data/train-00000-of-00002.parquet", Some("train")),
            ("data/test_gen-00000-of-00001.parquet", Some("test_gen")),
            ("gsm8k-test-00000-of-00002.arrow", Some("test")),
            ("train.jsonl.gz", Some("train")),
            ("gsm8k_Dev.csv", Some("validation")),
            ("eval/part1.csv", Some("test")),
            ("training2/part-1.csv", Some("train")),
            ("rows.parquet", None),
            ("constraint.jsonl", None),
        ] {
            assert_eq!(of(Path::new(path)).as_deref(), split, "{path}");
        }
        assert_eq!((canonical("val"), canonical("train_sft")), ("validation", "train_sft"));
    }
}
