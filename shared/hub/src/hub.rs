//! The Hub as the programs ask it: settings, patience, and the receiver of messages.

use crate::Settings;

/// The Hub, as one user sees it.
#[derive(Debug)]
pub struct Hub {
    pub(crate) settings: Settings,
    pub(crate) interrupted: fn() -> bool,
    pub(crate) tell: fn(&str),
}

impl Hub {
    /// A Hub that is asked until `interrupted` returns true, and that tells the user through `tell`.
    #[must_use]
    pub fn new(settings: Settings, interrupted: fn() -> bool, tell: fn(&str)) -> Self {
        Self { settings, interrupted, tell }
    }

    /// A Hub for a command that ends at a signal by itself.
    #[must_use]
    pub fn of_command() -> Self {
        Self::new(Settings::from_env(), || false, |line| shared::process::command_line::tell(line))
    }
}
