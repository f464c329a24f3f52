//! Follows a script's commands: their effect on variables, and the commands that run other programs.

mod builtin;
mod guess;

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use brush_parser::ast::{
    AndOr, AndOrList, Assignment, AssignmentName, AssignmentValue, Command as Node, CommandPrefixOrSuffixItem,
    CompoundCommand, CompoundList, ForClauseCommand, FunctionBody, IfClauseCommand, Pipeline, Program, SimpleCommand,
    SourceLocation,
};

use super::{Command, Script, Unset, Word, pattern};
use guess::Missing;

/// Number of commands after which a script is not followed any further.
const MOST_COMMANDS: usize = 20_000;
/// Most functions, loops and conditions inside each other.
const DEEPEST: usize = 50;

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Variable {
    /// A text.
    Scalar(Word),
    /// Several texts.
    Array(Vec<Word>),
}

/// The exit status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    True,
    False,
    /// Another program's, which is assumed to succeed.
    Assumed,
    Unknown,
}

impl Status {
    fn of(holds: Option<bool>) -> Self {
        match holds {
            Some(true) => Self::True,
            Some(false) => Self::False,
            None => Self::Unknown,
        }
    }

    fn not(self) -> Self {
        match self {
            Self::True => Self::False,
            Self::False => Self::True,
            Self::Assumed | Self::Unknown => Self::Unknown,
        }
    }
}

/// Reasons to leave a list of commands before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Loop,
    Function,
    Script,
}

/// The state of a script.
#[derive(Default)]
pub struct Shell {
    pub(super) variables: HashMap<String, Variable>,
    /// Arguments of the script, or of the function that runs.
    pub(super) arguments: Vec<Word>,
    /// The present line.
    pub(super) line: usize,
    functions: HashMap<String, Rc<FunctionBody>>,
    script: Script,
    leaving: Option<Leaving>,
    count: usize,
    depth: usize,
    /// The unknown value that the last unknown condition depends on.
    cause: Option<Rc<Unset>>,
    /// The last variable that counts as empty because nothing sets it.
    missing: Option<Missing>,
    /// The one by which the script has ended.
    ended: Option<Missing>,
    /// Variables of the environment that the script has neither set nor used yet.
    inherited: HashSet<String>,
    /// How often the script could take more than one way.
    forks: usize,
}

impl Shell {
    /// Remembers the unknown value that a condition depends on.
    pub(super) fn depends_on(&mut self, word: &Word) {
        if let Some(unset) = word.unset().filter(|unset| !unset.absent) {
            self.cause.get_or_insert_with(|| Rc::clone(unset));
        }
    }

    /// The characters at which the shell splits words; the first joins words.
    pub(super) fn separators(&self) -> Option<String> {
        match self.scalar("IFS") {
            None => Some(" \t\n".to_owned()),
            Some(word) => word.unset().is_none().then(|| word.to_string()),
        }
    }

    /// Follows a script.
    pub fn program(&mut self, program: &Program) {
        self.lists(&program.complete_commands);
    }

    fn lists(&mut self, lists: &[CompoundList]) {
        for (at, list) in lists.iter().enumerate() {
            self.list(list);
            if self.leaving.take() == Some(Leaving::Script) {
                let ended = self.ended.take();
                self.not_taken(ended.as_ref(), vec![Box::new(|shell: &mut Self| shell.lists(&lists[at + 1..]))]);
                self.leaving = Some(Leaving::Script);
                return;
            }
        }
    }

    /// The result.
    pub fn finish(self) -> Script {
        self.script
    }

    /// The text of a variable; for an array, its first element.
    pub fn scalar(&self, name: &str) -> Option<Word> {
        match self.variables.get(name)? {
            Variable::Scalar(word) => Some(word.clone()),
            Variable::Array(words) => Some(words.first().cloned().unwrap_or_default()),
        }
    }

    /// An element of an array; an index below 0 counts from the end.
    pub fn element(&self, name: &str, index: i64) -> Option<Word> {
        match self.variables.get(name)? {
            Variable::Scalar(word) => (index == 0 || word.unset().is_some()).then(|| word.clone()),
            Variable::Array(words) => {
                let index = if index < 0 { index + words.len() as i64 } else { index };
                words.get(usize::try_from(index).ok()?).cloned()
            }
        }
    }

    /// Whether a variable is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// Sets a variable.
    pub fn put(&mut self, name: &str, value: Word) {
        self.inherited.remove(name);
        self.variables.insert(name.to_owned(), Variable::Scalar(value.named(name)));
    }

    /// Remarks on a line that may change the meaning of others.
    fn note(&mut self, what: &str) {
        let note = format!("line {}: {what}", self.line);
        if !self.script.notes.contains(&note) {
            self.script.notes.push(note);
        }
    }

    fn at(&mut self, node: &impl SourceLocation) {
        if let Some(place) = node.location() {
            self.line = place.start.line;
        }
    }

    fn list(&mut self, list: &CompoundList) -> Status {
        let mut status = Status::True;
        for item in &list.0 {
            status = self.and_or(&item.0);
            if self.leaving.is_some() {
                break;
            }
        }
        status
    }

    fn and_or(&mut self, list: &AndOrList) -> Status {
        self.missing = None;
        let mut status = self.pipeline(&list.first);
        for next in &list.additional {
            if self.leaving.is_some() {
                break;
            }
            let (pipeline, runs) = match (next, status) {
                (AndOr::And(pipeline), Status::True | Status::Assumed) => (pipeline, Some(true)),
                (AndOr::Or(pipeline), Status::False) => (pipeline, Some(true)),
                (AndOr::And(pipeline) | AndOr::Or(pipeline), Status::Unknown) => (pipeline, None),
                (AndOr::And(pipeline) | AndOr::Or(pipeline), _) => (pipeline, Some(false)),
            };
            match runs {
                Some(true) => {
                    let missing = self.missing.take().filter(|_| status != Status::Assumed);
                    status = self.pipeline(pipeline);
                    self.may_have_ended(missing.clone());
                    // The status goes by both.
                    self.missing = self.missing.take().or(missing);
                }
                Some(false) if status == Status::Assumed => {}
                Some(false) => {
                    let missing = self.missing.clone();
                    let other: Branch<'_> = Box::new(|shell| {
                        shell.pipeline(pipeline);
                    });
                    self.not_taken(missing.as_ref(), vec![other]);
                }
                None => {
                    self.one_of(vec![
                        Box::new(|shell: &mut Self| {
                            shell.pipeline(pipeline);
                        }),
                        Box::new(|_| ()),
                    ]);
                    status = Status::Unknown;
                }
            }
        }
        status
    }

    fn pipeline(&mut self, pipeline: &Pipeline) -> Status {
        let mut status = Status::True;
        for node in &pipeline.seq {
            status = self.node(node);
        }
        if pipeline.seq.len() > 1 && status != Status::Assumed {
            status = Status::Unknown;
        }
        if pipeline.bang { status.not() } else { status }
    }

    fn node(&mut self, node: &Node) -> Status {
        self.count += 1;
        if self.count > MOST_COMMANDS || self.depth > DEEPEST {
            self.note("the script is too long to be followed further");
            self.leaving = Some(Leaving::Script);
            return Status::Unknown;
        }
        self.at(node);
        self.depth += 1;
        let status = match node {
            Node::Simple(command) => self.simple(command),
            Node::Compound(command, _) => self.compound(command),
            Node::Function(function) => {
                self.functions.insert(function.fname.value.clone(), Rc::new(function.body.clone()));
                Status::True
            }
            Node::ExtendedTest(test) => Status::of(self.extended_test(&test.expr)),
        };
        self.depth -= 1;
        status
    }

    fn compound(&mut self, command: &CompoundCommand) -> Status {
        match command {
            CompoundCommand::Arithmetic(arithmetic) => {
                Status::of(self.arithmetic(&arithmetic.expr.value).map(|value| value != 0))
            }
            CompoundCommand::BraceGroup(group) => self.list(&group.list),
            CompoundCommand::Subshell(inner) => {
                let variables = self.variables.clone();
                let status = self.list(&inner.list);
                self.variables = variables;
                self.leaving = None;
                status
            }
            CompoundCommand::IfClause(clause) => self.if_clause(clause),
            CompoundCommand::ForClause(clause) => self.for_clause(clause),
            CompoundCommand::CaseClause(clause) => {
                (self.cause, self.missing) = (None, None);
                let value = self.in_one(&clause.value.value);
                let missing = self.missing.take();
                self.depends_on(&value);
                let bodies = clause.cases.iter();
                if value.unset().is_some_and(|unset| !unset.absent) {
                    let mut bodies: Vec<Branch<'_>> =
                        bodies.filter_map(|case| case.cmd.as_ref()).map(|body| branch(body)).collect();
                    bodies.push(Box::new(|_| ()));
                    self.one_of(bodies);
                    return Status::Unknown;
                }
                let text = if value.unset().is_some() { String::new() } else { value.to_string() };
                let mut others = Vec::new();
                let mut taken = None;
                for case in bodies {
                    let mut wanted = case.patterns.iter();
                    let fits = taken.is_none() && wanted.any(|one| pattern::matches(&self.in_one(&one.value), &text));
                    if fits {
                        taken = Some(case.cmd.as_ref());
                    } else {
                        others.extend(case.cmd.as_ref().map(branch));
                    }
                }
                self.not_taken(missing.as_ref(), others);
                let status = taken.flatten().map_or(Status::True, |body| self.list(body));
                self.may_have_ended(missing);
                status
            }
            CompoundCommand::WhileClause(clause) => self.repeated(&clause.0, &clause.1.list, false),
            CompoundCommand::UntilClause(clause) => self.repeated(&clause.0, &clause.1.list, true),
            CompoundCommand::ArithmeticForClause(clause) => {
                self.one_of(vec![branch(&clause.body.list), Box::new(|_| ())]);
                Status::Unknown
            }
        }
    }

    fn if_clause(&mut self, clause: &IfClauseCommand) -> Status {
        let mut branches = vec![(Some(&clause.condition), &clause.then)];
        branches.extend(clause.elses.iter().flatten().map(|other| (other.condition.as_ref(), &other.body)));
        let mut possible: Vec<&CompoundList> = Vec::new();
        let mut certain = false;
        let (mut cause, mut missing) = (None, None);
        let mut branches = branches.into_iter();
        let mut others: Vec<Branch<'_>> = Vec::new();
        while let Some((condition, body)) = branches.next() {
            (self.cause, self.missing) = (None, None);
            let holds = condition.map_or(Status::True, |condition| self.list(condition));
            cause = cause.or(self.cause.take());
            let own = self.missing.take().filter(|_| matches!(holds, Status::True | Status::False));
            let may_be_another = own.is_some();
            missing = missing.or(own);
            match holds {
                Status::False => {
                    others.extend(may_be_another.then(|| branch(body)));
                    continue;
                }
                Status::True if possible.is_empty() => {
                    others.extend(branches.filter(|_| may_be_another).map(|(_, body)| branch(body)));
                    self.not_taken(missing.as_ref(), others);
                    let status = self.list(body);
                    self.may_have_ended(missing);
                    return status;
                }
                _ => possible.push(body),
            }
            certain = holds == Status::True;
            if certain {
                break;
            }
        }
        self.not_taken(missing.as_ref(), others);
        if possible.is_empty() {
            return Status::True;
        }
        let mut bodies: Vec<Branch<'_>> = possible.into_iter().map(branch).collect();
        if !certain {
            bodies.push(Box::new(|_| ()));
        }
        self.cause = cause;
        self.one_of(bodies);
        Status::Unknown
    }

    fn for_clause(&mut self, clause: &ForClauseCommand) -> Status {
        let values = match &clause.values {
            Some(words) => words.iter().flat_map(|word| self.words(&word.value)).collect(),
            None => self.arguments.clone(),
        };
        for value in values {
            self.put(&clause.variable_name, value);
            self.list(&clause.body.list);
            if self.leaving == Some(Leaving::Loop) {
                self.leaving = None;
                break;
            }
            if self.leaving.is_some() {
                break;
            }
        }
        Status::True
    }

    /// A loop on a condition, for an unknown number of rounds.
    fn repeated(&mut self, condition: &CompoundList, body: &CompoundList, until: bool) -> Status {
        let holds = self.list(condition);
        let goes_on = if until { holds.not() } else { holds };
        if goes_on == Status::False {
            let missing = self.missing.clone();
            self.not_taken(missing.as_ref(), vec![branch(body)]);
        } else {
            self.one_of(vec![branch(body), Box::new(|_| ())]);
        }
        Status::Unknown
    }

    /// Follows each of several ways that a script may take. A variable that differs between them is not known from
    /// there on. A way that ends the script cannot be the one that trains.
    fn one_of(&mut self, ways: Vec<Branch<'_>>) {
        let (before, line, cause) = (self.variables.clone(), self.line, self.cause.take());
        self.forks += 1;
        let mut after: Vec<HashMap<String, Variable>> = Vec::new();
        for way in ways {
            self.variables.clone_from(&before);
            way(self);
            if self.leaving.take() != Some(Leaving::Script) {
                after.push(std::mem::take(&mut self.variables));
            }
        }
        let Some(first) = after.first() else {
            self.variables = before;
            return;
        };
        let mut names: Vec<&String> = after.iter().flat_map(HashMap::keys).collect();
        names.sort_unstable();
        names.dedup();
        let mut merged = HashMap::new();
        for name in names {
            let value = first.get(name).filter(|value| after.iter().all(|way| way.get(name) == Some(value)));
            let not_told = || {
                let what =
                    format!("`${name}` is a shell variable that is set under a condition which is not known here");
                let why = cause.as_ref().map_or_else(String::new, |cause| match &cause.of {
                    Some(of) => format!(", as it goes by {of} ({cause}); write {of}=VALUE there"),
                    None => format!(" ({cause})"),
                });
                Variable::Scalar(Word::unknown(format!("${name}"), Unset::new(line, what + &why)))
            };
            merged.insert(name.clone(), value.cloned().unwrap_or_else(not_told));
        }
        self.variables = merged;
        self.line = line;
    }

    fn simple(&mut self, command: &SimpleCommand) -> Status {
        let line = self.line;
        let prefix: Vec<&Assignment> = command
            .prefix
            .iter()
            .flat_map(|prefix| &prefix.0)
            .filter_map(|item| match item {
                CommandPrefixOrSuffixItem::AssignmentWord(assignment, _) => Some(assignment),
                _ => None,
            })
            .collect();
        let Some(name) = &command.word_or_name else {
            prefix.into_iter().for_each(|assignment| self.assign(assignment));
            return Status::Assumed;
        };
        let mut words = self.words(&name.value);
        let items = command.suffix.iter().flat_map(|suffix| &suffix.0);
        let declares = ["export", "declare", "typeset", "local", "readonly"];
        if let [only] = words.as_slice()
            && declares.contains(&&**only)
        {
            items.for_each(|item| self.declared(item));
            return Status::True;
        }
        for item in items {
            match item {
                CommandPrefixOrSuffixItem::Word(word) | CommandPrefixOrSuffixItem::AssignmentWord(_, word) => {
                    // Where a word begins, a continued line may have ended.
                    self.line = word.location().map_or(self.line, |place| place.end.line);
                    words.extend(self.words(&word.value));
                }
                _ => {}
            }
        }
        self.line = line;
        let Some((name, arguments)) = words.split_first() else { return Status::True };
        if let Some(body) = self.functions.get(&**name).cloned() {
            return self.call(&body, arguments.to_vec());
        }
        let name = name.to_string();
        if let Some(status) = self.builtin(&name, arguments) {
            return status;
        }
        if let Some(status) = self.of_another_shell(&words) {
            return status;
        }
        let environment = prefix.iter().map(|assignment| self.in_front(assignment)).collect::<Vec<_>>();
        self.script.commands.push(Command { line, words: environment.into_iter().chain(words).collect() });
        // Programs whose status answers a question.
        let asked = ["command", "which", "type", "hash", "grep", "pgrep", "nvidia-smi", "diff", "cmp"];
        if asked.contains(&name.as_str()) { Status::Unknown } else { Status::Assumed }
    }

    fn call(&mut self, body: &FunctionBody, arguments: Vec<Word>) -> Status {
        let before = std::mem::replace(&mut self.arguments, arguments);
        let separators = self.variables.get("IFS").cloned();
        let status = self.compound(&body.0);
        self.arguments = before;
        // Scripts usually set it within functions, for one of their lines.
        match separators {
            Some(value) => drop(self.variables.insert("IFS".to_owned(), value)),
            None => drop(self.variables.remove("IFS")),
        }
        if self.leaving == Some(Leaving::Function) {
            self.leaving = None;
        }
        status
    }

    /// A word behind `export`, `declare` and their like.
    fn declared(&mut self, item: &CommandPrefixOrSuffixItem) {
        match item {
            CommandPrefixOrSuffixItem::AssignmentWord(assignment, _) => self.assign(assignment),
            CommandPrefixOrSuffixItem::Word(word) => {
                for word in self.words(&word.value) {
                    if let Some((name, value)) = word.assignment().map(|(name, value)| (name.to_owned(), value)) {
                        self.put(&name, value);
                    }
                }
            }
            _ => {}
        }
    }

    fn assign(&mut self, assignment: &Assignment) {
        self.line = assignment.loc.start.line;
        match (&assignment.name, &assignment.value) {
            (AssignmentName::VariableName(name), AssignmentValue::Scalar(word)) => {
                let value = self.in_one(&word.value);
                match self.variables.get_mut(name).filter(|_| assignment.append) {
                    Some(Variable::Scalar(before)) => before.push(&value),
                    Some(Variable::Array(words)) => match words.first_mut() {
                        Some(first) => first.push(&value),
                        None => words.push(value),
                    },
                    None => self.put(name, value),
                }
            }
            (AssignmentName::VariableName(name), AssignmentValue::Array(elements)) => {
                let indexed = elements.iter().any(|(index, _)| index.is_some());
                let mut words: Vec<Word> = elements.iter().flat_map(|(_, word)| self.words(&word.value)).collect();
                if indexed {
                    return self.not_followed(name);
                }
                match self.variables.get(name).filter(|_| assignment.append) {
                    Some(Variable::Array(before)) => words.splice(0..0, before.iter().cloned()).for_each(drop),
                    Some(Variable::Scalar(before)) => words.insert(0, before.clone()),
                    None => {}
                }
                self.variables.insert(name.clone(), Variable::Array(words));
            }
            (AssignmentName::ArrayElementName(name, _), _) => self.not_followed(name),
        }
    }

    fn not_followed(&mut self, name: &str) {
        let what = format!("`${name}` is a shell variable whose elements are set one by one, which is not followed");
        self.put(name, Word::unknown(format!("${name}"), Unset::new(self.line, what)));
    }

    /// An assignment in front of a command, as a word.
    fn in_front(&mut self, assignment: &Assignment) -> Word {
        let mut word = Word::known(format!("{}=", assignment.name));
        if let AssignmentValue::Scalar(value) = &assignment.value {
            word.push(&self.in_one(&value.value));
        }
        word
    }
}

/// A way that a script may take.
type Branch<'a> = Box<dyn FnOnce(&mut Shell) + 'a>;

fn branch(list: &CompoundList) -> Branch<'_> {
    Box::new(|shell| {
        shell.list(list);
    })
}
