//! torch's stores: a few keys and values that all ranks see, by which they find each other.

use std::{
    ffi::{c_char, c_void},
    io,
    net::{TcpListener, ToSocketAddrs},
    os::fd::IntoRawFd,
    path::Path,
    ptr::{self, NonNull},
    slice,
    time::Duration,
};

use super::shim::{outcome, tandem_ranks_free, text};
use crate::error::LearnerError;

/// `gloo.cpp`.
mod c {
    use super::{c_char, c_void};

    unsafe extern "C" {
        pub fn tandem_store_file(path: *const c_char, timeout_ms: i64, opened: *mut *mut c_void) -> *mut c_char;
        pub fn tandem_store_tcp(
            host: *const c_char,
            port: u16,
            listener: i32,
            timeout_ms: i64,
            opened: *mut *mut c_void,
        ) -> *mut c_char;
        pub fn tandem_store_again(store: *mut c_void, opened: *mut *mut c_void) -> *mut c_char;
        pub fn tandem_store_set(store: *mut c_void, key: *const c_char, bytes: *const u8, length: usize)
        -> *mut c_char;
        pub fn tandem_store_look(
            store: *mut c_void,
            key: *const c_char,
            bytes: *mut *mut u8,
            length: *mut usize,
        ) -> *mut c_char;
        pub fn tandem_store_delete(store: *mut c_void, key: *const c_char) -> *mut c_char;
        pub fn tandem_store_close(store: *mut c_void);
    }
}

/// A store, as one thread has it.
#[derive(Debug)]
pub struct TorchStore(NonNull<c_void>);

// SAFETY: nothing in it belongs to a thread, and it is lent to one at a time: it is not `Sync`.
unsafe impl Send for TorchStore {}

impl Drop for TorchStore {
    fn drop(&mut self) {
        // SAFETY: it came from `gloo.cpp` and is given back once.
        unsafe { c::tandem_store_close(self.0.as_ptr()) }
    }
}

impl TorchStore {
    /// A store in a file that all ranks of one host see. The file must be a new one each time, and is left behind.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn file(path: &Path, patience: Duration) -> Result<Self, LearnerError> {
        let path = text(&path.to_string_lossy())?;
        // SAFETY: the path lives until it has returned.
        Self::opened(|opened| unsafe { c::tandem_store_file(path.as_ptr(), patience.as_millis() as i64, opened) })
    }

    /// Keeps a store that others reach at `host` and `port`. It listens there alone if `host` is an address of this
    /// host.
    ///
    /// # Errors
    /// A port that is in use.
    pub fn keep(host: &str, port: u16, patience: Duration) -> Result<Self, LearnerError> {
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<_> =
            addresses.map_err(|e| LearnerError::Peer(format!("MASTER_ADDR {host}: {e}")))?.collect();
        let listener = TcpListener::bind(&addresses[..]).or_else(|e| match e.kind() {
            // The address of a service, say, leads to this host but is none of the host's own.
            io::ErrorKind::AddrNotAvailable => TcpListener::bind(("0.0.0.0", port)),
            _ => Err(e),
        });
        let listener = listener.map_err(|e| {
            LearnerError::Peer(format!("ranks cannot come to port {port} of {host} (MASTER_PORT): {e}"))
        })?;
        Self::tcp(host, port, listener.into_raw_fd(), patience)
    }

    /// A store that is kept at `host` and `port`, as soon as there is one.
    ///
    /// # Errors
    /// No store within `patience`.
    pub fn reach(host: &str, port: u16, patience: Duration) -> Result<Self, LearnerError> {
        Self::tcp(host, port, -1, patience)
    }

    fn tcp(host: &str, port: u16, listener: i32, patience: Duration) -> Result<Self, LearnerError> {
        let host = text(host)?;
        // SAFETY: the name lives until it has returned; the listener is the store's from now on.
        Self::opened(|opened| unsafe {
            c::tandem_store_tcp(host.as_ptr(), port, listener, patience.as_millis() as i64, opened)
        })
    }

    /// The same store, for another thread.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn again(&self) -> Result<Self, LearnerError> {
        // SAFETY: the store is open.
        Self::opened(|opened| unsafe { c::tandem_store_again(self.0.as_ptr(), opened) })
    }

    /// Gives a key a value. The store does not answer: others see the value for certain after the next question on this
    /// connection.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), LearnerError> {
        let key = text(key)?;
        // SAFETY: the store is open, key and value live until it has returned.
        self.did(unsafe { c::tandem_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// The value that a key has now.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn look(&self, key: &str) -> Result<Option<Vec<u8>>, LearnerError> {
        let key = text(key)?;
        let (mut bytes, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the store is open, the key lives until it has returned, and it writes the two places only.
        self.did(unsafe { c::tandem_store_look(self.0.as_ptr(), key.as_ptr(), &raw mut bytes, &raw mut length) })?;
        if bytes.is_null() {
            return Ok(None);
        }
        // SAFETY: so many bytes are there, and are freed once, after they were copied.
        let found = unsafe { slice::from_raw_parts(bytes, length) }.to_vec();
        // SAFETY: as above.
        unsafe { tandem_ranks_free(bytes.cast()) };
        Ok(Some(found))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// A store that is gone.
    pub fn delete(&self, key: &str) -> Result<(), LearnerError> {
        let key = text(key)?;
        // SAFETY: the store is open, the key lives until it has returned.
        self.did(unsafe { c::tandem_store_delete(self.0.as_ptr(), key.as_ptr()) })
    }

    pub(super) fn as_ptr(&self) -> *mut c_void {
        self.0.as_ptr()
    }

    fn did(&self, message: *mut c_char) -> Result<(), LearnerError> {
        // SAFETY: it is a message of `gloo.cpp`, which nobody else has.
        unsafe { outcome(message) }.map_err(|why| LearnerError::Peer(format!("the ranks' store is gone: {why}")))
    }

    fn opened(open: impl FnOnce(*mut *mut c_void) -> *mut c_char) -> Result<Self, LearnerError> {
        let mut store = ptr::null_mut();
        // SAFETY: `open` calls a function of `gloo.cpp`, and nobody else has its message.
        unsafe { outcome(open(&raw mut store)) }
            .map_err(|why| LearnerError::Peer(format!("the ranks' store cannot be opened: {why}")))?;
        NonNull::new(store).map(Self).ok_or_else(|| LearnerError::Peer("no store was opened".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_what_is_set(store: &TorchStore, other: &TorchStore) {
        assert_eq!(other.look("a").unwrap(), None);
        store.set("a", b"1").unwrap();
        store.set("b", b"").unwrap();
        // The store does not answer when a value is set; a question on the same connection comes after it.
        assert!(store.look("a").unwrap().is_some());
        assert_eq!((other.look("a").unwrap(), other.look("b").unwrap()), (Some(b"1".to_vec()), Some(Vec::new())));
        other.set("a", b"two").unwrap();
        assert!(other.look("a").unwrap().is_some());
        assert_eq!(store.look("a").unwrap(), Some(b"two".to_vec()));
        store.delete("a").unwrap();
        assert_eq!(other.look("a").unwrap(), None);
    }

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_file_keeps_what_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let open = || TorchStore::file(&dir.path().join("store"), SOON).unwrap();
        let (store, other) = (open(), open());
        keeps_what_is_set(&store, &other);
        keeps_what_is_set(&other, &store.again().unwrap());
    }

    #[test]
    fn a_port_keeps_what_is_set_until_its_store_is_gone() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let store = TorchStore::keep("127.0.0.1", free, SOON).unwrap();
        let other = TorchStore::reach("localhost", free, SOON).unwrap();
        keeps_what_is_set(&store, &other);
        keeps_what_is_set(&other, &store.again().unwrap());
        let error = TorchStore::keep("127.0.0.1", free, SOON).unwrap_err().to_string();
        assert!(error.contains("MASTER_PORT"), "{error}");
        drop(store);
        assert!(other.look("a").is_err());
        TorchStore::keep("127.0.0.1", free, SOON).expect("the port is free again");
    }
}
