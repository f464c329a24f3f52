//! The frame around every message.
//!
//! ```text
//! offset  size
//!      0     4  magic "TNDM"
//!      4     2  format version, little-endian
//!      6     2  kind of message, little-endian
//!      8     8  length of the body in bytes, little-endian
//!     16     8  id of the run that the message is of, little-endian; 0 for none ([`RunId`])
//!     24     8  checksum: the first 8 bytes of blake3(bytes 0..24 ‖ body)
//!     32     …  body: the message in postcard's wire format
//! ```
//!
//! Both processes are built together, so there is one version and no negotiation: a frame of another version means that
//! two builds are mixed, and is refused. Frames in files outlive a build: [`decode_kept`] also reads groups of version
//! 12, whose episodes have one path each, of version 11, whose completions have no exchange with an environment, of
//! version 10, which have no notes either, and of versions 8 and 9, whose completions are one turn. The header of
//! version 8 has no id of a run, and its checksum stands at offset 16.

mod before;
mod earlier;
#[cfg(test)]
mod tests;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    LearnerStatus, RunId, SamplerStatus,
    fleet::{Orders, Report},
};
use crate::generation::group::{Group, Notes, Placed, Scored};
use earlier::{NoExchange, NoNotes, WithExchange};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TNDM";
/// Version of the header and of every message's layout. Any change of either must raise it; a test holds the bytes.
pub const FRAME_VERSION: u16 = 13;
/// Bytes before the body.
pub const HEADER_LEN: usize = 32;
/// Bytes before the checksum: it covers them and the body.
const CHECKED: usize = 24;
/// The versions whose groups have the layouts of [`earlier`].
const OF_ONE_PATH: u16 = 12;
const WITHOUT_EXCHANGE: u16 = 11;
const WITHOUT_NOTES: u16 = 10;
/// Versions whose groups have the layout of [`before`], each with the bytes before its checksum.
const BEFORE: [(u16, usize); 2] = [(8, CHECKED_OF_8), (9, CHECKED)];
const CHECKED_OF_8: usize = 16;
/// Bytes of the checksum.
const CHECKSUM: usize = 8;

/// The kinds of message, as they stand in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum MessageKind {
    /// A [`Placed`] group.
    Placed = 1,
    /// A [`LearnerStatus`].
    LearnerStatus = 2,
    /// A [`SamplerStatus`].
    SamplerStatus = 3,
    /// A [`Report`] of a worker.
    Report = 4,
    /// The [`Orders`] that answer it.
    Orders = 5,
    /// A [`Group`], in a file.
    Group = 6,
    /// A [`Scored`] group, in a file.
    Scored = 7,
}

/// A type that travels in a frame.
pub trait Message: Serialize + DeserializeOwned {
    /// The kind in the header of this type.
    const KIND: MessageKind;
}

impl Message for Placed {
    const KIND: MessageKind = MessageKind::Placed;
}

impl Message for Group {
    const KIND: MessageKind = MessageKind::Group;
}

impl Message for Scored {
    const KIND: MessageKind = MessageKind::Scored;
}

impl Message for LearnerStatus {
    const KIND: MessageKind = MessageKind::LearnerStatus;
}

impl Message for SamplerStatus {
    const KIND: MessageKind = MessageKind::SamplerStatus;
}

impl Message for Report {
    const KIND: MessageKind = MessageKind::Report;
}

impl Message for Orders {
    const KIND: MessageKind = MessageKind::Orders;
}

/// A frame that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than a header.
    #[error("{length} bytes are too few for a frame header of {HEADER_LEN}")]
    TooShort {
        /// Length of the bytes.
        length: usize,
    },
    /// It does not begin with [`MAGIC`].
    #[error("it begins with {found:02x?} and not with \"TNDM\"")]
    Magic {
        /// The first bytes.
        found: [u8; 4],
    },
    /// Written by another version of this program.
    #[error("frame version {found} is not version {FRAME_VERSION} of this program; run one build everywhere")]
    Version {
        /// The version found.
        found: u16,
    },
    /// Another kind of message than the topic carries.
    #[error("message kind {found} instead of {expected:?}")]
    Kind {
        /// The kind found.
        found: u16,
        /// The kind of the topic.
        expected: MessageKind,
    },
    /// The body is not as long as the header says.
    #[error("the header states a body of {stated} bytes, there are {found}")]
    Length {
        /// According to the header.
        stated: u64,
        /// Bytes after the header.
        found: u64,
    },
    /// The header or the body was altered.
    #[error("the checksum does not match: the frame is damaged")]
    Checksum,
    /// The checksum is right, but the body is no such message.
    #[error("the body is no valid message: {0}")]
    Body(String),
}

/// Encodes a message as one frame without a run: for files, and for calls, which name their coordinator.
#[must_use]
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_into(message, RunId::NONE, &mut frame);
    frame
}

/// As [`encode`], of a run, into a buffer whose content is replaced and whose memory is used again.
pub fn encode_into<M: Message>(message: &M, run: RunId, frame: &mut Vec<u8>) {
    frame.clear();
    frame.resize(HEADER_LEN, 0);
    *frame = postcard::to_extend(message, std::mem::take(frame)).expect("growing a Vec does not fail");
    let body = (frame.len() - HEADER_LEN) as u64;
    frame[0..4].copy_from_slice(&MAGIC);
    frame[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
    frame[6..8].copy_from_slice(&(M::KIND as u16).to_le_bytes());
    frame[8..16].copy_from_slice(&body.to_le_bytes());
    frame[16..CHECKED].copy_from_slice(&run.number().to_le_bytes());
    let sum = checksum(frame, CHECKED);
    frame[CHECKED..HEADER_LEN].copy_from_slice(&sum);
}

/// The run that a frame names; none for bytes that are no frame of this version.
#[must_use]
pub fn run_of(frame: &[u8]) -> Option<RunId> {
    let is_frame = frame.len() >= HEADER_LEN && field(frame, 0) == MAGIC;
    let run = is_frame && u16::from_le_bytes(field(frame, 4)) == FRAME_VERSION;
    run.then(|| RunId::from_number(u64::from_le_bytes(field(frame, 16))))
}

/// Decodes a frame of whichever run.
///
/// # Errors
/// A [`FrameError`]; bytes of any content and length are safe to pass.
pub fn decode<M: Message>(frame: &[u8]) -> Result<M, FrameError> {
    let version = version_of(frame)?;
    if version != FRAME_VERSION {
        return Err(FrameError::Version { found: version });
    }
    decode_behind(frame, CHECKED, M::KIND)
}

/// A message that files hold, possibly in the layout of older builds.
pub trait Kept: Message + From<before::RolloutGroup>
where
    Self: From<Self::OfOnePath> + From<Self::WithoutExchange> + From<Self::WithoutNotes>,
{
    /// Its layout in frame version 12.
    type OfOnePath: DeserializeOwned;
    /// Its layout in frame version 11.
    type WithoutExchange: DeserializeOwned;
    /// Its layout in frame version 10.
    type WithoutNotes: DeserializeOwned;
}

impl Kept for Group {
    type OfOnePath = earlier::Group<Box<Notes>, WithExchange>;
    type WithoutExchange = earlier::Group<Box<Notes>, NoExchange>;
    type WithoutNotes = earlier::Group<NoNotes, NoExchange>;
}

impl Kept for Scored {
    type OfOnePath = earlier::Scored<Box<Notes>, WithExchange>;
    type WithoutExchange = earlier::Scored<Box<Notes>, NoExchange>;
    type WithoutNotes = earlier::Scored<NoNotes, NoExchange>;
}

impl Kept for Placed {
    type OfOnePath = earlier::Placed<Box<Notes>, WithExchange>;
    type WithoutExchange = earlier::Placed<Box<Notes>, NoExchange>;
    type WithoutNotes = earlier::Placed<NoNotes, NoExchange>;
}

/// As [`decode`], for a frame of a file, which may be of an older build.
///
/// # Errors
/// A [`FrameError`]; bytes of any content and length are safe to pass.
pub fn decode_kept<M: Kept>(frame: &[u8]) -> Result<M, FrameError> {
    let version = version_of(frame)?;
    match BEFORE.iter().find(|(before, _)| *before == version) {
        // In that layout, a group of any state had the kind that a placed one has now.
        Some((_, checked)) => decode_behind::<before::RolloutGroup>(frame, *checked, MessageKind::Placed).map(M::from),
        None => match version {
            OF_ONE_PATH => decode_behind::<M::OfOnePath>(frame, CHECKED, M::KIND).map(M::from),
            WITHOUT_EXCHANGE => decode_behind::<M::WithoutExchange>(frame, CHECKED, M::KIND).map(M::from),
            WITHOUT_NOTES => decode_behind::<M::WithoutNotes>(frame, CHECKED, M::KIND).map(M::from),
            _ => decode(frame),
        },
    }
}

/// Length in bytes of the frame at the beginning of `bytes`, by its header, which may be of this or of an older build.
/// None if they begin with no such header.
#[must_use]
pub fn length_of(bytes: &[u8]) -> Option<usize> {
    let version = version_of(bytes).ok()?;
    let before = BEFORE.iter().find(|(before, _)| *before == version);
    let checked = before.map_or(CHECKED, |(_, checked)| *checked);
    usize::try_from(u64::from_le_bytes(field(bytes, 8))).ok()?.checked_add(checked + CHECKSUM)
}

fn version_of(frame: &[u8]) -> Result<u16, FrameError> {
    // No version has a shorter header.
    if frame.len() < CHECKED_OF_8 + CHECKSUM {
        return Err(FrameError::TooShort { length: frame.len() });
    }
    let magic: [u8; 4] = field(frame, 0);
    if magic != MAGIC {
        return Err(FrameError::Magic { found: magic });
    }
    Ok(u16::from_le_bytes(field(frame, 4)))
}

/// Decodes a frame with `checked` bytes before its checksum; the body follows the checksum.
fn decode_behind<T: DeserializeOwned>(frame: &[u8], checked: usize, expected: MessageKind) -> Result<T, FrameError> {
    let Some(body) = frame.get(checked + CHECKSUM..) else {
        return Err(FrameError::TooShort { length: frame.len() });
    };
    let kind = u16::from_le_bytes(field(frame, 6));
    if kind != expected as u16 {
        return Err(FrameError::Kind { found: kind, expected });
    }
    let stated = u64::from_le_bytes(field(frame, 8));
    if stated != body.len() as u64 {
        return Err(FrameError::Length { stated, found: body.len() as u64 });
    }
    if checksum(frame, checked) != field::<CHECKSUM>(frame, checked) {
        return Err(FrameError::Checksum);
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(FrameError::Body(format!("{} bytes are left over", rest.len()))),
        Err(e) => Err(FrameError::Body(e.to_string())),
    }
}

fn field<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    frame[at..at + N].try_into().expect("the header has its full length")
}

fn checksum(frame: &[u8], checked: usize) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&frame[..checked]);
    hasher.update(&frame[checked + CHECKSUM..]);
    field(hasher.finalize().as_bytes(), 0)
}
