//! Completions that follow a grammar: the flags, and the seam to whatever understands grammars.
//!
//! The library behind it takes long to compile, so the default build does without it: `rollout` refuses these flags,
//! and `rollout-serve` follows them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;
use shared::ModelDir;
use shared_bounds::KeysOnce;

use crate::{data::Tokenizer, engine::Constrained};

/// Most bytes of a file with a grammar.
const MOST_BYTES: u64 = 1 << 20;

/// What a text may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Whatever a regular expression matches from beginning to end.
    Regex(String),
    /// JSON that follows a JSON schema.
    Json {
        /// The schema.
        schema: Value,
        /// Whether blanks between its parts are left out.
        compact: bool,
    },
    /// One of these texts.
    Choice(Vec<String>),
    /// Whatever a grammar in llguidance's variant of Lark derives.
    Lark(String),
}

/// What makes constraints of grammars.
pub trait Compile {
    /// The constraint for texts of a model that `name` asks for.
    ///
    /// # Errors
    /// A grammar that cannot be followed.
    fn compile(
        &self,
        name: &str,
        grammar: &Grammar,
        tokenizer: &Tokenizer,
        model: &ModelDir,
    ) -> anyhow::Result<Constrained>;
}

/// A program that knows no grammars.
#[derive(Debug, Clone, Copy)]
pub struct NoGrammars;

impl Compile for NoGrammars {
    fn compile(&self, name: &str, _: &Grammar, _: &Tokenizer, _: &ModelDir) -> anyhow::Result<Constrained> {
        bail!(
            "{name}: `rollout-serve generate` follows grammars, and this program does not; `cargo build --release \
             --workspace --bin rollout-serve` builds it"
        )
    }
}

/// A grammar that a command line asks for.
pub struct Wanted<'a> {
    /// The flag.
    pub name: &'static str,
    /// What it asks for.
    pub grammar: Grammar,
    /// What understands it.
    pub by: &'a dyn Compile,
}

/// What completions may be. Without a flag they may be anything.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(multiple = false)]
#[command(next_help_heading = "Grammar")]
pub struct GrammarFlags {
    /// Every completion is matched by this regular expression from beginning to end, or cut off at the longest length
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// Every completion is JSON that follows the JSON schema in this file, or cut off at the longest length
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// Every completion follows the grammar in this file, in llguidance's variant of Lark, or is cut off at the longest
    /// length
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
}

impl GrammarFlags {
    /// The grammar, which `by` is to understand.
    ///
    /// # Errors
    /// A file that cannot be read, or whose content is no JSON where it should be.
    pub fn wanted<'a>(&self, by: &'a dyn Compile) -> anyhow::Result<Option<Wanted<'a>>> {
        let (name, grammar) = match self {
            Self { regex: Some(regex), .. } => ("--regex", Grammar::Regex(regex.clone())),
            Self { json_schema: Some(path), .. } => {
                let text = read("--json-schema", path)?;
                let KeysOnce(schema) = serde_json::from_str(&text)
                    .with_context(|| format!("--json-schema {}: no JSON", path.display()))?;
                ("--json-schema", Grammar::Json { schema, compact: false })
            }
            Self { grammar: Some(path), .. } => ("--grammar", Grammar::Lark(read("--grammar", path)?)),
            _ => return Ok(None),
        };
        Ok(Some(Wanted { name, grammar, by }))
    }
}

fn read(flag: &str, path: &Path) -> anyhow::Result<String> {
    shared_bounds::read_text(path, MOST_BYTES).with_context(|| format!("{flag} {}", path.display()))
}
