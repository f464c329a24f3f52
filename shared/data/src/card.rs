//! Configurations of a dataset, as the card of a dataset on the Hugging Face Hub (its README.md) declares them.

use glob::{MatchOptions, Pattern};
use serde::Deserialize;

/// The part of a card's head, between two lines of `---`, that is about rows.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    configs: Vec<Configuration>,
}

/// A configuration: rows that belong together, by their files.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// Its name.
    #[serde(rename = "config_name")]
    pub name: String,
    /// Whether it is the one to take if none is named.
    pub default: bool,
    data_dir: Option<String>,
    data_files: Option<DataFiles>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum DataFiles {
    One(String),
    Splits(Vec<Split>),
    Several(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
struct Split {
    split: String,
    path: OneOrSeveral,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl OneOrSeveral {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::One(pattern) => vec![pattern],
            Self::Several(patterns) => patterns,
        }
    }
}

/// The configurations that a card declares; none if it has no head, or a head that says nothing of files.
///
/// # Errors
/// Why they cannot be read.
pub fn configurations(card: &str) -> Result<Vec<Configuration>, String> {
    let card = card.trim_start_matches('\u{feff}');
    let head = card.strip_prefix("---").and_then(|rest| rest.split_once("\n---")).map(|(head, _)| head);
    let Some(head) = head.filter(|head| head.contains("\nconfigs:")) else {
        return Ok(Vec::new());
    };
    let head: Head = serde_saphyr::from_str(head)
        .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
    let says_files =
        |configuration: &Configuration| configuration.data_files.is_some() || configuration.data_dir.is_some();
    Ok(if head.configs.iter().any(says_files) { head.configs } else { Vec::new() })
}

impl Configuration {
    /// Splits by name, with the patterns of their files; none if the names of files tell.
    pub fn splits(&self) -> Option<Vec<(String, Vec<String>)>> {
        let within = |pattern: String| match &self.data_dir {
            Some(folder) => format!("{}/{pattern}", folder.trim_end_matches('/')),
            None => pattern,
        };
        let train = |patterns: Vec<String>| vec![("train".to_owned(), patterns)];
        let splits = match self.data_files.clone()? {
            DataFiles::One(pattern) => train(vec![pattern]),
            DataFiles::Several(patterns) => train(patterns),
            DataFiles::Splits(splits) => {
                splits.into_iter().map(|Split { split, path }| (split, path.into_list())).collect()
            }
        };
        let list = |patterns: Vec<String>| patterns.into_iter().map(within).collect();
        Some(splits.into_iter().map(|(split, patterns)| (split, list(patterns))).collect())
    }

    /// The folder of its files, if the card names only that.
    pub fn folder(&self) -> Option<&str> {
        self.data_dir.as_deref().map(|folder| folder.trim_start_matches("./").trim_end_matches('/'))
    }
}

/// Whether a pattern matches a path within a dataset. `*` stays within a folder, `**` does not.
pub fn matches(pattern: &str, path: &str) -> bool {
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let pattern = pattern.trim_start_matches("./");
    pattern == path || Pattern::new(pattern).is_ok_and(|pattern| pattern.matches_with(path, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_card_names_configurations_with_their_files() {
        let card = "---\nlicense: mit\nconfigs:\n- config_name: main\n  default: true\n  data_files:\n  - split: \
            train\n    path: main/train-*\n  - split: test\n    path: [main/test-*, more.json]\n- config_name: one\n  \
            data_files: one.csv\n- config_name: dir\n  data_dir: ./dir/\n---\n# Card\n---\n";
        let found = configurations(card).unwrap();
        let names: Vec<(&str, bool)> = found.iter().map(|one| (one.name.as_str(), one.default)).collect();
        assert_eq!(names, [("main", true), ("one", false), ("dir", false)]);
        let splits = [
            ("train".to_owned(), vec!["main/train-*".to_owned()]),
            ("test".to_owned(), vec!["main/test-*".to_owned(), "more.json".to_owned()]),
        ];
        assert_eq!(found[0].splits().unwrap(), splits);
        assert_eq!(found[1].splits().unwrap(), [("train".to_owned(), vec!["one.csv".to_owned()])]);
        assert_eq!((found[2].splits(), found[2].folder()), (None, Some("dir")));
        for card in ["", "# Card", "---\nlicense: mit\n---\n", "---\nconfigs:\n- config_name: a\n---\n"] {
            assert!(configurations(card).unwrap().is_empty(), "{card}");
        }
        for broken in ["---\nconfigs: [\n---\n", "---\na: 1\na: 2\nconfigs: []\n---\n"] {
            assert!(configurations(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_star_stays_within_a_folder() {
        assert!(matches("main/train-*", "main/train-00000-of-00001.parquet"));
        assert!(matches("./a.csv", "a.csv") && matches("**/*.parquet", "a/b/c.parquet"));
        assert!(!matches("train-*", "main/train-00000") && !matches("main/*", "main/a/b"));
    }
}
