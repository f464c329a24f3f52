//! Bounds on the memory that parsing takes.
//!
//! A template of a hundred bytes can double a text forty times, and no interpreter of templates counts bytes. So the
//! allocator counts: within [`within`], what a thread asks for is subtracted from an allowance. Code cannot leave a
//! refused allocation with an error, so the program ends with one, before the machine is out of memory.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

/// The allocator of the programs: the system's, which also counts. It costs an addition for each allocation.
#[derive(Debug)]
pub struct Metered;

thread_local! {
    /// Bytes that this thread may still take.
    static LEFT: Cell<i64> = const { Cell::new(i64::MAX) };
    /// Bytes that it might take when the present allowance began.
    static ALLOWED: Cell<i64> = const { Cell::new(0) };
    /// The thing whose bytes are parsed; empty outside of [`within`].
    static WHAT: Cell<&'static str> = const { Cell::new("") };
}

/// Whether a program that exceeds an allowance aborts.
static ABORTS: AtomicBool = AtomicBool::new(false);

/// From now on, a program that exceeds an allowance aborts: a fuzzer catches the abort and keeps the input.
pub fn abort_on_excess() {
    ABORTS.store(true, Ordering::Relaxed);
}

/// Runs `work` with an allowance of `most` bytes of memory beyond what this thread has. Where [`Metered`] is the
/// allocator, exceeding the allowance ends the program with an error that names `what`; elsewhere nothing is counted.
pub fn within<T>(what: &str, most: u64, work: impl FnOnce() -> T) -> T {
    // SAFETY: the reference is in a cell of this thread, and `Account` takes it out before `what` ends.
    let what: &'static str = unsafe { std::mem::transmute::<&str, &'static str>(what) };
    let before = LEFT.get();
    let allowed = before.min(i64::try_from(most).unwrap_or(i64::MAX));
    let _account = Account { before, allowed, outer: ALLOWED.replace(allowed), what: WHAT.replace(what) };
    LEFT.set(allowed);
    work()
}

/// State that is put back when an allowance ends, also by a panic.
struct Account {
    before: i64,
    allowed: i64,
    /// The allowance around this one.
    outer: i64,
    what: &'static str,
}

impl Drop for Account {
    fn drop(&mut self) {
        let taken = self.allowed.saturating_sub(LEFT.get());
        LEFT.set(self.before.saturating_sub(taken));
        ALLOWED.set(self.outer);
        WHAT.set(self.what);
    }
}

/// Subtracts `bytes` that are asked for; a negative number is given back.
fn book(bytes: i64) {
    // A thread that ends has no account any more.
    let _ = LEFT.try_with(|left| {
        left.set(left.get().saturating_sub(bytes));
        if left.get() < 0 && !WHAT.get().is_empty() {
            exceeded(WHAT.get());
        }
    });
}

/// Ends the program. Nothing here asks for memory.
#[cold]
fn exceeded(what: &str) -> ! {
    LEFT.set(i64::MAX);
    let _ = writeln!(
        io::stderr(),
        "error: {}: takes more memory than anything harmless would: its bound is {} MiB",
        crate::OneLine(what),
        ALLOWED.get() >> 20
    );
    if ABORTS.load(Ordering::Relaxed) {
        std::process::abort();
    }
    // SAFETY: ends the process without running exit handlers of others, since this is the middle of an allocation.
    unsafe { libc::_exit(1) }
}

// SAFETY: all memory is the system's, asked for and given back with the layouts of the caller; nothing here unwinds.
unsafe impl GlobalAlloc for Metered {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        book(layout.size() as i64);
        // SAFETY: passed on as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        book(layout.size() as i64);
        // SAFETY: passed on as it came.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        book(-(layout.size() as i64));
        // SAFETY: passed on as it came.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        book(size as i64 - layout.size() as i64);
        // SAFETY: passed on as it came.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[global_allocator]
    static MEMORY: Metered = Metered;

    #[test]
    fn what_is_given_back_may_be_taken_again_and_allowances_nest() {
        within("outer", 1 << 20, || {
            for _ in 0..100 {
                std::hint::black_box(vec![1_u8; 1 << 19]);
            }
            let kept = within("inner", 1 << 30, || vec![1_u8; 1 << 19]);
            assert!(LEFT.get() <= 1 << 19, "what the inner one kept is the outer one's");
            drop(kept);
            assert!(LEFT.get() > 1 << 19);
        });
        assert_eq!(WHAT.get(), "");
        assert!(LEFT.get() > 1 << 40);
    }

    /// The child of the test below.
    #[test]
    fn takes_too_much_where_asked() {
        if std::env::var_os("TAKE_TOO_MUCH").is_some() {
            within("a\nfile", 1 << 20, || {
                let mut text = String::from("ab");
                loop {
                    text = text.repeat(2);
                }
            });
        }
    }

    #[test]
    fn who_exceeds_an_allowance_ends_with_an_error() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["takes_too_much_where_asked", "--nocapture"]).env("TAKE_TOO_MUCH", "1");
        let output = child.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(
            words.contains("error: a\\nfile: takes more memory than anything harmless would: its bound is 1 MiB\n"),
            "{words}"
        );
    }
}
