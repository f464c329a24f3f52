//! Where environments come from.

use std::time::Duration;

use shared::config::{EnvironmentFactory, RewardHost};

/// The options of environments.
#[derive(Debug, Clone)]
pub struct Sources {
    /// TRL's `tools`: functions as `file.py:function` or `module.function`, built in as `builtin:calculator`, those of
    /// a program as `command:./my_tools`, or of a server of MCP as `mcp:http://…`. They come first in the prompt, in
    /// this order.
    pub tools: Vec<String>,
    /// TRL's `environment_factory`. A class is `file.py:Class` or `module.Class`, built in as `builtin:maze`, a program
    /// as `command:./my_env`, or on a server of OpenEnv as `openenv:ws://…`.
    pub environment_factory: Option<EnvironmentFactory>,
    /// The raters: entries of `reward_funcs` whose functions ask for `environments` (TRL).
    pub raters: Vec<String>,
    /// Interpreter, folder, number and limits of the processes: those of rewards.
    pub host: RewardHost,
    /// How long a call of a tool, a reset and a score may take, each (`environment_timeout`).
    pub timeout: Duration,
    /// How long a rater may take for a group (`reward_timeout`).
    pub reward_timeout: Duration,
}
