//! Namespaces: a PID namespace ends as a whole, and one of mounts gives it a `/proc` and a `/dev/shm` of its own.

use std::{ffi::CString, fs, io};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{getgid, getuid},
    thread::{
        CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
        set_capabilities,
    },
};

use super::system::unshare;

/// Lets children be born in a new PID namespace.
///
/// # Errors
/// Where the kernel, or the container that this runs in, does not allow it.
pub fn enter() -> io::Result<()> {
    let (user, group) = (getuid(), getgid());
    // Root not in a user namespace, where it would lose its right to read what belongs to others.
    if !user.is_root() {
        unshare(UnshareFlags::NEWUSER)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
        keep_right_to_mount()?;
    }
    unshare(UnshareFlags::NEWPID)?;
    Ok(())
}

/// Lets the right to mount in the user namespace pass to the program that this becomes.
fn keep_right_to_mount() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

/// In the first process of the namespace: mounts what is to be its own, and gives the right to mount away. Containers often
/// refuse it a `/proc`, without which it would confuse programs.
///
/// # Errors
/// Where the kernel does not allow it.
pub fn furnish(memory: u64) -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", flags | MountFlags::NOEXEC, None)?;
    let options = CString::new(format!("mode=1777,size={memory}")).expect("digits and letters");
    mount("tmpfs", "/dev/shm", "tmpfs", flags, options.as_c_str())?;
    clear_ambient_capability_set()?;
    Ok(())
}
