//! The head of a card, which the Hub reads: YAML between two lines of `---`.

use std::path::Path;

use shared::Head;

use super::{Model, Origin, Subject, Trained, licence, place::Place};

/// The head, with its two lines.
pub fn text(model: &Model<'_>, trained: Option<&Trained>, origin: &Origin, subject: &Subject<'_>) -> String {
    let mut lines = Vec::new();
    let mut list = |key: &str, values: Vec<String>| {
        if !values.is_empty() {
            lines.push(format!("{key}:"));
            lines.extend(values.iter().map(|value| format!("- {}", yaml(value))));
        }
    };
    let on_hub = |place: Place| match place {
        Place::Hub { name, .. } => Some(name),
        Place::Local(_) => None,
    };
    let base = origin.on_hub.clone().and_then(on_hub);
    list("base_model", base.iter().cloned().collect());
    let mut datasets: Vec<String> = trained
        .iter()
        .flat_map(|trained| trained.config.dataset.iter().map(|path| Place::of(path)))
        .filter_map(on_hub)
        .collect();
    datasets.dedup();
    list("datasets", datasets);
    let mut tags = vec!["tandem".to_owned()];
    if let Some(trained) = trained {
        let words = [trained.config.advantage_estimator.to_string(), trained.config.loss_type.to_string()];
        tags.push("reinforcement-learning".to_owned());
        tags.extend(words.map(|word| word.replace('_', "-")));
    }
    if subject.as_adapter {
        tags.push("lora".to_owned());
    }
    let mut known = Vec::new();
    tags.retain(|tag| {
        !known.contains(tag) && {
            known.push(tag.clone());
            true
        }
    });
    list("tags", tags);
    let library = if subject.as_adapter { "peft" } else { "transformers" };
    lines.push(format!("library_name: {library}"));
    let task = model.dir.map(|dir| match dir.config().head {
        Head::LanguageModel => "text-generation",
        Head::Score { .. } => "text-classification",
    });
    lines.extend(task.map(|task| format!("pipeline_tag: {task}")));
    let page = base.map(|name| format!("https://huggingface.co/{name}"));
    let folder = origin.folder.as_deref().unwrap_or(Path::new(""));
    let said = if folder.as_os_str().is_empty() { Vec::new() } else { licence::of(folder, page.as_deref()) };
    lines.extend(said.iter().map(|(key, value)| format!("{key}: {}", yaml(value))));
    format!("---\n{}\n---\n", lines.join("\n"))
}

/// A text as YAML: plain where it can be nothing else, else in quotes.
pub fn yaml(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    if begins && plain && !words.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    // A text of JSON is one of YAML.
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_texts() {
        for text in
            ["apache-2.0", "Qwen/Qwen2.5-0.5B", "no", "1.0", "a: b", "- x", "#", "a\nb", "", "null", "it's \"x\""]
        {
            let read: serde_json::Value = serde_saphyr::from_str(&format!("key: {}", yaml(text))).unwrap();
            assert_eq!(read["key"], text, "{text}");
        }
        assert_eq!(yaml("Qwen/Qwen2.5-0.5B"), "Qwen/Qwen2.5-0.5B");
    }
}
