//! Names on the Hugging Face Hub in the place of paths.

use std::path::{Component, Path};

/// Prefix of a path that stands for a name on the Hub, as in the paths of Hugging Face's own file system.
const SCHEME: &str = "hf://";

/// Endings of names of files.
const FILES: [&str; 12] =
    [".jsonl", ".ndjson", ".json", ".toml", ".yaml", ".yml", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".zst"];

/// Folders that people keep models and data in: a text that begins with such a name is a path, whether it exists or
/// not. With `hf://` it is a name on the Hub all the same.
const FOLDERS: [&str; 18] = [
    "checkpoint",
    "checkpoints",
    "ckpt",
    "ckpts",
    "data",
    "dataset",
    "datasets",
    "model",
    "models",
    "out",
    "output",
    "outputs",
    "result",
    "results",
    "run",
    "runs",
    "tmp",
    "weights",
];

/// What is meant by a text where a model or a dataset is wanted: `hf://owner/name` if it is a name on the Hub, nothing
/// if it is a path. An existing path wins, and so does a text that may be a misspelt path: one below a folder that
/// exists, or below a folder with a usual name for models and data.
#[must_use]
pub fn on_hub(text: &str, folder: &Path) -> Option<String> {
    if let Some(name) = text.strip_prefix(SCHEME) {
        return is_name(name).then(|| text.to_owned());
    }
    let owner = text.split('/').next().unwrap_or_default();
    let file = FILES.iter().any(|ending| text.ends_with(ending));
    let of_folder = FOLDERS.contains(&owner) || folder.join(owner).exists();
    (is_name(text) && !file && !of_folder).then(|| format!("{SCHEME}{text}"))
}

/// The name that a path stands for: `owner/name` of `hf://owner/name`.
#[must_use]
pub fn hub_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(SCHEME)
}

/// Whether a text is `owner/name` as the Hub accepts it.
fn is_name(text: &str) -> bool {
    let is_part = |part: Component<'_>| {
        let part = part.as_os_str().to_str().unwrap_or_default();
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(letter)
    };
    text.matches('/').count() == 1
        && Path::new(text).components().count() == 2
        && Path::new(text).components().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_name_is_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("models")).unwrap();
        let of = |text: &str| on_hub(text, dir.path());
        assert_eq!(of("Qwen/Qwen2.5-0.5B").as_deref(), Some("hf://Qwen/Qwen2.5-0.5B"));
        assert_eq!(of("hf://models/mine").as_deref(), Some("hf://models/mine"));
        for path in [
            "models/Qwen2",
            "data/train.jsonl",
            "nowhere/further/model",
            "checkpoints/mine",
            "runs/demo",
            "data/gsm8k",
            "model",
            "/owner/model",
            "./model",
            "../model",
            "a//b",
            "owner/",
            "hf://model",
            "-a/b",
            "a/b c",
            "runs/run.yaml",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
        assert_eq!(hub_name(Path::new("hf://a/b")), Some("a/b"));
        assert_eq!(hub_name(Path::new("a/b")), None);
    }
}
