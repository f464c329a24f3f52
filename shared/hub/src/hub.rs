//! How the Hub is asked: with which settings, for how long, and who is told.

use crate::Settings;

/// The Hub, as one user sees it.
#[derive(Debug)]
pub struct Hub {
    pub(crate) settings: Settings,
    pub(crate) interrupted: fn() -> bool,
    pub(crate) tell: fn(&str),
}

impl Hub {
    /// A Hub that is waited for until `interrupted` says otherwise, and of which `tell` says what a user should know.
    #[must_use]
    pub fn new(settings: Settings, interrupted: fn() -> bool, tell: fn(&str)) -> Self {
        Self { settings, interrupted, tell }
    }

    /// One of a command that ends at a signal by itself.
    #[must_use]
    pub fn of_command() -> Self {
        Self::new(Settings::from_env(), || false, |line| shared::command_line::tell(line))
    }
}
