//! What the shell runs itself: builtin commands, and scripts within scripts.

use brush_parser::ast::Program;

use super::{
    super::{Script, Unset, Word, condition, is_name, parse},
    DEEPEST, Leaving, Shell, Status,
};

impl Shell {
    /// The output of commands that are all `echo`; they change nothing here.
    pub(in crate::import_config::shell) fn printed_by(&mut self, program: &Program) -> Option<Word> {
        let mut inner = self.copy();
        if self.depth > DEEPEST {
            return None;
        }
        inner.program(program);
        self.count = inner.count;
        let Script { commands, notes, .. } = inner.script;
        if inner.forks > 0 || !notes.is_empty() {
            return None;
        }
        let mut lines = Vec::new();
        for command in &commands {
            let (name, words) = command.words.split_first()?;
            let words: Vec<&str> = words.iter().map(|word| &**word).collect();
            if &**name != "echo" || words.first().is_some_and(|word| word.starts_with('-')) {
                return None;
            }
            if command.words.iter().any(|word| word.unset().is_some()) {
                return None;
            }
            lines.push(words.join(" "));
        }
        Some(Word::known(lines.join("\n").trim_end_matches('\n')))
    }

    /// Follows `bash -c TEXT`, whatever stands in front of it; none if the words have no such command.
    pub(super) fn of_another_shell(&mut self, words: &[Word]) -> Option<Status> {
        let is_shell = |word: &Word| ["bash", "sh", "zsh"].contains(&word.rsplit('/').next().unwrap_or_default());
        let is_flag = |word: &Word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
        let at = words.windows(3).position(|three| is_shell(&three[0]) && is_flag(&three[1]))?;
        let status = self.eval("bash -c", &words[at + 2..=at + 2]);
        // An `exit` in it ends that shell only.
        self.leaving = None;
        Some(status)
    }

    /// Runs a builtin of the shell; none if the name is another program's.
    pub(super) fn builtin(&mut self, name: &str, arguments: &[Word]) -> Option<Status> {
        Some(match name {
            ":" | "true" => Status::True,
            "false" => Status::False,
            "[" | "test" => {
                let end = name == "[" && arguments.last().is_some_and(|word| &**word == "]");
                arguments.iter().for_each(|word| self.depends_on(word));
                Status::of(condition::test(&arguments[..arguments.len() - usize::from(end)]))
            }
            "exit" => self.leave(Leaving::Script),
            "return" => self.leave(Leaving::Function),
            "break" | "continue" => self.leave(Leaving::Loop),
            "set" => {
                if let Some(at) = arguments.iter().position(|word| &**word == "--") {
                    self.arguments = arguments[at + 1..].to_vec();
                }
                Status::True
            }
            "shift" => {
                let count = arguments.first().map_or(Ok(1), |word| word.parse()).unwrap_or(0);
                self.arguments.drain(..self.arguments.len().min(count));
                Status::True
            }
            "unset" => {
                arguments.iter().for_each(|word| drop(self.variables.remove(&**word)));
                Status::True
            }
            "read" | "mapfile" | "readarray" => {
                for name in
                    arguments.iter().filter(|word| is_name(word)).map(|word| word.to_string()).collect::<Vec<_>>()
                {
                    let what = format!("`${name}` is a shell variable that is read from elsewhere");
                    self.put(&name, Word::unknown(format!("${name}"), Unset::new(self.line, what)));
                }
                Status::Unknown
            }
            "source" | "." => {
                let file = arguments.first().map(|word| word.to_string()).unwrap_or_default();
                self.note(&format!("`{name} {file}` is not read; what it sets is not known here"));
                Status::Assumed
            }
            "eval" => return Some(self.eval("eval", arguments)),
            "let" => {
                let values: Vec<_> = arguments.iter().map(|word| self.arithmetic(word)).collect();
                Status::of(values.last().copied().flatten().map(|value| value != 0))
            }
            _ => return None,
        })
    }

    fn leave(&mut self, leaving: Leaving) -> Status {
        self.leaving = Some(leaving);
        Status::Unknown
    }

    fn eval(&mut self, name: &str, arguments: &[Word]) -> Status {
        let text = arguments.iter().map(|word| &**word).collect::<Vec<_>>().join(" ");
        let program = if arguments.iter().any(|word| word.unset().is_some()) { None } else { parse(&text).ok() };
        let Some(program) = program else {
            let unset = arguments.iter().find_map(Word::unset).map_or_else(String::new, |unset| format!(": {unset}"));
            self.note(&format!("what is run by `{name}` is not known here{unset}"));
            return Status::Unknown;
        };
        let line = self.line;
        let from = self.script.commands.len();
        self.program(&program);
        // Its line numbers are not those of the script.
        self.script.commands[from..].iter_mut().for_each(|command| command.line = line);
        self.line = line;
        Status::Assumed
    }
}
