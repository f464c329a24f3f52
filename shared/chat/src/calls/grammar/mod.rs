//! Calls that must come: a grammar of the turns that call tools, in llguidance's variant of Lark.
//!
//! The grammar is of what [`Format`] reads: a turn that follows it is read as calls of these tools, and their arguments
//! follow the tools' schemas. It writes a call as the family's template does, so that the model finds itself at home.
//! Formats in JSON have the schema itself in the grammar (`%json`). In the others each argument stands alone, and
//! [`arguments`] says which schemas can be followed there.
//!
//! One thing is out of its reach: a text within the arguments of a call in JSON may have the mark of the call's end in
//! it. Such a turn is text, as it is without a grammar.

mod arguments;

use std::fmt::Write;

use serde_json::{Value, json};

use self::arguments::{Argument, OPTIONS, Place};
use super::Format;
use crate::ChatTemplate;

/// Which calls must come.
#[derive(Debug, Clone, Copy)]
pub struct MustCall<'a> {
    /// The tools, one of which each call is of; as templates take them.
    pub tools: &'a [Value],
    /// Whether several calls may come, one after the other. One comes at least.
    pub several: bool,
    /// Whether thoughts may come before, where the prompt has not begun them.
    pub may_think: bool,
}

impl Format {
    /// Whether the template of a family's model writes thoughts.
    #[must_use]
    pub fn thinks(self, template: &ChatTemplate) -> bool {
        let Some((begin, _)) = self.marks().thinking else { return false };
        template.of_source_with_tools(|source| source.contains(begin))
    }

    /// The grammar of a turn that goes on after a prompt and calls tools. `is_special` says which marks are special
    /// tokens of the model.
    ///
    /// # Errors
    /// A format without a grammar, or a schema that the format cannot follow, in words.
    pub fn grammar(
        self,
        prompt: &str,
        must: MustCall<'_>,
        is_special: &dyn Fn(&str) -> bool,
    ) -> Result<String, String> {
        let mut grammar = Grammar { text: String::new(), is_special };
        let several = must.several && !matches!(self, Self::Llama31 | Self::GptOss);
        let calls = grammar.calls(self, must.tools, several)?;
        let thoughts = match self.begun_thoughts(prompt) {
            Some(Thoughts::Open) => grammar.thoughts(self, Thoughts::Open),
            None if must.may_think => grammar.thoughts(self, Thoughts::Ahead),
            // The template of GLM begins a call on a line of its own.
            _ if self == Self::Glm4Moe => "\"\\n\"? ",
            _ => "",
        };
        Ok(format!("start: {thoughts}{calls}\n{}", grammar.text))
    }

    /// What a prompt holds of the thoughts of the turn that goes on after it.
    fn begun_thoughts(self, prompt: &str) -> Option<Thoughts> {
        let marks = self.marks();
        let (begin, end) = marks.thinking?;
        let opening = marks.anchors.iter().filter_map(|anchor| Some(prompt.rfind(anchor)? + anchor.len())).max();
        let turn = &prompt[opening.unwrap_or(0)..];
        let (begun, ended) = match opening {
            Some(_) => (turn.rfind(begin), turn.rfind(end)),
            // Another template with this format: what its prompt ends with is of the turn, and no more.
            None => {
                let ends_with = |mark: &str| turn.trim_end().ends_with(mark).then_some(0);
                (ends_with(begin), ends_with(end))
            }
        };
        if begun > ended { Some(Thoughts::Open) } else { ended.map(|_| Thoughts::Closed) }
    }
}

/// Thoughts of a turn, where the answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thoughts {
    /// They may come.
    Ahead,
    /// They have begun.
    Open,
    /// They have ended.
    Closed,
}

/// A grammar in the making: rules that its start leads to.
struct Grammar<'a> {
    text: String,
    is_special: &'a dyn Fn(&str) -> bool,
}

/// A text as the grammar writes it.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

impl Grammar<'_> {
    fn rule(&mut self, name: &str, is: &str) {
        writeln!(self.text, "{name}: {is}").expect("a string takes everything");
    }

    /// A mark: a special token or a text.
    fn mark(&self, mark: &str) -> String {
        if (self.is_special)(mark) { mark.to_owned() } else { literal(mark) }
    }

    /// A row of marks and of texts between them.
    fn marks(&self, row: &[&str]) -> String {
        row.iter().map(|part| self.mark(part)).collect::<Vec<_>>().join(" ")
    }

    /// A rule for text up to and including a mark.
    fn text_until(&mut self, name: &str, mark: &str) {
        if (self.is_special)(mark) {
            self.rule(name, &format!("/(?s:.*)/ {mark}"));
        } else {
            self.rule(&format!("{name}[suffix={}]", literal(mark)), "/(?s:.*)/");
        }
    }

    /// What comes before the calls: thoughts that have begun or may begin, and the lines between.
    fn thoughts(&mut self, format: Format, thoughts: Thoughts) -> &'static str {
        let Some((begin, end)) = format.marks().thinking else { return "" };
        self.text_until("rest_of_thoughts", end);
        let (begin, behind) = match format {
            Format::GptOss => {
                let begin = self.marks(&["<|channel|>", "analysis", "<|message|>"]);
                (begin, self.marks(&["<|start|>", "assistant"]))
            }
            _ => (self.mark(begin), "\"\\n\"? \"\\n\"?".to_owned()),
        };
        if thoughts == Thoughts::Open {
            self.rule("thoughts", &format!("rest_of_thoughts {behind}"));
            return "thoughts ";
        }
        self.rule("thoughts", &format!("{begin} rest_of_thoughts {behind}"));
        "thoughts? "
    }

    /// The calls: one, or one and more.
    fn calls(&mut self, format: Format, tools: &[Value], several: bool) -> Result<String, String> {
        let mut names = Vec::new();
        for (at, tool) in tools.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            let name = function["name"].as_str().ok_or("a tool has no name")?;
            let schema = schema_of(&function["parameters"]);
            let call = format!("call_{at}");
            self.call(format, &call, name, &schema).map_err(|fault| format!("the tool `{name}`: {fault}"))?;
            names.push(call);
        }
        if names.is_empty() {
            return Err("there is no tool to call".into());
        }
        self.rule("call", &names.join(" | "));
        let more = |between: &str| if several { format!(" ({between} call)*") } else { String::new() };
        Ok(match format {
            Format::Lfm25 => {
                let [begin, end] = ["<|tool_call_start|>", "<|tool_call_end|>"].map(|mark| self.mark(mark));
                format!("{begin} \"[\" call{} \"]\" {end}", more("\", \""))
            }
            _ => format!("call{}", more("\"\\n\"")),
        })
    }

    /// A rule for a call of one tool.
    fn call(&mut self, format: Format, rule: &str, name: &str, schema: &Value) -> Result<(), String> {
        let arguments = format!("{rule}_arguments");
        let quoted = Value::from(name);
        let (before, behind) = match format {
            Format::Qwen => {
                let begin = self.mark("<tool_call>");
                let head = literal(&format!("\n{{\"name\": {quoted}, \"arguments\": "));
                (format!("{begin} {head}"), format!("\"}}\\n\" {}", self.mark("</tool_call>")))
            }
            Format::Llama31 => (literal(&format!("{{\"name\": {quoted}, \"parameters\": ")), "\"}\"".to_owned()),
            Format::GptOss => {
                let to = format!("commentary to=functions.{name} ");
                (self.marks(&["<|channel|>", &to, "<|constrain|>", "json", "<|message|>"]), String::new())
            }
            Format::Qwen35 | Format::Nemotron3 => {
                let begin = self.mark("<tool_call>");
                let head = literal(&format!("\n<function={name}>\n"));
                (format!("{begin} {head}"), format!("\"</function>\\n\" {}", self.mark("</tool_call>")))
            }
            Format::Glm4Moe => {
                (format!("{} {}", self.mark("<tool_call>"), literal(&format!("{name}\n"))), self.mark("</tool_call>"))
            }
            Format::Lfm25 => (literal(&format!("{name}(")), "\")\"".to_owned()),
            Format::Gemma4 => {
                let models = format.models();
                return Err(format!(
                    "the format of {models} has no grammar here, so that a call cannot be made to come"
                ));
            }
        };
        match format {
            Format::Qwen | Format::Llama31 | Format::GptOss => self.json(&arguments, schema.clone()),
            Format::Lfm25 => self.list(&arguments, schema)?,
            _ => self.tags(format, &arguments, schema)?,
        }
        self.rule(rule, &format!("{before} {arguments} {behind}"));
        Ok(())
    }

    /// A rule for JSON that follows a schema, with the blanks that `json.dumps` writes or without. The schema's own
    /// options hold beside these, so that the library looks at them.
    fn json(&mut self, rule: &str, mut schema: Value) {
        let blanks =
            [("whitespace_flexible", json!(false)), ("item_separator", json!(", ?")), ("key_separator", json!(": ?"))];
        if let Some(schema) = schema.as_object_mut()
            && let Some(options) = schema.entry(OPTIONS).or_insert_with(|| json!({})).as_object_mut()
        {
            options.extend(blanks.map(|(key, value)| (key.to_owned(), value)));
        }
        self.rule(rule, &format!("%json {schema}"));
    }

    /// Rules for arguments in the form of Python, in the order of the schema.
    fn list(&mut self, rule: &str, schema: &Value) -> Result<(), String> {
        let all = arguments::of(schema, Place::List)?;
        // Of each place in the list there are two: as long as nothing was written, and behind an argument.
        let kinds = [("first", ""), ("next", "\", \" ")];
        for (kind, _) in kinds {
            self.rule(&format!("{rule}_{kind}_{}", all.len()), "\"\"");
        }
        for (at, argument) in all.iter().enumerate() {
            let value = self.value(&format!("{rule}_{at}"), argument, None);
            let pair = format!("{} {value} {rule}_next_{}", literal(&format!("{}=", argument.key)), at + 1);
            for (kind, comma) in kinds {
                let without = if argument.required { String::new() } else { format!(" | {rule}_{kind}_{}", at + 1) };
                self.rule(&format!("{rule}_{kind}_{at}"), &format!("{comma}{pair}{without}"));
            }
        }
        self.rule(rule, &format!("{rule}_first_0"));
        Ok(())
    }

    /// Rules for arguments between tags, in the order of the schema.
    fn tags(&mut self, format: Format, rule: &str, schema: &Value) -> Result<(), String> {
        let mut row = Vec::new();
        for (at, argument) in arguments::of(schema, Place::Tag)?.iter().enumerate() {
            let key = &argument.key;
            let (begin, end) = match format {
                Format::Glm4Moe => {
                    let mid = self.marks(&["</arg_key>", "\n", "<arg_value>"]);
                    (format!("{} {} {mid}", self.mark("<arg_key>"), literal(key)), "</arg_value>")
                }
                _ => (literal(&format!("<parameter={key}>\n")), "</parameter>"),
            };
            let value = self.value(&format!("{rule}_{at}"), argument, Some(end));
            let pair = format!("{rule}_{at}_pair");
            self.rule(&pair, &format!("{begin} {value} \"\\n\""));
            row.push(if argument.required { pair } else { format!("{pair}?") });
        }
        self.rule(rule, &if row.is_empty() { "\"\"".to_owned() } else { row.join(" ") });
        Ok(())
    }

    /// What a value is, up to and including the tag of its end, if it has one.
    fn value(&mut self, rule: &str, argument: &Argument, end: Option<&str>) -> String {
        // A line of its own for the value, and one for the tag, as the template of Qwen3.5 has it.
        let line = if end == Some("</parameter>") { "\n" } else { "" };
        let behind = end.map_or_else(String::new, |end| match line {
            "" => format!(" {}", self.mark(end)),
            _ => format!(" {}", literal(&format!("{line}{end}"))),
        });
        match &argument.value {
            arguments::Value::Json(schema) => self.json(rule, schema.clone()),
            arguments::Value::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| literal(word)).collect();
                self.rule(rule, &words.join(" | "));
            }
            arguments::Value::Text => {
                let end = end.unwrap_or_default();
                if (self.is_special)(end) {
                    self.rule(rule, &format!("/(?s:.*)/ {end}"));
                } else {
                    // A call ends at the first mark of its end, whatever is around it.
                    let text = format!("{}_TEXT", rule.to_uppercase());
                    self.rule(&text, "/(?s:.*)/ & ~/(?s:.*)<\\/tool_call>(?s:.*)/");
                    self.rule(&format!("{rule}[suffix={}]", literal(&format!("{line}{end}"))), &text);
                }
                return rule.to_owned();
            }
        }
        format!("{rule}{behind}")
    }
}

/// The schema of a tool's arguments: of an object, and of none where nothing is said.
fn schema_of(parameters: &Value) -> Value {
    let mut schema = match parameters {
        Value::Null => json!({ "properties": {}, "additionalProperties": false }),
        schema => schema.clone(),
    };
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("type".into(), "object".into());
    }
    schema
}
