//! Conversations against TRL's, and their rules with any turns and templates.

mod golden;
mod properties;
mod templates;

use super::*;

/// Limits that no test reaches by accident.
const WIDE: Limits =
    Limits { max_completion_length: 10_000, max_model_len: 100_000, max_tool_calling_iterations: None };
