//! What passes between a policy and its tools: the calls of a turn, and the replies to them.

use serde_json::Value;

/// A call that a turn made, ready to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The name that the model wrote; there may be no such tool.
    pub name: String,
    /// The arguments by name; an empty object where the model wrote none or null. The formats in JSON allow any other
    /// value here. The tool answers such a call with an error, as TRL's `f(**arguments)` does.
    pub arguments: Value,
}

/// The reply of a tool to one call.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The name of the tool.
    pub name: String,
    /// A text, or a list of content blocks whose parts are texts.
    pub content: Value,
    /// Whether the call failed. The policy reads the content of a failed call like any other.
    pub failed: bool,
}
