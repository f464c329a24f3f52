//! Parsers that panic where they should return an error.

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

use crate::memory;

thread_local! {
    /// Whether the code that catches a panic of this thread also reports it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of others on bytes of others: a panic becomes an error, which is not printed, and memory is bounded as by
/// [`within`](crate::within). `what` names the source of the bytes, for instance by its path.
///
/// # Errors
/// The message of the panic, on one line.
pub fn guarded<T>(what: &str, most: u64, parse: impl FnOnce() -> T) -> Result<T, String> {
    keep_quiet_where_asked();
    let before = QUIET.replace(true);
    // A value that `parse` has half changed is dropped with it.
    let result = panic::catch_unwind(AssertUnwindSafe(|| memory::within(what, most, parse)));
    QUIET.set(before);
    result.map_err(|payload| format!("the parser gave up: {}", crate::OneLine(words(payload.as_ref()))))
}

/// Puts a hook before the present one, once.
fn keep_quiet_where_asked() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
}

fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it does not say why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_of_one_line() {
        assert_eq!(guarded("a file", 1 << 20, || 7), Ok(7));
        let error = guarded("a file", 1 << 20, || panic!("said {}", 7)).unwrap_err();
        assert_eq!(error, "the parser gave up: said 7");
        let error = guarded("a file", 1 << 20, || panic!("two\nlines")).unwrap_err();
        assert_eq!(error, "the parser gave up: two\\nlines");
        assert!(!QUIET.get());
    }
}
