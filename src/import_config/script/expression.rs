//! Expressions of a script, as the parser found them.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::import_config::{
    read::{Entry, flatten},
    shell::Unset,
};

/// What a script says about its training.
#[derive(Debug, Deserialize)]
pub struct Report {
    /// The trainers that it makes.
    pub trainers: Vec<Made>,
    /// The calls of `train` on them.
    pub trains: Vec<Made>,
    /// Arguments that the script sets by another way than in the calls, each once.
    pub changed: Vec<Changed>,
    /// Large libraries that an import of the script imports.
    pub imports: Vec<String>,
    /// The line that would train if the script were imported.
    pub runs: Option<usize>,
    /// The line that would fetch a model or a dataset if the script were imported.
    pub loads: Option<usize>,
}

/// An argument of the trainer or of its configuration that a line sets.
#[derive(Debug, Deserialize)]
pub struct Changed {
    /// The argument.
    pub name: String,
    /// The line.
    pub line: usize,
    /// The beginning of the line's statement.
    pub text: String,
}

/// A call at a line.
#[derive(Debug, Deserialize)]
pub struct Made {
    /// The line.
    pub line: usize,
    /// Whether it is in a loop.
    #[serde(default)]
    pub looped: bool,
    /// The call.
    pub call: Call,
}

/// A call of something imported.
#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    /// Its full name.
    pub of: String,
    /// Arguments without a name.
    pub positional: Vec<Expression>,
    /// Arguments with a name.
    pub named: Vec<(String, Expression)>,
    /// The key of the result that is taken: `["train"]`.
    pub item: Option<String>,
}

/// An expression at a line.
#[derive(Debug, Clone, Deserialize)]
pub struct Expression {
    /// The line.
    pub line: usize,
    /// What it is.
    pub is: Kind,
}

/// The kinds of expressions.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A literal, or what literals alone make.
    Value(Value),
    /// Several, not all of them literals.
    List(Vec<Expression>),
    /// Several by their names, not all of them literals.
    Mapping(Vec<(String, Expression)>),
    /// A call of something imported.
    Call(Call),
    /// Something imported, by its full name.
    Name(String),
    /// A function or class at the top level of the script.
    Defined(String),
    /// Why the value is not known.
    Unread(String),
}

impl Expression {
    /// The value of a literal.
    ///
    /// # Errors
    /// Why it is none, with the line.
    pub fn literal(&self) -> Result<Value, Unset> {
        match &self.is {
            Kind::Value(value) => Ok(value.clone()),
            Kind::List(items) => items.iter().map(Self::literal).collect(),
            Kind::Mapping(pairs) => {
                let pairs = pairs.iter().map(|(name, value)| Ok((name.clone(), value.literal()?)));
                pairs.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            _ => Err(self.unset(&self.what(), "")),
        }
    }

    /// The text of a literal, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.is {
            Kind::Value(value) => value.as_str(),
            _ => None,
        }
    }

    /// Whether it is `None`.
    pub fn is_none(&self) -> bool {
        matches!(&self.is, Kind::Value(Value::Null))
    }

    /// What it is, in words.
    pub fn what(&self) -> String {
        match &self.is {
            Kind::Value(value) => format!("`{value}`"),
            Kind::List(_) | Kind::Mapping(_) => {
                self.literal().map_or_else(|unset| unset.what().to_owned(), |value| format!("`{value}`"))
            }
            Kind::Call(call) => format!("`{}(…)` is no literal", call.short_name()),
            Kind::Name(name) | Kind::Defined(name) => format!("`{name}` is no literal"),
            Kind::Unread(why) => why.clone(),
        }
    }

    /// That it cannot be taken over, with its line and the way out.
    pub fn unset(&self, what: &str, way: &str) -> Unset {
        let way = if way.is_empty() { String::new() } else { format!("; {way}") };
        Unset::new(self.line, format!("{what}{way}"))
    }

    /// The keys that it stands for as the value of a key: those of a mapping have names of their own, as in YAML.
    pub fn entries(&self, key: &str, entries: &mut Vec<Entry>) {
        match &self.is {
            Kind::Value(Value::Object(map)) if !map.is_empty() => flatten(key, map.clone(), entries),
            Kind::Mapping(pairs) => {
                for (name, value) in pairs {
                    value.entries(&format!("{key}.{name}"), entries);
                }
            }
            _ => entries.push(match self.literal() {
                Ok(value) => Entry::new(key, value),
                Err(unset) => Entry::unread(key, unset),
            }),
        }
    }
}

impl Call {
    /// The last parts of its name, as it is usually written.
    pub fn short_name(&self) -> &str {
        let is_class = |part: &str| part.starts_with(|c: char| c.is_uppercase());
        let last = self.of.rsplit_once('.').map_or("", |(before, _)| before);
        match last.rsplit('.').next() {
            Some(class) if is_class(class) => &self.of[last.len() - class.len()..],
            _ => self.of.rsplit('.').next().unwrap_or_default(),
        }
    }

    /// Whether it is a call of that name of a library, wherever in the library the name is imported from.
    pub fn is(&self, library: &str, name: &str) -> bool {
        let rest = self.of.strip_prefix(library).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| rest == name || rest.ends_with(&format!(".{name}")))
    }

    /// Its arguments by their names; those without one have the names of the signature. Arguments beyond the signature
    /// are named by their place.
    pub fn arguments(&self, signature: &[&str]) -> Vec<(String, Expression)> {
        let name = |place: usize| {
            signature.get(place).map_or_else(|| format!("argument {}", place + 1), |name| (*name).to_owned())
        };
        let placed = self.positional.iter().enumerate().map(|(place, value)| (name(place), value.clone()));
        placed.chain(self.named.iter().cloned()).collect()
    }
}
