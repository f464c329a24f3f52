//! What goes wrong with environments.

/// Why a conversation's environment failed. The conversation has no reward then, and is left out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// A function took too long, and was cancelled or left alone.
    #[error("{environment}: {function} has not answered within {seconds} s (`environment_timeout`)")]
    Late {
        /// The entry of the options that names the environment.
        environment: String,
        /// The function.
        function: String,
        /// The time that it has.
        seconds: f64,
    },
    /// Its process answers nothing at all.
    #[error(
        "{environment}: its process has answered nothing for {seconds} s (`environment_timeout`) and was ended; {hint}"
    )]
    Stuck {
        /// The entry of the options that names the environment.
        environment: String,
        /// How long it was waited for.
        seconds: f64,
        /// What may have been the reason.
        hint: &'static str,
    },
    /// Its process ended.
    #[error("{environment}: the process ended{end}")]
    Died {
        /// The entry of the options that names the environment.
        environment: String,
        /// How it ended, in parentheses, with the option that may have been in the way; may be empty.
        end: String,
        /// The last lines that it wrote to standard error.
        words: Vec<String>,
    },
    /// A function returned more than can be passed on.
    #[error("{environment}: {reason}")]
    TooLong {
        /// The entry of the options that names the environment.
        environment: String,
        /// The function, the size and the bound.
        reason: String,
    },
    /// A function raised an error where no tool was called, or returned what cannot be used.
    #[error("{environment}: {reason}")]
    Broken {
        /// The entry of the options that names the environment.
        environment: String,
        /// The error in one line.
        reason: String,
        /// Where it arose.
        traceback: Option<String>,
    },
    /// The row has no environment.
    #[error(transparent)]
    Row(#[from] RowError),
}

impl Failure {
    /// One word for the kind of failure.
    #[cfg(test)]
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Late { .. } => "late",
            Self::Stuck { .. } => "stuck",
            Self::Died { .. } => "died",
            Self::TooLong { .. } => "too_long",
            Self::Broken { .. } => "broken",
            Self::Row(_) => "row",
        }
    }

    /// Whether time was the reason.
    #[must_use]
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. } | Self::Stuck { .. })
    }

    /// More lines about the failure: a traceback, or the last words of the process.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Broken { traceback: Some(traceback), .. } => traceback.lines().map(str::to_owned).collect(),
            Self::Died { words, .. } => words.clone(),
            _ => Vec::new(),
        }
    }

    /// The same failure of another environment: many share a process.
    pub(crate) fn of(mut self, name: &str) -> Self {
        match &mut self {
            Self::Late { environment, .. }
            | Self::Stuck { environment, .. }
            | Self::Died { environment, .. }
            | Self::TooLong { environment, .. }
            | Self::Broken { environment, .. } => name.clone_into(environment),
            Self::Row(_) => {}
        }
        self
    }
}

/// Why a row of the dataset has no environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The column is not there, or is no text.
    #[error("the row has no text in the column `environment`, which chooses one of `environment_factory`: {known}")]
    NoColumn {
        /// The names that there are.
        known: String,
    },
    /// The column names none that there is.
    #[error("the column `environment` says `{name}`, and `environment_factory` has {known}")]
    Unknown {
        /// What the column says.
        name: String,
        /// The names that there are.
        known: String,
    },
}

/// Why environments cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An entry that names nothing.
    #[error("`{option}`: `{entry}`: {reason}")]
    Entry {
        /// The option.
        option: &'static str,
        /// The entry.
        entry: String,
        /// What is wrong, and the way out.
        reason: String,
    },
    /// Two tools of one conversation with the same name.
    #[error("{environment}: two tools are called `{tool}`, and a model could not choose: rename one")]
    TwoTools {
        /// The entry of the environment, or `tools`.
        environment: String,
        /// The name.
        tool: String,
    },
    /// Python, a program, or the user's code says no.
    #[error("{reason}")]
    Process {
        /// What is wrong, with file and line where there are any.
        reason: String,
        /// The traceback, or the last words of the process.
        words: Vec<String>,
    },
    /// The system gives no thread.
    #[error("environments need a thread of their own")]
    Thread(#[from] std::io::Error),
}

impl StartError {
    /// More lines about the error.
    #[must_use]
    pub fn words(&self) -> &[String] {
        match self {
            Self::Process { words, .. } => words,
            _ => &[],
        }
    }
}
