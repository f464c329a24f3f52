//! Signals that ask for the end. They are caught once for the whole process: a caught signal never ends the process by
//! itself again, so all code that runs long must look here.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use anyhow::{Context, Result};
use shared::process::signals::of_the_end;
use signal_hook::{flag, low_level::signal_name};

/// Signals that came since the last look.
static CAUGHT: OnceLock<Vec<(i32, Arc<AtomicBool>)>> = OnceLock::new();
/// The first signal of all; 0 before it.
static FIRST: AtomicI32 = AtomicI32::new(0);

/// Catches the signals from now on.
///
/// # Errors
/// When the system refuses.
pub fn listen() -> Result<()> {
    let catch = |signal| {
        let pending = Arc::new(AtomicBool::new(false));
        flag::register(signal, Arc::clone(&pending)).context("cannot listen for Ctrl-C")?;
        Ok((signal, pending))
    };
    let caught = of_the_end().into_iter().map(catch).collect::<Result<_>>()?;
    let _ = CAUGHT.set(caught);
    Ok(())
}

/// Requests to end since the last call. Several signals of one kind count as one request until they are looked at.
pub fn requests() -> usize {
    let pending = CAUGHT.get().into_iter().flatten().filter(|(_, pending)| pending.swap(false, Ordering::Relaxed));
    let note = |(signal, _): &(i32, _)| {
        let _ = FIRST.compare_exchange(0, *signal, Ordering::Relaxed, Ordering::Relaxed);
    };
    pending.inspect(|caught| note(caught)).count()
}

/// Whether to go on.
///
/// # Errors
/// When a signal has ever asked for the end.
pub fn check() -> Result<(), Interrupted> {
    requests();
    match FIRST.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted(signal)),
    }
}

/// A signal asked for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted(i32);

impl Interrupted {
    /// 128 + signal, as shells count.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}", signal_name(self.0).unwrap_or("a signal"))
    }
}

impl std::error::Error for Interrupted {}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    use super::*;

    #[test]
    fn an_interruption_has_the_name_and_the_exit_code_that_shells_give_it() {
        assert_eq!((Interrupted(SIGINT).exit_code(), Interrupted(SIGTERM).exit_code()), (130, 143));
        assert_eq!(Interrupted(SIGHUP).to_string(), "interrupted by SIGHUP");
    }
}
