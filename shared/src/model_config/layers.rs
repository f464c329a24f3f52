//! What the layers of a model differ in: the positions and the reach of their attention.

use serde::{Deserialize, Serialize};

/// Which tables turn queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rotary {
    /// Those of `rope_theta` and its scaling.
    Global,
    /// Those of `rope_local_theta`, without scaling.
    Local,
}

/// Self-attention of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LayerKind {
    /// Rotary positions; `None` is a layer without any.
    pub rotary: Option<Rotary>,
    /// Sliding window: how many positions a query sees at most, its own and those right before it. `None` is all of
    /// them.
    pub window: Option<usize>,
}
