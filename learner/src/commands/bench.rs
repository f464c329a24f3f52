//! `learner bench`: the speed of a training step on synthetic completions.
//!
//! Started by torchrun, or with its variables, it is one of several ranks, and the first one reports the figures.

mod gemm;
mod sums;

use std::{path::PathBuf, sync::Arc, time::Instant};

use serde_json::json;
use shared::{
    BaseFormat, Completion, FinishReason, Group, GroupId, ModelConfig, Placed, PolicyVersion, RewardOutcome,
    config::{ImportanceSamplingMode, TrainConfig, torchrun::Torchrun},
    generation::{rng, testing},
    process::command_line::{UNOPTIMISED, tell_warnings},
    run::memory_plan::{LearnerSizes, Workload},
};
use tch::Kind;

use super::{ComputeArgs, TrainingArgs, load_or_initialise};
use crate::{
    device::{self, RankHere},
    model::{LoadOptions, adapter_config, load_adapter},
    ranks::{Alone, Joined, Ranks},
    step::{StepBatch, StepMetrics, Trainer},
    trained::Among,
};

/// Flags of `learner bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory; one without weights gets random ones.
    #[arg(long)]
    pub model: PathBuf,
    /// Prompts per step.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prompts: u32,
    /// Completions per prompt.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..))]
    pub num_generations: u32,
    /// Prompt tokens.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_length: u32,
    /// Completion tokens.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub completion_length: u32,
    /// Steps that are measured, after one that is not.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Optimisation passes per step.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_iterations: u32,
    /// Train an adapter of this rank on every linear layer instead of the model.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub lora_r: Option<u32>,
    /// With `--lora-r`: hold the frozen model in bytes.
    #[arg(long, requires = "lora_r", conflicts_with = "load_in_4bit")]
    pub load_in_8bit: bool,
    /// With `--lora-r`: hold the frozen model in NormalFloat numbers of four bits.
    #[arg(long, requires = "lora_r")]
    pub load_in_4bit: bool,
    /// Measure the matrix products at the model's shapes alone, too: the passes' rate as a share of theirs.
    #[arg(long)]
    pub gemm: bool,
    /// Share AdamW's moments out among the ranks, where torchrun's variables make this one of several.
    #[arg(long)]
    pub shard_optimizer: bool,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Measures; the last line on stdout is one flat JSON object.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    tell_warnings(cfg!(debug_assertions).then_some(UNOPTIMISED));
    let told = Torchrun::from_env()?.filter(|told| told.world_size > 1);
    let is_alone = "--shard-optimizer has no effect: without torchrun's variables this is the only rank";
    tell_warnings((args.shard_optimizer && told.is_none()).then_some(is_alone));
    let here = told.as_ref().map_or(RankHere::ALONE, |told| RankHere::Told(told.local_rank));
    let device = args.compute.open_of_rank(here)?;
    let options = args.training.load_options(device);
    let (load_in_8bit, load_in_4bit) = (args.load_in_8bit, args.load_in_4bit);
    let format = BaseFormat::of(&TrainConfig { load_in_8bit, load_in_4bit, ..TrainConfig::default() });
    let base = LoadOptions { trainable: args.lora_r.is_none(), base: format, ..options };
    let (model, mut policy) = load_or_initialise(&args.model, Some(0), base)?;
    let mut config = TrainConfig {
        num_generations: args.num_generations,
        per_device_train_batch_size: args.num_prompts * args.num_generations,
        max_completion_length: args.completion_length,
        num_iterations: args.num_iterations,
        max_steps: Some(u64::from(args.steps) + 1),
        use_peft: args.lora_r.is_some(),
        lora_r: args.lora_r.unwrap_or_default(),
        // No sampler has drawn these tokens. Its log-probs are 0, so every ratio to it is below 1 and every weight
        // is 1.
        importance_sampling_mode: ImportanceSamplingMode::SequenceTruncate,
        importance_sampling_clip_min: Some(1.0),
        ..TrainConfig::default()
    };
    if let Some(adapter) = adapter_config(&config, &model)? {
        let parameters = load_adapter(&adapter, &model, None, config.seed, options)?;
        policy = policy.with_adapter(Some((adapter, parameters)));
    }
    let [prompt, completion, group] = [args.prompt_length, args.completion_length, args.num_generations].map(u64::from);
    let load = Workload { prompt, completion, group, rows: u64::from(args.num_prompts) * group };
    let adapter = policy.weights().adapter().map(|(_, adapter)| adapter.flat().numel() as u64);
    let sizes = LearnerSizes { adapter, base: format, ..args.training.sizes(model.config()) };
    let micro_batch_tokens = args.compute.budget(&sizes, &load)?;
    config.micro_batch_tokens = Some(micro_batch_tokens);
    let joined = told.as_ref().map(Joined::among).transpose()?;
    let ranks =
        joined.as_ref().map_or_else(|| Arc::new(Alone) as Arc<dyn Ranks>, |joined| Arc::clone(&joined.ranks) as _);
    let among = Among { ranks: Arc::clone(&ranks), shards: args.shard_optimizer };
    let mut trainer = Trainer::among(&config, policy, None, among)?;
    let mut seconds = Vec::new();
    let mut phases: Vec<StepMetrics> = Vec::new();
    for step in 0..=args.steps {
        let groups: Vec<Placed> = (0..args.num_prompts)
            .map(|prompt| synthetic_group(args, model.config().vocab_size, [step, prompt]))
            .collect();
        let batch = StepBatch::new(&groups, &config, PolicyVersion(0));
        let start = Instant::now();
        let trained = trainer.step(&batch, u64::from(step))?;
        if step > 0 {
            seconds.push(start.elapsed().as_secs_f64());
            phases.push(trained.metrics);
        }
    }
    let step_s = median(seconds.clone());
    let completions = args.num_prompts * args.num_generations;
    let completion_tokens = f64::from(completions * args.completion_length);
    let tokens = completion_tokens + f64::from(completions * args.prompt_length);
    let computed = work(model.config(), args);
    let phase = |pick: fn(&StepMetrics) -> f64| median(phases.iter().map(pick).collect());
    let rate = computed / phase(|s| s.times.forward_backward.as_secs_f64()) / 1e9;
    let peak = device::peak_memory();
    let [sum, sum_at_once] = sums::rates(&*ranks, trainer.policy().parameters().flat())?;
    if ranks.rank() != 0 {
        return Ok(());
    }
    let gemm_rate = args.gemm.then(|| {
        let kind = if args.training.bf16 { Kind::BFloat16 } else { Kind::Float };
        let (all, seen) = (prompt + completion * group, completion * group);
        gemm::rate(model.config(), i64::from(micro_batch_tokens), seen as f64 / all as f64, kind, device) / 1e9
    });
    println!(
        "{}",
        json!({
            "model": args.model.display().to_string(),
            "parameters": model.config().parameter_count(),
            "num_prompts": args.num_prompts,
            "num_generations": args.num_generations,
            "prompt_length": args.prompt_length,
            "completion_length": args.completion_length,
            "micro_batch_tokens": micro_batch_tokens,
            "num_iterations": args.num_iterations,
            "threads": tch::get_num_threads(),
            "ranks": ranks.count(),
            "shard_optimizer": args.shard_optimizer,
            "sum_gb_s": sum,
            "sum_at_once_gb_s": sum_at_once,
            "device": format!("{device:?}"),
            "lora_r": args.lora_r,
            "bf16": args.training.bf16,
            "gradient_checkpointing": args.training.gradient_checkpointing,
            "step_s": step_s,
            "min_step_s": seconds.iter().copied().fold(f64::INFINITY, f64::min),
            "max_step_s": seconds.iter().copied().fold(0.0, f64::max),
            "forward_s": phase(|s| s.times.passes.forward.as_secs_f64()),
            "head_s": phase(|s| s.times.passes.head.as_secs_f64()),
            "backward_s": phase(|s| s.times.passes.backward.as_secs_f64()),
            "fwd_bwd_s": phase(|s| s.times.forward_backward.as_secs_f64()),
            "optimizer_s": phase(|s| s.times.optimizer.as_secs_f64()),
            "grad_norm": phase(|s| s.grad_norms[0]),
            "tokens_per_s": tokens / step_s,
            "completion_tokens_per_s": completion_tokens / step_s,
            "gflops": rate,
            "gemm_gflops": gemm_rate,
            "gemm_share": gemm_rate.map(|limit| rate / limit),
            "peak_rss_bytes": peak,
        })
    );
    Ok(())
}

/// Floating-point operations that a step's forward and backward passes need: a prompt once, attention where the mask
/// lets it, logits of completion tokens only, nothing computed twice.
fn work(config: &ModelConfig, args: &Args) -> f64 {
    let [prompts, group, prompt, completion] =
        [args.num_prompts, args.num_generations, args.prompt_length, args.completion_length].map(f64::from);
    let fed = completion - 1.0;
    let embedding = (config.vocab_size * config.hidden_size) as f64;
    let copies = if config.tie_word_embeddings { 1.0 } else { 2.0 };
    let inner = (config.parameter_count() - config.idle_parameters()) as f64 - copies * embedding;
    let pairs = prompt * prompt / 2.0 + group * fed * (prompt + fed / 2.0);
    let widths: usize = config.attention_layers().map(|(layer, _)| config.query_and_key_widths(layer)[0]).sum();
    let attention = 4.0 * widths as f64 * pairs;
    let products = 2.0 * (inner * (prompt + group * fed) + embedding * group * completion);
    3.0 * prompts * (products + attention)
}

/// Random tokens with random rewards.
fn synthetic_group(args: &Args, vocabulary: usize, [step, prompt]: [u32; 2]) -> Placed {
    let mut stream = rng::Stream::new(&[u64::from(step), u64::from(prompt)]);
    let mut tokens = |count: u32| (0..count).map(|_| stream.below(vocabulary as u64) as u32).collect::<Vec<u32>>();
    let prompt_ids = tokens(args.prompt_length);
    let completions = (0..args.num_generations)
        .map(|sample| Completion {
            episode: testing::episode(tokens(args.completion_length), &[(0, 0)], FinishReason::Length),
            rewards: vec![RewardOutcome::Score(rng::uniform(&[u64::from(step), u64::from(prompt), u64::from(sample)]))],
            ..testing::completion(sample, Vec::new())
        })
        .collect();
    let reward_names = vec![("random".into(), 1.0)];
    let group = Group { prompt_ids, reward_names, ..testing::group(u64::from(prompt), completions) };
    testing::placed(GroupId { index: prompt, ..GroupId::default() }, group)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
