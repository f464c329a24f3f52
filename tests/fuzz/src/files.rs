//! Frames of the channel, weights, and the files that describe them. ONNX Runtime parses graphs in C++. It gets the
//! graph of a model directory only if the graph is, byte for byte, what the exporter writes. So the targets here are
//! the manifest, and our own reader of graphs.

use std::{cell::OnceCell, fs, path::Path};

use exporters::{Checkpoint, ExportOptions, VersionDir, export, onnx::proto::ModelProto};
use harness::tiny_model::ModelFolder;
use prost::Message as _;
use rollout_rounded::{Index, RoundedError, round, unpack};
use shared::{
    Group, ModelDir, Placed, PolicyVersion, PromptId, SamplingParams, Scored, Segment, WeightManifest, Why,
    channel::{
        LearnerStatus, SamplerStatus,
        fleet::{Difference, Edition, Lease, Made, Orders, Report, RunFacts},
        frame::{self, FRAME_VERSION, HEADER_LEN, MAGIC, MessageKind},
    },
    config::{RolloutDtype, endpoint::Endpoint},
    generation::testing,
    model::manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use shared_store::{CHUNK_BYTES, Index as StoreIndex, IndexedFile};

/// The first byte chooses the kind of message, the rest is a body.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let mut completion = testing::completion(0, vec![5, 6, 7]);
    completion.episode.push(Segment::Given { ids: &[8, 9], why: Why::Reply });
    let group = testing::group(0, vec![completion]);
    let group = Group { prompt_text: "2+2=".into(), reward_names: vec![("format".into(), 1.0)], ..group };
    let group = testing::placed(shared::GroupId { step: shared::Step(3), index: 1 }, group);
    let body = |kind: u8, frame: Vec<u8>| [&[kind], &frame[HEADER_LEN..]].concat();
    let group = frame::encode(&group);
    let small = |kind: u8| [&[kind][..], &[1; 40]].concat();
    // Also in the form in which it arrives.
    vec![body(0, group.clone()), small(1), small(2), [&[3], &group[..]].concat()]
}

/// Bodies that get past the checksum, and whole frames. A frame that is read and written again is read as the same
/// message.
pub fn frame(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => {
            check_kept::<Placed>(&framed(FRAME_VERSION, MessageKind::Placed, body));
            check_kept::<Scored>(&framed(BEFORE, MessageKind::Placed, body));
            check_kept::<Placed>(&framed(WITHOUT_NOTES, MessageKind::Placed, body));
        }
        1 => check::<LearnerStatus>(&framed(FRAME_VERSION, MessageKind::LearnerStatus, body)),
        2 => check::<SamplerStatus>(&framed(FRAME_VERSION, MessageKind::SamplerStatus, body)),
        _ => check_kept::<Group>(body),
    }
}

/// As [`frame_seeds`], for calls and their answers.
pub fn fleet_seeds() -> Vec<Vec<u8>> {
    let difference = Difference { from: PolicyVersion(4), from_blake3: [6; 32], blake3: [8; 32] };
    let edition = Edition {
        version: PolicyVersion(5),
        publication: 1,
        blake3: [7; 32],
        base: None,
        rounded: true,
        differences: vec![difference],
    };
    let completion = testing::completion(0, vec![5, 6, 7]);
    let made = Made {
        lease: 1,
        sample: 2,
        token_ids: completion.token_ids().to_vec(),
        logprobs: completion.episode.logprobs().copied().collect(),
        versions: completion.episode.versions().collect(),
        finish_reason: completion.finish_reason(),
        seconds: 0.75,
        rewards: completion.rewards,
    };
    let report =
        Report { worker: 300, name: "a".into(), edition: Some(edition.clone()), made: vec![made], ..Report::default() };
    let lease = Lease {
        id: 200,
        version: PolicyVersion(5),
        prompt_id: PromptId(7),
        epoch: 1,
        prompt_ids: vec![1, 151_643],
        samples: vec![0, 3],
        sampling: SamplingParams::default(),
        row: Some("{}".into()),
    };
    let facts = RunFacts {
        config: "a = 1".into(),
        model: [3; 32],
        max_model_len: 300,
        store: "s".into(),
        run_dir: Some("r".into()),
    };
    let orders = Orders {
        facts: Some(facts),
        edition: Some(edition),
        leases: vec![200],
        granted: vec![lease],
        ..Orders::default()
    };
    let (report, orders) = (frame::encode(&report), frame::encode(&orders));
    let with = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![with(0, &report[HEADER_LEN..]), with(1, &orders[HEADER_LEN..]), with(2, &report), with(3, &orders)]
}

/// As [`frame`], for calls and their answers, which strangers may send.
pub fn fleet(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => check::<Report>(&framed(FRAME_VERSION, MessageKind::Report, body)),
        1 => check::<Orders>(&framed(FRAME_VERSION, MessageKind::Orders, body)),
        2 => check::<Report>(body),
        _ => check::<Orders>(body),
    }
}

/// An endpoint that is read is written unchanged.
pub fn endpoint(bytes: &[u8]) {
    let Some(text) = crate::text(bytes) else { return };
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        let written = endpoint.to_string();
        assert_eq!(written.parse(), Ok(endpoint));
    }
}

pub fn endpoint_seeds() -> Vec<Vec<u8>> {
    ["tcp/127.0.0.1:7447", "tls/run.example.org:1", "tcp/[::1]:0"].map(|text| text.as_bytes().to_vec()).into()
}

fn check<M: frame::Message>(bytes: &[u8]) {
    check_read(frame::decode::<M>(bytes).ok());
}

/// As [`check`], for messages in files, also of older builds. No episode that is read makes its reader panic.
fn check_kept<M: frame::Kept>(bytes: &[u8]) {
    check_read(frame::decode_kept::<M>(bytes).ok());
    if let Ok(group) = frame::decode_kept::<Group>(bytes) {
        for episode in group.completions.iter().map(|completion| &completion.episode) {
            let lengths = episode.segments().map(|segment| match segment {
                Segment::Sampled { ids, .. } | Segment::Given { ids, .. } => ids.len(),
            });
            assert!(lengths.sum::<usize>() <= episode.token_ids().len());
            let _ = (episode.versions().count(), episode.is_sound(), episode.sampled_before(usize::MAX));
        }
    }
}

fn check_read<M: frame::Message>(message: Option<M>) {
    if let Some(message) = message {
        let written = frame::encode(&message);
        let again: M = frame::decode(&written).expect("what was written is read");
        assert_eq!(frame::encode(&again), written);
    }
}

/// A version whose groups have another layout.
const BEFORE: u16 = 9;
/// The version whose groups have no notes.
const WITHOUT_NOTES: u16 = 10;

/// A frame with a right header.
fn framed(version: u16, kind: MessageKind, body: &[u8]) -> Vec<u8> {
    let (length, run) = (body.len() as u64, 0u64);
    let kind = kind as u16;
    let start = [&MAGIC[..], &version.to_le_bytes(), &kind.to_le_bytes(), &length.to_le_bytes(), &run.to_le_bytes()];
    let start = start.concat();
    let sum = blake3::hash(&[&start, body].concat());
    [&start, &sum.as_bytes()[..8], body].concat()
}

thread_local! {
    /// A model, and its export.
    static PLACE: OnceCell<ModelFolder> = const { OnceCell::new() };
}

fn in_place<T>(work: impl FnOnce(&ModelFolder) -> T) -> T {
    PLACE.with(|place| {
        work(place.get_or_init(|| {
            let place = ModelFolder::new();
            let model = ModelDir::open(place.path("model")).expect("a tiny model");
            export(&model, &place.path("export"), &ExportOptions::default()).expect("a tiny export");
            round(&place.path("export"), RolloutDtype::Int8, &place.path("rounded")).expect("a whole export");
            fs::create_dir(place.path("sharded")).expect("a writable folder");
            for (from, to) in [("config.json", "config.json"), ("model.safetensors", "model-1.safetensors")] {
                fs::copy(place.path("model").join(from), place.path("sharded").join(to)).expect("a writable folder");
            }
            place
        }))
    })
}

fn file(path: &str) -> Vec<u8> {
    in_place(|place| fs::read(place.path(path)).expect("a file of a tiny model"))
}

pub fn manifest_seeds() -> Vec<Vec<u8>> {
    vec![file(&format!("export/{MANIFEST_FILE}"))]
}

/// An accepted manifest stays within the data.
pub fn manifest(bytes: &[u8]) {
    with_changed("export", MANIFEST_FILE, bytes, |dir| {
        if let Ok(manifest) = WeightManifest::read(dir) {
            let data = fs::metadata(manifest.export_dir(dir).join(DATA_FILE)).expect("it was looked at").len();
            assert!(manifest.tensors.iter().all(|tensor| tensor.offset + tensor.length <= data));
            let _ = VersionDir::open(dir).map(|version| version.damaged().count());
        }
    });
}

/// The first byte chooses the file.
const ROUNDED: [&str; 2] = [rollout_rounded::INDEX_FILE, rollout_rounded::DATA_FILE];

pub fn rounded_seeds() -> Vec<Vec<u8>> {
    let seed = |(number, name): (u8, &str)| [&[number][..], &file(&format!("rounded/{name}"))].concat();
    (0..).zip(ROUNDED).map(seed).collect()
}

/// Unpacking gives the packed bytes, and an index that is read is written again unchanged.
pub fn rounded(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let name = ROUNDED[usize::from(*which) % ROUNDED.len()];
    with_changed("rounded", name, bytes, |dir| {
        let manifest = WeightManifest::read_alone(dir).expect("it is whole");
        let path = dir.join(rollout_rounded::INDEX_FILE);
        if let Ok(index) = Index::read(&path, &manifest) {
            let written = serde_json::to_vec(&index).expect("an index is valid JSON");
            assert_eq!(Index::parse(&written, &path, &manifest).expect("what was written is read"), index);
        }
        let out = dir.with_file_name("unpacked");
        match unpack(dir, None, &out) {
            Ok(_) => {
                assert!(VersionDir::open(&out).expect("a version directory").is_intact());
                fs::remove_dir_all(&out).expect("a writable folder");
            }
            Err(RoundedError::Export(error)) => panic!("{error}"),
            Err(_) => assert!(!out.exists(), "half a version is there"),
        }
    });
}

pub fn graph_seeds() -> Vec<Vec<u8>> {
    vec![file(&format!("export/{MODEL_FILE}"))]
}

/// A graph that the manifest does not know is refused, and a graph that our reader reads is written again unchanged.
pub fn graph(bytes: &[u8]) {
    if let Ok(model) = ModelProto::decode(bytes) {
        let written = model.encode_to_vec();
        let again = ModelProto::decode(written.as_slice()).expect("what was written is read");
        assert_eq!(again.encode_to_vec(), written);
    }
    let own = in_place(|place| fs::read(place.path("export").join(MODEL_FILE)).expect("a tiny export"));
    with_changed("export", MODEL_FILE, bytes, |dir| {
        assert!(VersionDir::open(dir).is_err() || own == bytes, "another graph is taken for the one of the manifest");
    });
}

pub fn safetensors_seeds() -> Vec<Vec<u8>> {
    vec![file("model/model.safetensors")]
}

/// An accepted file has every parameter of the model, in its size.
pub fn safetensors(bytes: &[u8]) {
    with_changed("model", "model.safetensors", bytes, read_all);
}

pub fn index_seeds() -> Vec<Vec<u8>> {
    let model = in_place(|place| ModelDir::open(place.path("model")).expect("a tiny model"));
    let names = model.config().parameters().into_iter().map(|(name, _)| (name, "model-1.safetensors".into()));
    let map: serde_json::Map<_, _> = names.collect();
    vec![serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().into_bytes()]
}

/// As [`safetensors`], for weights in shards.
pub fn index(bytes: &[u8]) {
    with_changed("sharded", "model.safetensors.index.json", bytes, read_all);
}

pub fn store_index_seeds() -> Vec<Vec<u8>> {
    let file = |name: &str, length: u64, chunks: u8| IndexedFile {
        name: name.into(),
        length,
        chunks: (0..chunks).map(|n| [n; 32]).collect(),
    };
    let files = vec![file("weights.data", 2 * CHUNK_BYTES + 1, 3), file("manifest.json", 300, 1), file("empty", 0, 0)];
    vec![StoreIndex { files }.to_bytes()]
}

/// An accepted index names no file elsewhere, has a hash for every byte, and is read as the same after it is written
/// again.
pub fn store_index(bytes: &[u8]) {
    let Ok(index) = StoreIndex::parse(bytes) else { return };
    for file in &index.files {
        let path = Path::new(&file.name);
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(file.name.as_str()));
        assert_eq!(file.length.div_ceil(CHUNK_BYTES), file.chunks.len() as u64);
        assert!(file.chunks.len() <= bytes.len(), "more is kept than came");
    }
    assert!(index.total() <= bytes.len() as u64 * CHUNK_BYTES);
    assert_eq!(StoreIndex::parse(&index.to_bytes()), Ok(index));
}

fn read_all(dir: &Path) {
    let model = ModelDir::open(dir).expect("its config.json is whole");
    if let Ok(checkpoint) = Checkpoint::open(&model) {
        for (name, shape) in model.config().parameters() {
            let values = checkpoint.read_f32(&name).expect("it was looked for");
            assert_eq!(values.len(), shape.iter().product::<usize>());
        }
    }
}

/// Puts `bytes` in the place of a file of the folder, as long as `work` runs.
fn with_changed(folder: &str, name: &str, bytes: &[u8], work: impl FnOnce(&Path)) {
    in_place(|place| {
        let dir = place.path(folder);
        let path = dir.join(name);
        let before = fs::read(&path).ok();
        // A new file each time: the old file may still be mapped.
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).expect("a writable folder");
        work(&dir);
        let _ = fs::remove_file(&path);
        if let Some(before) = before {
            fs::write(&path, before).expect("a writable folder");
        }
    });
}
