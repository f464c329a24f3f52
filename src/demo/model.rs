//! A tiny Qwen2-style model directory without weights: architecture (0.2 million parameters) and tokenizer. The tags of
//! the completion format are whole tokens; everything else is one token per character.

use std::{io, path::Path};

use shared::files::atomic;

const FILES: [(&str, &str); 4] = [
    ("config.json", include_str!("model/config.json")),
    ("generation_config.json", include_str!("model/generation_config.json")),
    ("tokenizer.json", include_str!("model/tokenizer.json")),
    ("tokenizer_config.json", include_str!("model/tokenizer_config.json")),
];

/// Writes the directory; the learner initialises the weights.
///
/// # Errors
/// Any error of the file system, with the path in its message.
pub fn write(dir: &Path) -> io::Result<()> {
    atomic::write_dir(dir, |target| {
        FILES.iter().try_for_each(|(name, text)| atomic::write(&target.join(name), text.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use shared::{Architecture, ModelDir};

    use super::*;

    #[test]
    fn the_directory_opens_as_a_qwen2_model() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model");
        write(&path).unwrap();
        let model = ModelDir::open(&path).unwrap();
        assert_eq!(model.config().architecture, Architecture::Qwen2);
        assert_eq!(model.generation().eos_token_ids, [0]);
        assert!(model.tokenizer().is_ok());
    }

    #[test]
    fn problems_are_written_in_the_model_s_alphabet() {
        let tokenizer: serde_json::Value = serde_json::from_str(FILES[2].1).unwrap();
        let known = tokenizer["model"]["vocab"].as_object().unwrap();
        let tags = known.keys().map(String::as_str).filter(|token| token.starts_with('<'));
        let mut rest = crate::demo::problems::Problems::new(0).warm_up_rows();
        for word in tags.chain(["prompt", "completion", "{", "}", "\"", ":", "\n"]) {
            rest = rest.replace(word, "");
        }
        assert!(rest.chars().all(|c| known.contains_key(&c.to_string())), "unknown characters");
    }
}
