//! Bounds for grammars of strangers: what one may take in memory and time.
//!
//! A grammar is compiled beside the engine, and each step of a completion is a part of the engine's step. So a grammar
//! whose steps would take longer than some milliseconds is refused, or its completion given up, before others wait.

use llguidance::api::ParserLimits;
use rollout::commands::constraint::Grammar;
use serde_json::Value;

/// Most bytes of a grammar.
const MOST_BYTES: usize = 256 << 10;

/// Most alternatives of a choice.
const MOST_CHOICES: usize = 4096;

/// The library's bounds. Its documentation has the rates that the times come from.
pub fn parser() -> ParserLimits {
    ParserLimits {
        // 20 ms at the beginning.
        initial_lexer_fuel: 1_000_000,
        // 7 ms, and 2 ms, of a step.
        step_lexer_fuel: 100_000,
        step_max_items: 40_000,
        max_items_in_row: 2_000,
        // Of 1 to 2 kB; every completion that runs has a lexer of its own.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        // Errors would be pages long.
        verbose_errors: false,
    }
}

/// Refuses a grammar before it is looked into.
pub fn check(grammar: &Grammar) -> Result<(), String> {
    let bytes = match grammar {
        Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
        Grammar::Json { schema, .. } => schema.to_string().len(),
        Grammar::Choice(texts) => {
            if texts.is_empty() || texts.len() > MOST_CHOICES {
                return Err(format!("a choice is among 1 to {MOST_CHOICES} texts"));
            }
            texts.iter().map(String::len).sum()
        }
    };
    check_bytes(bytes)
}

/// Refuses a schema before it is looked into: a grammar with it would be too long.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    check_bytes(schema.to_string().len())
}

fn check_bytes(bytes: usize) -> Result<(), String> {
    if bytes > MOST_BYTES {
        return Err(format!("it has {bytes} bytes, and a grammar may have {MOST_BYTES}"));
    }
    Ok(())
}
