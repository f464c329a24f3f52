//! A shell script as the commands that it runs, each as its words: brush-parser parses it. This module works out
//! variables, arrays, functions, loops and conditions, as far as the script alone determines them. Nothing is run, and
//! no file is looked at.
//!
//! Text that the script does not determine stays as it is written, with the line and the reason: a variable that
//! neither it nor the environment sets, the output of a command, its arguments, a value that is set under an unknown
//! condition.

mod arithmetic;
mod braces;
mod condition;
mod expand;
mod pattern;
mod run;

use std::{fmt, io::BufReader, ops::Deref, rc::Rc};

use anyhow::{Result, anyhow, bail};
use brush_parser::{Parser, ParserOptions, SourceInfo, ast::Program};

use run::Shell;

/// Most brackets within brackets: each takes some of the stack.
const DEEPEST: usize = 64;
/// Longest text of a variable or a word.
const LONGEST: usize = 1 << 20;

/// The unknown part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unset {
    /// The line of the script.
    line: usize,
    /// The expression, and why it is not known.
    what: String,
    /// Whether it is a variable that nothing sets.
    absent: bool,
    /// The first variable that was set to it.
    of: Option<String>,
}

impl Unset {
    /// Something at a line, with why it is not known.
    pub fn new(line: usize, what: String) -> Self {
        // Messages have one line, and expressions of a script may have several.
        Self { line, what: what.replace(['\n', '\r'], " "), absent: false, of: None }
    }

    /// The line of the script.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The expression, and why it is not known.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// In place of the value of a key that a word of the line deletes.
    pub fn deleted(line: usize, word: &str) -> Self {
        Self::new(line, format!("`{word}` deletes the key, so that its default there is gone"))
    }
}

impl fmt::Display for Unset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// A text of a script: a value of a variable, or a word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    /// The text; unknown parts stand there as they are written.
    text: String,
    /// The first unknown part.
    unset: Option<Rc<Unset>>,
}

impl Deref for Word {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Word {
    fn known(text: impl Into<String>) -> Self {
        Self { text: text.into(), unset: None }
    }

    fn unknown(written: impl Into<String>, unset: Unset) -> Self {
        Self { text: written.into(), unset: Some(Rc::new(unset)) }
    }

    /// The unknown part, if there is one.
    pub fn unset(&self) -> Option<&Rc<Unset>> {
        self.unset.as_ref()
    }

    /// `NAME=value`, if it sets a variable.
    pub fn assignment(&self) -> Option<(&str, Self)> {
        let (name, value) = self.text.split_once('=').filter(|(name, _)| is_name(name))?;
        Some((name, Self { text: value.to_owned(), unset: self.unset.clone() }))
    }

    /// The same as the value of a variable: from there on, messages name an unknown part by the variable.
    fn named(mut self, name: &str) -> Self {
        if let Some(unset) = self.unset.as_mut().filter(|unset| unset.of.is_none() && !unset.absent) {
            *unset = Rc::new(Unset { of: Some(name.to_owned()), ..(**unset).clone() });
        }
        self
    }

    /// The rest behind so many bytes.
    pub fn after(&self, bytes: usize) -> Self {
        Self { text: self.text[bytes..].to_owned(), unset: self.unset.clone() }
    }

    fn push(&mut self, other: &Self) {
        if self.text.len() + other.text.len() > LONGEST {
            *self = Self::unknown("…", Unset::new(0, "a text is too long".to_owned()));
            return;
        }
        self.text.push_str(&other.text);
        if self.unset.is_none() {
            self.unset.clone_from(&other.unset);
        }
    }
}

fn is_name(text: &str) -> bool {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A command that the script runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its line.
    pub line: usize,
    /// Assignments in front of it, its name and its arguments.
    pub words: Vec<Word>,
}

/// A condition that is known only because a variable counts as empty which nothing sets.
#[derive(Debug)]
pub struct Guess {
    /// The line of the condition.
    pub line: usize,
    /// The variable's name, or the number of an argument.
    pub name: String,
    /// The commands of the ways that are not taken.
    pub others: Vec<Command>,
}

/// The result of following a script.
#[derive(Debug, Default)]
pub struct Script {
    /// The commands that it runs, in order.
    pub commands: Vec<Command>,
    /// Conditions with other commands where a variable had a value.
    pub guesses: Vec<Guess>,
    /// Lines that were not followed and may change the meaning of others.
    pub notes: Vec<String>,
}

/// Reads a script that is run with these variables, each with its value.
///
/// # Errors
/// When it is no script, with the line.
pub fn read(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<Script> {
    // Lines may end as on Windows.
    let program = parse(&text.replace("\r\n", "\n"))?;
    let mut shell = Shell::with(environment);
    shell.program(&program);
    Ok(shell.finish())
}

fn options() -> ParserOptions {
    ParserOptions::default()
}

fn parse(text: &str) -> Result<Program> {
    let (mut depth, mut digits) = (0_usize, 0_usize);
    for byte in text.bytes() {
        // The parser cannot take such a large number for a descriptor.
        if matches!(byte, b'<' | b'>') && digits > 9 {
            bail!("has a redirection of no descriptor");
        }
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        match byte {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            bail!("has more than {DEEPEST} brackets within brackets");
        }
    }
    let mut parser = Parser::new(BufReader::new(text.as_bytes()), &options(), &SourceInfo { source: String::new() });
    parser.parse_program().map_err(|error| {
        let error = error.to_string();
        anyhow!("is no shell script: {}", error.lines().next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests;
