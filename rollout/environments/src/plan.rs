//! Entries of the options, worked out: which tools a row has, and who answers them.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde_json::{Map, Value};
use shared::config::{
    EnvironmentFactory,
    environments::{BUILT_IN, ENVIRONMENT_COLUMN},
    rewards::PythonFunction,
};

use crate::{
    RowError, StartError,
    builtin::{self, Class, Tool, Tools},
    environment::{Environment, Sample},
    joined::Joined,
    python::{Greeting, Hosts, Named, PythonEnvironment},
    sources::Sources,
};

const TOOLS: &str = "tools";
const FACTORY: &str = "environment_factory";
const REWARDS: &str = "reward_funcs";

/// What an entry names.
enum Entry<T: 'static> {
    BuiltIn(&'static T),
    Python(Named),
}

impl<T: 'static> Entry<T> {
    fn read(
        option: &'static str,
        entry: &str,
        known: fn(&str) -> Result<&'static T, String>,
    ) -> Result<Self, StartError> {
        let fail = |reason| StartError::Entry { option, entry: entry.to_owned(), reason };
        if let Some(name) = entry.strip_prefix(BUILT_IN) {
            return known(name).map(Self::BuiltIn).map_err(fail);
        }
        let (place, name) = match PythonFunction::parse(entry) {
            Some(PythonFunction { place, function: Some(name) }) => (place, name),
            _ => {
                let instead = known("").err().unwrap_or_default();
                return Err(fail(format!("write `file.py:name` or `module.name`; {instead} (`{BUILT_IN}…`)")));
            }
        };
        Ok(Self::Python(Named { entry: entry.to_owned(), place, name }))
    }

    fn python(&self) -> Option<&Named> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Python(named) => Some(named),
        }
    }
}

/// The entries of the options.
pub struct Entries {
    tools: Vec<(String, Entry<Tool>)>,
    /// Each class with the name that chooses it and its entry.
    classes: Vec<(Option<String>, String, Entry<Class>)>,
    raters: Vec<Named>,
}

impl Entries {
    /// Reads the options.
    ///
    /// # Errors
    /// An entry that names nothing.
    pub fn read(sources: &Sources) -> Result<Self, StartError> {
        let tool = |entry: &String| -> Result<_, StartError> {
            Ok((entry.clone(), Entry::read(TOOLS, entry, builtin::tool)?))
        };
        let tools = sources.tools.iter().map(tool).collect::<Result<_, _>>()?;
        let classes = sources.environment_factory.iter().flat_map(EnvironmentFactory::classes);
        let class = |(key, entry): (Option<&str>, &str)| -> Result<_, StartError> {
            Ok((key.map(str::to_owned), entry.to_owned(), Entry::read(FACTORY, entry, builtin::class)?))
        };
        let classes = classes.map(class).collect::<Result<Vec<_>, _>>()?;
        let raters = sources.raters.iter().map(|entry| rater(entry, &classes)).collect::<Result<_, _>>()?;
        Ok(Self { tools, classes, raters })
    }

    /// The raters.
    pub fn raters(&self) -> &[Named] {
        &self.raters
    }

    /// The functions in Python.
    pub fn python_tools(&self) -> impl Iterator<Item = &Named> {
        self.tools.iter().filter_map(|(_, entry)| entry.python())
    }

    /// The classes in Python, each with the name that chooses it.
    pub fn python_classes(&self) -> impl Iterator<Item = (Option<&str>, &Named)> {
        self.classes.iter().filter_map(|(key, _, entry)| Some((key.as_deref(), entry.python()?)))
    }
}

/// All environments of a run.
pub struct Plan {
    kinds: Vec<Kind>,
}

/// The tools and the environment of a row.
pub struct Kind {
    /// What the column says for it; none where rows do not choose.
    key: Option<String>,
    /// Its entry, or those of the tools, for messages.
    entry: String,
    /// Whether its class gives a reward at the end.
    gives_reward: bool,
    /// Whether its class gives rewards by turn.
    gives_turn_rewards: bool,
    schemas: Vec<Value>,
    routes: Arc<HashMap<String, usize>>,
    parts: Vec<Part>,
}

/// What answers some of the tools.
#[derive(Clone)]
enum Part {
    Tools(Vec<&'static Tool>),
    BuiltIn(&'static Class),
    Python,
}

impl Plan {
    /// Works the entries out. `greeting` is what the process with those in Python says, if there are any.
    ///
    /// # Errors
    /// Two tools of a row with the same name.
    pub fn of(entries: &Entries, greeting: &Greeting) -> Result<Self, StartError> {
        if entries.classes.is_empty() {
            let names: Vec<&str> = entries.tools.iter().map(|(entry, _)| entry.as_str()).collect();
            return Ok(Self { kinds: vec![Kind::of(entries, greeting, None, names.join(", "), None)?] });
        }
        let kind = |(key, entry, class): &(Option<String>, String, Entry<Class>)| {
            Kind::of(entries, greeting, key.clone(), entry.clone(), Some(class))
        };
        Ok(Self { kinds: entries.classes.iter().map(kind).collect::<Result<_, _>>()? })
    }

    /// The kind of a row.
    ///
    /// # Errors
    /// When the row names none.
    pub fn kind(&self, row: &Map<String, Value>) -> Result<&Kind, RowError> {
        if let [kind @ Kind { key: None, .. }] = self.kinds.as_slice() {
            return Ok(kind);
        }
        let known = || self.kinds.iter().filter_map(|kind| kind.key.as_deref()).collect::<Vec<_>>().join(", ");
        let Some(name) = row.get(ENVIRONMENT_COLUMN).and_then(Value::as_str) else {
            return Err(RowError::NoColumn { known: known() });
        };
        let found = self.kinds.iter().find(|kind| kind.key.as_deref() == Some(name));
        found.ok_or_else(|| RowError::Unknown { name: name.to_owned(), known: known() })
    }

    /// Whether any class gives a reward at the end.
    pub fn gives_rewards(&self) -> bool {
        self.kinds.iter().any(|kind| kind.gives_reward)
    }

    /// Whether any class gives rewards by turn.
    pub fn gives_turn_rewards(&self) -> bool {
        self.kinds.iter().any(|kind| kind.gives_turn_rewards)
    }
}

impl Kind {
    fn of(
        entries: &Entries,
        greeting: &Greeting,
        key: Option<String>,
        entry: String,
        class: Option<&Entry<Class>>,
    ) -> Result<Self, StartError> {
        let in_python = class.and_then(Entry::python).is_some();
        let built_in: Vec<&Tool> = entries.tools.iter().filter_map(|(_, entry)| built_in(entry)).collect();
        let mut parts = Vec::new();
        let mut part = |part: Part, is_there: bool| {
            parts.extend(is_there.then_some(part));
            parts.len().saturating_sub(1)
        };
        let of_tools = part(Part::Tools(built_in.clone()), !built_in.is_empty());
        let of_python = part(Part::Python, in_python || entries.python_tools().next().is_some());
        let of_class = match class {
            Some(Entry::BuiltIn(class)) => part(Part::BuiltIn(class), true),
            _ => of_python,
        };
        let mut python_tools = greeting.tools.iter();
        let mut tools: Vec<(Value, usize)> = Vec::new();
        for (_, entry) in &entries.tools {
            match entry {
                Entry::BuiltIn(tool) => tools.push(((tool.schema)(), of_tools)),
                Entry::Python(_) => tools.extend(python_tools.next().map(|schema| (schema.clone(), of_python))),
            }
        }
        let found = greeting.environments.iter().find(|found| in_python && found.key == key);
        let (methods, gives_reward) = match class {
            Some(Entry::BuiltIn(class)) => ((class.schemas)(), true),
            _ => found.map(|found| (found.tools.clone(), found.rewards)).unwrap_or_default(),
        };
        tools.extend(methods.into_iter().map(|schema| (schema, of_class)));
        let mut routes = HashMap::new();
        for (schema, part) in &tools {
            let name = schema["function"]["name"].as_str().unwrap_or_default();
            if routes.insert(name.to_owned(), *part).is_some() {
                return Err(StartError::TwoTools { environment: entry, tool: name.to_owned() });
            }
        }
        let schemas = tools.into_iter().map(|(schema, _)| schema).collect();
        let gives_turn_rewards = matches!(class, Some(Entry::BuiltIn(class)) if class.by_turn);
        Ok(Self { key, entry, gives_reward, gives_turn_rewards, schemas, routes: Arc::new(routes), parts })
    }

    /// JSON schemas of its tools: the listed ones, then the methods of the class by name.
    pub fn schemas(&self) -> &[Value] {
        &self.schemas
    }

    /// The columns that the environment gets: all, without the one that has chosen it.
    pub fn columns<'a>(&self, row: &'a Map<String, Value>) -> Cow<'a, Map<String, Value>> {
        if self.key.is_none() {
            return Cow::Borrowed(row);
        }
        Cow::Owned(
            row.iter().filter(|(name, _)| *name != ENVIRONMENT_COLUMN).map(|(k, v)| (k.clone(), v.clone())).collect(),
        )
    }

    /// An environment for a conversation.
    pub fn environment(&self, hosts: Option<&Arc<Hosts>>, sample: Sample) -> Box<dyn Environment> {
        let made = |part: &Part| -> Box<dyn Environment> {
            match part {
                Part::Tools(tools) => Box::new(Tools(tools.clone())),
                Part::BuiltIn(class) => (class.make)(),
                Part::Python => {
                    let hosts = Arc::clone(hosts.expect("a plan with Python has its processes"));
                    Box::new(PythonEnvironment::new(hosts, sample, self.key.clone(), self.entry.clone()))
                }
            }
        };
        Box::new(Joined::new(self.parts.iter().map(made).collect(), Arc::clone(&self.routes)))
    }
}

/// A rater, which needs an object in Python for each conversation.
fn rater(entry: &str, classes: &[(Option<String>, String, Entry<Class>)]) -> Result<Named, StartError> {
    let fail = |reason| StartError::Entry { option: REWARDS, entry: entry.to_owned(), reason };
    if let Some((_, class, _)) = classes.iter().find(|(.., class)| class.python().is_none()) {
        return Err(fail(format!(
            "the function asks for `environments`, and `{class}` is no class in Python; write the class in Python, or \
             a function without `environments`"
        )));
    }
    match PythonFunction::parse(entry) {
        Some(PythonFunction { place, function: Some(name) }) => Ok(Named { entry: entry.to_owned(), place, name }),
        _ => Err(fail("write `file.py:name` or `module.name`".to_owned())),
    }
}

fn built_in(entry: &Entry<Tool>) -> Option<&'static Tool> {
    match entry {
        Entry::BuiltIn(tool) => Some(*tool),
        Entry::Python(_) => None,
    }
}
