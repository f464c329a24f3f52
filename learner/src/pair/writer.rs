//! Files of a step's records, which go to disk while the next step is made.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use crossbeam::channel::{Sender, bounded};

/// Jobs that may wait: those of one step. More hold the trainer back, which is better than memory without bound.
const WAITING: usize = 2;

type Job = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// A thread that writes what it is given, in order.
#[derive(Debug)]
pub struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The first that went wrong since it was last asked for.
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no room for it.
    pub fn start() -> io::Result<Self> {
        let (jobs, given) = bounded::<Job>(WAITING);
        let failure = Arc::new(Mutex::new(None));
        let found = Arc::clone(&failure);
        let write = move || {
            for job in given {
                // A thread that ended here would leave those waiting who have handed over their job already.
                let done = panic::catch_unwind(AssertUnwindSafe(job));
                if let Err(error) = done.unwrap_or_else(|_| Err(io::Error::other("the writer of records has panicked")))
                {
                    found.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        let thread = thread::Builder::new().name("records".into()).spawn(write)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), failure })
    }

    /// Has something written, in its turn.
    ///
    /// # Errors
    /// What went wrong with something before it.
    pub fn write(&self, job: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        self.hand_over(Box::new(job))?;
        self.failure()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// What went wrong with something.
    pub fn settle(&self) -> io::Result<()> {
        let (done, written) = bounded(1);
        self.hand_over(Box::new(move || {
            let _ = done.send(());
            Ok(())
        }))?;
        let _ = written.recv();
        self.failure()
    }

    fn hand_over(&self, job: Job) -> io::Result<()> {
        let gone = || io::Error::other("the thread that writes records has ended");
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(gone)
    }

    fn failure(&self) -> io::Result<()> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn what_is_settled_is_written_and_what_is_dropped_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let slowly = |name: &str| {
            let path = path(name);
            move || {
                thread::sleep(Duration::from_millis(30));
                fs::write(path, "text")
            }
        };
        let writer = Writer::start().unwrap();
        writer.write(slowly("a")).unwrap();
        writer.settle().unwrap();
        assert!(path("a").exists());
        ["b", "c"].iter().for_each(|name| writer.write(slowly(name)).unwrap());
        drop(writer);
        assert!(path("b").exists() && path("c").exists());
    }

    #[test]
    fn a_panic_is_an_error_and_nobody_waits_for_it() {
        let writer = Writer::start().unwrap();
        let _ = writer.write(|| panic!("of the test's own making"));
        assert!(writer.settle().is_err());
        writer.settle().unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_told_once_and_the_rest_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let (lost, kept) = (dir.path().join("none/file"), dir.path().join("file"));
        let writer = Writer::start().unwrap();
        let _ = writer.write(move || fs::write(lost, "text"));
        let there = kept.clone();
        // Either call may be the one that tells.
        let told = [writer.write(move || fs::write(kept, "text")), writer.settle()];
        assert_eq!(told.iter().filter(|result| result.is_err()).count(), 1, "{told:?}");
        assert!(there.exists());
        writer.settle().unwrap();
    }
}
