//! The chat template of a model directory.

use shared::{
    ModelDir,
    model::model_dir::{ModelDirError, NamedTokens},
};
use time::OffsetDateTime;

use crate::{ChatTemplate, TemplateError};

/// A chat template of a model that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the model directory cannot be read.
    #[error(transparent)]
    Directory(#[from] ModelDirError),
    /// The template does not compile.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl ChatTemplate {
    /// The default template of a model, with its template for tools and the special tokens that any of its files names;
    /// none if the model has no default template. Training and sampling both open it here, so that both write the same
    /// prompts.
    ///
    /// # Errors
    /// A file that cannot be read, or a template that does not compile.
    pub fn of_model(model: &ModelDir, now: OffsetDateTime) -> Result<Option<Self>, OpenError> {
        let templates = model.chat_templates()?;
        let Some(source) = templates.default() else { return Ok(None) };
        let template = Self::new(source, NamedTokens::of(model)?.variables, now)?;
        Ok(Some(template.with_tool_use(templates.tool_use())?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Map, json};

    use super::*;

    /// Older versions of transformers wrote special tokens into `special_tokens_map.json` alone.
    #[test]
    fn the_template_of_a_model_has_the_tokens_of_all_its_files_and_its_template_for_tools() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        fs::copy(harness::golden_dir().join("models/llama/config.json"), dir.path().join("config.json")).unwrap();
        let open = || ChatTemplate::of_model(&ModelDir::open(dir.path()).unwrap(), OffsetDateTime::UNIX_EPOCH);
        assert!(open().unwrap().is_none());
        let templates = json!([
            {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"},
            {"name": "tool_use", "template": "{{ bos_token }}{{ tools[0] }}"},
        ]);
        write("tokenizer_config.json", &json!({"bos_token": "<s>", "chat_template": templates}).to_string());
        write("special_tokens_map.json", r#"{"eos_token": {"content": "</s>"}}"#);
        let template = open().unwrap().unwrap();
        let messages = [json!({"role": "user", "content": "a"})];
        let render = |variables: Map<_, _>| template.render(&messages, false, &variables).unwrap();
        assert_eq!(render(Map::new()), "<s>a</s>");
        assert_eq!(render([("tools".to_owned(), json!(["f"]))].into_iter().collect()), "<s>f");
        write("chat_template.jinja", "{% for %}");
        assert!(matches!(open(), Err(OpenError::Template(TemplateError::Compile(_)))));
    }
}
