//! How a model is used, as lines of Python.

use shared::{Head, config::TrainConfig};

use super::{Model, Subject, markdown::block};

/// The section; nothing for a reward model.
pub fn text(model: &Model<'_>, config: Option<&TrainConfig>, subject: &Subject<'_>) -> String {
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
    let code = if subject.as_adapter {
        format!(
            "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer\n\n\
             model = AutoPeftModelForCausalLM.from_pretrained({name})\n\
             tokenizer = AutoTokenizer.from_pretrained({name})\n"
        )
    } else {
        format!(
            "from transformers import pipeline\n\ngenerator = pipeline(\"text-generation\", model={name})\n\
             print(generator({prompt}, max_new_tokens=256, return_full_text=False)[0][\"generated_text\"])\n"
        )
    };
    format!("\n## Use\n\n{}", block("python", &code))
}

/// A text as Python has it; JSON's escapes are Python's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
