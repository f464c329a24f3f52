//! System calls that seccomp refuses to a program, beside what Landlock and the mounts forbid.
//!
//! Calls for which x86-64 has a newer form as well, such as `chmod`, are unknown to aarch64.

use std::{collections::BTreeMap, env, error::Error};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use super::Plan;

/// Calls that change what is not the program's (the clock, names of the machine, namespaces) or watch every file.
const NEVER: [i64; 11] = [
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_fanotify_init,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_mount_setattr,
    libc::SYS_userfaultfd,
];

/// Calls for memory that outlives a program or that no limit counts. They are answered as unknown, since programs then
/// go on without them.
const UNKNOWN: [i64; 8] = [
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_memfd_secret,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    // Its flags are in memory, where no filter sees them. The C library then calls `clone`.
    libc::SYS_clone3,
];

/// Flags of calls that make namespaces, in which a program would have every capability.
const NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    NEW_TIME,
];
const NEW_TIME: i32 = 0x80;

/// Calls that act on the process in their first argument, where 0 means the caller.
const OF_PROCESS: [i64; 6] = [
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Calls that look into another process.
const INTO_PROCESS: [i64; 6] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Calls that change a file's owner or attributes.
const OWNERS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
];
const ATTRIBUTES: [i64; 8] = [
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
];
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;

/// Calls that change a file's mode or times.
const MODES_AND_TIMES: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
];
/// Without a name for aarch64 in `libc`; newer calls have the same number everywhere.
const FCHMODAT2: i64 = 452;

/// Commands of `ioctl` that change a file's flags, project or version, or the label of its file system, and for which a
/// descriptor to read is enough: `FS_IOC_SETFLAGS`, `FS_IOC_SETVERSION` (each for 64 and for 32 bits), ext4's own forms
/// of the latter, `FS_IOC_FSSETXATTR`, `FS_IOC_SETFSLABEL`, `FS_IOC_SET_ENCRYPTION_POLICY`, `FS_IOC_ENABLE_VERITY`,
/// `FAT_IOCTL_SET_ATTRIBUTES`; and btrfs's `SUBVOL_SETFLAGS`, `SNAP_CREATE`, `SUBVOL_CREATE`, `SNAP_DESTROY`.
const FLAGS: [u64; 14] = [
    0x4008_6602,
    0x4004_6602,
    0x4008_7602,
    0x4004_7602,
    0x4008_6604,
    0x401c_5820,
    0x4100_9432,
    0x800c_6613,
    0x4080_6685,
    0x4004_7211,
    0x4008_941a,
    0x5000_9401,
    0x5000_940e,
    0x5000_940f,
];
/// The newer call for the same.
const FILE_SETATTR: i64 = 469;

/// Command of `prctl` with which a process hides from the other processes of its user.
const SET_DUMPABLE: u64 = 4;

/// The value of `which` in calls on priorities that means all processes of a user.
const PRIORITY_OF_USER: u64 = 2;
const IO_PRIORITY_OF_USER: u64 = 3;

/// The bit that marks a call of x86-64's x32 interface, which a filter sees as another call. Elsewhere no call has it.
const X32: i64 = 0x4000_0000;

type Calls = Vec<(i64, Vec<SeccompRule>)>;
type Done = Result<(), Box<dyn Error>>;

/// Refuses the calls that no program gets and, without namespaces, those that would reach beyond the program.
pub fn refuse_all(plan: &Plan) -> Done {
    let mut refused: Calls = NEVER.map(always).into();
    refused.push((libc::SYS_unshare, namespaces()?));
    refused.push((libc::SYS_clone, namespaces()?));
    for (call, argument) in [
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mknod, 1),
        (libc::SYS_mknodat, 2),
    ] {
        let devices = [libc::S_IFBLK, libc::S_IFCHR].map(|kind| rule(&[of_kind(argument, kind)?]));
        refused.push((call, devices.into_iter().collect::<Result<_, _>>()?));
    }
    refused.push((libc::SYS_prctl, vec![rule(&[equal(0, SET_DUMPABLE)?])?]));
    if !plan.in_namespace {
        refused.extend(INTO_PROCESS.map(always));
        for call in OF_PROCESS {
            refused.push((call, vec![rule(&[other(0, 0)?])?]));
        }
        for (call, user) in [(libc::SYS_setpriority, PRIORITY_OF_USER), (libc::SYS_ioprio_set, IO_PRIORITY_OF_USER)] {
            refused.push((call, vec![rule(&[other(1, 0)?])?, rule(&[equal(0, user)?])?]));
        }
        let sets = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
        refused.push((libc::SYS_prlimit64, vec![rule(&[other(0, 0)?, sets])?]));
    }
    answer(refused, libc::EPERM)?;
    answer(UNKNOWN.map(always).into(), libc::ENOSYS)?;
    if !plan.read_only {
        no_changes_of_files()?;
    }
    Ok(())
}

/// For a program without read-only mounts, where no filter can tell its own files from others. Changes of owners and
/// attributes fail, as programs know it from file systems that have neither. Changes of modes and times succeed without
/// an effect, since copying and unpacking end where they fail.
fn no_changes_of_files() -> Done {
    answer(OWNERS.iter().copied().map(always).collect(), libc::EPERM)?;
    answer(ATTRIBUTES.map(always).into(), libc::EOPNOTSUPP)?;
    let flags = FLAGS.into_iter().map(|command| rule(&[equal(1, command)?])).collect::<Result<_, _>>()?;
    answer(vec![(libc::SYS_ioctl, flags)], libc::ENOTTY)?;
    answer(vec![always(FILE_SETATTR)], libc::ENOSYS)?;
    answer(MODES_AND_TIMES.iter().copied().map(always).collect(), 0)
}

/// Refuses all sockets but those between processes of this machine. The error says that the network is down, which
/// tells this refusal from every other error.
pub fn no_network() -> Done {
    let others = vec![rule(&[other(0, libc::AF_UNIX.unsigned_abs().into())?])?];
    answer(vec![(libc::SYS_socket, others)], libc::ENETDOWN)?;
    // io_uring makes sockets without that call. Programs go on without io_uring where it is not known.
    answer(vec![always(libc::SYS_io_uring_setup)], libc::ENOSYS)
}

fn always(call: i64) -> (i64, Vec<SeccompRule>) {
    (call, Vec::new())
}

fn rule(conditions: &[SeccompCondition]) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(conditions.to_vec())
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn other(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn of_kind(argument: u8, kind: u32) -> Result<SeccompCondition, seccompiler::BackendError> {
    let mask = SeccompCmpOp::MaskedEq(libc::S_IFMT.into());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, mask, kind.into())
}

/// A rule for each flag in the first argument that makes a namespace.
fn namespaces() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let flag = |flag: i32| {
        let flag = u64::from(flag.unsigned_abs());
        rule(&[SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    NAMESPACES.into_iter().map(flag).collect()
}

/// Has the kernel answer these calls with an error, or with 0 as if they had succeeded.
fn answer(calls: Calls, error: i32) -> Done {
    let others = |(call, rules): &(i64, Vec<SeccompRule>)| (call | X32, rules.clone());
    let calls: BTreeMap<i64, Vec<SeccompRule>> = calls.iter().map(others).chain(calls.clone()).collect();
    let filter = SeccompFilter::new(
        calls,
        SeccompAction::Allow,
        SeccompAction::Errno(error.unsigned_abs()),
        env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    Ok(apply_filter(&program)?)
}
