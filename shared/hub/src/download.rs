//! Downloads that resume after a cut, end when nothing arrives, and are verified.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use hf_hub::Repo;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    Hub, HubError,
    attempt::{Arrived, Attempt, AttemptError},
    repository::{RemoteFile, gated},
    request::Client,
};

const POLL: Duration = Duration::from_millis(50);

/// How often a download is tried again that gets no further than before.
const ATTEMPTS: u32 = 3;

/// Time between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// How long another process may take that downloads the same file.
const OTHERS: Duration = Duration::from_secs(3600);

/// Downloads of at least so many bytes are announced in a line if there is no bar.
const WORTH_TELLING: u64 = 10_000_000;

/// Downloads of several files of a repository.
pub struct Download<'a> {
    hub: &'a Hub,
    client: &'a Client,
    repo: Repo,
    name: &'a str,
    /// The folder of the finished files.
    folder: &'a Path,
    bar: ProgressBar,
    before: u64,
}

impl<'a> Download<'a> {
    /// Downloads that have not begun; on a terminal, with a bar for all of them.
    pub fn new(
        hub: &'a Hub,
        client: &'a Client,
        repo: Repo,
        name: &'a str,
        folder: &'a Path,
        files: &[&RemoteFile],
    ) -> Self {
        let total: u64 = files.iter().map(|file| file.size).sum();
        let bar = ProgressBar::new(total);
        let style = "{msg} {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        bar.set_message(name.to_owned());
        if bar.is_hidden() && total >= WORTH_TELLING {
            (hub.tell)(&format!("{name}: downloading {} MB", total / 1_000_000));
        }
        Self { hub, client, repo, name, folder, bar, before: 0 }
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

    /// Tries again after a cut connection, as long as that helps.
    fn persistently(&self, file: &RemoteFile) -> Result<PathBuf, HubError> {
        let (begin, mut vain, mut furthest) = (Instant::now(), 0, 0);
        loop {
            let arrived = Arrived::default();
            let error = match self.attempt(file, &arrived)? {
                Ok(path) => return Ok(path),
                Err(error) => error,
            };
            match &error {
                AttemptError::Io(reason) if is_of_disk(reason) => {
                    return Err(self.not_kept(file, io::Error::new(reason.kind(), reason.to_string())));
                }
                AttemptError::Taken if begin.elapsed() < OTHERS => {
                    self.bar.set_message(format!("{} (another process is downloading it)", self.name));
                    if file.is_in(self.folder) {
                        return Ok(self.folder.join(&file.name));
                    }
                    continue;
                }
                // The bytes on disk are longer than the file, or are all of it.
                AttemptError::NothingLeft | AttemptError::Status(416) => self.forget(file),
                AttemptError::Status(401 | 403) => return Err(gated(&self.hub.settings, &self.repo)),
                AttemptError::Request(reason) if reason.is_for_good() => {
                    let (name, endpoint) = (self.name.to_owned(), self.hub.settings.shown_endpoint());
                    return Err(HubError::Answer { name, endpoint, reason: format!("{}: {reason}", file.name) });
                }
                _ => {}
            }
            // Bytes downloaded anew, after old ones were thrown away, are no progress until there are more than before.
            vain = if arrived.fresh() > 0 && arrived.all() > furthest { 1 } else { vain + 1 };
            furthest = furthest.max(arrived.all());
            if vain == ATTEMPTS {
                let reason = error.to_string();
                return Err(HubError::Cut { name: self.name.to_owned(), file: file.name.clone(), reason });
            }
            self.pause()?;
        }
    }

    /// Downloads as long as bytes arrive, in a thread of its own: a connection that is silent cannot be asked to end.
    fn attempt(&self, file: &RemoteFile, arrived: &Arrived) -> Result<Result<PathBuf, AttemptError>, HubError> {
        let (sender, receiver) = mpsc::channel();
        let attempt = Attempt {
            client: self.client.clone(),
            cache: hf_hub::Cache::new(self.hub.settings.cache.clone()),
            repo: self.repo.clone(),
            file: file.clone(),
            arrived: arrived.clone(),
        };
        thread::spawn(move || sender.send(attempt.run()));
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
            let now = arrived.all();
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

    /// Throws away the bytes of a file that have arrived.
    fn forget(&self, file: &RemoteFile) {
        let blob =
            hf_hub::Cache::new(self.hub.settings.cache.clone()).repo(self.repo.clone()).blob_path(file.hash.text());
        // A file that cannot be removed is found again by the next attempt.
        let _ = fs::remove_file(Path::with_extension(&blob, "part"));
    }

    fn not_kept(&self, file: &RemoteFile, reason: io::Error) -> HubError {
        let cache = self.hub.settings.cache.clone();
        HubError::Cache { name: self.name.to_owned(), file: file.name.clone(), cache, reason }
    }
}

/// Whether another attempt would end the same way.
fn is_of_disk(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), NotADirectory | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}
