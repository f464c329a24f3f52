//! The environment that libtorch computes best in.
//!
//! libgomp and the allocator read their variables before `main`, so whoever starts a learner sets them. A learner that
//! was started without them starts itself again, which loads libtorch twice.

use std::env;

/// Variables by which a user tells libgomp how its threads wait; any of them is respected.
const WAIT_VARIABLES: [&str; 3] = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"];

/// How long libgomp's threads wait awake.
///
/// They spin for some ten microseconds while they wait, and then sleep. By default they spin on. A learner that shares
/// its cores with the sampler, or with anything else, then spends most of its time waiting for a thread whose core
/// another thread spins on: without endless spinning, training on two busy cores was measured to be three times as
/// fast. Sleeping at once is no better there, and on idle cores it makes a step of a small model a sixth longer, since
/// an operation's threads are woken again and again.
const WAITING: (&str, &str) = ("GOMP_SPINCOUNT", "10000");

/// The memory of tensors stays with the process when the tensors are gone. Otherwise the process would give activations
/// of 10 MB each back to the system after every use, and ask for each of their pages again. Larger ones are given back,
/// which a learner in bf16 turns off as well.
const ALLOCATOR: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296");

/// Tensors of 2 MB and more lie on large pages, where the system has them for programs that ask.
const LARGE_PAGES: (&str, &str) = ("THP_MEM_ALLOC_ENABLE", "1");

/// The variables that a learner lacks in this process's environment. Those that the user has set stay.
#[must_use]
pub fn missing_for_learner() -> Vec<(&'static str, &'static str)> {
    let is_unset = |name: &str| env::var_os(name).is_none();
    let waiting = WAIT_VARIABLES.iter().all(|name| is_unset(name)).then_some(WAITING);
    let memory = [ALLOCATOR, LARGE_PAGES].into_iter().filter(|(name, _)| is_unset(name));
    waiting.into_iter().chain(memory).collect()
}
