//! The plan of a run: both processes and the versions between them.

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
};

use super::{LearnerPlan, LearnerSizes, SamplerPlan, SamplerSizes, VersionRoom, Workload};
use crate::{
    BaseFormat, ModelConfig,
    config::{TrainConfig, torchrun::Torchrun},
    system::{
        compute::{Device, KvDtype, RolloutDtype},
        memory::{self, Size},
    },
};

/// Share of the memory that is left to the system and to things that no plan counts.
const SPARE: f64 = 0.05;
/// Tokens of the longest prompt, if no option bounds it: only the sampler has the tokenizer.
const ASSUMED_PROMPT: u64 = 512;
/// The sampler's program, tokenizer and runtime, and the launcher.
const BASELINE: u64 = 300 << 20;
/// What CUDA and its libraries take of main memory in a process, and of the device's memory.
const CUDA_BASELINE: [u64; 2] = [3 << 30, 1 << 30];

/// Memory of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of main memory, or of the control group's limit.
    pub main: u64,
    /// Bytes of the GPU's memory; absent if unknown.
    pub gpu: Option<u64>,
}

impl Machine {
    /// This machine, with what is known of its GPU.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn this(gpu: Option<u64>) -> io::Result<Self> {
        Ok(Self { main: memory::total()?, gpu })
    }

    /// Memory for a single process on a device.
    #[must_use]
    pub fn room(&self, device: Device) -> u64 {
        self.usable()[usize::from(device != Device::Cpu)]
    }

    /// Memory for a plan: main memory, and the GPU's.
    fn usable(&self) -> [u64; 2] {
        [Some(self.main), self.gpu].map(|bytes| bytes.map_or(u64::MAX, |bytes| (bytes as f64 * (1.0 - SPARE)) as u64))
    }
}

/// A run that does not fit.
#[derive(Debug, thiserror::Error)]
#[error("the run does not fit into memory: {}; {way_out}", plan.lines().join("; "))]
pub struct DoesNotFit {
    plan: Box<RunPlan>,
    way_out: String,
}

/// Memory plan of a run, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// Most tokens of one forward pass of the learner.
    pub micro_batch_tokens: u32,
    /// Sequences that the sampler decodes at once; it may find room for more, since it knows the prompts.
    pub max_num_seqs: usize,
    machine: Machine,
    learner: LearnerPlan,
    /// Processes of the learner on this host, each of which takes the learner's plan.
    ranks: u64,
    sampler: SamplerPlan,
    versions: VersionRoom,
    /// Whether versions lie in shared memory.
    shared: bool,
    /// Whether learner and sampler compute on the GPU.
    on_gpu: [bool; 2],
}

impl RunPlan {
    /// The plan of a configuration for its models, with the learner's token budget and the sampler's number of
    /// sequences chosen where they are left open. With `shared`, versions may lie in shared memory, and do if nothing
    /// else has to shrink for them.
    ///
    /// # Errors
    /// [`DoesNotFit`], with the figures and the option that would make it fit.
    pub fn new(
        config: &TrainConfig,
        model: &ModelConfig,
        critic: Option<&ModelConfig>,
        machine: Machine,
        shared: bool,
    ) -> Result<Self, DoesNotFit> {
        let plan = Self::unchecked(config, model, critic, machine, shared);
        if plan.fits() {
            return Ok(plan);
        }
        let fits = |config: &TrainConfig| Self::unchecked(config, model, critic, machine, false).fits();
        let helps = |change: &Change| {
            let mut changed = config.clone();
            change(&mut changed);
            changed.validate().is_ok() && fits(&changed)
        };
        let way_out = match WAYS_OUT.iter().find(|(_, change)| helps(change)) {
            Some((option, _)) => format!("it would with {option}"),
            None => "a smaller model, shorter completions or more memory would help".into(),
        };
        Err(DoesNotFit { plan: Box::new(plan), way_out })
    }

    fn unchecked(
        config: &TrainConfig,
        model: &ModelConfig,
        critic: Option<&ModelConfig>,
        machine: Machine,
        shared: bool,
    ) -> Self {
        let work = workload(config, model);
        let versions = VersionRoom::of(config, model);
        let on_gpu = [config.learner_device, config.rollout_device].map(|device| device != Device::Cpu);
        let sizes = learner_sizes(config, model, critic);
        let positions = config.max_model_len.unwrap_or((work.prompt + work.completion) as usize);
        let wanted = config.sequences_wanted();
        // The sampler's minimum: a group at once.
        let least = config.max_num_seqs.unwrap_or(wanted.min(config.num_generations as usize));
        let plan = |tokens: u64, sequences: usize| Self {
            micro_batch_tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            max_num_seqs: sequences,
            machine,
            learner: sizes.plan(tokens.min(work.most())),
            ranks: u64::from(Torchrun::ranks_here(config)),
            sampler: SamplerSizes::of(config, model, sequences, positions).plan(model),
            versions,
            shared,
            on_gpu,
        };
        let given = config.micro_batch_tokens.map(u64::from);
        let whole = plan(given.unwrap_or_else(|| work.budget(config.learner_device, config.bf16, u64::MAX)), wanted);
        if whole.fits() {
            return whole;
        }
        if shared {
            return Self::unchecked(config, model, critic, machine, false);
        }
        let tokens = given.unwrap_or_else(|| {
            let rest = plan(0, least);
            sizes.budget(
                config.learner_device,
                &work,
                rest.room(on_gpu[0]) / rest.ranks_together() + rest.learner.total(),
            )
        });
        // The sampler gets the memory that the learner leaves.
        let fits = |sequences: &usize| *sequences <= least || plan(tokens, *sequences).fits();
        let halves = std::iter::successors(Some(wanted), |n| Some((n / 2).max(least)));
        plan(tokens, halves.into_iter().find(fits).unwrap_or(least))
    }

    /// Whether published versions lie in shared memory.
    #[must_use]
    pub fn versions_in_shared_memory(&self) -> bool {
        self.shared
    }

    /// Bytes that the sampler's engine may take where it computes: all that the learner and the versions leave.
    #[must_use]
    pub fn sampler_share(&self) -> u64 {
        self.room(self.on_gpu[1]).saturating_add(self.sampler.total())
    }

    /// How many runs with this plan fit into the machine at once.
    #[must_use]
    pub fn at_once(&self) -> u64 {
        let shares = self.needed().into_iter().zip(self.machine.usable()).filter(|(needed, _)| *needed > 0);
        shares.map(|(needed, usable)| usable / needed).min().unwrap_or(u64::MAX)
    }

    fn fits(&self) -> bool {
        self.needed().iter().zip(self.machine.usable()).all(|(needed, usable)| *needed <= usable)
    }

    /// Free memory: main memory, or the GPU's.
    fn room(&self, gpu: bool) -> u64 {
        let index = usize::from(gpu);
        self.machine.usable()[index].saturating_sub(self.needed()[index])
    }

    /// Memory of the sampler beside the versions; it maps two of them during a swap.
    fn sampler_bytes(&self) -> u64 {
        let mapped = if self.shared { 2 * self.sampler.mapped_weights } else { 0 };
        self.sampler.total().saturating_sub(mapped)
    }

    /// Ranks that share one memory: on GPUs each rank has its own, and the plan is about the first one's, which the
    /// sampler uses too.
    fn ranks_together(&self) -> u64 {
        if self.on_gpu[0] { 1 } else { self.ranks }
    }

    fn learner_bytes(&self) -> u64 {
        self.learner.total().saturating_mul(self.ranks_together())
    }

    /// Memory needed: main memory, and the GPU's.
    fn needed(&self) -> [u64; 2] {
        let versions = if self.shared { self.versions.bytes() } else { 0 };
        let mut needed = [BASELINE.saturating_add(versions), 0];
        let halves = [(self.learner_bytes(), self.ranks), (self.sampler_bytes(), 1)];
        for (on_gpu, (bytes, processes)) in self.on_gpu.into_iter().zip(halves) {
            needed[usize::from(on_gpu)] = needed[usize::from(on_gpu)].saturating_add(bytes);
            if on_gpu {
                // Each process takes this from main memory, but from a GPU only the one on that GPU.
                needed[0] = needed[0].saturating_add(CUDA_BASELINE[0].saturating_mul(processes));
                needed[1] = needed[1].saturating_add(CUDA_BASELINE[1]);
            }
        }
        needed
    }

    /// The plan in lines: the needs of each memory, then each process.
    fn lines(&self) -> [String; 4] {
        let needed = self.needed();
        let mut first = format!("memory {} of {}", Size(needed[0]), Size(self.machine.main));
        if needed[1] > 0 {
            let there = self.machine.gpu.map_or_else(|| "an unknown amount".into(), |bytes| Size(bytes).to_string());
            first += &format!(", and {} of {there} on the GPU", Size(needed[1]));
        }
        let line = |name: &str, gpu: bool, total: u64, parts: &[(&str, u64)]| {
            let part = |&(what, bytes): &(&str, u64)| match (name, what) {
                ("learner", "activations") => format!("{what} of {} tokens {}", self.micro_batch_tokens, Size(bytes)),
                (_, "KV cache") => format!("{what} of {} sequences {}", self.max_num_seqs, Size(bytes)),
                _ => format!("{what} {}", Size(bytes)),
            };
            let parts: Vec<String> =
                parts.iter().filter(|(_, bytes)| !Size(*bytes).is_shown_as_nothing()).map(part).collect();
            let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
            format!("{name}{} {}{parts}", if gpu { " on the GPU" } else { "" }, Size(total))
        };
        let mut learner = line("learner", self.on_gpu[0], self.learner_bytes(), &self.learner.parts());
        if self.ranks > 1 {
            let each = if self.on_gpu[0] { "on each of" } else { "in each of" };
            learner += &format!(" {each} {} {}", self.ranks, if self.on_gpu[0] { "GPUs" } else { "ranks" });
        }
        [
            first,
            learner,
            line("sampler", self.on_gpu[1], self.sampler.total(), &self.sampler.parts()),
            format!(
                "versions {}: {} of the weights {}",
                Size(self.versions.bytes()),
                self.versions.versions,
                if self.shared { "in shared memory" } else { "on disk" }
            ),
        ]
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n  "))
    }
}

type Change = fn(&mut TrainConfig);

/// Options that make a run smaller, the mildest first, as the user writes them.
const WAYS_OUT: [(&str, Change); 9] = [
    ("`shard_optimizer` true", |c| c.shard_optimizer = true),
    ("`learner_ranks` 1", |c| c.learner_ranks = 1),
    ("`micro_batch_tokens` left out", |c| c.micro_batch_tokens = None),
    ("`max_num_seqs` left out", |c| c.max_num_seqs = None),
    ("`gradient_checkpointing` true", |c| c.gradient_checkpointing = true),
    ("`bf16` true", |c| c.bf16 = true),
    ("`use_peft` true", |c| c.use_peft = true),
    ("`kv_dtype` int8", |c| c.kv_dtype = KvDtype::Int8),
    ("`rollout_dtype` int8", |c| c.rollout_dtype = RolloutDtype::Int8),
];

/// The largest rows of an update. They are drawn at random from the rows of the step.
fn workload(config: &TrainConfig, model: &ModelConfig) -> Workload {
    let limit = config.max_model_len.unwrap_or(model.max_position_embeddings) as u64;
    let longest = u64::from(config.max_completion_length);
    let prompt = config.max_prompt_length.map_or(ASSUMED_PROMPT, u64::from).min(limit.saturating_sub(longest)).max(1);
    let completion = (config.room_behind_prompts() as u64).min(limit.saturating_sub(prompt)).max(longest);
    let step = config.completions_per_step();
    let rows = config.per_device_train_batch_size.saturating_mul(config.gradient_accumulation_steps).min(step);
    let group = (u64::from(config.num_generations) * u64::from(rows)).div_ceil(u64::from(step));
    Workload { prompt, completion, group, rows: u64::from(rows) }
}

fn learner_sizes<'a>(
    config: &TrainConfig,
    model: &'a ModelConfig,
    critic: Option<&'a ModelConfig>,
) -> LearnerSizes<'a> {
    let critic = config.advantage_estimator.spec().critic.then_some(critic.unwrap_or(model));
    LearnerSizes {
        model,
        trained: true,
        bf16: config.bf16,
        gradient_checkpointing: config.gradient_checkpointing,
        adapter: config.use_peft.then(|| adapter_numbers(config, model)),
        base: BaseFormat::of(config),
        shards: if config.shard_optimizer { u64::from(config.learner_ranks) } else { 1 },
        reference: config.beta != 0.0,
        critic,
        completion: workload(config, model).completion,
    }
}

/// Numbers in the two factors beside each linear layer that has them.
#[must_use]
pub fn adapter_numbers(config: &TrainConfig, model: &ModelConfig) -> u64 {
    let widths =
        model.adapted_layers(&config.lora_target_modules).map(|(_, [outputs, inputs])| (outputs + inputs) as u64);
    widths.sum::<u64>() * u64::from(config.lora_r)
}

/// Numbers in the matrices that the sampler packs once for all versions of an adapter: the products that the adapter
/// leaves unchanged. What reads the same input is one product: queries, keys and values, say, or gate and up.
#[must_use]
pub fn kept_numbers(config: &TrainConfig, model: &ModelConfig) -> u64 {
    if !config.use_peft {
        return 0;
    }
    let mut first: HashMap<String, String> = HashMap::new();
    for layer in 0..model.num_hidden_layers {
        for names in [model.mixer_names(layer), model.mlp_names()] {
            let all: Vec<String> = names.inputs().map(|name| format!("model.layers.{layer}.{name}.weight")).collect();
            first.extend(all.iter().map(|name| (name.clone(), all[0].clone())));
        }
    }
    let product = |name: &str| first.get(name).map_or(name, String::as_str).to_owned();
    let adapted = model.adapted_layers(&config.lora_target_modules);
    let changed: HashSet<String> = adapted.map(|(layer, _)| product(&format!("{layer}.weight"))).collect();
    let kept = |(name, shape): &(String, Vec<usize>)| {
        let packed = shape.len() == 2 && model.is_product(name);
        packed && !changed.contains(&product(name))
    };
    model
        .parameters()
        .iter()
        .filter(|matrix| kept(matrix))
        .map(|(_, shape)| shape.iter().product::<usize>() as u64)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Qwen2.5-0.5B's shape.
    fn model() -> ModelConfig {
        ModelConfig::from_json(
            r#"{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 32768, "tie_word_embeddings": true}"#,
        )
        .unwrap()
    }

    /// The run in the README.
    fn config() -> TrainConfig {
        TrainConfig {
            model: "model".into(),
            dataset: "data.jsonl".into(),
            reward_funcs: vec!["gsm8k".into()],
            generation_batch_size: Some(64),
            per_device_train_batch_size: 16,
            max_completion_length: 256,
            ..TrainConfig::default()
        }
    }

    fn plan(config: &TrainConfig, main: u64) -> Result<RunPlan, DoesNotFit> {
        RunPlan::new(config, &model(), None, Machine { main, gpu: None }, false)
    }

    #[test]
    fn a_run_gets_the_fast_budget_where_there_is_memory_and_less_where_there_is_not() {
        let roomy = plan(&config(), 64 * GIB).unwrap();
        // Two completions of each prompt are together in an update.
        assert_eq!((roomy.micro_batch_tokens, roomy.max_num_seqs), (512 + 2 * 256, 64));
        assert_eq!(plan(&config(), 200 * GIB).unwrap().micro_batch_tokens, roomy.micro_batch_tokens);
        let tight = plan(&config(), 15 * GIB).unwrap();
        assert_eq!(tight.micro_batch_tokens, 512 + 256, "lowered");
        assert!(tight.max_num_seqs < 64 && tight.needed()[0] <= 15 * GIB);
        let given = TrainConfig { micro_batch_tokens: Some(700), ..config() };
        assert_eq!(plan(&given, 64 * GIB).unwrap().micro_batch_tokens, 700);
    }

    #[test]
    fn the_parts_of_the_plan_add_up_and_the_sampler_gets_what_is_left() {
        let found = plan(&config(), 64 * GIB).unwrap();
        let weights = model().parameter_count() * 4;
        assert_eq!((found.learner.weights, found.learner.optimizer), (weights, 2 * weights));
        let spare = found.machine.usable()[0] - found.needed()[0];
        assert_eq!(found.sampler_share(), found.sampler.total() + spare);
        assert_eq!(found.needed()[0], BASELINE + found.learner.total() + found.sampler.total());
        let with_reference = plan(&TrainConfig { beta: 0.1, ..config() }, 64 * GIB).unwrap();
        assert_eq!(with_reference.needed()[0], found.needed()[0] + weights);
    }

    /// The adapter of PEFT's `LoraConfig(r=16, target_modules="all-linear")` for this shape has 8,798,208 numbers.
    #[test]
    fn an_adapter_takes_gradients_and_moments_of_its_own_size_and_no_reference() {
        let lora = TrainConfig { use_peft: true, beta: 0.1, ..config() };
        let found = plan(&lora, 64 * GIB).unwrap().learner;
        assert_eq!((found.gradients, found.optimizer, found.reference), (4 * 8_798_208, 8 * 8_798_208, 0));
        assert_eq!(found.weights, 4 * (model().parameter_count() + 8_798_208));
        let some = TrainConfig { lora_target_modules: vec!["q_proj".into(), "v_proj".into()], ..lora.clone() };
        assert_eq!(plan(&some, 64 * GIB).unwrap().learner.gradients, 4 * 24 * 16 * (896 + 896 + 896 + 128));
        let found = plan(&lora, 64 * GIB).unwrap().sampler;
        let head = 4 * 896 * 151_936;
        assert_eq!(found.swap, found.packed_weights - head, "the head is packed once, the embedding mapped once");
        let one = TrainConfig { lora_target_modules: vec!["up_proj".into()], ..lora };
        assert_eq!(plan(&one, 64 * GIB).unwrap().sampler.swap, 24 * 4 * 2 * 896 * 4864, "gate and up are one product");
        let text = plan(&config(), 10 * GIB).unwrap_err().to_string();
        assert!(text.ends_with("it would with `use_peft` true"), "{text}");
    }

    #[test]
    fn each_rank_counts_and_has_its_shard_of_the_moments_alone() {
        let ranks = TrainConfig { learner_ranks: 4, ..config() };
        let sharded = TrainConfig { shard_optimizer: true, ..ranks.clone() };
        let [one, whole, shards] = [config(), ranks.clone(), sharded].map(|config| plan(&config, 64 * GIB).unwrap());
        assert_eq!(whole.needed()[0] - one.needed()[0], 3 * one.learner.total());
        assert_eq!((whole.learner, shards.learner.optimizer), (one.learner, one.learner.optimizer / 4));
        assert_eq!(whole.needed()[0] - shards.needed()[0], 3 * one.learner.optimizer);
        let text = plan(&ranks, 32 * GIB).unwrap_err().to_string();
        assert!(
            text.contains("in each of 4 ranks") && text.ends_with("it would with `shard_optimizer` true"),
            "{text}"
        );
    }

    #[test]
    fn each_rank_on_a_gpu_counts_on_its_own_one_and_in_the_main_memory_of_all() {
        let of = |learner_ranks, main, gpu| {
            let config = TrainConfig { learner_ranks, learner_device: Device::Cuda, ..config() };
            RunPlan::new(&config, &model(), None, Machine { main, gpu: Some(gpu) }, false)
        };
        let [one, four] = [1, 4].map(|ranks| of(ranks, 64 * GIB, 80 * GIB).unwrap());
        assert_eq!(four.needed()[1], one.needed()[1]);
        assert_eq!(four.needed()[1], four.learner.total() + CUDA_BASELINE[1], "no more than one of them");
        assert_eq!(four.needed()[0] - one.needed()[0], 3 * CUDA_BASELINE[0]);
        assert!(four.to_string().contains("on each of 4 GPUs"), "{four}");
        let [one, four] = [1, 4].map(|ranks| of(ranks, 64 * GIB, 16 * GIB).unwrap());
        assert_eq!(one.micro_batch_tokens, four.micro_batch_tokens, "each has the room of a whole GPU");
        let text = of(8, 24 * GIB, 80 * GIB).unwrap_err().to_string();
        assert!(text.contains("`learner_ranks` 1"), "{text}");
    }

    #[test]
    fn what_does_not_fit_is_refused_in_a_line_with_figures_and_the_way_out() {
        let message = |config: &TrainConfig, main| plan(config, main).unwrap_err().to_string();
        let text = message(&config(), 4 * GIB);
        assert!(text.contains("of 4.00 GiB") && text.contains("AdamW 3.68 GiB") && !text.contains('\n'), "{text}");
        assert!(text.contains("a smaller model"), "{text}");
        let text = message(&TrainConfig { micro_batch_tokens: Some(1 << 20), ..config() }, 16 * GIB);
        assert!(text.ends_with("it would with `micro_batch_tokens` left out"), "{text}");
        let text = message(&TrainConfig { max_num_seqs: Some(100_000), ..config() }, 64 * GIB);
        assert!(text.contains("100000 sequences") && text.ends_with("with `max_num_seqs` left out"), "{text}");
    }

    #[test]
    fn versions_lie_in_shared_memory_only_where_nothing_has_to_give_way_for_them() {
        let of = |main| RunPlan::new(&config(), &model(), None, Machine { main, gpu: None }, true).unwrap();
        let (roomy, tight) = (of(64 * GIB), of(19 * GIB));
        assert!(roomy.shared && !tight.shared, "{tight}");
        assert_eq!(tight, plan(&config(), 19 * GIB).unwrap());
        assert_eq!((tight.micro_batch_tokens, tight.max_num_seqs), (roomy.micro_batch_tokens, roomy.max_num_seqs));
        let mapped = 2 * roomy.sampler.mapped_weights;
        assert_eq!(roomy.needed()[0] - tight.needed()[0], VersionRoom::of(&config(), &model()).bytes() - mapped);
    }

    #[test]
    fn what_is_on_the_gpu_counts_there() {
        let on_gpu = TrainConfig { learner_device: Device::Cuda, rollout_device: Device::Cuda, ..config() };
        let of = |gpu| RunPlan::new(&on_gpu, &model(), None, Machine { main: 16 * GIB, gpu }, true);
        let found = of(Some(80 * GIB)).unwrap();
        assert_eq!(
            found.needed(),
            [
                BASELINE + found.versions.bytes() + 2 * CUDA_BASELINE[0],
                found.learner_bytes() + found.sampler_bytes() + 2 * CUDA_BASELINE[1],
            ]
        );
        // With one half on the GPU, the other half's bytes are in main memory.
        for (learner, sampler) in [(Device::Cuda, Device::Cpu), (Device::Cpu, Device::Cuda)] {
            let one = TrainConfig { learner_device: learner, rollout_device: sampler, ..config() };
            let machine = Machine { main: 64 * GIB, gpu: Some(80 * GIB) };
            let found = RunPlan::new(&one, &model(), None, machine, true).unwrap();
            let (there, here) = if learner == Device::Cuda {
                (found.learner_bytes(), found.sampler_bytes())
            } else {
                (found.sampler_bytes(), found.learner_bytes())
            };
            assert_eq!(
                found.needed(),
                [BASELINE + found.versions.bytes() + CUDA_BASELINE[0] + here, there + CUDA_BASELINE[1],]
            );
        }
        assert!(found.micro_batch_tokens > plan(&config(), 64 * GIB).unwrap().micro_batch_tokens);
        assert!(found.to_string().contains("of 80.00 GiB on the GPU"), "{found}");
        assert!(of(Some(4 * GIB)).is_err());
        assert!(of(None).unwrap().to_string().contains("an unknown amount on the GPU"));
    }
}
