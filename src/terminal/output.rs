//! The launcher's messages to the user, and its results. The reader of the output may be gone before the run is over:
//! Ctrl-C ends the `tee` of `tandem train run.toml 2>&1 | tee log` too. `eprintln!` and `println!` panic then, and
//! unwinding would kill the pair, so output without a reader is dropped.

use std::{
    fmt::Display,
    io::{ErrorKind, Write},
    sync::atomic::{AtomicBool, Ordering},
};

pub use shared::process::command_line::tell;

/// Whether a part of the result is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// A line of the result, on stdout. Colours in it are for terminals, unless `NO_COLOR` is set. A disk that is full lets
/// the command go on, and fail at its end ([`is_lost`]).
pub fn print(line: impl Display) {
    match writeln!(anstream::stdout(), "{line}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe && !LOST.swap(true, Ordering::Relaxed) => {
            tell(format_args!("error: stdout cannot be written: {e}"));
        }
        _ => (),
    }
}

/// Whether a part of the result could not be written, though somebody may read it.
pub fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}
