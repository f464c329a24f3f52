//! What programs do unasked: for a socket of the internet the kernel kills them, and of every file that they are about
//! to make, open for writing or rename it tells this process first.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use harness::cli::{self, Finished};
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// Runs a command to its end. The set is what it, and whatever it started, made or wrote: true paths, devices and
/// `/proc` left out.
pub fn finish(mut command: Command) -> (Finished, BTreeSet<PathBuf>) {
    let over = Arc::new(AtomicBool::new(false));
    let listener = watch(&mut command, over.clone());
    let finished = cli::finish(command);
    over.store(true, Ordering::Relaxed);
    (finished, listener.join().expect("the watching thread does not panic"))
}

/// A system call that makes files or opens them for writing.
struct Call {
    number: i64,
    /// The argument with the flags that say whether it opens for writing; without it, the call always counts.
    flags: Option<usize>,
    /// The arguments with paths, each with the argument for the folder that it is relative to.
    paths: &'static [(Option<usize>, usize)],
}

const fn call(number: i64, flags: Option<usize>, paths: &'static [(Option<usize>, usize)]) -> Call {
    Call { number, flags, paths }
}

/// Those without a folder as an argument are unknown to aarch64.
const CALLS: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_open, Some(1), &[(None, 0)]),
    call(libc::SYS_openat, Some(2), &[(Some(0), 1)]),
    // Its flags are in memory.
    call(libc::SYS_openat2, None, &[(Some(0), 1)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_creat, None, &[(None, 0)]),
    call(libc::SYS_truncate, None, &[(None, 0)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_mkdir, None, &[(None, 0)]),
    call(libc::SYS_mkdirat, None, &[(Some(0), 1)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_mknod, None, &[(None, 0)]),
    call(libc::SYS_mknodat, None, &[(Some(0), 1)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_rename, None, &[(None, 0), (None, 1)]),
    call(libc::SYS_renameat, None, &[(Some(0), 1), (Some(2), 3)]),
    call(libc::SYS_renameat2, None, &[(Some(0), 1), (Some(2), 3)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_link, None, &[(None, 1)]),
    call(libc::SYS_linkat, None, &[(Some(2), 3)]),
    #[cfg(target_arch = "x86_64")]
    call(libc::SYS_symlink, None, &[(None, 1)]),
    call(libc::SYS_symlinkat, None, &[(Some(1), 2)]),
];

const WRITES: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

/// The filter: kills at `socket(AF_INET…)` and `socket(AF_INET6…)`, asks about [`CALLS`], and lets the rest pass.
fn filter() -> Vec<sock_filter> {
    let instruction =
        |code: u32, k: u32, if_so, otherwise| sock_filter { code: code as u16, jt: if_so, jf: otherwise, k };
    let load = |offset| instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0);
    let number = || load(mem::offset_of!(libc::seccomp_data, nr) as u32);
    // The lower half of an argument.
    let argument = |index: usize| load((mem::offset_of!(libc::seccomp_data, args) + 8 * index) as u32);
    let skip_unless = |value: i64, skipped| instruction(BPF_JMP | BPF_JEQ | BPF_K, value as u32, 0, skipped);
    let end = |action| instruction(BPF_RET | BPF_K, action, 0, 0);
    let mut filter = vec![
        number(),
        skip_unless(libc::SYS_socket, 5),
        argument(0),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, libc::AF_INET as u32, 1, 0),
        skip_unless(i64::from(libc::AF_INET6), 1),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    for call in CALLS {
        match call.flags {
            None => filter.push(skip_unless(call.number, 1)),
            Some(index) => filter.extend([
                skip_unless(call.number, 4),
                argument(index),
                instruction(BPF_JMP | BPF_JSET | BPF_K, WRITES, 1, 0),
                end(libc::SECCOMP_RET_ALLOW),
            ]),
        }
        filter.push(end(libc::SECCOMP_RET_USER_NOTIF));
    }
    filter.push(end(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Has the kernel put the filter before the program and all that come of it. The thread answers the kernel until it is
/// told that the program is over.
fn watch(command: &mut Command, over: Arc<AtomicBool>) -> JoinHandle<BTreeSet<PathBuf>> {
    let (own, theirs) = UnixStream::pair().unwrap();
    let mut filter = filter();
    let apply = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let operation = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        // SAFETY: these are system calls only. The program is a valid filter of the stated length, which the kernel
        // copies.
        let (listener, pid) = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            (libc::syscall(libc::SYS_seccomp, operation.0, operation.1, &raw const program) as i32, libc::getpid())
        };
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        // Exec closes the descriptor, so this process waits until the thread has a copy of it.
        (&theirs).write_all(&pid.to_ne_bytes())?;
        (&theirs).write_all(&listener.to_ne_bytes())?;
        (&theirs).read_exact(&mut [0])
    };
    // SAFETY: between fork and exec there are system calls only, all of them async-signal-safe.
    unsafe { command.pre_exec(apply) };
    thread::spawn(move || listen(own, &over))
}

fn listen(child: UnixStream, over: &AtomicBool) -> BTreeSet<PathBuf> {
    let mut made = BTreeSet::new();
    let number = || {
        let mut bytes = [0; 4];
        (&child).read_exact(&mut bytes).map(|()| i32::from_ne_bytes(bytes))
    };
    // A program that could not be started says nothing; whoever started it reports that.
    let (Ok(pid), Ok(descriptor)) = (number(), number()) else { return made };
    let listener = copy_of(pid, descriptor).expect("a descriptor of a child can be had");
    (&child).write_all(&[0]).unwrap();
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, on the stack.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 50) } > 0;
        if poll.revents & libc::POLLIN != 0 {
            made.extend(answer(&listener));
        } else if ready || over.load(Ordering::Relaxed) {
            return made;
        }
    }
}

/// A descriptor of another process as one of this process.
fn copy_of(pid: i32, descriptor: i32) -> io::Result<OwnedFd> {
    let own = |number: i64| match i32::try_from(number) {
        // SAFETY: the kernel has just made it, for nobody else.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: system calls that read nothing but their arguments.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// Reads what the next waiting call is about, and lets it go on.
fn answer(listener: &OwnedFd) -> Vec<PathBuf> {
    // SAFETY: all of its fields are numbers. The kernel wants it to be zero.
    let mut asked: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the structure that this request fills in.
    if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
        // The caller was killed while it waited.
        return Vec::new();
    }
    let called =
        CALLS.iter().find(|call| call.number == i64::from(asked.data.nr)).expect("the filter asks about no other");
    let path = |&(folder, name): &(Option<usize>, usize)| {
        let folder = folder.map_or(libc::AT_FDCWD, |index| asked.data.args[index] as i32);
        true_path(asked.pid, folder, asked.data.args[name])
    };
    let paths = called.paths.iter().filter_map(path).filter(|path| is_file(path)).collect();
    let go_on = libc::seccomp_notif_resp {
        id: asked.id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: the structure that this request reads. It fails when the caller was killed meanwhile, which is no matter.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const go_on) };
    paths
}

/// The path that a process means by a text in its memory; none if no such folder exists, in which case the call will
/// fail.
fn true_path(pid: u32, folder: i32, text: u64) -> Option<PathBuf> {
    let process = Path::new("/proc").join(pid.to_string());
    let mut bytes = [0; libc::PATH_MAX as usize];
    let read = File::open(process.join("mem")).ok()?.read_at(&mut bytes, text).ok()?;
    let name = std::ffi::CStr::from_bytes_until_nul(&bytes[..read]).ok()?.to_str().ok()?;
    let folder = match folder {
        libc::AT_FDCWD => process.join("cwd"),
        descriptor => process.join("fd").join(descriptor.to_string()),
    };
    let path = fs::read_link(folder).ok()?.join(name);
    let new = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    fs::canonicalize(&path).ok().or_else(new)
}

/// Whether something at this path is, or would be, neither a device nor an image of the kernel's state.
fn is_file(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let device = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device());
    !device && !path.starts_with("/proc")
}
