//! Entries of the options, worked out: which tools a row has, and who answers them.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde_json::{Map, Value};
use shared::config::{
    EnvironmentFactory,
    environments::{BUILT_IN, COMMAND, ENVIRONMENT_COLUMN},
    rewards::PythonFunction,
};

use crate::{
    RowError, StartError,
    builtin::{self, Class, Tool, Tools},
    environment::{Environment, Sample},
    joined::Joined,
    process::{self, Greeting, Hosted, Hosts, Queued},
    program::Program,
    python::{InPython, Named},
    sources::Sources,
};

const TOOLS: &str = "tools";
const FACTORY: &str = "environment_factory";
const REWARDS: &str = "reward_funcs";

/// What an entry names.
enum Entry<T: 'static> {
    BuiltIn(&'static T),
    Python(Named),
    Program(Program),
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
        if let Some(program) = Program::parse(entry) {
            return program.map(Self::Program).map_err(fail);
        }
        let (place, name) = match PythonFunction::parse(entry) {
            Some(PythonFunction { place, function: Some(name) }) => (place, name),
            _ => {
                let instead = known("").err().unwrap_or_default();
                return Err(fail(format!(
                    "write `file.py:name` or `module.name`, or `{COMMAND}…` with a command line; {instead} \
                     (`{BUILT_IN}…`)"
                )));
            }
        };
        Ok(Self::Python(Named { entry: entry.to_owned(), place, name }))
    }

    fn python(&self) -> Option<&Named> {
        if let Self::Python(named) = self { Some(named) } else { None }
    }

    fn program(&self) -> Option<&Program> {
        if let Self::Program(program) = self { Some(program) } else { None }
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

    /// The functions and classes in Python; none where there is nothing in Python.
    pub fn in_python(&self) -> Option<InPython<'_>> {
        let tools: Vec<_> = self.tools.iter().filter_map(|(_, entry)| entry.python()).collect();
        let classes: Vec<_> =
            self.classes.iter().filter_map(|(key, _, entry)| Some((key.as_deref(), entry.python()?))).collect();
        (!tools.is_empty() || !classes.is_empty()).then(|| InPython {
            tools,
            classes,
            raters: self.raters.iter().collect(),
        })
    }

    /// The entries of the tools.
    fn names(&self) -> String {
        self.tools.iter().map(|(entry, _)| entry.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The programs, each once.
    pub fn programs(&self) -> Vec<&Program> {
        let of_tools = self.tools.iter().filter_map(|(_, entry)| entry.program());
        let mut programs: Vec<&Program> = Vec::new();
        for program in of_tools.chain(self.classes.iter().filter_map(|(_, _, entry)| entry.program())) {
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
        programs
    }
}

/// What processes have said at their start.
pub struct Said {
    /// The entry of a program; none for those with Python.
    pub program: Option<String>,
    /// Their first line.
    pub greeting: Greeting,
}

/// All environments of a run.
pub struct Plan {
    kinds: Vec<Kind>,
}

/// The tools and the environment of a row.
pub struct Kind {
    /// What the column says for it; none where rows do not choose.
    key: Option<String>,
    /// Whether its class gives a reward at the end.
    gives_reward: bool,
    /// Whether its class gives rewards by turn.
    gives_turn_rewards: bool,
    schemas: Vec<Value>,
    routes: Arc<HashMap<String, usize>>,
    parts: Vec<Part>,
}

/// What answers some of the tools.
enum Part {
    Tools(Vec<&'static Tool>),
    BuiltIn(&'static Class),
    /// Processes, by their place among all of the run.
    Hosted(usize, process::Role),
}

impl Plan {
    /// Works the entries out. `said` is what the processes of a run have said, in their order.
    ///
    /// # Errors
    /// Two tools of a row with the same name, and a program that gives rewards among the tools.
    pub fn of(entries: &Entries, said: &[Said]) -> Result<Self, StartError> {
        if entries.classes.is_empty() {
            return Ok(Self { kinds: vec![Kind::of(entries, said, None, entries.names(), None)?] });
        }
        let kind = |(key, entry, class): &(Option<String>, String, Entry<Class>)| {
            Kind::of(entries, said, key.clone(), entry.clone(), Some(class))
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
        said: &[Said],
        key: Option<String>,
        entry: String,
        class: Option<&Entry<Class>>,
    ) -> Result<Self, StartError> {
        let mut draft = Draft { said, key: &key, parts: Vec::new(), tools: Vec::new() };
        draft.listed(entries)?;
        let gives_reward = draft.class(&entry, class);
        let gives_turn_rewards = match class {
            Some(Entry::BuiltIn(class)) => class.by_turn,
            // It may.
            Some(Entry::Program(_)) => gives_reward,
            Some(Entry::Python(_)) | None => false,
        };
        let Draft { parts, tools, .. } = draft;
        let mut routes = HashMap::new();
        for (schema, part) in &tools {
            let name = schema["function"]["name"].as_str().unwrap_or_default();
            if routes.insert(name.to_owned(), *part).is_some() {
                return Err(StartError::TwoTools { environment: entry, tool: name.to_owned() });
            }
        }
        let schemas = tools.into_iter().map(|(schema, _)| schema).collect();
        Ok(Self { key, gives_reward, gives_turn_rewards, schemas, routes: Arc::new(routes), parts })
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

    /// An environment for a conversation. `hosts` are all processes of the run, and `queued` makes what hears that the
    /// environment waits for a place.
    pub fn environment(
        &self,
        hosts: &[Arc<Hosts>],
        sample: Sample,
        queued: impl Fn() -> Queued,
    ) -> Box<dyn Environment> {
        let made = |part: &Part| -> Box<dyn Environment> {
            match part {
                Part::Tools(tools) => Box::new(Tools(tools.clone())),
                Part::BuiltIn(class) => (class.make)(),
                Part::Hosted(at, role) => {
                    Box::new(Hosted::new(Arc::clone(&hosts[*at]), sample, role.clone(), queued()))
                }
            }
        };
        Box::new(Joined::new(self.parts.iter().map(made).collect(), Arc::clone(&self.routes)))
    }
}

/// The parts and tools of a row while they are put together.
struct Draft<'a> {
    said: &'a [Said],
    key: &'a Option<String>,
    parts: Vec<Part>,
    /// Each schema with the part that answers.
    tools: Vec<(Value, usize)>,
}

impl<'a> Draft<'a> {
    /// Adds the listed tools in their order.
    fn listed(&mut self, entries: &Entries) -> Result<(), StartError> {
        let built_in = |(_, entry): &(String, Entry<Tool>)| {
            if let Entry::BuiltIn(tool) = entry { Some(*tool) } else { None }
        };
        let built_in: Vec<&Tool> = entries.tools.iter().filter_map(built_in).collect();
        if !built_in.is_empty() {
            self.parts.push(Part::Tools(built_in));
        }
        let mut in_python = self.said_by(None).map(|(_, said)| said.tools.iter()).unwrap_or_default();
        for (entry, tool) in &entries.tools {
            match tool {
                // They are the first part.
                Entry::BuiltIn(tool) => self.tools.push(((tool.schema)(), 0)),
                Entry::Python(_) => {
                    let schema = in_python.next().cloned();
                    let part = self.hosted(None, entries.names(), true);
                    self.tools.extend(schema.zip(part));
                }
                Entry::Program(_) => self.add_program(entry)?,
            }
        }
        Ok(())
    }

    /// Adds all tools of a program of `tools`.
    fn add_program(&mut self, entry: &str) -> Result<(), StartError> {
        let Some((_, said)) = self.said_by(Some(entry)) else { return Ok(()) };
        if said.rewards {
            let reason = format!("it gives rewards, and `{TOOLS}` have none: name it in `{FACTORY}`");
            return Err(StartError::Entry { option: TOOLS, entry: entry.to_owned(), reason });
        }
        if let Some(part) = self.hosted(Some(entry), entry.to_owned(), false) {
            self.tools.extend(said.tools.iter().map(|schema| (schema.clone(), part)));
        }
        Ok(())
    }

    /// Adds the environment, and says whether it gives rewards.
    fn class(&mut self, entry: &str, class: Option<&Entry<Class>>) -> bool {
        let (methods, rewards, part) = match class {
            None => return false,
            Some(Entry::BuiltIn(class)) => {
                self.parts.push(Part::BuiltIn(class));
                ((class.schemas)(), true, Some(self.parts.len() - 1))
            }
            Some(Entry::Python(_)) => {
                let found = self
                    .said_by(None)
                    .and_then(|(_, said)| said.environments.iter().find(|found| found.key == *self.key));
                let (tools, rewards) = found.map(|found| (found.tools.clone(), found.rewards)).unwrap_or_default();
                (tools, rewards, self.hosted(None, entry.to_owned(), true))
            }
            Some(Entry::Program(_)) => {
                let said = self.said_by(Some(entry)).map(|(_, said)| said);
                let (tools, rewards) = said.map(|said| (said.tools.clone(), said.rewards)).unwrap_or_default();
                (tools, rewards, self.hosted(Some(entry), entry.to_owned(), rewards))
            }
        };
        self.tools.extend(part.into_iter().flat_map(|part| methods.iter().map(move |schema| (schema.clone(), part))));
        rewards
    }

    /// The processes of a program, or those with Python, and what they have said.
    fn said_by(&self, program: Option<&str>) -> Option<(usize, &'a Greeting)> {
        let at = self.said.iter().position(|said| said.program.as_deref() == program)?;
        Some((at, &self.said[at].greeting))
    }

    /// The part of these processes, which a row has once. Its failures are those of `entry`.
    fn hosted(&mut self, program: Option<&str>, entry: String, rewards: bool) -> Option<usize> {
        let (at, _) = self.said_by(program)?;
        let known = self.parts.iter_mut().position(|part| matches!(part, Part::Hosted(host, _) if *host == at));
        let known = known.unwrap_or_else(|| {
            let is_summed = program.is_some();
            let role = process::Role { key: self.key.clone(), entry: String::new(), rewards, is_summed };
            self.parts.push(Part::Hosted(at, role));
            self.parts.len() - 1
        });
        if let Part::Hosted(_, role) = &mut self.parts[known] {
            role.entry = entry;
            role.rewards |= rewards;
        }
        Some(known)
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
