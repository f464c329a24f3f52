//! The system calls for which no crate in use has a safe function.
#![expect(unsafe_code, reason = "that is what the module is for")]

use std::{fs, os::fd::RawFd};

use rustix::{io, thread::UnshareFlags};

/// Closes every descriptor but those of the three streams, whoever left them open in a process that started this one.
pub fn close_inherited() {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().filter_map(number).collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > libc::STDERR_FILENO) {
        // SAFETY: this is the first thing that the process does, so nothing in it owns a descriptor beyond the streams; the
        // one of the folder that was just read is closed already.
        unsafe { libc::close(descriptor) };
    }
}

/// Leaves namespaces of the parent for new ones.
///
/// # Errors
/// Where the kernel does not allow it.
pub fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES));
    // SAFETY: the table of descriptors stays shared, which is what the function asks for.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}
