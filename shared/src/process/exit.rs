//! Exit codes. 0 means that the run is over, 1 an error, 2 a command line that cannot be read.
//!
//! [`ENDED_BY_SIGNAL`] and [`HOPELESS`] are those of the two processes, as the launcher reads them, [`HOPELESS`] and
//! [`AGAIN`] those of a rank of the learner, as `tandem learner-rank` does.

/// An error, which was told.
pub const ERROR: u8 = 1;

/// SIGTERM or SIGINT came and the process ended in order: 128 + SIGTERM, as in shells.
pub const ENDED_BY_SIGNAL: u8 = 143;

/// An error that would come again: the process is not started again, however far it got.
pub const HOPELESS: u8 = 3;

/// `tandem train` made every step, and none of them had a gradient.
pub const NOTHING_LEARNED: u8 = 4;

/// The first rank of a learner starts again, at a roll-back, and this rank must join it again.
pub const AGAIN: u8 = 5;
