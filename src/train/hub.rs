//! A name on the Hugging Face Hub where a path is wanted.

use std::path::Path;

/// What stands before the error of a path that cannot be opened: its option and, if it may be a name on the Hub, the way.
pub fn context(key: &str, path: &Path) -> String {
    match name(path) {
        Some(name) => {
            let kind = if key.ends_with("model") { "" } else { "--repo-type dataset " };
            format!(
                "`{key}`: if {name} is a name on the Hugging Face Hub, download it (`hf download {kind}{name} --local-dir \
                 DIR`) and name what is in DIR"
            )
        }
        None => format!("`{key}`"),
    }
}

/// `owner/name`, where no folder of the owner's name is there, so that no file of it can be missing.
fn name(path: &Path) -> Option<String> {
    let is_name = |part: &str| {
        let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(letter)
    };
    let mut parts = path.iter().rev().map(|part| part.to_str().filter(|part| is_name(part)));
    let (name, owner) = (parts.next()??, parts.next()??);
    let endings = [".jsonl", ".json", ".toml", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".zst"];
    let is_file = endings.iter().any(|ending| name.ends_with(ending));
    let absent = !path.parent().is_some_and(Path::exists) && path.ancestors().nth(2).is_some_and(Path::exists);
    (absent && !is_file).then(|| format!("{owner}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_name_is_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("models")).unwrap();
        let of = |path: &str, key| context(key, &dir.path().join(path));
        let model = of("Qwen/Qwen2.5-0.5B", "model");
        assert!(model.contains("`hf download Qwen/Qwen2.5-0.5B --local-dir DIR`"), "{model}");
        assert!(of("openai/gsm8k", "dataset").contains("`hf download --repo-type dataset openai/gsm8k "));
        for path in ["models/Qwen2", "data/train.jsonl", "nowhere/further/model", "model"] {
            assert_eq!(of(path, "model"), "`model`", "{path}");
        }
    }
}
