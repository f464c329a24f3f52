//! How a model is used, as lines of Python.

use shared::{Head, config::TrainConfig};

use super::{Model, Origin, Subject, markdown::block, place::Place};

/// Files of which each has the tokens of a tokenizer.
const TOKENS: [&str; 3] = ["tokenizer.json", "tokenizer.model", "vocab.json"];

/// The section; nothing for a reward model.
pub fn text(model: &Model<'_>, config: Option<&TrainConfig>, origin: &Origin, subject: &Subject<'_>) -> String {
    if model.dir.is_some_and(|dir| matches!(dir.config().head, Head::Score { .. })) {
        return String::new();
    }
    let name = quoted(subject.repo.unwrap_or("FOLDER_OR_NAME"));
    let talks = model.dir.is_some_and(|dir| dir.chat_template().is_ok_and(|template| template.is_some()));
    let system = config.and_then(|config| config.system_prompt.as_deref());
    let prompt = match (talks, system) {
        (true, Some(system)) => format!(
            "[{{\"role\": \"system\", \"content\": {}}}, {{\"role\": \"user\", \"content\": \"…\"}}]",
            quoted(system)
        ),
        (true, None) => "[{\"role\": \"user\", \"content\": \"…\"}]".to_owned(),
        (false, _) => "\"…\"".to_owned(),
    };
    let has_tokenizer = has_tokenizer(model, subject.as_adapter);
    let code = if subject.as_adapter {
        // PEFT has read the name of the base from the adapter's configuration.
        let tokenizer = match has_tokenizer {
            true => name.as_str(),
            false => "model.peft_config[\"default\"].base_model_name_or_path",
        };
        format!(
            "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n\
             model = AutoPeftModelForCausalLM.from_pretrained({name})\n\
             tokenizer = AutoTokenizer.from_pretrained({tokenizer})\n"
        )
    } else {
        let tokenizer = match &origin.direct {
            _ if has_tokenizer => String::new(),
            Some(Place::Hub { name, .. }) => format!(", tokenizer={}", quoted(name)),
            _ => ", tokenizer=\"FOLDER_OR_NAME_OF_A_TOKENIZER\"".to_owned(),
        };
        format!(
            "from transformers import pipeline\n\n\
             generator = pipeline(\"text-generation\", model={name}{tokenizer})\n\
             print(generator({prompt}, max_new_tokens=256, return_full_text=False)[0][\"generated_text\"])\n"
        )
    };
    format!("\n## Use\n\n{}", block("python", &code))
}

/// Whether transformers finds a tokenizer beside the weights. An adapter comes without the `config.json` that names a
/// tokenizer's class, so it needs `tokenizer_config.json` too. A whole model is written with all files that belong to
/// it.
fn has_tokenizer(model: &Model<'_>, as_adapter: bool) -> bool {
    let is_there = |name: &str| model.folder.join(name).is_file();
    let has_tokens = TOKENS.into_iter().any(is_there);
    match as_adapter {
        true => has_tokens && is_there("tokenizer_config.json"),
        false => has_tokens || model.dir.is_some_and(|dir| dir.tokenizer().is_ok()),
    }
}

/// A text as Python has it; JSON's escapes are Python's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
