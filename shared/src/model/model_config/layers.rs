//! Differences between the layers of a model: positions and reach of their attention.

use serde::{Deserialize, Serialize};

/// The tables that rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rotary {
    /// The tables of `rope_theta` and its scaling.
    Global,
    /// The tables of `rope_local_theta`, without scaling.
    Local,
}

/// Self-attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerKind {
    /// Rotary positions; `None` for a layer without any.
    pub rotary: Option<Rotary>,
    /// Sliding window: most positions that a query attends to, its own and those right before it. `None` for all
    /// positions.
    pub window: Option<usize>,
}
