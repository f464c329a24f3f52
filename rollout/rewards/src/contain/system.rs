//! The system calls for which no crate in use has a safe function.
#![expect(unsafe_code, reason = "that is what the module is for")]

use std::{ffi::CStr, fs, mem, os::fd::RawFd};

use rustix::{io, thread::UnshareFlags};

/// Closes every descriptor but the three streams, also those that a parent process left open.
pub fn close_inherited() {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().filter_map(number).collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > libc::STDERR_FILENO) {
        // SAFETY: this is the first thing that the process does, so nothing in it owns a descriptor beyond the streams;
        // the one of the folder that was just read is closed already.
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

/// Makes a mount and all below it read-only, or takes that back.
///
/// # Errors
/// Where the kernel does not know the call (before 5.12) or does not allow it.
pub fn set_read_only(path: &CStr, read_only: bool) -> io::Result<()> {
    let flag = libc::MOUNT_ATTR_RDONLY;
    let (attr_set, attr_clr) = if read_only { (flag, 0) } else { (0, flag) };
    let change = libc::mount_attr { attr_set, attr_clr, propagation: 0, userns_fd: 0 };
    // SAFETY: the path ends with a zero, and the kernel reads as many bytes of `change` as it is told that there are.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const change,
            mem::size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(io::Errno::IO))
    }
}
