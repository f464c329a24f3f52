//! Downloads that go on where they were cut, end when nothing arrives, and are verified.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use hf_hub::{
    Repo,
    api::{
        Progress,
        sync::{Api, ApiError},
    },
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    Hub, HubError,
    repository::{RemoteFile, gated, is_hash},
};

const POLL: Duration = Duration::from_millis(50);

/// How often a download is begun again on which nothing arrived.
const ATTEMPTS: u32 = 3;

/// Time between two of these.
const PAUSE: Duration = Duration::from_secs(1);

/// How long another process may take that downloads the same file.
const OTHERS: Duration = Duration::from_secs(3600);

/// From so many bytes on, a download is worth a line where there is no bar.
const WORTH_TELLING: u64 = 10_000_000;

/// Downloads of several files of a repository.
pub struct Download<'a> {
    hub: &'a Hub,
    api: &'a Api,
    repo: Repo,
    name: &'a str,
    /// Where the files are when they are there.
    folder: &'a Path,
    bar: ProgressBar,
    before: u64,
}

/// Bytes of a file that have arrived.
#[derive(Debug, Clone, Default)]
struct Arrived {
    /// Those of earlier attempts included.
    all: Arc<AtomicU64>,
    /// Those of this attempt.
    new: Arc<AtomicU64>,
    /// Whether the next call tells of earlier attempts.
    begins: bool,
}

impl Progress for Arrived {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.all.store(0, Ordering::Relaxed);
        self.begins = true;
    }

    fn update(&mut self, size: usize) {
        self.all.fetch_add(size as u64, Ordering::Relaxed);
        if !std::mem::take(&mut self.begins) {
            self.new.fetch_add(size as u64, Ordering::Relaxed);
        }
    }

    fn finish(&mut self) {}
}

impl<'a> Download<'a> {
    /// Downloads that have not begun; on a terminal, with a bar for all of them.
    pub fn new(hub: &'a Hub, api: &'a Api, repo: Repo, name: &'a str, folder: &'a Path, files: &[&RemoteFile]) -> Self {
        let total: u64 = files.iter().map(|file| file.size).sum();
        let bar = ProgressBar::new(total);
        let style = "{msg} {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        bar.set_message(name.to_owned());
        if bar.is_hidden() && total >= WORTH_TELLING {
            (hub.tell)(&format!("{name}: downloading {} MB", total / 1_000_000));
        }
        Self { hub, api, repo, name, folder, bar, before: 0 }
    }

    /// Takes the bar away and returns the bytes of all files.
    pub fn finish(self) -> u64 {
        self.bar.finish_and_clear();
        self.before
    }

    /// Downloads one file.
    pub fn file(&mut self, file: &RemoteFile) -> Result<(), HubError> {
        let path = self.persistently(file)?;
        let kept = fs::canonicalize(&path).map_err(|reason| self.not_kept(file, reason))?;
        if !file.hash.is_of(&kept).map_err(|reason| self.not_kept(file, reason))? {
            for wrong in [&path, &kept] {
                fs::remove_file(wrong).map_err(|reason| self.not_kept(file, reason))?;
            }
            return Err(HubError::Hash { name: self.name.to_owned(), file: file.name.clone() });
        }
        self.before += file.size;
        self.bar.set_message(self.name.to_owned());
        Ok(())
    }

    /// Begins again where the connection was cut, as long as that helps.
    fn persistently(&self, file: &RemoteFile) -> Result<PathBuf, HubError> {
        let (begin, mut vain) = (Instant::now(), 0);
        loop {
            let arrived = Arrived::default();
            let error = match self.attempt(file, &arrived)? {
                Ok(path) => return Ok(path),
                Err(error) => error,
            };
            let status = status_of(&error);
            match &error {
                ApiError::IoError(reason) if is_of_disk(reason) => {
                    return Err(self.not_kept(file, io::Error::new(reason.kind(), reason.to_string())));
                }
                ApiError::LockAcquisition(_) if begin.elapsed() < OTHERS => {
                    self.bar.set_message(format!("{} (another process is downloading it)", self.name));
                    if file.is_in(self.folder) {
                        return Ok(self.folder.join(&file.name));
                    }
                    continue;
                }
                // What had arrived before is longer than the file, or is all of it.
                ApiError::InvalidResume => self.forget(file),
                _ if status == Some(416) => self.forget(file),
                _ if matches!(status, Some(401 | 403)) => return Err(gated(&self.hub.settings, &self.repo)),
                _ => {}
            }
            vain = if arrived.new.load(Ordering::Relaxed) > 0 { 1 } else { vain + 1 };
            if vain == ATTEMPTS {
                let reason = error.to_string();
                return Err(HubError::Cut { name: self.name.to_owned(), file: file.name.clone(), reason });
            }
            self.pause()?;
        }
    }

    /// Downloads as long as something arrives, in a thread of its own: a connection that is silent cannot be asked to end.
    fn attempt(&self, file: &RemoteFile, arrived: &Arrived) -> Result<Result<PathBuf, ApiError>, HubError> {
        let (sender, receiver) = mpsc::channel();
        let (api, repo, name, progress) = (self.api.clone(), self.repo.clone(), file.name.clone(), arrived.clone());
        thread::spawn(move || {
            let download = || {
                let (commit, repo) = (repo.revision().to_owned(), api.repo(repo));
                // hf-hub names files and folders by what two headers say.
                let told = api.metadata(&repo.url(&name))?;
                if !is_hash(told.etag()) || told.commit_hash() != commit {
                    return Err(io::Error::other("the Hub's headers name another commit, or no hash").into());
                }
                repo.download_with_progress(&name, progress)
            };
            // hf-hub asserts what a cache that is written by others may break.
            let result = catch_unwind(AssertUnwindSafe(download));
            let _ = sender.send(result.unwrap_or_else(|_| Err(io::Error::other("the cache changed meanwhile").into())));
        });
        let (mut heard, mut last) = (Instant::now(), 0);
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends what it ends with"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (self.hub.interrupted)() {
                return Err(HubError::Interrupted);
            }
            let now = arrived.all.load(Ordering::Relaxed);
            if now != last {
                (heard, last) = (Instant::now(), now);
                self.bar.set_position(self.before + now);
            } else if heard.elapsed() > self.hub.settings.patience {
                let seconds = self.hub.settings.patience.as_secs_f64();
                return Err(HubError::Silent { name: self.name.to_owned(), file: file.name.clone(), seconds });
            }
        }
    }

    fn pause(&self) -> Result<(), HubError> {
        let begin = Instant::now();
        while begin.elapsed() < PAUSE {
            if (self.hub.interrupted)() {
                return Err(HubError::Interrupted);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Throws away what has arrived of a file.
    fn forget(&self, file: &RemoteFile) {
        let blob =
            hf_hub::Cache::new(self.hub.settings.cache.clone()).repo(self.repo.clone()).blob_path(file.hash.text());
        // What cannot be removed is found again by the next attempt.
        let _ = fs::remove_file(Path::with_extension(&blob, "part"));
    }

    fn not_kept(&self, file: &RemoteFile, reason: io::Error) -> HubError {
        let cache = self.hub.settings.cache.clone();
        HubError::Cache { name: self.name.to_owned(), file: file.name.clone(), cache, reason }
    }
}

/// The HTTP status, where an error is one.
fn status_of(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}

/// Whether another attempt would end the same way.
fn is_of_disk(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), NotADirectory | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}
