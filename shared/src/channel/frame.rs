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
//! two builds are mixed, and is refused. Frames in files outlive a build: [`decode_kept`] also reads those of version 8,
//! whose header has no id of a run and whose checksum stands at offset 16.

use serde::{Serialize, de::DeserializeOwned};

use super::{
    LearnerStatus, RunId, SamplerStatus,
    fleet::{Orders, Report},
};
use crate::group::RolloutGroup;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"TNDM";
/// Version of the header and of every message's layout. Any change of either must raise it; a test holds the bytes.
pub const FRAME_VERSION: u16 = 9;
/// Bytes before the body.
pub const HEADER_LEN: usize = 32;
/// Bytes before the checksum: what it covers, besides the body.
const CHECKED: usize = 24;
/// The version before, which has the same bodies, and the bytes before its checksum.
const VERSION_BEFORE: u16 = 8;
const CHECKED_BEFORE: usize = 16;
/// Bytes of the checksum.
const CHECKSUM: usize = 8;

/// The kinds of message, as they stand in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A [`RolloutGroup`].
    Group = 1,
    /// A [`LearnerStatus`].
    LearnerStatus = 2,
    /// A [`SamplerStatus`].
    SamplerStatus = 3,
    /// A [`Report`] of a worker.
    Report = 4,
    /// The [`Orders`] that answer it.
    Orders = 5,
}

/// A type that travels in a frame.
pub trait Message: Serialize + DeserializeOwned {
    /// What the header says it is.
    const KIND: Kind;
}

impl Message for RolloutGroup {
    const KIND: Kind = Kind::Group;
}

impl Message for LearnerStatus {
    const KIND: Kind = Kind::LearnerStatus;
}

impl Message for SamplerStatus {
    const KIND: Kind = Kind::SamplerStatus;
}

impl Message for Report {
    const KIND: Kind = Kind::Report;
}

impl Message for Orders {
    const KIND: Kind = Kind::Orders;
}

/// A frame that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than a header.
    #[error("{length} bytes are too few for a frame header of {HEADER_LEN}")]
    TooShort {
        /// Bytes there are.
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
        expected: Kind,
    },
    /// The body is not as long as the header says.
    #[error("the header states a body of {stated} bytes, there are {found}")]
    Length {
        /// According to the header.
        stated: u64,
        /// Bytes after the header.
        found: u64,
    },
    /// Header or body were altered.
    #[error("the checksum does not match: the frame is damaged")]
    Checksum,
    /// The checksum is right and yet the body is no such message.
    #[error("the body is no valid message: {0}")]
    Body(String),
}

/// Encodes a message as one frame, of no run in particular: for files, and for calls that name their coordinator.
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

/// The run that a frame is of, as far as it says so; none of bytes that are no frame of this version.
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
    decode_behind(frame, CHECKED)
}

/// As [`decode`], for a frame of a file, which may be of the version before.
///
/// # Errors
/// A [`FrameError`]; bytes of any content and length are safe to pass.
pub fn decode_kept<M: Message>(frame: &[u8]) -> Result<M, FrameError> {
    match version_of(frame) {
        Ok(VERSION_BEFORE) => decode_behind(frame, CHECKED_BEFORE),
        _ => decode(frame),
    }
}

fn version_of(frame: &[u8]) -> Result<u16, FrameError> {
    // No version has a shorter header.
    if frame.len() < CHECKED_BEFORE + CHECKSUM {
        return Err(FrameError::TooShort { length: frame.len() });
    }
    let magic: [u8; 4] = field(frame, 0);
    if magic != MAGIC {
        return Err(FrameError::Magic { found: magic });
    }
    Ok(u16::from_le_bytes(field(frame, 4)))
}

/// Decodes a frame whose checksum stands behind so many bytes, before the body.
fn decode_behind<M: Message>(frame: &[u8], checked: usize) -> Result<M, FrameError> {
    let Some(body) = frame.get(checked + CHECKSUM..) else {
        return Err(FrameError::TooShort { length: frame.len() });
    };
    let kind = u16::from_le_bytes(field(frame, 6));
    if kind != M::KIND as u16 {
        return Err(FrameError::Kind { found: kind, expected: M::KIND });
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        channel::{
            FleetStatus, InFlight, Refusal,
            fleet::{Difference, Edition, KernelClass, Lease, Made, RunFacts, Unfetched, Work},
        },
        compute::{Device, Kernels, KvDtype, RolloutDtype},
        group::{Completion, DroppedGroup, FinishReason, Provenance, RewardOutcome, StepScore, TokenLogprob},
        ids::{GroupId, PolicyVersion, PromptId, Step},
        sampling::SamplingParams,
    };

    fn sample_group() -> RolloutGroup {
        RolloutGroup {
            id: GroupId { step: Step(300), index: 2 },
            prompt_id: PromptId(7),
            epoch: 1,
            prompt_ids: vec![1, 151_643],
            prompt_text: "2+2=".into(),
            completions: vec![Completion {
                sample: 0,
                token_ids: vec![19, 151_645],
                logprobs: vec![
                    TokenLogprob { logprob: -0.5, logprob_at_temperature: -0.25, log_kept_mass: -0.125, kept_count: 3 },
                    TokenLogprob::default(),
                ],
                versions: vec![(0, PolicyVersion(299)), (1, PolicyVersion(300))],
                text: "4".into(),
                finish_reason: FinishReason::Stop,
                rewards: vec![
                    RewardOutcome::Score(2.0),
                    RewardOutcome::NotApplicable,
                    RewardOutcome::Failed("timeout".into()),
                    RewardOutcome::Steps(vec![StepScore { end: 1, score: 0.5 }]),
                ],
                provenance: Provenance::CarriedOver,
            }],
            reward_names: vec![("correctness".into(), 1.0), ("format".into(), 0.5), ("length".into(), 1.0)],
            policy_version: PolicyVersion(299),
            cursor: 2403,
            dropped: vec![DroppedGroup {
                prompt_id: PromptId(8),
                epoch: 1,
                prompt_text: "3+3=".into(),
                completions: Vec::new(),
                reward: Some(1.0),
                tokens: 300,
                stale: false,
            }],
            filler: true,
            generation_seconds: 0.75,
        }
    }

    fn edition() -> Edition {
        let difference = Difference { from: PolicyVersion(4), from_blake3: [6; 32], blake3: [8; 32] };
        let (blake3, differences) = ([7; 32], vec![difference]);
        Edition { version: PolicyVersion(5), publication: 1, blake3, base: None, rounded: true, differences }
    }

    fn sample_report() -> Report {
        Report {
            worker: 0x0123_4567_89ab_cdef,
            name: "a".into(),
            build: "0.1.0".into(),
            clock: 0.5,
            coordinator: 9,
            class: Some(KernelClass {
                device: Device::Cuda,
                kernels: Kernels::Stock,
                rollout_dtype: RolloutDtype::Bf16,
                kv_dtype: KvDtype::Int8,
            }),
            max_num_seqs: 300,
            edition: Some(edition()),
            held: vec![1, 200],
            made: vec![Made {
                lease: 1,
                sample: 2,
                token_ids: vec![19, 151_645],
                logprobs: vec![TokenLogprob::default(); 2],
                versions: vec![(0, PolicyVersion(5))],
                finish_reason: FinishReason::Length,
                seconds: 0.75,
                rewards: vec![RewardOutcome::Score(0.5), RewardOutcome::NotApplicable],
            }],
            refusal: Some(Refusal { version: PolicyVersion(6), publication: 1, reason: "no".into() }),
            unfetched: Some(Unfetched { publication: 2, is_damage: true, reason: "cut".into() }),
            problem: Some("full".into()),
            work: Work {
                tokens: 12_345,
                scored: 300,
                scoring: 2,
                busy_s: 1.0,
                idle_s: 2.0,
                fetched_bytes: 300,
                fetch_s: 0.5,
                swap_s: 0.25,
            },
        }
    }

    fn sample_orders() -> Orders {
        Orders {
            coordinator: 9,
            facts: Some(RunFacts {
                config: "a = 1".into(),
                model: [3; 32],
                max_model_len: 300,
                store: "s".into(),
                run_dir: Some("r".into()),
            }),
            edition: Some(edition()),
            leases: vec![1, 200],
            granted: vec![Lease {
                id: 200,
                version: PolicyVersion(5),
                prompt_id: PromptId(7),
                epoch: 1,
                prompt_ids: vec![1, 151_643],
                samples: vec![0, 3],
                sampling: SamplingParams::default(),
                row: Some("{}".into()),
            }],
            refused: Some("no".into()),
            finished: true,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_every_message() {
        let learner = LearnerStatus {
            incarnation: 0x0123_4567_89ab_cdef,
            version: PolicyVersion(5),
            publication: 1,
            step: Step(5),
            cursor: 40,
            durable_step: Step(4),
            received: vec![0, 200],
            next_cursor: 42,
            total_steps: 1000,
            given_up: Some((PolicyVersion(2), PolicyVersion(4))),
            saving: true,
            in_flight: true,
            finished: true,
        };
        let sampler = SamplerStatus {
            incarnation: 9,
            version: PolicyVersion(5),
            oldest_in_use: PolicyVersion(4),
            swap_micros: 1_000_000,
            swap_stall_micros: 300,
            gate_micros: 200,
            refusal: Some(Refusal { version: PolicyVersion(6), publication: 1, reason: "no".into() }),
            generated_tokens: 12_345,
            busy_micros: 7,
            idle_micros: 8,
            waiting: true,
            in_flight: Some(InFlight { learner: 300, step: Step(5), blake3: Some([7; 32]) }),
            fleet: Some(FleetStatus {
                workers: 2,
                tokens_per_s: 900,
                staleness: 1,
                expired: 3,
                twice: 4,
                verified: 5,
                disputed: 6,
                stored_bytes: 1 << 32,
                fetched_bytes: 1 << 33,
                alone_micros: 300,
            }),
        };
        let frames = [encode(&sample_group()), encode(&learner), encode(&sampler)];
        assert_eq!(frames.map(|frame| hex(&frame)), [GROUP, LEARNER, SAMPLER]);
        assert_eq!([encode(&sample_report()), encode(&sample_orders())].map(|frame| hex(&frame)), [REPORT, ORDERS]);
    }

    /// [`GROUP`] as version 8 wrote it.
    const KEPT_BEFORE: &str = "\
        544e444d08000100b0000000000000003a7953955b0d8ce0ac020207010201dba00904322b323d01000213dda00\
        902000000bf000080be000000be03000000000000000000000000000200ab0201ac0201340004000000000000000\
        04002030774696d656f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f066\
        66f726d6174000000000000e03f066c656e677468000000000000f03fab02e31201080104332b333d00010000000\
        00000f03fac020001000000000000e83f";
    const GROUP: &str = "\
        544e444d09000100b0000000000000000000000000000000481056e20d7516e3ac020207010201dba00904322b323d01\
        000213dda00902000000bf000080be000000be03000000000000000000000000000200ab0201ac020134000400000000\
        000000004002030774696d656f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f\
        06666f726d6174000000000000e03f066c656e677468000000000000f03fab02e31201080104332b333d000100000000\
        0000f03fac020001000000000000e83f";
    const LEARNER: &str = "\
        544e444d090002001b00000000000000000000000000000093b50c2dcf8fa384ef9bafcdf8acd1910105010528040200\
        c8012ae807010204010101";
    const SAMPLER: &str = "\
        544e444d090003004f000000000000000000000000000000f741f5bbde9b8282090504c0843dac02c801010601026e6f\
        b96007080101ac0205010707070707070707070707070707070707070707070707070707070707070707010284070103\
        04050680808080108080808020ac02";

    const REPORT: &str = "\
        544e444d09000400110100000000000000000000000000000cc3049dc35cd4fdef9bafcdf8acd19101016105302e312e\
        30000000000000e03f090104637564610573746f636b046266313604696e7438ac020105010707070707070707070707\
        070707070707070707070707070707070707070707000101040606060606060606060606060606060606060606060606\
        06060606060606060608080808080808080808080808080808080808080808080808080808080808080201c801010102\
        0213dda00902000000000000000000000000000000000000000000000000000001000501000000000000e83f02000000\
        00000000e03f02010601026e6f01020103637574010466756c6cb960ac0202000000000000f03f0000000000000040ac\
        02000000000000e03f000000000000d03f";
    const ORDERS: &str = "\
        544e444d09000500c40000000000000000000000000000007baa3d7a6fe7c4e309010561203d20310303030303030303\
        030303030303030303030303030303030303030303030303ac0201730101720105010707070707070707070707070707\
        070707070707070707070707070707070707000101040606060606060606060606060606060606060606060606060606\
        06060606060608080808080808080808080808080808080808080808080808080808080808080201c80101c801050701\
        0201dba0090200030000803f000000803f000000803f800400002a01027b7d01026e6f01";

    #[test]
    fn each_kind_of_damage_has_its_own_error() {
        let good = encode(&sample_group());
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            decode::<RolloutGroup>(&bad).unwrap_err()
        };
        assert_eq!(with(0, b'X'), FrameError::Magic { found: *b"XNDM" });
        assert_eq!(with(4, 8), FrameError::Version { found: 8 });
        assert_eq!(with(6, 2), FrameError::Kind { found: 2, expected: Kind::Group });
        assert!(matches!(with(8, good[8].wrapping_add(1)), FrameError::Length { .. }));
        assert_eq!(with(16, !good[16]), FrameError::Checksum, "the id of another run");
        assert_eq!(with(CHECKED, !good[CHECKED]), FrameError::Checksum);
        assert_eq!(with(HEADER_LEN, !good[HEADER_LEN]), FrameError::Checksum);
        assert_eq!(decode::<RolloutGroup>(&good[..10]).unwrap_err(), FrameError::TooShort { length: 10 });
        assert!(matches!(decode::<RolloutGroup>(&good[..good.len() - 1]), Err(FrameError::Length { .. })));
        assert!(matches!(decode::<LearnerStatus>(&good), Err(FrameError::Kind { found: 1, .. })));
    }

    #[test]
    fn a_frame_says_which_run_it_is_of() {
        let mut frame = Vec::new();
        let run = RunId::from_number(0x0123_4567_89ab_cdef);
        encode_into(&SamplerStatus::default(), run, &mut frame);
        assert_eq!(run_of(&frame), Some(run));
        assert_eq!(run_of(&encode(&SamplerStatus::default())), Some(RunId::NONE));
        assert_eq!(run_of(&frame[..HEADER_LEN - 1]), None);
        assert_eq!(decode::<SamplerStatus>(&frame).unwrap(), SamplerStatus::default());
    }

    /// As a checkpoint of the version before has them: the first frame of the golden bytes, with that header.
    #[test]
    fn a_frame_of_the_version_before_is_read_from_a_file_and_not_from_the_channel() {
        let kept = bytes(KEPT_BEFORE);
        assert_eq!(decode_kept::<RolloutGroup>(&kept).unwrap(), sample_group());
        assert_eq!(decode::<RolloutGroup>(&kept).unwrap_err(), FrameError::Version { found: 8 });
        for at in [4, 8, 16, 24, kept.len() - 1] {
            let mut damaged = kept.clone();
            damaged[at] ^= 0x40;
            assert!(decode_kept::<RolloutGroup>(&damaged).is_err(), "a bit of byte {at} is another");
        }
        for length in [0, 16, 23, 24, kept.len() - 1] {
            assert!(decode_kept::<RolloutGroup>(&kept[..length]).is_err(), "{length} bytes");
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
    }

    #[test]
    fn a_body_that_is_no_message_is_refused_in_spite_of_its_checksum() {
        let mut frame = encode(&SamplerStatus::default());
        frame.push(0);
        let body = (frame.len() - HEADER_LEN) as u64;
        frame[8..16].copy_from_slice(&body.to_le_bytes());
        let sum = checksum(&frame, CHECKED);
        frame[CHECKED..HEADER_LEN].copy_from_slice(&sum);
        assert_eq!(decode::<SamplerStatus>(&frame).unwrap_err(), FrameError::Body("1 bytes are left over".into()));
    }

    fn logprob() -> impl Strategy<Value = TokenLogprob> {
        (any::<f32>(), any::<f32>(), any::<f32>(), any::<u32>()).prop_map(
            |(logprob, logprob_at_temperature, log_kept_mass, kept_count)| TokenLogprob {
                logprob,
                logprob_at_temperature,
                log_kept_mass,
                kept_count,
            },
        )
    }

    fn outcome() -> impl Strategy<Value = RewardOutcome> {
        prop_oneof![
            any::<f64>().prop_map(RewardOutcome::Score),
            prop::collection::vec(any::<(u32, f64)>(), 0..4).prop_map(|steps| {
                RewardOutcome::Steps(steps.into_iter().map(|(end, score)| StepScore { end, score }).collect())
            }),
            Just(RewardOutcome::NotApplicable),
            any::<String>().prop_map(RewardOutcome::Failed),
        ]
    }

    fn completion() -> impl Strategy<Value = Completion> {
        (
            any::<u32>(),
            prop::collection::vec((any::<u32>(), logprob()), 0..40),
            prop::collection::vec(any::<(u32, u64)>(), 0..4),
            any::<String>(),
            prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length), Just(FinishReason::Aborted)],
            prop::collection::vec(outcome(), 0..4),
            prop_oneof![Just(Provenance::New), Just(Provenance::CarriedOver), Just(Provenance::MadeAgain)],
        )
            .prop_map(|(sample, tokens, versions, text, finish_reason, rewards, provenance)| {
                let (token_ids, logprobs) = tokens.into_iter().unzip();
                let versions = versions.into_iter().map(|(i, v)| (i, PolicyVersion(v))).collect();
                Completion { sample, token_ids, logprobs, versions, text, finish_reason, rewards, provenance }
            })
    }

    fn group() -> impl Strategy<Value = RolloutGroup> {
        (
            any::<(u64, u32, u64, u32, u64, u64)>(),
            prop::collection::vec(any::<u32>(), 0..20),
            any::<String>(),
            prop::collection::vec(completion(), 0..4),
            prop::collection::vec(any::<(String, f64)>(), 0..3),
            any::<f64>(),
            prop::collection::vec(any::<(u64, Option<f64>, u64, bool)>(), 0..3),
            any::<bool>(),
        )
            .prop_map(
                |(numbers, prompt_ids, prompt_text, completions, reward_names, generation_seconds, dropped, filler)| {
                    let dropped = dropped
                        .into_iter()
                        .map(|(id, reward, tokens, stale)| DroppedGroup {
                            prompt_id: PromptId(id),
                            epoch: 0,
                            prompt_text: String::new(),
                            completions: Vec::new(),
                            reward,
                            tokens,
                            stale,
                        })
                        .collect();
                    let (step, index, prompt_id, epoch, policy_version, cursor) = numbers;
                    RolloutGroup {
                        id: GroupId { step: Step(step), index },
                        prompt_id: PromptId(prompt_id),
                        epoch,
                        prompt_ids,
                        prompt_text,
                        completions,
                        reward_names,
                        policy_version: PolicyVersion(policy_version),
                        cursor,
                        dropped,
                        filler,
                        generation_seconds,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn a_group_comes_back_bit_for_bit(group in group()) {
            let frame = encode(&group);
            let back: RolloutGroup = decode(&frame).unwrap();
            // Encoded again, since NaN is not equal to itself.
            prop_assert_eq!(encode(&back), frame);
        }

        #[test]
        fn a_flipped_bit_never_goes_unnoticed(group in group(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut frame = encode(&group);
            let at = at.index(frame.len());
            frame[at] ^= 1 << bit;
            prop_assert!(decode::<RolloutGroup>(&frame).is_err());
        }

        #[test]
        fn a_flipped_bit_of_a_call_or_an_answer_never_goes_unnoticed(at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let (mut report, mut orders) = (encode(&sample_report()), encode(&sample_orders()));
            for frame in [&mut report, &mut orders] {
                let at = at.index(frame.len());
                frame[at] ^= 1 << bit;
            }
            prop_assert!(decode::<Report>(&report).is_err() && decode::<Orders>(&orders).is_err());
        }

        #[test]
        fn bytes_of_any_content_are_refused_and_not_fatal(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode::<RolloutGroup>(&bytes).is_err());
        }
    }
}
