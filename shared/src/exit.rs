//! Exit codes of the two processes, as the launcher reads them. 0 is that the run is over, 1 an error.

/// SIGTERM or SIGINT came and the process ended in order: 128 + SIGTERM, as shells count.
pub const ENDED_BY_SIGNAL: u8 = 143;

/// An error that would come again: the process is not started again, however far it had come.
pub const HOPELESS: u8 = 3;
