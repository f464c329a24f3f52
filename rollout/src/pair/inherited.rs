//! What the launcher leaves open for this process.

use std::{fs, io};

/// Keeps the descriptors that this process was given (but standard input, output and error) from the processes that it
/// starts: the lock on the run directory is for the pair, and a reward command that outlives a killed sampler must not
/// hold it.
///
/// # Errors
/// When the system does not list them.
pub fn keep() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(descriptor) = number.filter(|&descriptor| descriptor > libc::STDERR_FILENO) {
            // SAFETY: sets a flag and touches no memory; of the listing's own descriptor it is set already.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
