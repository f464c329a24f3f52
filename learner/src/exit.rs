//! The end of the process, without libtorch's destructors.
//!
//! At a regular exit, libtorch takes its tables of operators apart, one operator after the other. This takes a good
//! part of a short run's processor time, and the system frees the memory anyway.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

unsafe extern "C" {
    /// Registers a function that is called at exit, with the exit status. A function of glibc, as [`libc`] has none
    /// that is told the status.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Lets the process end once everything is done that is registered after this call. Call it first in `main`: the
/// destructors of libraries are registered before.
pub fn skip_destructors() {
    extern "C" fn leave(status: c_int, _: *mut c_void) {
        // SAFETY: output of C's library is flushed here, as `_exit` would lose it. Rust flushes its own before.
        unsafe {
            libc::fflush(ptr::null_mut());
            libc::_exit(status);
        }
    }
    // SAFETY: the function may be called at any time, and needs no argument. If it cannot be registered, the process
    // ends later.
    unsafe { on_exit(leave, ptr::null_mut()) };
}
