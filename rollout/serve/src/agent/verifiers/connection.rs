//! A DEALER socket of ZeroMQ with one peer, a ROUTER over TCP: the part of ZMTP 3.0 that it takes
//! (<https://rfc.zeromq.org/spec/23/>), without security.
//!
//! The crate `zeromq` sets aside as much memory as the head of a frame names, whoever wrote it, and its DEALER waits on
//! in silence when its peer is gone. Here a message has a bound, and the end of the connection is an error.

use std::{io, time::Duration};

use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

/// Most bytes of a message, all frames together.
pub const MAX_MESSAGE: usize = 64 << 20;
/// Most frames of a message.
const MAX_FRAMES: usize = 16;
/// Most bytes of a command.
const MAX_COMMAND: usize = 64 << 10;
/// Messages that have come and that nobody has taken yet.
const WAITING: usize = 4;
/// How long a server may take to accept a connection and to introduce itself.
const MEETING: Duration = Duration::from_secs(5);
/// How long the last messages may take to leave.
const ENDING: Duration = Duration::from_secs(1);

/// The first bytes of each side: signature, version 3.0, mechanism, and a client's role.
const GREETING: [u8; 64] = {
    let mut bytes = [0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    (bytes[12], bytes[13], bytes[14], bytes[15]) = (b'N', b'U', b'L', b'L');
    bytes
};
/// Marks of a frame.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection cannot be used (any more).
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The system's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has ended it.
    #[error("it has closed the connection")]
    Closed,
    /// No peer in time.
    #[error("it has not introduced itself within {} s", MEETING.as_secs())]
    Late,
    /// Something else than ZeroMQ, or an old version.
    #[error("it does not speak ZMTP 3 (the protocol of ZeroMQ)")]
    Foreign,
    /// A peer that wants to be convinced of who is asking.
    #[error("it asks for the security of {0}, and only connections without any are possible (NULL)")]
    Security(String),
    /// A socket of another type.
    #[error("its socket is a {0}, and a ROUTER is needed")]
    Socket(String),
    /// A refusal of the peer.
    #[error("it refuses the connection: {0}")]
    Refused(String),
    /// A message above [`MAX_MESSAGE`], or of more than [`MAX_FRAMES`] frames.
    #[error("it has sent a message of more than {} MiB or {MAX_FRAMES} frames", MAX_MESSAGE >> 20)]
    TooBig,
}

/// The frames of a message.
pub type Message = Vec<Vec<u8>>;

/// A connection whose two ends of the line have introduced themselves. Tasks of its own read and write. Dropping it
/// closes it.
#[derive(Debug)]
pub struct Connection {
    out: mpsc::UnboundedSender<Vec<u8>>,
    taken: mpsc::Receiver<Result<Message, ConnectionError>>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Connection {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// When nothing listens there, or something else than a ROUTER without security.
    pub async fn open(address: &str) -> Result<Self, ConnectionError> {
        let meeting = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            greet(&mut stream, "DEALER").await?;
            Ok(stream)
        };
        let stream = timeout(MEETING, meeting).await.unwrap_or(Err(ConnectionError::Late))?;
        let (mut from, mut to) = stream.into_split();
        let (out, mut said) = mpsc::unbounded_channel::<Vec<u8>>();
        let (heard, taken) = mpsc::channel(WAITING);
        let reader = tokio::spawn(async move {
            loop {
                let message = read_message(&mut from).await;
                let is_last = message.is_err();
                if heard.send(message).await.is_err() || is_last {
                    return;
                }
            }
        });
        let writer = tokio::spawn(async move {
            while let Some(bytes) = said.recv().await {
                // The reader hears of the end too, and says so.
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { out, taken, reader, writer })
    }

    /// Sends a message. If the connection is at its end, [`Connection::next`] says so.
    pub fn send(&self, frames: &[&[u8]]) {
        let _ = self.out.send(written(frames));
    }

    /// The next message. Nothing is lost if nobody waits to the end.
    ///
    /// # Errors
    /// When no more can come.
    pub async fn next(&mut self) -> Result<Message, ConnectionError> {
        self.taken.recv().await.unwrap_or(Err(ConnectionError::Closed))
    }

    /// Closes the connection, once all has been sent, within a second.
    pub async fn close(mut self) {
        let (nothing, _) = mpsc::unbounded_channel();
        self.out = nothing;
        let _ = timeout(ENDING, &mut self.writer).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

/// Introduces a socket of this type to its peer, and hears who that is.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, socket: &str) -> Result<(), ConnectionError> {
    stream.write_all(&GREETING).await?;
    read_greeting(stream).await?;
    let properties = [("Socket-Type", socket), ("Identity", "")].map(|(name, value)| property(name, value)).concat();
    stream.write_all(&frame(COMMAND, &[&named("READY"), &properties[..]].concat())).await?;
    let peer = read_ready(stream).await?;
    let fits = if socket == "DEALER" { peer == "ROUTER" } else { peer == "DEALER" };
    if fits { Ok(()) } else { Err(ConnectionError::Socket(peer)) }
}

/// A short text behind its length.
fn named(name: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(name.len()).unwrap_or(u8::MAX)];
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

fn property(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = named(name);
    bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

async fn read_greeting(from: &mut (impl AsyncRead + Unpin)) -> Result<(), ConnectionError> {
    let mut bytes = [0; 64];
    // Whoever speaks something else may write less, and wait.
    from.read_exact(&mut bytes[..1]).await.map_err(ended)?;
    if bytes[0] != 0xff {
        return Err(ConnectionError::Foreign);
    }
    from.read_exact(&mut bytes[1..]).await.map_err(ended)?;
    if bytes[9] & 1 != 1 || bytes[10] < 3 {
        return Err(ConnectionError::Foreign);
    }
    let mechanism = bytes[12..32].split(|&byte| byte == 0).next().unwrap_or_default();
    if mechanism == b"NULL" {
        return Ok(());
    }
    Err(ConnectionError::Security(String::from_utf8_lossy(mechanism).into_owned()))
}

/// The type of the peer's socket.
async fn read_ready(from: &mut (impl AsyncRead + Unpin)) -> Result<String, ConnectionError> {
    let (flags, body) = read_frame(from, MAX_COMMAND).await?;
    let mut rest = &body[..];
    let name = take_short(&mut rest).filter(|_| flags & COMMAND != 0).ok_or(ConnectionError::Foreign)?;
    match name {
        b"READY" => {}
        b"ERROR" => {
            let reason = take_short(&mut rest).unwrap_or_default();
            return Err(ConnectionError::Refused(String::from_utf8_lossy(reason).into_owned()));
        }
        _ => return Err(ConnectionError::Foreign),
    }
    while let Some(name) = take_short(&mut rest) {
        let (size, after) = rest.split_first_chunk::<4>().ok_or(ConnectionError::Foreign)?;
        let size = usize::try_from(u32::from_be_bytes(*size)).unwrap_or(usize::MAX);
        let (value, after) = after.split_at_checked(size).ok_or(ConnectionError::Foreign)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(String::from_utf8_lossy(value).into_owned());
        }
        rest = after;
    }
    Err(ConnectionError::Foreign)
}

/// Takes a short text from the front.
fn take_short<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&size, after) = rest.split_first()?;
    let (text, after) = after.split_at_checked(usize::from(size))?;
    *rest = after;
    Some(text)
}

/// A message, behind commands, of which none matters after the introduction.
async fn read_message(from: &mut (impl AsyncRead + Unpin)) -> Result<Message, ConnectionError> {
    let mut message = Message::new();
    let mut room = MAX_MESSAGE;
    loop {
        let (flags, body) = read_frame(from, room).await?;
        if flags & COMMAND != 0 {
            continue;
        }
        room -= body.len();
        message.push(body);
        if flags & MORE == 0 {
            return Ok(message);
        }
        if message.len() == MAX_FRAMES {
            return Err(ConnectionError::TooBig);
        }
    }
}

/// Marks and body of a frame of at most `most` bytes.
async fn read_frame(from: &mut (impl AsyncRead + Unpin), most: usize) -> Result<(u8, Vec<u8>), ConnectionError> {
    let flags = from.read_u8().await.map_err(ended)?;
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(ConnectionError::Foreign);
    }
    let size = match flags & LONG {
        0 => from.read_u8().await.map(u64::from),
        _ => from.read_u64().await,
    };
    let size = size.map_err(ended)?;
    if size > most as u64 {
        return Err(ConnectionError::TooBig);
    }
    // Memory grows with the bytes that come, not with the number that was said.
    let mut body = Vec::new();
    let read = from.take(size).read_to_end(&mut body).await?;
    if (read as u64) < size {
        return Err(ConnectionError::Closed);
    }
    Ok((flags, body))
}

/// The end in the middle of something is an end like any other.
fn ended(error: io::Error) -> ConnectionError {
    if error.kind() == io::ErrorKind::UnexpectedEof { ConnectionError::Closed } else { error.into() }
}

/// The bytes of a message.
fn written(frames: &[&[u8]]) -> Vec<u8> {
    let last = frames.len().saturating_sub(1);
    let marked = frames.iter().enumerate().map(|(at, body)| frame(if at < last { MORE } else { 0 }, body));
    marked.collect::<Vec<_>>().concat()
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(size) => vec![flags, size],
        Err(_) => [&[flags | LONG][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// The side of a server, for tests.
#[cfg(test)]
pub mod router {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::{Connection, ConnectionError, Message, greet, read_message, written};

    /// A peer of a ROUTER.
    pub struct Peer(TcpStream);

    impl Peer {
        /// The next one that connects.
        pub async fn accept(listener: &TcpListener) -> Result<Self, ConnectionError> {
            let (mut stream, _) = listener.accept().await?;
            greet(&mut stream, "ROUTER").await?;
            Ok(Self(stream))
        }

        /// What it says.
        pub async fn hear(&mut self) -> Result<Message, ConnectionError> {
            read_message(&mut self.0).await
        }

        /// Says something to it.
        pub async fn say(&mut self, frames: &[&[u8]]) {
            self.write(&written(frames)).await;
        }

        /// Writes to it whatever these bytes are.
        pub async fn write(&mut self, bytes: &[u8]) {
            let _ = self.0.write_all(bytes).await;
        }
    }

    /// What is wrong with a server that answers a greeting with these bytes.
    pub async fn meets(bytes: &'static [u8]) -> ConnectionError {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(bytes).await.unwrap();
            // An end that comes before the other side has written everything would be a reset.
            let mut greeting = [0; 64];
            let _ = stream.read_exact(&mut greeting).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let error = Connection::open(&address).await.unwrap_err();
        serving.await.unwrap();
        error
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    /// A greeting with another mechanism.
    static CURVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut bytes = GREETING.to_vec();
        bytes[12..17].copy_from_slice(b"CURVE");
        bytes
    });

    /// A peer that introduces itself as a socket of this type.
    fn socket(kind: &str) -> &'static [u8] {
        let ready = [named("READY"), property("Identity", "x"), property("socket-type", kind)].concat();
        [GREETING.to_vec(), frame(COMMAND, &ready)].concat().leak()
    }

    #[tokio::test]
    async fn whoever_is_no_router_without_security_is_named() {
        let refusal = [GREETING.to_vec(), frame(COMMAND, &[named("ERROR"), named("no room")].concat())].concat().leak();
        for (bytes, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "it does not speak ZMTP 3"),
            (&CURVE[..], "it asks for the security of CURVE"),
            (socket("PUB"), "its socket is a PUB, and a ROUTER is needed"),
            (refusal, "it refuses the connection: no room"),
            (&GREETING[..], "it has closed the connection"),
        ] {
            let found = router::meets(bytes).await.to_string();
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[tokio::test]
    async fn messages_of_all_sizes_arrive_and_one_that_is_too_big_does_not() {
        for size in [0, 1, 255, 256, 70_000] {
            let (first, second) = (vec![7; size], b"end");
            let bytes = written(&[&first, second]);
            let found = read_message(&mut &bytes[..]).await.unwrap();
            assert_eq!(found, [first, second.to_vec()]);
            let cut = read_message(&mut &bytes[..bytes.len() - 1]).await.unwrap_err();
            assert!(matches!(cut, ConnectionError::Closed), "{cut}");
        }
        let long = [&[LONG][..], &(MAX_MESSAGE as u64 + 1).to_be_bytes()].concat();
        assert!(matches!(read_message(&mut &long[..]).await, Err(ConnectionError::TooBig)));
        let many = [MORE, 0].repeat(MAX_FRAMES);
        assert!(matches!(read_message(&mut &many[..]).await, Err(ConnectionError::TooBig)));
    }

    #[test]
    fn no_bytes_of_a_peer_are_too_much() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let message = written(&[b"1", b"reply", b"\x80"]);
        let ready = frame(COMMAND, &[named("READY"), property("Socket-Type", "ROUTER")].concat());
        harness::fuzz::explore("zmtp", &[message, ready, GREETING.to_vec()], |bytes| {
            runtime.block_on(async {
                let _ = read_greeting(&mut &bytes[..]).await;
                let _ = read_ready(&mut &bytes[..]).await;
                if let Ok(message) = read_message(&mut &bytes[..]).await {
                    let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                    assert_eq!(read_message(&mut &written(&frames)[..]).await.unwrap(), message);
                }
            });
        });
    }
}
