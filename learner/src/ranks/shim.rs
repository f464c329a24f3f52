//! What the functions of `gloo.cpp` have in common.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::error::LearnerError;

unsafe extern "C" {
    /// Frees memory that a function of `gloo.cpp` has given.
    pub(super) fn tandem_ranks_free(memory: *mut c_void);
    fn tandem_ranks_instructions() -> *mut c_char;
}

/// The outcome of a function of `gloo.cpp`, from the message that it returned.
///
/// # Safety
/// `message` came from such a function and is given to nobody else.
pub(super) unsafe fn outcome(message: *mut c_char) -> Result<(), String> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: it ends in a zero, and is freed once, after it was copied.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().lines().next().unwrap_or_default().to_owned();
    // SAFETY: as above.
    unsafe { tandem_ranks_free(message.cast()) };
    Err(text)
}

/// The vector instructions that libtorch uses on this machine.
pub(crate) fn instructions() -> String {
    // SAFETY: it has no conditions, and its text is given to nobody else.
    unsafe { outcome(tandem_ranks_instructions()) }.err().unwrap_or_default()
}

/// A text as a C string.
pub(super) fn text(text: &str) -> Result<CString, LearnerError> {
    CString::new(text).map_err(|_| LearnerError::Config(format!("{text:?} is no name of a place: it has a zero byte")))
}
