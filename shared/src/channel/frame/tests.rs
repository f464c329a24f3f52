//! The bytes of every message, and the handling of damage.

use proptest::prelude::*;

use super::*;
use crate::{
    channel::{
        FleetStatus, InFlight, Refusal,
        fleet::{Difference, Edition, KernelClass, Lease, Made, RunFacts, Unfetched, Work},
    },
    declare::Choice,
    generation::{
        episode::{Episode, FinishReason, Segment, TokenLogprob, Why},
        group::{Completion, Dropped, EpisodeEnd, Exchange, Logged, Note, Notes, Provenance, RewardOutcome, StepScore},
        ids::{GroupId, PolicyVersion, PromptId, Step},
        routing::Routing,
        sampling::SamplingParams,
        testing::{GROUP_OF_8, GROUP_OF_9, bytes},
    },
    system::compute::{Device, Kernels, KvDtype, RolloutDtype},
};

/// A group that versions 8 and 9 can express: with one turn.
fn one_turn() -> Placed {
    let logprobs = vec![
        TokenLogprob { logprob: -0.5, logprob_at_temperature: -0.25, log_kept_mass: -0.125, kept_count: 3 },
        TokenLogprob::default(),
    ];
    let versions = vec![(0, PolicyVersion(299)), (1, PolicyVersion(300))];
    let completion = Completion {
        sample: 0,
        episode: Episode::of_one_turn(vec![19, 151_645], logprobs, versions, FinishReason::Stop),
        text: "4".into(),
        rewards: vec![
            RewardOutcome::Score(2.0),
            RewardOutcome::NotApplicable,
            RewardOutcome::Failed("timeout".into()),
            RewardOutcome::Steps(vec![StepScore { end: 1, score: 0.5 }]),
        ],
        provenance: Provenance::CarriedOver,
        exchange: None,
        routing: None,
    };
    let group = Group {
        position: 2402,
        prompt_id: PromptId(7),
        epoch: 1,
        prompt_ids: vec![1, 151_643],
        prompt_text: "2+2=".into(),
        completions: vec![completion],
        reward_names: vec![("correctness".into(), 1.0), ("format".into(), 0.5), ("length".into(), 1.0)],
        generation_seconds: 0.75,
        notes: Box::default(),
    };
    let dropped = Group {
        position: 2401,
        prompt_id: PromptId(8),
        prompt_ids: Vec::new(),
        prompt_text: "3+3=".into(),
        completions: Vec::new(),
        generation_seconds: 0.0,
        ..group.clone()
    };
    Placed {
        id: GroupId { step: Step(300), index: 2 },
        scored: group.into(),
        dropped: vec![Dropped { scored: dropped.into(), stale: false }],
        filler: true,
    }
}

/// The same with a reply and a second turn, as version 10 can express it.
fn two_turns() -> Placed {
    let mut placed = one_turn();
    let episode = &mut placed.scored.group.completions[0].episode;
    episode.push(Segment::Given { ids: &[7, 8, 300], why: Why::Reply });
    episode.push(Segment::Given { ids: &[9], why: Why::Template });
    let (logprobs, versions) = ([TokenLogprob::default()], [(0, PolicyVersion(301))]);
    episode.push(Segment::Sampled {
        ids: &[5],
        logprobs: &logprobs,
        versions: &versions,
        finish: FinishReason::Length,
    });
    placed
}

/// The same with notes, as version 11 can express it.
fn noted() -> Placed {
    let mut placed = two_turns();
    let notes = &mut placed.scored.group.notes;
    notes.columns = vec![("answer".into(), Note::of(&4.into()))];
    notes.logged.set_extra("guess", vec![Note::of(&"4".into())]);
    notes.logged.add_metric("right", 0.5);
    placed
}

/// The same with what a tool and an environment said, as version 12 can express it.
fn exchanged() -> Placed {
    let mut placed = noted();
    let messages = [serde_json::json!({ "role": "assistant", "content": "4" })];
    placed.scored.group.completions[0].exchange = Some(Box::new(Exchange {
        opening: Some("a".into()),
        failure: Some("late".into()),
        calls: 300,
        failed_calls: 2,
        rewards: vec![RewardOutcome::Score(0.5)],
        recomputed: 1,
        waited_seconds: 0.5,
        seconds: 2.0,
        ..Exchange::new(&messages, EpisodeEnd::Deadline)
    }));
    placed
}

/// The same with a second path, and with what its agent asked otherwise.
fn sample_group() -> Placed {
    let mut placed = exchanged();
    let completion = &mut placed.scored.group.completions[0];
    let (logprobs, versions) = (vec![TokenLogprob::default()], vec![(0, PolicyVersion(301))]);
    let path = Episode::of_one_turn(vec![6], logprobs, versions, FinishReason::Stop);
    completion.episode = Episode::of_paths([completion.episode.clone(), path]);
    completion.exchange.as_mut().unwrap().overridden = Some(2);
    let routing = Routing { width: 2, choices: vec![0, 3, 127, 300] };
    placed.scored.group.completions[0].routing = Some(Box::new(routing));
    placed
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
    // Messages in files.
    let scored = sample_group().scored;
    assert_eq!([encode(&scored), encode(&scored.group)].map(|frame| hex(&frame)), [SCORED, KEPT]);
}

const GROUP: &str = "\
    544e444d0d000100a50100000000000000000000000000003b88b124580ac7b9ac0202e21207010201dba00904322b32\
    3d01000813dda0090708ac02090506060002000000bf000080be000000be03000000000000000000000000000200ab02\
    01ac02000103000101010001000000000000000000000000000100ad0201020001000000000000000000000000000100\
    ad020001340400000000000000004002030774696d656f7574010101000000000000e03f0101245b7b22726f6c65223a\
    22617373697374616e74222c22636f6e74656e74223a2234227d5d01016108646561646c696e6501046c617465ac0202\
    0100000000000000e03f01000000000000e03f0000000000000040010201020400037fac02030b636f72726563746e65\
    7373000000000000f03f06666f726d6174000000000000e03f066c656e677468000000000000f03f000000000000e83f\
    0106616e73776572013401056775657373010322342201057269676874000000000000e03f01ab0201e1120801000433\
    2b333d00030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f066c656e67746800\
    0000000000f03f0000000000000000000000000001";
const SCORED: &str = "\
    544e444d0d00070055010000000000000000000000000000ad5170e686413d34e21207010201dba00904322b323d0100\
    0813dda0090708ac02090506060002000000bf000080be000000be03000000000000000000000000000200ab0201ac02\
    000103000101010001000000000000000000000000000100ad0201020001000000000000000000000000000100ad0200\
    01340400000000000000004002030774696d656f7574010101000000000000e03f0101245b7b22726f6c65223a226173\
    73697374616e74222c22636f6e74656e74223a2234227d5d01016108646561646c696e6501046c617465ac0202010000\
    0000000000e03f01000000000000e03f0000000000000040010201020400037fac02030b636f72726563746e65737300\
    0000000000f03f06666f726d6174000000000000e03f066c656e677468000000000000f03f000000000000e83f010661\
    6e73776572013401056775657373010322342201057269676874000000000000e03f01ab02";
const KEPT: &str = "\
    544e444d0d000600530100000000000000000000000000000b587c259a318cfde21207010201dba00904322b323d0100\
    0813dda0090708ac02090506060002000000bf000080be000000be03000000000000000000000000000200ab0201ac02\
    000103000101010001000000000000000000000000000100ad0201020001000000000000000000000000000100ad0200\
    01340400000000000000004002030774696d656f7574010101000000000000e03f0101245b7b22726f6c65223a226173\
    73697374616e74222c22636f6e74656e74223a2234227d5d01016108646561646c696e6501046c617465ac0202010000\
    0000000000e03f01000000000000e03f0000000000000040010201020400037fac02030b636f72726563746e65737300\
    0000000000f03f06666f726d6174000000000000e03f066c656e677468000000000000f03f000000000000e83f010661\
    6e73776572013401056775657373010322342201057269676874000000000000e03f01";
const LEARNER: &str = "\
    544e444d0d0002001b00000000000000000000000000000054db9c79d145c6fbef9bafcdf8acd1910105010528040200\
    c8012ae807010204010101";
const SAMPLER: &str = "\
    544e444d0d0003004f000000000000000000000000000000086d990902a69c1d090504c0843dac02c801010601026e6f\
    b96007080101ac0205010707070707070707070707070707070707070707070707070707070707070707010284070103\
    04050680808080108080808020ac02";

const REPORT: &str = "\
    544e444d0d000400110100000000000000000000000000004dd8c5dc03960059ef9bafcdf8acd19101016105302e312e\
    30000000000000e03f090104637564610573746f636b046266313604696e7438ac020105010707070707070707070707\
    070707070707070707070707070707070707070707000101040606060606060606060606060606060606060606060606\
    06060606060606060608080808080808080808080808080808080808080808080808080808080808080201c801010102\
    0213dda00902000000000000000000000000000000000000000000000000000001000501000000000000e83f02000000\
    00000000e03f02010601026e6f01020103637574010466756c6cb960ac0202000000000000f03f0000000000000040ac\
    02000000000000e03f000000000000d03f";
const ORDERS: &str = "\
    544e444d0d000500c400000000000000000000000000000075e82c999a7962bf09010561203d20310303030303030303\
    030303030303030303030303030303030303030303030303ac0201730101720105010707070707070707070707070707\
    070707070707070707070707070707070707000101040606060606060606060606060606060606060606060606060606\
    06060606060608080808080808080808080808080808080808080808080808080808080808080201c80101c801050701\
    0201dba0090200030000803f000000803f000000803f800400002a01027b7d01026e6f01";

/// Messages in files of version 12: those of [`exchanged`].
const GROUP_OF_12: &str = "\
    544e444d0c000100850100000000000000000000000000001389af86b2adc4f4ac0202e21207010201dba00904322b32\
    3d01000713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201\
    ac02000103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d65\
    6f7574010101000000000000e03f0101245b7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a\
    2234227d5d01016108646561646c696e6501046c617465ac02020100000000000000e03f01000000000000e03f000000\
    0000000040030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f066c656e677468\
    000000000000f03f000000000000e83f0106616e73776572013401056775657373010322342201057269676874000000\
    000000e03f01ab0201e11208010004332b333d00030b636f72726563746e657373000000000000f03f06666f726d6174\
    000000000000e03f066c656e677468000000000000f03f0000000000000000000000000001";
const SCORED_OF_12: &str = "\
    544e444d0c0007003501000000000000000000000000000074d7af7e3a69c2efe21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f0101245b7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a223422\
    7d5d01016108646561646c696e6501046c617465ac02020100000000000000e03f01000000000000e03f000000000000\
    0040030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f066c656e677468000000\
    000000f03f000000000000e83f0106616e73776572013401056775657373010322342201057269676874000000000000\
    e03f01ab02";
const KEPT_OF_12: &str = "\
    544e444d0c00060033010000000000000000000000000000d3f664f84d150b3ae21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f0101245b7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a223422\
    7d5d01016108646561646c696e6501046c617465ac02020100000000000000e03f01000000000000e03f000000000000\
    0040030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f066c656e677468000000\
    000000f03f000000000000e83f0106616e73776572013401056775657373010322342201057269676874000000000000\
    e03f01";
/// Messages in files of version 11: those of [`noted`].
const GROUP_OF_11: &str = "\
    544e444d0b0001002f0100000000000000000000000000001610d60bd0098c00ac0202e21207010201dba00904322b32\
    3d01000713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201\
    ac02000103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d65\
    6f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d61740000000000\
    00e03f066c656e677468000000000000f03f000000000000e83f0106616e737765720134010567756573730103223422\
    01057269676874000000000000e03f01ab0201e11208010004332b333d00030b636f72726563746e6573730000000000\
    00f03f06666f726d6174000000000000e03f066c656e677468000000000000f03f0000000000000000000000000001";
const SCORED_OF_11: &str = "\
    544e444d0b000700df000000000000000000000000000000f77c096cc79883fbe21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f\
    066c656e677468000000000000f03f000000000000e83f0106616e737765720134010567756573730103223422010572\
    69676874000000000000e03f01ab02";
const KEPT_OF_11: &str = "\
    544e444d0b000600dd0000000000000000000000000000008c59021bc8f3e2c6e21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f\
    066c656e677468000000000000f03f000000000000e83f0106616e737765720134010567756573730103223422010572\
    69676874000000000000e03f01";

/// Messages in files of version 10: those of [`two_turns`].
const GROUP_OF_10: &str = "\
    544e444d0a000100060100000000000000000000000000007c904f870ac9f9b9ac0202e21207010201dba00904322b32\
    3d01000713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201\
    ac02000103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d65\
    6f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d61740000000000\
    00e03f066c656e677468000000000000f03f000000000000e83fab0201e11208010004332b333d00030b636f72726563\
    746e657373000000000000f03f06666f726d6174000000000000e03f066c656e677468000000000000f03f0000000000\
    000000000001";
const SCORED_OF_10: &str = "\
    544e444d0a000700b9000000000000000000000000000000ba85157222faf7ebe21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f\
    066c656e677468000000000000f03f000000000000e83fab02";
const KEPT_OF_10: &str = "\
    544e444d0a000600b700000000000000000000000000000051fe34e314de4de1e21207010201dba00904322b323d0100\
    0713dda0090708ac020905040002000000bf000080be000000be03000000000000000000000000000200ab0201ac0200\
    0103000101010001000000000000000000000000000100ad020101340400000000000000004002030774696d656f7574\
    010101000000000000e03f01030b636f72726563746e657373000000000000f03f06666f726d6174000000000000e03f\
    066c656e677468000000000000f03f000000000000e83f";

#[test]
fn a_header_says_where_its_frame_ends_also_that_of_an_older_build() {
    for frame in [
        encode(&sample_group()),
        bytes(GROUP_OF_8),
        bytes(GROUP_OF_9),
        bytes(GROUP_OF_10),
        bytes(GROUP_OF_11),
        bytes(GROUP_OF_12),
    ] {
        let followed = [&frame[..], b"more"].concat();
        assert_eq!(length_of(&followed), Some(frame.len()));
        assert_eq!(length_of(&frame[1..]), None);
        assert_eq!(length_of(&frame[..20]), None);
    }
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let good = encode(&sample_group());
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        decode::<Placed>(&bad).unwrap_err()
    };
    assert_eq!(with(0, b'X'), FrameError::Magic { found: *b"XNDM" });
    assert_eq!(with(4, 8), FrameError::Version { found: 8 });
    assert_eq!(with(4, 9), FrameError::Version { found: 9 });
    assert_eq!(with(4, 10), FrameError::Version { found: 10 });
    assert_eq!(with(4, 11), FrameError::Version { found: 11 });
    assert_eq!(with(6, 2), FrameError::Kind { found: 2, expected: MessageKind::Placed });
    assert!(matches!(with(8, good[8].wrapping_add(1)), FrameError::Length { .. }));
    assert_eq!(with(16, !good[16]), FrameError::Checksum, "the id of another run");
    assert_eq!(with(CHECKED, !good[CHECKED]), FrameError::Checksum);
    assert_eq!(with(HEADER_LEN, !good[HEADER_LEN]), FrameError::Checksum);
    assert_eq!(decode::<Placed>(&good[..10]).unwrap_err(), FrameError::TooShort { length: 10 });
    assert!(matches!(decode::<Placed>(&good[..good.len() - 1]), Err(FrameError::Length { .. })));
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

/// As in checkpoints of older builds: their golden bytes, with their headers.
#[test]
fn a_frame_of_the_version_before_is_read_from_a_file_and_not_from_the_channel() {
    for (kept, version, checked) in [(GROUP_OF_8, 8, CHECKED_OF_8), (GROUP_OF_9, 9, CHECKED)] {
        let kept = bytes(kept);
        assert_eq!(decode_kept::<Placed>(&kept).unwrap(), one_turn());
        assert_eq!(decode_kept::<Scored>(&kept).unwrap(), one_turn().scored);
        assert_eq!(decode_kept::<Group>(&kept).unwrap(), one_turn().scored.group);
        assert_eq!(decode::<Placed>(&kept).unwrap_err(), FrameError::Version { found: version });
        for at in [4, 8, checked, checked + CHECKSUM, kept.len() - 1] {
            let mut damaged = kept.clone();
            damaged[at] ^= 0x40;
            assert!(decode_kept::<Placed>(&damaged).is_err(), "a bit of byte {at} is another");
        }
        for length in [0, 16, checked + CHECKSUM - 1, checked + CHECKSUM, kept.len() - 1] {
            assert!(decode_kept::<Placed>(&kept[..length]).is_err(), "{length} bytes");
        }
    }
    assert_eq!(decode_kept::<Placed>(&bytes(GROUP_OF_10)).unwrap(), two_turns());
    assert_eq!(decode_kept::<Scored>(&bytes(SCORED_OF_10)).unwrap(), two_turns().scored);
    assert_eq!(decode_kept::<Group>(&bytes(KEPT_OF_10)).unwrap(), two_turns().scored.group);
    assert_eq!(decode::<Placed>(&bytes(GROUP_OF_10)).unwrap_err(), FrameError::Version { found: 10 });
    assert_eq!(decode_kept::<Placed>(&bytes(GROUP_OF_11)).unwrap(), noted());
    assert_eq!(decode_kept::<Scored>(&bytes(SCORED_OF_11)).unwrap(), noted().scored);
    assert_eq!(decode_kept::<Group>(&bytes(KEPT_OF_11)).unwrap(), noted().scored.group);
    assert_eq!(decode::<Placed>(&bytes(GROUP_OF_11)).unwrap_err(), FrameError::Version { found: 11 });
    assert_eq!(decode_kept::<Placed>(&bytes(GROUP_OF_12)).unwrap(), exchanged());
    assert_eq!(decode_kept::<Scored>(&bytes(SCORED_OF_12)).unwrap(), exchanged().scored);
    assert_eq!(decode_kept::<Group>(&bytes(KEPT_OF_12)).unwrap(), exchanged().scored.group);
    assert_eq!(decode::<Placed>(&bytes(GROUP_OF_12)).unwrap_err(), FrameError::Version { found: 12 });
    assert!(decode_kept::<Scored>(&bytes(KEPT_OF_10)).is_err(), "kinds are not taken for each other");
    let now = sample_group();
    assert_eq!(decode_kept::<Placed>(&encode(&now)).unwrap(), now);
    assert!(decode_kept::<Group>(&encode(&now)).is_err(), "kinds are not taken for each other");
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

fn finish() -> impl Strategy<Value = FinishReason> {
    prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length), Just(FinishReason::Aborted)]
}

/// Segments in any order, some of them empty.
fn episode() -> impl Strategy<Value = Episode> {
    let turn = (
        prop::collection::vec((any::<u32>(), logprob()), 0..40),
        prop::collection::vec(any::<(u32, u64)>(), 0..4),
        finish(),
    );
    let given = (prop::collection::vec(any::<u32>(), 0..9), prop_oneof![Just(Why::Reply), Just(Why::Template)]);
    prop::collection::vec(prop_oneof![turn.prop_map(Ok), given.prop_map(Err)], 0..4).prop_map(|segments| {
        let mut episode = Episode::default();
        for segment in segments {
            match segment {
                Ok((tokens, versions, finish)) => {
                    let (ids, logprobs): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
                    let versions: Vec<_> = versions.into_iter().map(|(i, v)| (i, PolicyVersion(v))).collect();
                    episode.push(Segment::Sampled { ids: &ids, logprobs: &logprobs, versions: &versions, finish });
                }
                Err((ids, why)) => episode.push(Segment::Given { ids: &ids, why }),
            }
        }
        episode
    })
}

fn completion() -> impl Strategy<Value = Completion> {
    (
        any::<u32>(),
        episode(),
        any::<String>(),
        prop::collection::vec(outcome(), 0..4),
        prop_oneof![
            Just(Provenance::New),
            Just(Provenance::CarriedOver),
            Just(Provenance::MadeAgain),
            Just(Provenance::DrawnAgain)
        ],
        prop::option::of(exchange()),
        prop::option::of(routing()),
    )
        .prop_map(|(sample, episode, text, rewards, provenance, exchange, routing)| Completion {
            sample,
            episode,
            text,
            rewards,
            provenance,
            exchange: exchange.map(Box::new),
            routing: routing.map(Box::new),
        })
}

fn routing() -> impl Strategy<Value = Routing> {
    (any::<u32>(), prop::collection::vec(any::<u16>(), 0..9)).prop_map(|(width, choices)| Routing { width, choices })
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let texts = (any::<String>(), prop::option::of(any::<String>()), prop::option::of(any::<String>()));
    let counts = (any::<[u32; 3]>(), prop::collection::vec(outcome(), 0..3), any::<[f64; 2]>());
    let end = prop::sample::select(EpisodeEnd::ALL);
    (texts, counts, end).prop_map(|((message, opening, failure), (counts, rewards, seconds), end)| Exchange {
        opening,
        failure,
        calls: counts[0],
        failed_calls: counts[1],
        rewards,
        recomputed: counts[2],
        waited_seconds: seconds[0],
        seconds: seconds[1],
        ..Exchange::new(&[message.into()], end)
    })
}

fn notes() -> impl Strategy<Value = Notes> {
    let note = || any::<String>().prop_map(|text| Note::of(&text.into()));
    let columns = prop::collection::vec((any::<String>(), note()), 0..3);
    let extra = prop::collection::vec((any::<String>(), prop::collection::vec(note(), 0..3)), 0..3);
    let metrics = prop::collection::vec(any::<(String, f64)>(), 0..3);
    (columns, extra, metrics).prop_map(|(columns, extra, metrics)| {
        let mut logged = Logged::default();
        extra.into_iter().for_each(|(column, values)| logged.set_extra(&column, values));
        metrics.into_iter().for_each(|(metric, value)| logged.add_metric(&metric, value));
        Notes { columns, logged }
    })
}

fn scored() -> impl Strategy<Value = Scored> {
    (
        any::<(u64, u64, u32, u64, f64)>(),
        prop::collection::vec(any::<u32>(), 0..20),
        any::<String>(),
        prop::collection::vec(completion(), 0..4),
        prop::collection::vec(any::<(String, f64)>(), 0..3),
        notes(),
    )
        .prop_map(|(numbers, prompt_ids, prompt_text, completions, reward_names, notes)| {
            let (position, prompt_id, epoch, policy_version, generation_seconds) = numbers;
            let prompt_id = PromptId(prompt_id);
            Scored {
                group: Group {
                    position,
                    prompt_id,
                    epoch,
                    prompt_ids,
                    prompt_text,
                    completions,
                    reward_names,
                    generation_seconds,
                    notes: Box::new(notes),
                },
                policy_version: PolicyVersion(policy_version),
            }
        })
}

fn group() -> impl Strategy<Value = Placed> {
    let dropped = (scored(), any::<bool>()).prop_map(|(scored, stale)| Dropped { scored, stale });
    (any::<(u64, u32)>(), scored(), prop::collection::vec(dropped, 0..3), any::<bool>()).prop_map(
        |((step, index), scored, dropped, filler)| Placed {
            id: GroupId { step: Step(step), index },
            scored,
            dropped,
            filler,
        },
    )
}

proptest! {
    #[test]
    fn a_group_comes_back_bit_for_bit(group in group()) {
        let frame = encode(&group);
        let back: Placed = decode(&frame).unwrap();
        // The encodings are compared, since NaN is not equal to itself.
        prop_assert_eq!(encode(&back), frame);
    }

    #[test]
    fn a_flipped_bit_never_goes_unnoticed(group in group(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut frame = encode(&group);
        let at = at.index(frame.len());
        frame[at] ^= 1 << bit;
        prop_assert!(decode::<Placed>(&frame).is_err());
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
        prop_assert!(decode::<Placed>(&bytes).is_err());
    }
}
