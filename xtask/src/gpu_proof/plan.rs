//! The measurements: the most valuable first, each with a time limit.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::models::{LARGE, SMALL, TINY};
use crate::model::Model;

/// Where it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The first NVIDIA GPU.
    Cuda,
    /// The processor, with tiny models: a trial of the proof itself.
    Cpu,
}

impl Device {
    /// The name in the programs' options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

/// Name of a part, and the seconds that its measurements may take together.
pub type ProofPart = (&'static str, u64);

const AGREEMENT: ProofPart = ("tests and log-probs", 240);
const ROLLOUT: ProofPart = ("sampler", 240);
const LEARNER: ProofPart = ("learner in bf16", 240);
const PUBLISH: ProofPart = ("publish", 200);
const PAIR: ProofPart = ("pair", 240);
const LEVER_AGREEMENT: ProofPart = ("log-probs of levers", 240);
const ROLLOUT_FEW: ProofPart = ("sampler with few sequences", 240);
const ROLLOUT_LEVERS: ProofPart = ("sampler with levers", 240);
const LEARNER_FP32: ProofPart = ("learner in fp32", 240);
const LEARNER_CHECKPOINTING: ProofPart = ("learner with checkpointing", 240);
const LEARNER_LORA: ProofPart = ("learner with LoRA", 240);
/// All of them, the most telling first: each fits into a machine's quarter of an hour beside its transfers.
pub const PARTS: [ProofPart; 11] = [
    AGREEMENT,
    ROLLOUT,
    LEARNER,
    PUBLISH,
    PAIR,
    LEVER_AGREEMENT,
    ROLLOUT_FEW,
    ROLLOUT_LEVERS,
    LEARNER_FP32,
    LEARNER_CHECKPOINTING,
    LEARNER_LORA,
];

/// Sequences at once.
pub const BATCH_SIZES: [u32; 3] = [16, 64, 256];
/// The sampler's optional features on a GPU: name, and the flags that turn it on.
pub const LEVERS: [(&str, &[&str]); 4] = [
    ("cuda-graphs", &["--cuda-graphs"]),
    ("candidates", &["--candidates", "8192"]),
    ("prefill-batch", &["--prefill-batch", "8"]),
    ("all levers", &["--cuda-graphs", "--candidates", "8192", "--prefill-batch", "8"]),
];
/// The settings with which a learner's step is measured: name, flags, and whether the rival is measured with them too.
pub const STEPS: [(&str, &[&str], bool); 6] = [
    ("fp32", &[], true),
    ("bf16", &["--bf16"], true),
    ("bf16 checkpointing", &["--bf16", "--gradient-checkpointing"], true),
    ("bf16 lora", &["--bf16", "--lora-r", "16"], true),
    ("lora", &["--lora-r", "16"], false),
    ("checkpointing", &["--gradient-checkpointing"], false),
];
/// The rival of the sampler.
const RIVAL: &str = "transformers";
/// The learner's models on a GPU.
pub const STEP_MODELS: [Model; 2] = [LARGE, SMALL];

/// A program of the bundle, or the script of the rivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `rollout`.
    Rollout,
    /// `learner`.
    Learner,
    /// `tandem`.
    Tandem,
    /// The tests of `rollout`'s public interface.
    EngineTests,
    /// `rivals.py`.
    Rivals,
}

/// Source of a measurement's figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figures {
    /// The last line of the last command, a JSON object.
    LastLine,
    /// The output of the test harness.
    Tests,
    /// The `metrics.jsonl` of this run, as far as it got.
    Steps(PathBuf),
}

/// A program and its arguments.
pub type Words = (Program, Vec<String>);

/// One line of the results.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The part that it belongs to.
    pub part: ProofPart,
    /// Its name, which is unique.
    pub name: String,
    /// Time limit, including the time to make its model.
    pub limit: Duration,
    /// The model that it needs, and whether with weights.
    pub model: Option<(Model, bool)>,
    /// Commands, run in this order.
    pub commands: Vec<Words>,
    /// Source of its figures.
    pub figures: Figures,
    /// Why it cannot run on this device.
    pub left_out: Option<&'static str>,
}

/// Sizes of the work on a device.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens of a completion.
    pub completion: u32,
    /// Steps of the pair.
    steps: u32,
}

impl Sizes {
    /// The sizes for a device.
    pub const fn of(device: Device) -> Self {
        match device {
            Device::Cuda => Self { prompt: 128, completion: 128, steps: 20 },
            Device::Cpu => Self { prompt: 16, completion: 8, steps: 4 },
        }
    }
}

/// Plans all measurements for a device, with models and runs below `work`.
pub fn plan(device: Device, work: &Path) -> Vec<Measurement> {
    Planner { device, work, sizes: Sizes::of(device) }.all()
}

struct Planner<'a> {
    device: Device,
    work: &'a Path,
    sizes: Sizes,
}

impl Planner<'_> {
    fn all(&self) -> Vec<Measurement> {
        let mut all = vec![self.engine_tests()];
        all.extend(self.agreement());
        all.push(Measurement {
            commands: vec![(Program::Rivals, self.words("limits", &[]))],
            ..self.of(LEARNER, "limits", 40)
        });
        all.extend(self.rollout());
        all.extend(self.learner());
        all.extend(self.publish());
        all.extend(["synchronous", "max_staleness 1"].into_iter().zip(["0", "1"]).map(|(name, staleness)| {
            let steps = self.sizes.steps.to_string();
            self.training(PAIR, &format!("pair {name}"), 120, &["--max_staleness", staleness, "--max_steps", &steps])
        }));
        all.sort_by_key(|measurement| PARTS.iter().position(|part| *part == measurement.part));
        all
    }

    fn of(&self, part: ProofPart, name: &str, seconds: u64) -> Measurement {
        Measurement {
            part,
            name: name.to_owned(),
            limit: Duration::from_secs(seconds),
            model: None,
            commands: Vec::new(),
            figures: Figures::LastLine,
            left_out: None,
        }
    }

    /// The model of this size, or its replacement.
    fn model(&self, model: Model) -> Model {
        if self.device == Device::Cuda { model } else { TINY }
    }

    fn path(&self, model: Model, file: &str) -> String {
        self.model(model).dir(self.work).join(file).display().to_string()
    }

    fn words(&self, subcommand: &str, words: &[&str]) -> Vec<String> {
        let device = ["--device", self.device.name()];
        [subcommand].iter().chain(&device).chain(words).map(ToString::to_string).collect()
    }

    fn engine_tests(&self) -> Measurement {
        let words = ["engine_device", "--test-threads", "1"].map(str::to_owned);
        Measurement {
            commands: vec![(Program::EngineTests, words.into())],
            figures: Figures::Tests,
            ..self.of(AGREEMENT, "engine tests", 120)
        }
    }

    /// Log-probs of one program, compared with the learner's for the same tokens on the CPU.
    fn agreement(&self) -> Vec<Measurement> {
        let model = self.path(SMALL, "");
        let [given, sampled, scored, again] =
            ["completions", "sampled", "scored", "again"].map(|file| self.path(SMALL, &format!("{file}.jsonl")));
        let logprobs = |device: &str, input: &str, output: &str| {
            let words = ["logprobs", "--device", device, "--model", &model, "--input", input, "--output", output];
            (Program::Learner, words.map(str::to_owned).into())
        };
        let prompts = self.path(SMALL, "prompts.jsonl");
        let completion = (self.sizes.completion / 2).to_string();
        let sampler = |levers: &[&str]| {
            let words = ["--model", &model, "--prompts", &prompts, "--output", &sampled, "--limit", "8"];
            let more = ["--num-generations", "4", "--max-completion-length", &completion];
            let words = self.words("generate", &[&words, &more[..], self.kernels(), levers].concat());
            vec![(Program::Rollout, words), logprobs("cpu", &sampled, &scored)]
        };
        let learner = vec![logprobs("cpu", &given, &scored), logprobs(self.device.name(), &scored, &again)];
        let of_lever =
            |&(lever, flags): &(&'static str, &[&str])| (LEVER_AGREEMENT, lever, sampler(flags), self.no_graphs(flags));
        [(AGREEMENT, "learner", learner, None), (AGREEMENT, "sampler", sampler(&[]), None)]
            .into_iter()
            .chain(LEVERS.iter().map(of_lever))
            .map(|(part, what, commands, left_out)| Measurement {
                model: Some((self.model(SMALL), true)),
                commands,
                left_out,
                ..self.of(part, &agreement_name(what), 60)
            })
            .collect()
    }

    /// On the CPU, the kernels that support the optional features.
    fn kernels(&self) -> &'static [&'static str] {
        if self.device == Device::Cuda { &[] } else { &["--kernels", "stock"] }
    }

    fn no_graphs(&self, flags: &[&str]) -> Option<&'static str> {
        (self.device == Device::Cpu && flags.contains(&"--cuda-graphs")).then_some("CUDA graphs need device cuda")
    }

    fn sampler(&self, part: ProofPart, name: &str, size: u32, flags: &[&str]) -> Measurement {
        let [prompts, size] = [size / 8, size].map(|n| n.to_string());
        let [prompt, completion] = [self.sizes.prompt, self.sizes.completion].map(|n| n.to_string());
        let model = self.path(LARGE, "");
        let words = ["--model", &model, "--num-prompts", &prompts, "--num-generations", "8", "--max-num-seqs", &size];
        let lengths = ["--prompt-length", &prompt, "--completion-length", &completion];
        let words = self.words("bench", &[&words, &lengths[..], self.kernels(), flags].concat());
        Measurement {
            model: Some((self.model(LARGE), true)),
            commands: vec![(Program::Rollout, words)],
            left_out: self.no_graphs(flags),
            ..self.of(part, name, 120)
        }
    }

    fn rollout(&self) -> Vec<Measurement> {
        // The question that counts first is the usual sampler, with and without graphs, beside its rival.
        let part = |size: u32, lever: &str| match lever {
            "" | "cuda-graphs" | RIVAL if size >= 64 => ROLLOUT,
            "" | "cuda-graphs" | RIVAL | "prefill-batch" => ROLLOUT_FEW,
            _ => ROLLOUT_LEVERS,
        };
        let lever = |&(lever, flags): &(&str, &[&str])| {
            let of = |size| self.sampler(part(size, lever), &rollout_name(size, lever), size, flags);
            BATCH_SIZES.map(of)
        };
        let rival = BATCH_SIZES.map(|size| {
            let [prompts, prompt, completion] =
                [size / 8, self.sizes.prompt, self.sizes.completion].map(|n| n.to_string());
            let model = self.path(LARGE, "");
            let words = ["--model", &model, "--num-prompts", &prompts, "--prompt-length", &prompt];
            let words = self.words("generate", &[&words, &["--completion-length", &completion][..]].concat());
            Measurement {
                model: Some((self.model(LARGE), false)),
                commands: vec![(Program::Rivals, words)],
                ..self.of(part(size, RIVAL), &rollout_name(size, RIVAL), 90)
            }
        });
        lever(&("", &[])).into_iter().chain(rival).chain(LEVERS.iter().flat_map(lever)).collect()
    }

    fn learner(&self) -> Vec<Measurement> {
        let [prompt, completion] = [self.sizes.prompt, 2 * self.sizes.completion].map(|n| n.to_string());
        let mut all = Vec::new();
        for (step, flags, has_rival) in STEPS {
            let part = match step {
                "bf16" => LEARNER,
                "fp32" => LEARNER_FP32,
                step if step.ends_with("checkpointing") => LEARNER_CHECKPOINTING,
                _ => LEARNER_LORA,
            };
            for model in STEP_MODELS {
                let mut add = |name: String, program, flags: &[&str]| {
                    let path = self.path(model, "");
                    let words = ["--model", &path, "--num-prompts", "4", "--prompt-length", &prompt];
                    let subcommand = if program == Program::Rivals { "step" } else { "bench" };
                    let words = [&words, &["--completion-length", &completion][..], flags].concat();
                    all.push(Measurement {
                        model: Some((self.model(model), false)),
                        commands: vec![(program, self.words(subcommand, &words))],
                        ..self.of(part, &name, 90)
                    });
                };
                add(
                    step_name(model, step, false),
                    Program::Learner,
                    &[&["--micro-batch-tokens", "8192"], flags].concat(),
                );
                if has_rival {
                    add(step_name(model, step, true), Program::Rivals, flags);
                }
            }
        }
        all
    }

    fn publish(&self) -> Vec<Measurement> {
        let short = ["--max_steps", "3", "--max_completion_length", "8"];
        let lora = ["--use_peft", "true", "--lora_r", "16"];
        vec![
            self.training(PUBLISH, "publish whole model", 60, &short),
            self.sampler(PUBLISH, "swap", BATCH_SIZES[0], &["--repeat", "1", "--swap"]),
            self.training(PUBLISH, "publish lora", 60, &[&short[..], &lora].concat()),
        ]
    }

    /// A run of the pair.
    fn training(&self, part: ProofPart, name: &str, seconds: u64, options: &[&str]) -> Measurement {
        let run = self.work.join("runs").join(name.replace(' ', "-"));
        let [model, prompts, dir] =
            [self.path(LARGE, ""), self.path(LARGE, "prompts.jsonl"), run.display().to_string()];
        let completion = self.sizes.completion.to_string();
        let words = ["train", "--model", &model, "--dataset", &prompts, "--output_dir", &dir];
        let devices = ["--rollout_device", self.device.name(), "--learner_device", self.device.name()];
        let batch = ["--num_generations", "8", "--generation_batch_size", "64", "--per_device_train_batch_size", "64"];
        let more = ["--reward_funcs", "sentence_share:word=dog", "--save_steps", "1000"];
        let length: &[&str] =
            if options.contains(&"--max_completion_length") { &[] } else { &["--max_completion_length", &completion] };
        let words = [&words, &devices[..], &batch, &more, length, options].concat();
        Measurement {
            model: Some((self.model(LARGE), true)),
            commands: vec![(Program::Tandem, words.into_iter().map(str::to_owned).collect())],
            figures: Figures::Steps(run),
            ..self.of(part, name, seconds)
        }
    }
}

/// Name of a comparison of log-probs: for the learner, the sampler, or the sampler with an optional feature.
pub fn agreement_name(what: &str) -> String {
    format!("log-probs {what}")
}

/// Name of a measurement of the sampler.
pub fn rollout_name(size: u32, lever: &str) -> String {
    format!("rollout {size} {lever}").trim_end().to_owned()
}

/// Name of a measurement of a step of the learner, or of the rival's.
pub fn step_name(model: Model, step: &str, rival: bool) -> String {
    format!("learner {} {step}{}", model.name, if rival { " torch" } else { "" })
}
