//! Functions and classes of a script: where a run finds them.

use std::path::Path;

use serde_json::Value;

use super::expression::{Call, Expression, Kind, Report};
use crate::import_config::{read::Entry, shell::Unset};

/// Says where functions and classes of a script are.
pub struct Places<'a> {
    script: &'a Path,
    report: &'a Report,
    /// The names that are imported from the script itself.
    imported: Vec<String>,
}

impl<'a> Places<'a> {
    /// For a script at a path.
    pub fn new(script: &'a Path, report: &'a Report) -> Self {
        Self { script, report, imported: Vec::new() }
    }

    /// `reward_funcs` as TRL's YAML has it.
    pub fn rewards(&mut self, value: &Expression) -> Entry {
        self.list("reward_funcs", value, "my_rewards.py")
    }

    /// `tools`, as places of functions.
    pub fn tools(&mut self, value: &Expression) -> Entry {
        self.list("tools", value, "my_tools.py")
    }

    /// `environment_factory`: a class, or classes by their names.
    pub fn environments(&mut self, value: &Expression) -> Vec<Entry> {
        let key = "environment_factory";
        let (keys, values): (Vec<String>, Vec<&Expression>) = match &value.is {
            Kind::Mapping(pairs) => pairs.iter().map(|(name, value)| (format!("{key}.{name}"), value)).unzip(),
            _ => (vec![key.to_owned()], vec![value]),
        };
        let entry = |(key, value): (String, &Expression)| match self.place(value, "my_env.py") {
            Ok(place) => Entry::new(key, place),
            Err(unset) => Entry::unread(&key, unset),
        };
        keys.into_iter().zip(values).map(entry).collect()
    }

    /// A list of functions, or one of them. Every one that cannot be taken over is named.
    fn list(&mut self, key: &str, value: &Expression, file: &str) -> Entry {
        let items: Vec<Expression> = match &value.is {
            Kind::List(items) => items.clone(),
            Kind::Value(Value::Array(list)) => {
                list.iter().map(|item| Expression { line: value.line, is: Kind::Value(item.clone()) }).collect()
            }
            _ => vec![value.clone()],
        };
        let (mut places, mut wrong) = (Vec::new(), Vec::<Unset>::new());
        for item in items.iter().filter(|item| !item.is_none()) {
            match self.place(item, file) {
                Ok(place) => places.push(place),
                Err(unset) => wrong.push(unset),
            }
        }
        match wrong.split_first() {
            None => Entry::new(key, places),
            Some((first, rest)) => {
                let others = rest.iter().map(|unset| format!("; {unset}")).collect::<String>();
                Entry::unread(key, Unset::new(first.line(), format!("{}{others}", first.what())))
            }
        }
    }

    /// The place of a function or class, as an entry of a list names it.
    fn place(&mut self, value: &Expression, file: &str) -> Result<String, Unset> {
        match &value.is {
            Kind::Value(Value::String(text)) => Ok(text.clone()),
            Kind::Defined(name) => self.in_script(name, file),
            Kind::Name(name) if is_reward_of_trl(name) => Ok(last(name).to_owned()),
            Kind::Name(name) => self.in_module(value, name, file),
            Kind::Call(call) if call.is("trl", "get_soft_overlong_punishment") => overlong(value, call),
            _ => Err(value.unset(&value.what(), &format!("write a function of its own, {file}:my_function"))),
        }
    }

    /// Something that the script itself defines: whoever imports the script has it, unless that would train.
    fn in_script(&mut self, name: &str, file: &str) -> Result<String, Unset> {
        if let Some(line) = self.report.runs {
            let what = format!(
                "the import of `{name}` from the script would begin the training; put this line under `if __name__ == \
                 \"__main__\":`, or `{name}` into a file of its own, which is named as {file}:{name}, or import \
                 GRPOTrainer from tandem_rl (docs/python.md)"
            );
            return Err(Unset::new(line, what));
        }
        self.imported.push(format!("`{name}`"));
        Ok(format!("{}:{name}", escaped(self.script)))
    }

    /// Something of another module. Python looks beside the script first.
    fn in_module(&self, value: &Expression, name: &str, file: &str) -> Result<String, Unset> {
        let (module, function) = name.rsplit_once('.').unwrap_or(("", name));
        if module.is_empty() || module.starts_with('.') {
            let what = format!("`{function}` is no function of a module that the script imports by its full name");
            return Err(value.unset(&what, &format!("name it as {file}:{function}")));
        }
        let beside = self.script.with_file_name(format!("{}.py", module.replace('.', "/")));
        Ok(if beside.is_file() { format!("{}:{function}", escaped(&beside)) } else { name.to_owned() })
    }

    /// Notes on what was found.
    pub fn notes(&self) -> Vec<String> {
        if self.imported.is_empty() {
            return Vec::new();
        }
        let names = self.imported.join(", ");
        let mut list = Vec::new();
        if !self.report.imports.is_empty() {
            list.push(format!(
                "importing {names} runs the top level of the script, which needs {} in the Python of the rewards \
                 (`reward_python` names the interpreter); a file with the functions alone needs less",
                self.report.imports.join(", ")
            ));
        }
        if let Some(line) = self.report.loads {
            list.push(format!(
                "importing {names} runs line {line} too, which loads a model or dataset each time; put it under `if \
                 __name__ == \"__main__\":`"
            ));
        }
        list
    }
}

fn escaped(path: &Path) -> String {
    path.display().to_string().replace(':', "\\:")
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// Whether it is one of the functions that TRL's YAML has by its bare name.
fn is_reward_of_trl(name: &str) -> bool {
    let names = ["accuracy_reward", "reasoning_accuracy_reward", "think_format_reward"];
    name.starts_with("trl.rewards.") && names.contains(&last(name))
}

/// TRL's punishment with its figures, as the rule of the same meaning.
fn overlong(value: &Expression, call: &Call) -> Result<String, Unset> {
    let mut entry = "soft_overlong".to_owned();
    let arguments = call.arguments(&["max_completion_len", "soft_punish_cache"]);
    for name in ["max_completion_len", "soft_punish_cache"] {
        let Some((_, figure)) = arguments.iter().find(|(given, _)| given == name) else {
            return Err(value.unset(&format!("`get_soft_overlong_punishment` has no `{name}`"), ""));
        };
        entry += &format!(":{name}={}", figure.literal()?);
    }
    Ok(entry)
}
