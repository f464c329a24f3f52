//! Grammars as constraints of the sampler: regular expressions, JSON schemas, choices, Lark.
//!
//! The work is done by the crate `llguidance`: an Earley parser over a lexer of derivatives, which walks through a trie
//! of all tokens and marks those that may come next. Here is what it needs from this project: the bytes of the tokens
//! ([`vocabulary`]), bounds for grammars of strangers ([`limits`]), and a [`Constraint`](rollout::engine::Constraint)
//! for each completion ([`completion`]).
//!
//! The model chooses how a text is cut into tokens: every token may come whose bytes go on with a text of the grammar.

mod completion;
mod embedded;
mod keywords;
mod limits;
mod numbers;
mod reason;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use llguidance::{GrammarBuilder, JsonCompileOptions, Matcher, ParserFactory, api::TopLevelGrammar, panic_utils};
use rollout::{
    commands::constraint::{Compile, Grammar},
    data::Tokenizer,
    engine::{Constrained, Constraint},
};
use serde_json::{Map, Value};
use shared::ModelDir;

use completion::Completion;
use reason::one_line;
use vocabulary::Vocabulary;

/// The keyword of a schema that has options of the library.
const OPTIONS: &str = "x-guidance";

/// Where completions begin. At the beginning of a text, some tokenizers drop a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Each is a text of its own: the answer in a chat.
    OfText,
    /// Each is the rest of a text, and goes on after its prompt.
    WithinText,
}

/// What compiles grammars for a model.
pub struct Grammars {
    tokenizer: Tokenizer,
    /// Tokens that end a completion.
    ends: Vec<u32>,
    /// Made with the first grammar.
    vocabulary: OnceLock<Result<Arc<Vocabulary>, String>>,
}

impl Grammars {
    /// For the texts of a model.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, model: &ModelDir) -> Self {
        let ends = model.generation().eos_token_ids.clone();
        Self { tokenizer: tokenizer.clone(), ends, vocabulary: OnceLock::new() }
    }

    /// A constraint that is called `name` where it fails. The first call takes a moment: it reads all tokens.
    ///
    /// # Errors
    /// A grammar that is none, that is too large, or that no text of the model follows; a tokenizer whose tokens are no
    /// pieces of text. On one line.
    pub fn compile(&self, name: &str, grammar: &Grammar, start: Start) -> Result<Constrained, String> {
        let grammar = top_level(grammar)?;
        let make = || Vocabulary::new(&self.tokenizer, &self.ends).map(Arc::new);
        let vocabulary = self.vocabulary.get_or_init(make).as_ref().map_err(Clone::clone)?;
        let plain = matcher(&vocabulary.plain, grammar.clone())?;
        let spaced = vocabulary.spaced.as_ref().filter(|_| start == Start::OfText);
        let spaced = spaced.map(|spaced| matcher(&spaced.factory, grammar)).transpose()?;
        let mut first = Completion::new(plain, spaced, Arc::clone(vocabulary));
        // What cannot begin is told now, and lexers of completions begin with what was found here.
        first.allowed()?;
        let first = Mutex::new(first);
        let begin =
            move || -> Box<dyn Constraint> { Box::new(first.lock().unwrap_or_else(PoisonError::into_inner).copy()) };
        Ok(Constrained::new(name, Arc::new(begin)))
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// For one grammar of a command line, whose completions are texts of their own.
#[derive(Debug, Clone, Copy)]
pub struct OfCommandLine;

impl Compile for OfCommandLine {
    fn compile(
        &self,
        name: &str,
        grammar: &Grammar,
        tokenizer: &Tokenizer,
        model: &ModelDir,
    ) -> anyhow::Result<Constrained> {
        let compiled = Grammars::new(tokenizer, model).compile(name, grammar, Start::OfText);
        compiled.map_err(|reason| anyhow::anyhow!("{name}: {reason}"))
    }
}

/// Refuses a JSON schema that is too long, or that the library would follow in part: one with a misspelt keyword, with
/// numbers that would be rounded, or that asks for it. Every schema goes through this check before the library sees it,
/// also within a grammar in Lark.
///
/// # Errors
/// What would not be followed. On one line.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    limits::check_schema(schema)?;
    if schema[OPTIONS]["lenient"] == true {
        return Err(format!("`lenient` in `{OPTIONS}` would follow the schema in part; leave it out"));
    }
    keywords::check(schema)
}

/// Refuses a grammar that is too long to be looked into.
///
/// # Errors
/// Its length, and the bound. On one line.
pub fn check_length(grammar: &Grammar) -> Result<(), String> {
    limits::check(grammar)
}

/// Why the first JSON schema of a grammar in Lark that does not compile by itself does not; `None` where all do. On one
/// line. With it one finds out for which of its parts a grammar was refused.
#[must_use]
pub fn fault_of_schemas(grammar: &str) -> Option<String> {
    embedded::schemas(grammar).ok()?.iter().find_map(fault_of_schema)
}

/// Why no grammar can follow a JSON schema, whatever is around it and whatever the model. On one line. `None` where the
/// schema compiles by itself. With it one finds out which of several schemas a grammar was refused for.
fn fault_of_schema(schema: &Value) -> Option<String> {
    let alone = || {
        let builder = GrammarBuilder::new(None, limits::parser());
        JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema.clone()).map(drop)
    };
    let checked = check_schema(schema).and_then(|()| {
        panic_utils::catch_unwind(AssertUnwindSafe(alone)).map_err(|error| one_line(&format!("{error:#}")))
    });
    checked.err()
}

/// A grammar in the library's form.
fn top_level(grammar: &Grammar) -> Result<TopLevelGrammar, String> {
    limits::check(grammar)?;
    match grammar {
        Grammar::Json { schema, .. } => check_schema(schema)?,
        Grammar::Lark(text) => {
            let schemas = embedded::schemas(text)?;
            schemas.iter().try_for_each(check_schema).map_err(|reason| format!("`%json`: {reason}"))?;
        }
        Grammar::Regex(_) | Grammar::Choice(_) => {}
    }
    Ok(match grammar {
        Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
        Grammar::Json { schema, compact } => TopLevelGrammar::from_json_schema(with_options(schema.clone(), *compact)?),
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
            TopLevelGrammar::from_regex(&texts.join("|"))
        }
        Grammar::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
    })
}

/// A schema with the options of the library that it has by itself, and without blanks between the parts where it is
/// `compact`.
fn with_options(mut schema: Value, compact: bool) -> Result<Value, String> {
    if compact {
        let object = schema.as_object_mut().ok_or("a schema whose blanks are left out must be an object")?;
        let options = object.entry(OPTIONS).or_insert_with(|| Value::Object(Map::new()));
        let options = options.as_object_mut().ok_or_else(|| format!("`{OPTIONS}` of a schema must be an object"))?;
        options.insert("whitespace_flexible".into(), false.into());
    }
    Ok(schema)
}

fn matcher(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let parser = factory.create_parser(grammar).map_err(|error| one_line(&format!("{error:#}")))?;
    Ok(Matcher::new(Ok(parser)))
}
