//! Large files, to the store that the Hub names for them: whole, or in parts.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Instant,
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    PushError, PushFile,
    plan::Plan,
    session::{NoReply, POLL, Session, Trial, read},
    words::Reply,
};
use crate::error::without_secrets;

/// The address of the Hub in the answers that a mirror passes on.
const HUB: &str = "https://huggingface.co";

/// The form of the questions to the store.
const FORM: &str = "application/vnd.git-lfs+json";

/// The key in the headers of an upload in parts that has the bytes of a part; the other keys are numbers of parts.
const CHUNK: &str = "chunk_size";

/// Headers that follow from how the content is sent, whatever a store says of them.
const OWN: [&str; 3] = ["content-length", "host", "transfer-encoding"];

/// Pushes of at least so many bytes are announced in a line if there is no bar.
const WORTH_TELLING: u64 = 10_000_000;

/// What was done.
#[derive(Debug)]
pub(super) struct Uploaded {
    /// Bytes that were sent.
    pub sent: u64,
    /// Files that the store had.
    pub present: Vec<String>,
}

#[derive(Deserialize)]
struct Batch {
    transfer: Option<String>,
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    actions: Option<Actions>,
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Option<Action>,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    header: Option<Map<String, Value>>,
}

/// Sends the large files that the store lacks.
///
/// # Errors
/// A refusal, a connection that is cut again and again, or a store that takes nothing.
pub(super) fn upload(session: &Session<'_>, plan: &Plan<'_>) -> Result<Uploaded, PushError> {
    let files: Vec<(&PushFile, &str)> = plan.large().collect();
    let mut uploaded = Uploaded { sent: 0, present: Vec::new() };
    if files.is_empty() {
        return Ok(uploaded);
    }
    let objects = ask(session, &files)?;
    let mut missing = Vec::new();
    for (file, oid) in files {
        let what = format!("sending {}", file.name());
        let Some(object) = objects.iter().find(|object| object.oid.eq_ignore_ascii_case(oid)) else {
            return Err(session.strange(&what, "it says nothing of the file".into()));
        };
        if let Some(Fault { code, message }) = &object.error {
            let (place, reason) = (session.endpoint(), super::words::words(message, b"", session.token()));
            return Err(PushError::Status { what, place, status: *code, reason });
        }
        match object.actions.as_ref().and_then(|actions| Some((actions.upload.as_ref()?, actions.verify.as_ref()))) {
            Some((upload, verify)) => missing.push(Upload { session, what, file, oid, upload, verify }),
            None => uploaded.present.push(file.name().to_owned()),
        }
    }
    let total = missing.iter().map(|upload| upload.file.size()).sum();
    session.bar.set_length(total);
    if session.bar.is_hidden() && total >= WORTH_TELLING {
        (session.hub.tell)(&format!("{}: sending {} MB", session.order.repo, total / 1_000_000));
    }
    for upload in missing {
        upload.run(uploaded.sent)?;
        uploaded.sent += upload.file.size();
    }
    Ok(uploaded)
}

/// Asks the store what it lacks, and where it wants that.
fn ask(session: &Session<'_>, files: &[(&PushFile, &str)]) -> Result<Vec<Object>, PushError> {
    let what = "asking the store of large files";
    let objects: Vec<Value> = files.iter().map(|(file, oid)| json!({ "oid": oid, "size": file.size() })).collect();
    let question = json!({
        "operation": "upload",
        "transfers": ["basic", "multipart"],
        "ref": { "name": session.order.revision },
        "hash_algo": "sha256",
        "objects": objects,
    });
    let path = format!("/{}.git/info/lfs/objects/batch", session.order.repo);
    let headers = [("Accept", FORM), ("Content-Type", FORM)];
    let reply = session.post(what, &path, &headers, question.to_string().as_bytes())?;
    if !reply.is_success() {
        return Err(session.refused(what, &session.endpoint(), reply));
    }
    let Batch { transfer, objects } = session.parsed(what, &reply)?;
    match transfer.as_deref() {
        None | Some("basic" | "multipart") => Ok(objects),
        Some("xet") => Err(PushError::Xet { endpoint: session.endpoint() }),
        Some(other) => Err(session.strange(what, format!("it wants the transfer `{other}`"))),
    }
}

/// A file on its way.
struct Upload<'a> {
    session: &'a Session<'a>,
    what: String,
    file: &'a PushFile,
    oid: &'a str,
    upload: &'a Action,
    verify: Option<&'a Action>,
}

impl Upload<'_> {
    /// Sends it; `before` bytes of other files were sent before it.
    fn run(&self, before: u64) -> Result<(), PushError> {
        let href = self.here(&self.upload.href);
        let header = self.upload.header.clone().unwrap_or_default();
        match header.get(CHUNK) {
            Some(size) => self.in_parts(&href, &header, size, before)?,
            None => {
                let own = |name: &str| OWN.iter().any(|own| name.eq_ignore_ascii_case(own));
                let named = header.iter().filter(|(name, _)| !own(name));
                let headers = named.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
                let (headers, length) = (headers.collect::<Vec<_>>(), self.file.size());
                self.put(&Part { to: &href, headers: &headers, from: 0, length, before })?;
            }
        }
        let Some(verify) = self.verify else { return Ok(()) };
        let said = json!({ "oid": self.oid, "size": self.file.size() });
        self.done(self.session.post_json(&self.what, &self.here(&verify.href), &said)?)
    }

    fn in_parts(&self, href: &str, header: &Map<String, Value>, size: &Value, before: u64) -> Result<(), PushError> {
        let strange = |reason: &str| self.session.strange(&self.what, reason.to_owned());
        let size = size.as_u64().or_else(|| size.as_str()?.parse().ok()).filter(|size| *size > 0);
        let size = size.ok_or_else(|| strange("the size of its parts is no number"))?;
        let mut parts: Vec<(u64, &str)> =
            header.iter().filter_map(|(number, to)| Some((number.parse().ok()?, to.as_str()?))).collect();
        parts.sort_unstable();
        if parts.len() as u64 != self.file.size().div_ceil(size) {
            return Err(strange("its parts are not as many as the file has"));
        }
        let mut tags = Vec::new();
        for (index, (number, to)) in parts.into_iter().enumerate() {
            let from = index as u64 * size;
            let length = size.min(self.file.size() - from);
            let etag = self.put(&Part { to, headers: &[], from, length, before: before + from })?;
            if etag.is_empty() {
                return Err(strange("it gives no tag for a part"));
            }
            tags.push(json!({ "partNumber": number, "etag": etag }));
        }
        let all = json!({ "oid": self.oid, "parts": tags });
        let headers = [("Accept", FORM), ("Content-Type", FORM)];
        self.done(self.session.post(&self.what, href, &headers, all.to_string().as_bytes())?)
    }

    /// Sends a part of the file, and returns its tag.
    fn put(&self, part: &Part<'_>) -> Result<String, PushError> {
        let put = &mut || self.put_once(part);
        let reply = self.session.persistently(&self.what, &without_secrets(part.to), put)?;
        let etag = reply.etag.clone();
        self.done(reply).map(|()| etag)
    }

    /// Sends as long as bytes are taken, in a thread of its own: a connection that is silent cannot be asked to end.
    fn put_once(&self, part: &Part<'_>) -> Result<Reply, Trial> {
        let Self { session, what, file, .. } = self;
        let Part { to, headers, from, length, before } = *part;
        let content = file.reader(from, length);
        let content = content.map_err(|reason| Trial::Final(PushError::Io { file: file.name().to_owned(), reason }))?;
        let taken = Arc::new(AtomicU64::new(0));
        let content = Counted { content, taken: Arc::clone(&taken) };
        let (client, to, headers) = (session.client.clone(), to.to_owned(), headers.to_owned());
        let token = session.token().map(str::to_owned);
        let (sender, receiver) = mpsc::channel::<Result<Reply, NoReply>>();
        thread::spawn(move || sender.send(read(client.put(&to, &headers, content, length), token.as_deref())));
        let patience = session.hub.settings.patience;
        let (mut heard, mut last) = (Instant::now(), 0);
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(reply) => return reply.map_err(|error| session.trial(what, error)),
                Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends what it ends with"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (session.hub.interrupted)() {
                return Err(Trial::Final(PushError::Interrupted));
            }
            let now = taken.load(Ordering::Relaxed);
            if now != last {
                (heard, last) = (Instant::now(), now);
                session.bar.set_position(before + now);
            } else if heard.elapsed() > patience {
                let (what, seconds) = (what.clone(), patience.as_secs_f64());
                return Err(Trial::Final(PushError::Silent { what, seconds }));
            }
        }
    }

    /// Whether the store has taken it.
    fn done(&self, reply: Reply) -> Result<(), PushError> {
        if reply.is_success() {
            return Ok(());
        }
        // What the store says is not about the token, which it is not shown.
        let (what, place) = (self.what.clone(), "the store of large files".to_owned());
        Err(PushError::Status { what, place, status: reply.status, reason: reply.words })
    }

    /// An address of the Hub itself, by the mirror that is asked.
    fn here(&self, href: &str) -> String {
        let endpoint = &self.session.hub.settings.endpoint;
        match href.strip_prefix(HUB).filter(|rest| rest.starts_with('/')) {
            Some(rest) => format!("{endpoint}{rest}"),
            None => href.to_owned(),
        }
    }
}

/// Bytes of a file, and the address that takes them.
struct Part<'a> {
    to: &'a str,
    headers: &'a [(String, String)],
    from: u64,
    length: u64,
    /// Bytes of all files that were sent before these.
    before: u64,
}

/// A reader that counts what is read of it.
struct Counted<R> {
    content: R,
    taken: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
