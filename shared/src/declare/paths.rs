//! One path or several.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    path::PathBuf,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One or several paths, mostly one: a file has a text for one and a list for several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths(Vec<PathBuf>);

impl Deref for Paths {
    type Target = [PathBuf];

    fn deref(&self) -> &[PathBuf] {
        &self.0
    }
}

impl DerefMut for Paths {
    fn deref_mut(&mut self) -> &mut [PathBuf] {
        &mut self.0
    }
}

impl FromIterator<PathBuf> for Paths {
    fn from_iter<I: IntoIterator<Item = PathBuf>>(paths: I) -> Self {
        Self(paths.into_iter().collect())
    }
}

/// An empty path counts as none.
impl From<PathBuf> for Paths {
    fn from(path: PathBuf) -> Self {
        Some(path).filter(|path| !path.as_os_str().is_empty()).into_iter().collect()
    }
}

impl From<&str> for Paths {
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.iter().map(|path| path.display().to_string()).collect();
        f.write_str(&paths.join(", "))
    }
}

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [] => "".serialize(serializer),
            [path] => path.serialize(serializer),
            paths => paths.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            One(PathBuf),
            Several(Vec<PathBuf>),
        }
        Ok(match Given::deserialize(deserializer)? {
            Given::One(path) => path.into(),
            Given::Several(paths) => Self(paths),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_path_is_written_as_a_text_and_several_as_a_list() {
        for (paths, written) in [
            (Paths::default(), json!("")),
            (Paths::from("a.jsonl"), json!("a.jsonl")),
            (["a".into(), "b".into()].into_iter().collect(), json!(["a", "b"])),
        ] {
            assert_eq!(serde_json::to_value(&paths).unwrap(), written);
            assert_eq!(serde_json::from_value::<Paths>(written).unwrap(), paths);
        }
        assert_eq!(serde_json::from_value::<Paths>(json!(["a"])).unwrap(), Paths::from("a"));
    }
}
