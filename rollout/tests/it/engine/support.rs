//! Models, groups and the loop that the tests share.

use std::{path::Path, sync::Arc, thread, time::Duration};

use exporters::{Checkpoint, ExportOptions, export, write_version};
use rollout::engine::{
    Engine, EngineError, EngineOptions, FinishedSequence, GroupRequest, Kernels, Output, StopCriterion, SwapReport,
    WeightSource,
};
use safetensors::SafeTensors;
use shared::{
    FinishReason, ModelDir, PerLayerInput, PolicyVersion, PromptId, SamplingParams, TokenLogprob,
    config::{KvDtype, RolloutDtype},
};

pub fn options(max_num_seqs: usize, threads: usize) -> EngineOptions {
    EngineOptions { threads, max_num_batched_tokens: 64, ..EngineOptions::new(max_num_seqs, 96) }
}

/// What tests of whole groups need of an engine.
pub trait Steps {
    fn add_group(&mut self, group: GroupRequest) -> Result<(), EngineError>;

    /// The sequences that end in a step.
    fn step(&mut self) -> Result<Vec<FinishedSequence>, EngineError>;
}

impl Steps for Engine {
    fn add_group(&mut self, group: GroupRequest) -> Result<(), EngineError> {
        self.begin(group.into())
    }

    fn step(&mut self) -> Result<Vec<FinishedSequence>, EngineError> {
        Ok(self.advance()?.into_iter().filter_map(Output::ended).collect())
    }
}

/// Waits until the version that is being loaded is in use.
pub fn wait_swap(engine: &mut Engine) -> Result<SwapReport, EngineError> {
    for _ in 0..60_000 {
        if let Some(report) = engine.try_swap()? {
            return Ok(report);
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no version comes within a minute");
}

/// Every way to compute the model on the CPU.
pub const MODES: [(Kernels, RolloutDtype, KvDtype); 9] = [
    (Kernels::Packed, RolloutDtype::Auto, KvDtype::Auto),
    (Kernels::Stock, RolloutDtype::Auto, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Int8, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Int4, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Bf16, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Bf16Dot, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Bf16x3, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Auto, KvDtype::Int8),
    (Kernels::Packed, RolloutDtype::Bf16Dot, KvDtype::Bf16),
];

pub fn golden_model(name: &str) -> ModelDir {
    ModelDir::open(harness::golden_model_dir(name)).unwrap()
}

/// As [`golden_model`], for tests whose sequences grow beyond the original length of a model with longrope: the length
/// in its copy in `folder` is as large as the longest sequence.
pub fn golden_model_to_grow(name: &str, folder: &Path) -> ModelDir {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let model = golden_model(name);
    if model.config().original_length().is_none() {
        return model;
    }
    let copy = folder.join("grows");
    std::fs::create_dir(&copy).unwrap();
    for file in model.companions().into_iter().chain([model.path().join("model.safetensors")]) {
        std::fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
    }
    let path = copy.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[ORIGINAL] = options(1, 1).max_model_len.into();
    std::fs::write(&path, config.to_string()).unwrap();
    ModelDir::open(copy).unwrap()
}

/// Exports a model as version 0 into `folder`.
pub fn exported(model: &ModelDir, folder: &Path) -> WeightSource {
    let dir = folder.join("v0");
    export(model, &dir, &ExportOptions::default()).unwrap();
    WeightSource { dir, version: PolicyVersion(0) }
}

/// Version 1: the weights of the golden training run's end.
pub fn trained(name: &str, base: &WeightSource, folder: &Path) -> WeightSource {
    let model = golden_model(name);
    let after = folder.join("after");
    std::fs::create_dir(&after).unwrap();
    for file in model.companions() {
        std::fs::copy(&file, after.join(file.file_name().unwrap())).unwrap();
    }
    let read = |file: &str| std::fs::read(model.path().join(file)).unwrap();
    let (trained, stored) = (read("after_3_steps/model.safetensors"), read("model.safetensors"));
    let tensors = |file| SafeTensors::deserialize(file).unwrap().tensors();
    // The figures have what is trained. The rest stays as it was.
    let rest = tensors(&stored).into_iter().filter(|(name, _)| PerLayerInput::is_buffer(name));
    let all: Vec<_> = tensors(&trained).into_iter().chain(rest).collect();
    safetensors::serialize_to_file(all, None, &after.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&ModelDir::open(after).unwrap()).unwrap();
    write(base, folder, 1, |name| checkpoint.read_f32(name).unwrap())
}

pub fn write(base: &WeightSource, folder: &Path, version: u64, read: impl Fn(&str) -> Vec<f32>) -> WeightSource {
    let (dir, version) = (folder.join(format!("v{version}")), PolicyVersion(version));
    write_version(&base.dir, &dir, version, &mut |name| Ok(read(name).into())).unwrap();
    WeightSource { dir, version }
}

pub fn group(tag: u64, prompt_ids: &[u32], num_generations: u32, sampling: SamplingParams) -> GroupRequest {
    GroupRequest {
        tag,
        prompt_id: PromptId(tag),
        epoch: 0,
        prompt_ids: Arc::from(prompt_ids),
        samples: (0..num_generations).collect(),
        sampling: Arc::new(sampling),
        lengths: None,
        stop_criterion: None,
        constraint: None,
    }
}

pub fn greedy(max_completion_length: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_completion_length, ignore_eos: true, ..SamplingParams::default() }
}

/// Steps until nothing is left; no sequence may get lost.
pub fn finish(engine: &mut Engine) -> Vec<FinishedSequence> {
    let begun = engine.running() + engine.waiting();
    let mut finished = Vec::new();
    while !engine.is_idle() {
        finished.extend(engine.step().unwrap());
    }
    assert_eq!(finished.len(), begun, "every sequence ends once");
    finished
}

/// Everything about a completion that must not depend on how it was batched.
pub type Outcome = (Vec<u32>, Vec<[u32; 4]>, FinishReason);

pub fn outcome(sequence: FinishedSequence) -> ((u64, u32), Outcome) {
    let bits = |l: &TokenLogprob| {
        [l.logprob.to_bits(), l.logprob_at_temperature.to_bits(), l.log_kept_mass.to_bits(), l.kept_count]
    };
    let logprobs = sequence.logprobs.iter().map(bits).collect();
    ((sequence.tag, sequence.sample), (sequence.token_ids, logprobs, sequence.finish_reason))
}

/// Prompts of many lengths (1 among them) with different samplings, ragged by end-of-sequence tokens and length limits.
pub fn mixed_groups() -> Vec<GroupRequest> {
    let base = SamplingParams { max_completion_length: 40, ..SamplingParams::default() };
    let samplings = [
        base.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, ..base.clone() },
        SamplingParams { temperature: 1.3, top_p: 0.9, min_p: Some(0.02), ..base.clone() },
        SamplingParams { repetition_penalty: 1.2, max_completion_length: 11, ..base.clone() },
        SamplingParams { temperature: 0.0, ..base },
    ];
    let mut stream = shared::generation::rng::Stream::new(&[11]);
    (0..12u64)
        .map(|tag| {
            let length = [1, 2, 3, 5, 8, 13, 21, 30, 17, 16, 4, 33][tag as usize];
            let prompt: Vec<u32> = (0..length).map(|_| stream.below(250) as u32 + 3).collect();
            let sampling = &samplings[tag as usize % samplings.len()];
            let max_completion_length = sampling.max_completion_length.min(40 - 3 * tag as u32);
            let sampling = SamplingParams { max_completion_length, ..sampling.clone() };
            group(tag, &prompt, [8, 1, 5][tag as usize % 3], sampling)
        })
        .collect()
}

/// Ends a completion with its n-th token.
pub struct Nth(pub u32);

impl StopCriterion for Nth {
    fn push(&mut self, _: u32) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}
