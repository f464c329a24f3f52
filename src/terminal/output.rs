//! The launcher's messages to the user, and its results. The reader of the output may be gone before the run is over:
//! Ctrl-C ends the `tee` of `tandem train run.toml 2>&1 | tee log` too. `eprintln!` and `println!` panic then, and
//! unwinding would kill the pair, so output without a reader is dropped.

use std::{
    fmt::Display,
    io::{ErrorKind, Write},
};

pub use shared::process::command_line::tell;

/// A line of the result, on stdout. Colours in it are for terminals, unless `NO_COLOR` is set.
pub fn print(line: impl Display) {
    match writeln!(anstream::stdout(), "{line}") {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => tell(format_args!("warning: stdout cannot be written: {e}")),
        _ => (),
    }
}
