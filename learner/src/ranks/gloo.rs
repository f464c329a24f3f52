//! Ranks that are processes, on one host or several: torch's own process group over Gloo.

use std::{
    env,
    ffi::{c_char, c_void},
    fmt,
    net::UdpSocket,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use shared::config::torchrun::Torchrun;
use tch::{Device, Tensor};

use super::{
    Ranks, Signs, TorchStore, Watch,
    shim::{outcome, text},
};
use crate::error::LearnerError;

/// How long ranks may take to connect to each other once all have come.
pub(crate) const CONNECT: Duration = Duration::from_secs(60);
/// The interface that ranks reach each other by, as in torch.
const INTERFACE: &str = "GLOO_SOCKET_IFNAME";
/// Deadline of a collective operation. It never passes, because signs of life show which rank is gone, and a rank that
/// waits for the next batch waits for the sampler.
const ENDLESS: Duration = Duration::from_secs(365 * 24 * 3600);
/// How often a rank that waits in a collective operation looks whether another rank is missing.
const LOOK: Duration = Duration::from_millis(100);
/// How long a rank that finds another one gone waits for its name.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// `gloo.cpp`.
mod c {
    use super::{c_char, c_void};

    unsafe extern "C" {
        pub fn tandem_ranks_join(
            store: *mut c_void,
            prefix: *const c_char,
            rank: i32,
            count: i32,
            interface: *const c_char,
            address: *const c_char,
            join_ms: i64,
            wait_ms: i64,
            reachable: *mut i32,
            joined: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn tandem_ranks_sum(group: *mut c_void, tensor: *mut c_void) -> *mut c_char;
        pub fn tandem_ranks_sum_at(group: *mut c_void, tensor: *mut c_void, owner: i32) -> *mut c_char;
        pub fn tandem_ranks_copy_of(group: *mut c_void, tensor: *mut c_void, owner: i32) -> *mut c_char;
        pub fn tandem_ranks_wait(group: *mut c_void, ms: i64, done: *mut i32) -> *mut c_char;
        pub fn tandem_ranks_leave(group: *mut c_void);
    }
}

/// One rank among processes.
pub struct Gloo {
    group: Mutex<Group>,
    rank: usize,
    count: usize,
    watch: Arc<Watch>,
}

/// The process group, which may go from thread to thread, one at a time.
struct Group {
    group: NonNull<c_void>,
    /// Whether a collective operation was given up.
    is_broken: bool,
}

// SAFETY: nothing in it belongs to a thread; the mutex around it lets in one at a time.
unsafe impl Send for Group {}

impl Drop for Group {
    fn drop(&mut self) {
        // A group that still waits for a rank would make this call wait as well. It ends with the process.
        if !self.is_broken {
            // SAFETY: it came from `tandem_ranks_join` and is given back once.
            unsafe { c::tandem_ranks_leave(self.group.as_ptr()) }
        }
    }
}

impl fmt::Debug for Gloo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.count)
    }
}

impl Gloo {
    /// Joins the `count` ranks that meet under `prefix`, which is used once. `master` is the first rank's host. The
    /// others reach this rank at the address from which this host reaches `master`, or at the address of the interface
    /// that GLOO_SOCKET_IFNAME names. `watch` says whether a rank is missing.
    ///
    /// # Errors
    /// Ranks that do not come before the deadline, or cannot be reached.
    pub fn join(
        store: &TorchStore,
        prefix: &str,
        [rank, count]: [usize; 2],
        master: &str,
        deadline: Duration,
        watch: Arc<Watch>,
    ) -> Result<Self, LearnerError> {
        let interface = env::var(INTERFACE).ok().filter(|name| !name.is_empty());
        let [interface, address, prefix] =
            [interface, Some(own_address(master)?), Some(prefix.to_owned())].map(|name| name.map(|name| text(&name)));
        let [interface, address, prefix] = [interface.transpose()?, address.transpose()?, prefix.transpose()?];
        let or_null = |text: &Option<std::ffi::CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let (mut reachable, mut joined) = (0, ptr::null_mut());
        // SAFETY: the store is open, the texts live until it has returned, and it writes the flag and the group only.
        let message = unsafe {
            c::tandem_ranks_join(
                store.as_ptr(),
                or_null(&prefix),
                rank as i32,
                count as i32,
                or_null(&interface),
                or_null(&address),
                deadline.as_millis() as i64,
                ENDLESS.as_millis() as i64,
                &raw mut reachable,
                &raw mut joined,
            )
        };
        // SAFETY: it is this function's message.
        unsafe { outcome(message) }.map_err(|why| {
            // A rank that could not open its device, say, has reported the failure; a rank that died as the others
            // joined has not. If this rank was not yet reachable, the failure is its own.
            let patience = if reachable == 0 { Duration::ZERO } else { NAMED_WITHIN };
            let why = watch.missing_within(patience).unwrap_or(why);
            LearnerError::Peer(format!("rank {rank} could not join the {count} ranks: {why}"))
        })?;
        let group = NonNull::new(joined).ok_or_else(|| LearnerError::Peer("no process group was made".into()))?;
        Ok(Self { group: Mutex::new(Group { group, is_broken: false }), rank, count, watch })
    }

    /// Runs a collective operation on a contiguous tensor. A tensor of a device goes by way of the host.
    fn together(
        &self,
        values: &Tensor,
        deed: impl FnOnce(*mut c_void, *mut c_void) -> *mut c_char,
    ) -> Result<(), LearnerError> {
        assert!(values.is_contiguous(), "what ranks share is contiguous");
        let host = values.to_device(Device::Cpu);
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        // A rank that was found missing stays missing. Otherwise a rank that was stopped would go on as if it had not
        // been left behind.
        let done = self.watch.missing().map_or(Ok(()), Err).and_then(|()| {
            let message = deed(group.group.as_ptr(), host.as_ptr().cast_mut().cast());
            // SAFETY: `deed` is one of the functions of `gloo.cpp`, and this its message.
            unsafe { outcome(message) }?;
            self.wait(&group)
        });
        if let Err(why) = done {
            group.is_broken = true;
            return Err(LearnerError::Peer(self.named(&why)));
        }
        if values.device() != Device::Cpu {
            values.shallow_clone().copy_(&host);
        }
        Ok(())
    }

    /// Waits for the operation that was begun, as long as no rank is missing.
    fn wait(&self, group: &Group) -> Result<(), String> {
        loop {
            let mut done = 0;
            // SAFETY: the group was joined, and something was begun.
            let message = unsafe { c::tandem_ranks_wait(group.group.as_ptr(), LOOK.as_millis() as i64, &raw mut done) };
            // SAFETY: it is this function's message.
            unsafe { outcome(message) }?;
            if done != 0 {
                return Ok(());
            }
            if let Some(missing) = self.watch.missing() {
                return Err(missing);
            }
        }
    }

    /// Says which rank is missing. Gloo's message about a broken connection, `why`, does not tell whose connection it
    /// was.
    fn named(&self, why: &str) -> String {
        let unnamed = || format!("rank {} of {} could not go on with the others: {why}", self.rank, self.count);
        self.watch.missing_within(NAMED_WITHIN).unwrap_or_else(unnamed)
    }
}

impl Ranks for Gloo {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), LearnerError> {
        if values.is_empty() {
            return Ok(());
        }
        let all = Tensor::from_slice(values);
        self.sum_tensor(&all)?;
        Ok(all.f_copy_data(values, values.len())?)
    }

    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError> {
        // SAFETY: `together` gives a group that was joined, and a tensor that lives until it is done; so below.
        self.together(values, |group, tensor| unsafe { c::tandem_ranks_sum(group, tensor) })
    }

    fn sum_at(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError> {
        // SAFETY: as above.
        self.together(values, |group, tensor| unsafe { c::tandem_ranks_sum_at(group, tensor, owner as i32) })
    }

    fn copy_of(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError> {
        // SAFETY: as above.
        self.together(values, |group, tensor| unsafe { c::tandem_ranks_copy_of(group, tensor, owner as i32) })
    }
}

/// A rank of a program whose ranks need no meeting, because all are started alike: by torchrun or with its variables.
#[derive(Debug)]
pub struct Joined {
    /// The ranks.
    pub ranks: Arc<Gloo>,
    _signs: Signs,
    _store: TorchStore,
}

impl Joined {
    /// Joins the ranks that are told the same.
    ///
    /// # Errors
    /// Ranks that do not come within a minute.
    pub fn among(told: &Torchrun) -> Result<Self, LearnerError> {
        let (host, port, at) = (&*told.master_addr, told.master_port, [told.rank, told.world_size]);
        let keeps = told.rank == 0 && !told.agent_listens;
        let store = if keeps { TorchStore::keep(host, port, CONNECT) } else { TorchStore::reach(host, port, CONNECT) }?;
        let signs = Signs::start(&store, "tandem", at)?;
        let ranks = Gloo::join(&store, "tandem", at, host, CONNECT, signs.watch())?;
        Ok(Self { ranks: Arc::new(ranks), _signs: signs, _store: store })
    }
}

/// The address from which this host reaches another one.
fn own_address(master: &str) -> Result<String, LearnerError> {
    let found = UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| socket.connect((master, 1)).map(|()| socket))
        .or_else(|_| {
            let socket = UdpSocket::bind("[::]:0")?;
            socket.connect((master, 1)).map(|()| socket)
        })
        .and_then(|socket| socket.local_addr());
    // Connecting sends nothing: it only chooses a route.
    let found = found.map_err(|e| LearnerError::Peer(format!("no way to the first rank's host {master}: {e}")))?;
    Ok(found.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_another_rank_has_not_joined_is_named_where_it_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let deadline = Duration::from_millis(500);
        let store = TorchStore::file(&dir.path().join("store"), deadline).unwrap();
        let watch = Watch::on();
        watch.name("rank 1 of the learner has ended: no GPU".into());
        let error = Gloo::join(&store, "alone", [0, 2], "127.0.0.1", deadline, watch).unwrap_err().to_string();
        assert!(error.contains("could not join the 2 ranks: rank 1 of the learner has ended: no GPU"), "{error}");
    }

    #[test]
    fn a_rank_that_cannot_join_waits_for_the_name_of_the_one_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let deadline = Duration::from_millis(100);
        let store = TorchStore::file(&dir.path().join("store"), deadline).unwrap();
        let watch = Watch::on();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(10 * deadline);
                watch.name("rank 1 of the learner has given no sign of life for 8 s".into());
            });
            Gloo::join(&store, "alone", [0, 2], "127.0.0.1", deadline, Arc::clone(&watch)).unwrap_err().to_string()
        });
        assert!(error.contains("rank 1 of the learner has given no sign"), "{error}");
    }

    #[test]
    fn who_was_found_missing_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let store = TorchStore::file(&dir.path().join("store"), CONNECT).unwrap();
        let watch = Watch::on();
        let alone = Gloo::join(&store, "alone", [0, 1], "127.0.0.1", CONNECT, Arc::clone(&watch)).unwrap();
        alone.sum(&mut [1.0]).unwrap();
        watch.name("rank 1 of the learner has given no sign of life for 8 s".into());
        let error = alone.sum(&mut [1.0]).unwrap_err().to_string();
        assert!(error.contains("rank 1 of the learner has given no sign"), "{error}");
    }

    #[test]
    fn ranks_of_one_host_reach_each_other_by_loopback() {
        assert_eq!(own_address("127.0.0.1").unwrap(), "127.0.0.1");
        assert!(own_address("no such host").is_err());
    }
}
