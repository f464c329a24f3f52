//! Namespaces. A PID namespace ends as a whole. A mount namespace gives the program its own `/proc` and `/dev/shm` and
//! makes the rest read-only.

use std::{env, ffi::CString, fs, io, path::PathBuf};

use rustix::{
    fs::CWD,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount, open_tree,
    },
    process::{getgid, getuid},
    thread::{
        CapabilitySet, UnshareFlags, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
        set_capabilities,
    },
};

use super::{
    Plan,
    shared_memory::SHARED_MEMORY,
    system::{set_read_only, unshare},
};

/// Puts the later children of this process into a new PID namespace.
///
/// # Errors
/// Where the kernel, or the container that this runs in, does not allow it.
pub fn enter() -> io::Result<()> {
    let (user, group) = (getuid(), getgid());
    // Root does without a user namespace where it may: in one, files of other users would look like nobody's.
    if user.is_root() && unshare(UnshareFlags::NEWPID).is_ok() {
        return Ok(());
    }
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
    keep_right_to_mount()?;
    unshare(UnshareFlags::NEWPID)?;
    Ok(())
}

/// Passes the right to mount in the user namespace on to the program that this process becomes.
fn keep_right_to_mount() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

/// For the first process of the namespace: mounts its own `/proc` and `/dev/shm`, and gives up the right to mount.
/// Returns whether everything else is read-only.
///
/// # Errors
/// Where the kernel does not allow it. Containers often refuse a new `/proc`, and the old one would confuse programs.
pub fn furnish(plan: &Plan) -> io::Result<bool> {
    let here = env::current_dir()?;
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let read_only = make_read_only(plan).is_ok();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", flags | MountFlags::NOEXEC, None)?;
    let options = CString::new(format!("mode=1777,size={}", plan.memory)).expect("digits and letters");
    mount("tmpfs", SHARED_MEMORY, "tmpfs", flags, options.as_c_str())?;
    // The working directory may lie beneath one of the new mounts; its path leads to the visible folder.
    env::set_current_dir(here)?;
    clear_ambient_capability_set()?;
    Ok(read_only)
}

/// Makes everything read-only but the writable folders. Landlock has no right for calls that change a file without
/// opening it: its mode, owner, times and attributes.
fn make_read_only(plan: &Plan) -> rustix::io::Result<()> {
    let recursive = OpenTreeFlags::from_bits_retain(libc::AT_RECURSIVE.unsigned_abs());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive;
    let folders: Vec<&PathBuf> = plan.writable.iter().chain([&plan.scratch]).collect();
    // Copies of the mounts as they are now: read-only parts stay read-only.
    let kept = folders.iter().map(|folder| open_tree(CWD, folder.as_path(), flags));
    let kept = kept.collect::<rustix::io::Result<Vec<_>>>()?;
    set_read_only(c"/", true)?;
    let moved = kept.iter().zip(&folders).try_for_each(|(tree, folder)| {
        move_mount(tree, c"", CWD, folder.as_path(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
    });
    // A half-done change would keep the program from its own folder.
    moved.or_else(|error| set_read_only(c"/", false).and(Err(error)))
}
