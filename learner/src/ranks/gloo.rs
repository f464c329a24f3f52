//! Ranks that are processes, on one host or several: torch's own process group over Gloo.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt,
    path::PathBuf,
    ptr::{self, NonNull},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tch::{Device, Tensor};

use super::Ranks;
use crate::error::LearnerError;

/// `gloo.cpp`.
mod c {
    use super::{c_char, c_void};

    unsafe extern "C" {
        pub fn tandem_ranks_free_message(message: *mut c_char);
        pub fn tandem_ranks_join(
            path: *const c_char,
            host: *const c_char,
            port: u16,
            address: *const c_char,
            rank: i32,
            count: i32,
            timeout_ms: i64,
            joined: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn tandem_ranks_sum(group: *mut c_void, values: *mut f64, count: i64) -> *mut c_char;
        pub fn tandem_ranks_sum_tensor(group: *mut c_void, tensor: *mut c_void) -> *mut c_char;
        pub fn tandem_ranks_leave(group: *mut c_void);
    }
}

/// Where ranks find each other: torch's `init_method`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// A file that all of them see, for ranks of one host. It must be a new one each time.
    File(PathBuf),
    /// The first rank listens here.
    Tcp {
        /// Its name or address.
        host: String,
        /// The port.
        port: u16,
    },
}

/// One rank among processes.
pub struct Gloo {
    group: Mutex<Group>,
    rank: usize,
    count: usize,
}

/// The process group, which may go from thread to thread, one at a time.
struct Group(NonNull<c_void>);

// SAFETY: nothing in it belongs to a thread; the mutex around it lets in one at a time.
unsafe impl Send for Group {}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: it came from `tandem_ranks_join` and is given back once.
        unsafe { c::tandem_ranks_leave(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Gloo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.count)
    }
}

impl Gloo {
    /// Joins the `count` ranks that meet at `meeting`. Ranks that meet at a file reach each other over loopback, others
    /// by the address that this host's name resolves to. `deadline` is for them to come, and then for every sum.
    ///
    /// # Errors
    /// Ranks that do not come before the deadline, or cannot be reached.
    pub fn join(meeting: &Meeting, rank: usize, count: usize, deadline: Duration) -> Result<Self, LearnerError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| LearnerError::Config(format!("{text:?} is no place for ranks to meet at")))
        };
        let (path, host, port, address) = match meeting {
            Meeting::File(path) => (Some(text(&path.to_string_lossy())?), None, 0, Some(text("127.0.0.1")?)),
            Meeting::Tcp { host, port } => (None, Some(text(host)?), *port, None),
        };
        let or_null = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut joined = ptr::null_mut();
        // SAFETY: the texts live until it has returned, and it writes the group only.
        let message = unsafe {
            c::tandem_ranks_join(
                or_null(&path),
                or_null(&host),
                port,
                or_null(&address),
                rank as i32,
                count as i32,
                deadline.as_millis() as i64,
                &raw mut joined,
            )
        };
        // SAFETY: it is this function's message.
        unsafe { outcome(message) }
            .map_err(|why| LearnerError::Peer(format!("rank {rank} could not join the {count} ranks: {why}")))?;
        let group = NonNull::new(joined).ok_or_else(|| LearnerError::Peer("no process group was made".into()))?;
        Ok(Self { group: Mutex::new(Group(group)), rank, count })
    }

    /// Has the process group do what all ranks do together.
    fn together(&self, deed: impl FnOnce(*mut c_void) -> *mut c_char) -> Result<(), LearnerError> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let message = deed(group.0.as_ptr());
        // SAFETY: `deed` is one of the functions of `gloo.cpp`, and this its message.
        unsafe { outcome(message) }.map_err(|why| {
            LearnerError::Peer(format!("rank {} of {} could not go on with the others: {why}", self.rank, self.count))
        })
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
        // SAFETY: the values are borrowed until it has returned.
        self.together(|group| unsafe { c::tandem_ranks_sum(group, values.as_mut_ptr(), values.len() as i64) })
    }

    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError> {
        assert!(values.is_contiguous(), "what ranks add up is contiguous");
        if values.device() != Device::Cpu {
            let host = values.to_device(Device::Cpu);
            self.sum_tensor(&host)?;
            values.shallow_clone().copy_(&host);
            return Ok(());
        }
        // SAFETY: the tensor is borrowed until it has returned.
        self.together(|group| unsafe { c::tandem_ranks_sum_tensor(group, values.as_ptr().cast_mut().cast()) })
    }
}

/// What a function of `gloo.cpp` says.
///
/// # Safety
/// `message` came from such a function and is given to nobody else.
unsafe fn outcome(message: *mut c_char) -> Result<(), String> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: it ends in a zero, and is freed once, after it was copied.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().lines().next().unwrap_or_default().to_owned();
    // SAFETY: as above.
    unsafe { c::tandem_ranks_free_message(message) };
    Err(text)
}
