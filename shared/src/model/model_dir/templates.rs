//! The chat templates of a model directory.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{ModelDir, ModelDirError, parse, read_text};

/// Name of the template to use if none is named.
const DEFAULT: &str = "default";
/// Name of the template for rows with tools (transformers' `get_chat_template`).
const TOOL_USE: &str = "tool_use";
/// Folder with further templates, one per file (transformers' `CHAT_TEMPLATE_DIR`).
pub const TEMPLATE_DIR: &str = "additional_chat_templates";
/// File of the template.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Most further templates that are read.
const MOST: usize = 64;

/// Chat templates by their names; most models have one, `default`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatTemplates(BTreeMap<String, String>);

impl ChatTemplates {
    /// The template in a single file.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn in_file(path: &Path) -> Result<Self, ModelDirError> {
        Ok(Self([(DEFAULT.to_owned(), read_text(path)?)].into()))
    }

    /// The templates in a folder; `file` finds a file of it. As in transformers: `chat_template.jinja` and the folder
    /// of further templates take precedence over the key of `tokenizer_config.json`, which is a text, a list of named
    /// templates, or a table of them. `chat_template.json` of older processors comes last.
    pub(super) fn of(file: &dyn Fn(&str) -> PathBuf) -> Result<Self, ModelDirError> {
        let mut found = further(&file(TEMPLATE_DIR))?;
        let own = file(TEMPLATE_FILE);
        if own.is_file() {
            found.insert(DEFAULT.into(), read_text(&own)?);
        }
        for name in ["tokenizer_config.json", "chat_template.json"] {
            let path = file(name);
            if found.is_empty() && path.is_file() {
                found = named(&parse(&read_text(&path)?, &path)?["chat_template"]);
            }
        }
        Ok(Self(found))
    }

    /// The template for messages without tools.
    #[must_use]
    pub fn default(&self) -> Option<&str> {
        self.0.get(DEFAULT).map(String::as_str)
    }

    /// The template for messages with tools, if it is another one.
    #[must_use]
    pub fn tool_use(&self) -> Option<&str> {
        self.0.get(TOOL_USE).map(String::as_str)
    }

    /// The names of the templates, if none is the default.
    #[must_use]
    pub fn without_default(&self) -> Option<Vec<&str>> {
        let names = || self.0.keys().map(String::as_str).collect();
        (!self.0.is_empty() && self.default().is_none()).then(names)
    }

    /// Files for these templates, relative to a model directory.
    pub fn files(&self) -> impl Iterator<Item = (PathBuf, &str)> {
        self.0.iter().map(|(name, source)| {
            let further = || Path::new(TEMPLATE_DIR).join(format!("{name}.jinja"));
            (if name == DEFAULT { PathBuf::from(TEMPLATE_FILE) } else { further() }, source.as_str())
        })
    }
}

/// Templates of a folder by the names of their files.
fn further(dir: &Path) -> Result<BTreeMap<String, String>, ModelDirError> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(dir) else { return Ok(found) };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).take(MOST) {
        let name = path.file_stem().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == "jinja") && path.is_file()) {
            if path.is_symlink() {
                let message = "is a link; copy the file in its place".to_owned();
                return Err(ModelDirError::File { path: path.display().to_string(), message });
            }
            found.insert(name.to_owned(), read_text(&path)?);
        }
    }
    Ok(found)
}

/// The templates of a key: a text, a list of objects with `name` and `template`, or a table.
fn named(value: &Value) -> BTreeMap<String, String> {
    let pair = |name: &str, template: &Value| Some((name.to_owned(), template.as_str()?.to_owned()));
    match value {
        Value::String(text) => [(DEFAULT.to_owned(), text.clone())].into(),
        Value::Array(list) => {
            list.iter().filter_map(|entry| pair(entry["name"].as_str()?, &entry["template"])).collect()
        }
        Value::Object(table) => table.iter().filter_map(|(name, template)| pair(name, template)).collect(),
        _ => BTreeMap::new(),
    }
}

impl ModelDir {
    /// The chat templates of the model, or their replacement.
    ///
    /// # Errors
    /// A file that exists and cannot be read.
    pub fn chat_templates(&self) -> Result<ChatTemplates, ModelDirError> {
        match &self.templates {
            Some(templates) => Ok(templates.clone()),
            None => ChatTemplates::of(&|name| self.file(name)),
        }
    }

    /// The replacement for the model's templates.
    #[must_use]
    pub fn other_templates(&self) -> Option<&ChatTemplates> {
        self.templates.as_ref()
    }

    /// The template for messages without tools, if there is one.
    ///
    /// # Errors
    /// As [`chat_templates`](Self::chat_templates).
    pub fn chat_template(&self) -> Result<Option<String>, ModelDirError> {
        Ok(self.chat_templates()?.default().map(str::to_owned))
    }

    /// The model with another chat template (`chat_template`): a Jinja file, or a model directory whose templates are
    /// taken.
    ///
    /// # Errors
    /// A file or folder that cannot be read, or that has no template.
    pub fn with_chat_template(mut self, path: Option<&Path>) -> Result<Self, ModelDirError> {
        let Some(path) = path else { return Ok(self) };
        let fail =
            |message: &str| ModelDirError::File { path: path.display().to_string(), message: message.to_owned() };
        let templates = if path.is_dir() {
            let templates = ChatTemplates::of(&|name| path.join(name))?;
            templates.default().ok_or_else(|| {
                fail("has no chat template: neither chat_template.jinja nor a `chat_template` in tokenizer_config.json")
            })?;
            templates
        } else if path.exists() {
            ChatTemplates::in_file(path)?
        } else {
            return Err(fail("no such file; name a Jinja file, or a model directory that has a chat template"));
        };
        self.templates = Some(templates);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates(files: &[(&str, &str)]) -> ChatTemplates {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        }
        ChatTemplates::of(&|name| dir.path().join(name)).unwrap()
    }

    #[test]
    fn templates_come_from_many_places_in_the_order_of_transformers() {
        let of = |files: &[(&str, &str)]| {
            let found = templates(files);
            (found.default().map(str::to_owned), found.tool_use().map(str::to_owned))
        };
        let pair = |a: &str, b: &str| (Some(a.to_owned()), Some(b.to_owned()));
        let list =
            r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let table = r#"{"chat_template": {"default": "d", "tool_use": "t"}}"#;
        for key in [list, table] {
            assert_eq!(of(&[("tokenizer_config.json", key)]), pair("d", "t"));
            assert_eq!(of(&[("tokenizer_config.json", key), (TEMPLATE_FILE, "own")]), (Some("own".into()), None));
        }
        let further = ("additional_chat_templates/tool_use.jinja", "f");
        assert_eq!(of(&[("tokenizer_config.json", list), (TEMPLATE_FILE, "own"), further]), pair("own", "f"));
        let old = ("chat_template.json", r#"{"chat_template": "p"}"#);
        assert_eq!(of(&[old]).0.as_deref(), Some("p"));
        assert_eq!(of(&[old, ("tokenizer_config.json", r#"{"chat_template": "k"}"#)]).0.as_deref(), Some("k"));
        let rag = templates(&[("tokenizer_config.json", r#"{"chat_template": {"rag": "r"}}"#)]);
        assert_eq!((rag.default(), rag.without_default()), (None, Some(vec!["rag"])));
        assert_eq!(of(&[]), (None, None));
    }
}
