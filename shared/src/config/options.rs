//! Every option of a run, with its meaning and default.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    AdvantageEstimator, Device, ImportanceSamplingLevel, ImportanceSamplingMode, Kernels, KlController, KlEstimator,
    KvDtype, LossAggregation, LossType, LrSchedulerType, MultiObjectiveAggregation, RolloutDtype, ScaleRewards,
    WeightSwap,
};
use crate::sampling::SamplingParams;

/// Everything a run can be told. Field names are the keys of `run.toml` and of the command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    // --- model and data ---
    /// Hugging Face model directory to start from. TRL `model_name_or_path`.
    #[serde(alias = "model_name_or_path")]
    pub model: PathBuf,
    /// Training prompts: a JSONL file with `prompt` (text or messages), or GSM8K's `question`/`answer`, or
    /// countdown's `nums`/`target`. TRL `dataset_name`.
    #[serde(alias = "dataset_name")]
    pub dataset: PathBuf,
    /// Evaluation prompts, in the same formats, for `eval_steps`.
    pub eval_dataset: Option<PathBuf>,
    /// Where the run is written. TRL `output_dir`.
    pub output_dir: PathBuf,
    /// Put before the messages of every prompt as a system message (a plain text prompt becomes a user message then).
    pub system_prompt: Option<String>,
    /// Keep at most this many prompt tokens, from the end: bounds time and memory, loses the beginning. `None` = all.
    pub max_prompt_length: Option<u32>,
    /// Draw the prompts in a seeded random order, a new one each epoch. TRL `shuffle_dataset`.
    pub shuffle_dataset: bool,

    // --- rewards ---
    /// Names of the reward functions; `rollout rewards` lists them. TRL `reward_funcs`.
    pub reward_funcs: Vec<String>,
    /// One weight per reward function; empty = all 1. TRL `reward_weights`.
    pub reward_weights: Vec<f64>,
    /// Seconds that one call of a reward function may take before it counts as failed. A call is for one completion, or
    /// for all of a prompt where the function sees them together (`command`, `model`, `relative_length`). More is kinder to
    /// slow functions, and a hanging one holds its group up for longer.
    pub reward_timeout: f64,

    // --- generation ---
    /// Completions per prompt (the group size G): more give a firmer baseline and share one prefill, fewer let a step see
    /// more prompts. TRL `num_generations`.
    pub num_generations: u32,
    /// Longest completion in tokens: time and memory of a step grow with it, and what is longer is cut off. TRL
    /// `max_completion_length`.
    pub max_completion_length: u32,
    /// Divides the logits: lower is surer and more alike, higher explores more. TRL `temperature`.
    pub temperature: f32,
    /// Nucleus sampling; 1 = off. TRL `top_p`.
    pub top_p: f32,
    /// Keep the k likeliest tokens; 0 = off. TRL `top_k`.
    pub top_k: u32,
    /// Drop tokens less likely than this times the likeliest; absent = off. TRL `min_p`.
    pub min_p: Option<f32>,
    /// Penalty on tokens already seen; 1 = off. TRL `repetition_penalty`.
    pub repetition_penalty: f32,
    /// Texts that end a completion.
    pub stop: Vec<String>,
    /// Replace groups whose completions all earn the same, which teach nothing, by groups of further prompts until the
    /// batch is full (DAPO section 3.2). A step then uses up more prompts, so that a given number of steps takes more
    /// epochs. verl `filter_groups.enable`.
    pub dynamic_sampling: bool,
    /// With `dynamic_sampling`: at most this many times `generation_batch_size` completions are sampled for one step;
    /// then groups without contrast fill the batch and the run goes on with a warning. verl
    /// `filter_groups.max_num_gen_batches`.
    pub dynamic_sampling_max_attempts: u32,

    // --- batch and schedule ---
    /// Completions of one logical micro-batch. TRL `per_device_train_batch_size`.
    pub per_device_train_batch_size: u32,
    /// Logical micro-batches per optimiser update. TRL `gradient_accumulation_steps`.
    pub gradient_accumulation_steps: u32,
    /// Logical micro-batches per generation batch; absent = `gradient_accumulation_steps`. TRL
    /// `steps_per_generation`.
    pub steps_per_generation: Option<u32>,
    /// Completions per step; absent = `per_device_train_batch_size × steps_per_generation`. Rounded up to whole
    /// groups. TRL `generation_batch_size`.
    pub generation_batch_size: Option<u32>,
    /// Passes over the training prompts; `max_steps` wins. TRL `num_train_epochs`.
    pub num_train_epochs: f64,
    /// Number of steps (generation batches); absent = from `num_train_epochs`. TRL `max_steps`.
    pub max_steps: Option<u64>,
    /// Optimisation passes over each generation batch (μ). TRL `num_iterations`.
    pub num_iterations: u32,
    /// Most tokens (prompt and completion, padding included) that the learner holds in one forward pass. It bounds
    /// memory and never changes a gradient.
    pub micro_batch_tokens: u32,

    // --- advantages ---
    /// How rewards become advantages. verl `adv_estimator`, RLinf `adv_type`.
    pub advantage_estimator: AdvantageEstimator,
    /// What centred rewards are divided by (with `advantage_estimator` grpo; grpo_passk has `group` and `none`). TRL
    /// `scale_rewards`, verl `norm_adv_by_std_in_grpo`.
    pub scale_rewards: ScaleRewards,
    /// How several reward functions become one advantage. TRL `multi_objective_aggregation`.
    pub multi_objective_aggregation: MultiObjectiveAggregation,
    /// Whiten the advantages over all trained tokens of the generation batch. RLinf `normalize_advantages`.
    pub normalize_advantages: bool,
    /// Discount of rewards to come (`advantage_estimator` gae and reinforce_plus_plus). TRL `gamma`.
    pub gamma: f64,
    /// λ of generalised advantage estimation. TRL `lam`.
    pub lam: f64,

    // --- critic (advantage_estimator gae) ---
    /// Model directory that the critic starts from; absent = the policy's. A head that is not there starts at 0.
    pub critic_model: Option<PathBuf>,
    /// Peak learning rate of the critic. verl `critic.optim.lr`.
    pub critic_learning_rate: f64,
    /// Steps in which only the critic learns. verl `trainer.critic_warmup`.
    pub critic_warmup_steps: u64,
    /// How far a value may move from the one that the step began with before its loss is clipped. TRL
    /// `cliprange_value`.
    pub cliprange_value: f64,

    // --- objective ---
    /// Policy term and reduction. TRL `loss_type`, verl `policy_loss.loss_mode`.
    pub loss_type: LossType,
    /// Reduction; absent = that of `loss_type`. verl `loss_agg_mode`, RLinf `loss_agg_func`.
    pub loss_aggregation: Option<LossAggregation>,
    /// Divisor of `seq-mean-token-sum-norm`; absent = `max_completion_length`. verl `loss_scale_factor`.
    pub loss_scale_factor: Option<f64>,
    /// What the importance ratio is taken over. TRL `importance_sampling_level`.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Clip range below (and above, without `epsilon_high`). TRL `epsilon`.
    pub epsilon: f64,
    /// Clip range above; absent = `epsilon`. For `loss_type` cispo it is the cap of the ratio itself. TRL
    /// `epsilon_high`.
    pub epsilon_high: Option<f64>,
    /// Cap of the unclipped ratio (two-sided clipping, INTELLECT-2); absent = none. TRL `delta`.
    pub delta: Option<f64>,
    /// Dual clip of `loss_type` vanilla: bound of the loss of tokens with a negative advantage. verl `clip_ratio_c`.
    pub clip_ratio_c: f64,
    /// SAPO's temperature for advantages above 0. TRL `sapo_temperature_pos`.
    pub sapo_temperature_pos: f64,
    /// SAPO's temperature for the other advantages. TRL `sapo_temperature_neg`.
    pub sapo_temperature_neg: f64,
    /// VESPO's exponent for advantages of at least 0. TRL `vespo_k_pos`.
    pub vespo_k_pos: f64,
    /// VESPO's decay for advantages of at least 0. TRL `vespo_lambda_pos`.
    pub vespo_lambda_pos: f64,
    /// VESPO's exponent for negative advantages. TRL `vespo_k_neg`.
    pub vespo_k_neg: f64,
    /// VESPO's decay for negative advantages. TRL `vespo_lambda_neg`.
    pub vespo_lambda_neg: f64,
    /// Leave truncated completions out of the loss; they still count in the baseline. TRL
    /// `mask_truncated_completions`.
    pub mask_truncated_completions: bool,
    /// Train only on this share of each logical batch's tokens, those of highest entropy; 1 = all. TRL
    /// `top_entropy_quantile`.
    pub top_entropy_quantile: f64,
    /// Leave out completions with a negative advantage whose mean `sampling_logprobs − logprobs` is above this; absent =
    /// none. It grows with every update since the completion was sampled (`max_staleness`, `num_iterations`) and with a
    /// rounded sampler (`rollout_dtype`, `kv_dtype`). TRL `off_policy_mask_threshold`.
    pub off_policy_mask_threshold: Option<f64>,
    /// Leave a logical micro-batch out when its mean ratio is above this; absent = none. RLinf `early_stop_imp_ratio`.
    pub early_stop_imp_ratio: Option<f64>,
    /// Weigh each logical micro-batch by its share of the update's trained tokens. RLinf `use_valid_token_scale`.
    pub use_valid_token_scale: bool,
    /// Weight of the entropy bonus: the mean entropy of the trained tokens of each logical batch, whatever the
    /// reduction. TRL `entropy_coef`, RLinf `entropy_bonus`.
    pub entropy_coef: f64,
    /// After each update, move `entropy_coef` up when its entropy was not above `entropy_target`, down otherwise; the
    /// next update has a bonus only in the first case. TRL `use_adaptive_entropy`.
    pub use_adaptive_entropy: bool,
    /// Smallest adaptive coefficient. TRL `entropy_coef_min`.
    pub entropy_coef_min: f64,
    /// Largest adaptive coefficient. TRL `entropy_coef_max`.
    pub entropy_coef_max: f64,
    /// Step of the adaptive coefficient. TRL `entropy_coef_delta`.
    pub entropy_coef_delta: f64,
    /// Entropy that the adaptive coefficient aims at, in nats. TRL `entropy_target`.
    pub entropy_target: f64,

    // --- reference policy ---
    /// Weight of the KL penalty against the reference policy; 0 = no reference model in memory. TRL `beta`.
    pub beta: f64,
    /// Estimator of the penalty. verl `kl_loss_type`, RLinf `kl_penalty_type`.
    pub kl_estimator: KlEstimator,
    /// Multiply the KL estimate by the importance ratio, so that it stays unbiased over several updates. TRL
    /// `use_bias_correction_kl`.
    pub use_bias_correction_kl: bool,
    /// Subtract the penalty from each token's reward (PPO) instead of adding it to the loss (GRPO). verl
    /// `use_kl_in_reward`.
    pub use_kl_in_reward: bool,
    /// How the penalty in the reward is weighted over time. verl `kl_ctrl.type`.
    pub kl_controller: KlController,
    /// KL per token that the adaptive controller aims at. verl `kl_ctrl.target_kl`.
    pub kl_target: f64,
    /// Completions over which the adaptive controller acts. verl `kl_ctrl.horizon`.
    pub kl_horizon: f64,
    /// Move the reference policy towards the policy every `ref_model_sync_steps` steps. TRL `sync_ref_model`.
    pub sync_ref_model: bool,
    /// Share of the policy in the new reference. TRL `ref_model_mixup_alpha`.
    pub ref_model_mixup_alpha: f64,
    /// Steps between two moves of the reference. TRL `ref_model_sync_steps`.
    pub ref_model_sync_steps: u64,

    // --- mismatch between sampler and learner ---
    /// Weigh the policy term by the ratio of the learner's to the sampler's probability. TRL
    /// `vllm_importance_sampling_correction`.
    pub importance_sampling_correction: bool,
    /// What that ratio is taken over, and what happens outside its bounds. TRL `vllm_importance_sampling_mode`.
    pub importance_sampling_mode: ImportanceSamplingMode,
    /// Upper bound of the ratio; inf = none. TRL `vllm_importance_sampling_clip_max`.
    pub importance_sampling_clip_max: f64,
    /// Lower bound of the ratio; absent = none. TRL `vllm_importance_sampling_clip_min`.
    pub importance_sampling_clip_min: Option<f64>,
    /// Divide the weights by their mean over the generation batch, after bounding their logs to ±20. verl
    /// `rollout_is_batch_normalize`.
    pub importance_sampling_batch_normalize: bool,
    /// Clip against the policy that the step began with and weigh by its distance from the one that sampled (the
    /// decoupled objective); false = clip against the sampler's log-probs. AReaL `use_decoupled_loss`.
    pub decoupled_objective: bool,

    // --- optimiser ---
    /// Peak learning rate of AdamW. TRL `learning_rate`.
    pub learning_rate: f64,
    /// Schedule after the warm-up. TRL `lr_scheduler_type`.
    pub lr_scheduler_type: LrSchedulerType,
    /// Optimiser updates of linear warm-up; wins over `warmup_ratio`. TRL `warmup_steps`.
    pub warmup_steps: u64,
    /// Share of all updates spent warming up. TRL `warmup_ratio`.
    pub warmup_ratio: f64,
    /// AdamW β₁. TRL `adam_beta1`.
    pub adam_beta1: f64,
    /// AdamW β₂. TRL `adam_beta2`.
    pub adam_beta2: f64,
    /// AdamW ε. TRL `adam_epsilon`.
    pub adam_epsilon: f64,
    /// Decoupled weight decay on matrices. TRL `weight_decay`.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 = no clipping. TRL `max_grad_norm`.
    pub max_grad_norm: f64,

    // --- the pair ---
    /// How many versions behind the learner a group may have been sampled. 0 = synchronous and reproducible; larger
    /// values let generation and learning overlap.
    pub max_staleness: u64,
    /// What happens to running sequences when new weights arrive and `max_staleness` is above 0: `drain` keeps every
    /// completion to one version and leaves places empty meanwhile, `continue` keeps them filled and mixes versions.
    pub weight_swap: WeightSwap,
    /// Device of the sampler.
    pub rollout_device: Device,
    /// What the sampler's linear layers compute in. On the CPU, `int8` samples faster with VNNI or AMX and `bf16` with AMX,
    /// from a rounded model: the price is a `mismatch_kl` above 0, larger with `int8`, which the importance correction answers. `bf16x3`
    /// is close to fp32 (log-probs within some 1e-4) and, on processors with AMX, faster with many sequences.
    pub rollout_dtype: RolloutDtype,
    /// What the sampler stores keys and values as. `int8` takes a quarter of their memory and, on processors with VNNI,
    /// samples long completions faster; the price is a `mismatch_kl` above 0, which the importance correction answers.
    pub kv_dtype: KvDtype,
    /// What computes the sampler's model on the CPU. The completions of the two differ by rounding.
    pub rollout_kernels: Kernels,
    /// Device of the learner.
    pub learner_device: Device,
    /// Threads of the sampler; absent = all cores when synchronous, half of them otherwise. More than there are cores
    /// free are slower than fewer; `rollout tune` measures it.
    pub rollout_threads: Option<usize>,
    /// Threads of the learner; absent = as for the sampler. While both processes work at once, each takes cores from
    /// the other.
    pub learner_threads: Option<usize>,
    /// Sequences decoded at once: more give more tokens per second in total, up to a point, and take memory for their
    /// keys and values and longer for each sequence; `rollout tune` finds the point. No completion depends on it. vLLM
    /// `max_num_seqs`; absent = the generation batch, as far as memory allows.
    pub max_num_seqs: Option<usize>,
    /// Prompt tokens prefilled between two decode steps: more fills free places sooner, less keeps running sequences
    /// waiting less. A longer prompt is computed in pieces (with the stock kernels, as a whole). vLLM `max_num_batched_tokens`.
    pub max_num_batched_tokens: usize,
    /// Most tokens that are computed ahead of a sequence in one step, guessed from its prompt and from the completions of
    /// its group; 0 = off. Saves steps while few sequences run, costs the work of wrong guesses and changes no
    /// completion. vLLM `num_speculative_tokens`.
    pub speculative_tokens: usize,
    /// Longest prompt plus completion; absent = what the dataset and `max_completion_length` need, within the model's
    /// limit. Less saves memory for keys and values and cuts completions off. Sequences of more than 32768 tokens need it,
    /// unless `max_prompt_length` is set or completions alone may take more than 16384. vLLM `max_model_len`.
    pub max_model_len: Option<usize>,
    /// Seconds without any sign of life of the other process before a process gives up: too few end a run that is only
    /// slow, many leave a hang unnoticed for long.
    pub peer_timeout: f64,
    /// How often the launcher restarts a process that died: more ride out more crashes, and hide a lasting fault longer.
    pub max_restarts: u32,

    // --- bookkeeping ---
    /// Seed of everything random. TRL `seed`.
    pub seed: u64,
    /// Steps between checkpoints. TRL `save_steps`.
    pub save_steps: u64,
    /// Keep this many checkpoints, the oldest go; absent = all. TRL `save_total_limit`.
    pub save_total_limit: Option<u32>,
    /// Steps between evaluations on `eval_dataset`, the last version included; absent = none. TRL `eval_steps`.
    pub eval_steps: Option<u64>,
    /// Steps between progress lines when not on a terminal. TRL `logging_steps`.
    pub logging_steps: u64,
    /// Write every step's completions to `completions/`: a few kilobytes each on disk. TRL `log_completions`.
    pub log_completions: bool,
    /// Keep each step's groups and the state it began with in `batches/`, for `learner replay`: costs disk space and time
    /// for weights and optimiser state at every step.
    pub save_step_batches: bool,
    /// Write `trace.json`, a timeline of the sampler's prefills, decode steps, sampling, rewards, waits and swaps of
    /// weights, which https://ui.perfetto.dev opens. It appears when the sampler ends and holds the newest events, at
    /// most 40 MB; it costs a few events a step.
    pub rollout_trace: bool,
    /// `latest`, or the path of a `checkpoint-N` to go on from. TRL `resume_from_checkpoint`.
    pub resume_from_checkpoint: Option<String>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        let sampling = SamplingParams::default();
        Self {
            model: PathBuf::new(),
            dataset: PathBuf::new(),
            eval_dataset: None,
            output_dir: PathBuf::from("runs/grpo"),
            system_prompt: None,
            max_prompt_length: None,
            shuffle_dataset: true,
            reward_funcs: Vec::new(),
            reward_weights: Vec::new(),
            reward_timeout: 10.0,
            num_generations: 8,
            max_completion_length: sampling.max_completion_length,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            stop: Vec::new(),
            dynamic_sampling: false,
            dynamic_sampling_max_attempts: 10,
            per_device_train_batch_size: 8,
            gradient_accumulation_steps: 1,
            steps_per_generation: None,
            generation_batch_size: None,
            num_train_epochs: 3.0,
            max_steps: None,
            num_iterations: 1,
            micro_batch_tokens: 8192,
            advantage_estimator: AdvantageEstimator::default(),
            scale_rewards: ScaleRewards::default(),
            multi_objective_aggregation: MultiObjectiveAggregation::default(),
            normalize_advantages: false,
            gamma: 1.0,
            lam: 0.95,
            critic_model: None,
            critic_learning_rate: 1e-5,
            critic_warmup_steps: 0,
            cliprange_value: 0.2,
            loss_type: LossType::default(),
            loss_aggregation: None,
            loss_scale_factor: None,
            importance_sampling_level: ImportanceSamplingLevel::default(),
            epsilon: 0.2,
            epsilon_high: None,
            delta: None,
            clip_ratio_c: 3.0,
            sapo_temperature_pos: 1.0,
            sapo_temperature_neg: 1.05,
            vespo_k_pos: 2.0,
            vespo_lambda_pos: 3.0,
            vespo_k_neg: 3.0,
            vespo_lambda_neg: 2.0,
            mask_truncated_completions: false,
            top_entropy_quantile: 1.0,
            off_policy_mask_threshold: None,
            early_stop_imp_ratio: None,
            use_valid_token_scale: false,
            entropy_coef: 0.0,
            use_adaptive_entropy: false,
            entropy_coef_min: 0.0,
            entropy_coef_max: 1.0,
            entropy_coef_delta: 0.005,
            entropy_target: 0.2,
            beta: 0.0,
            kl_estimator: KlEstimator::default(),
            use_bias_correction_kl: true,
            use_kl_in_reward: false,
            kl_controller: KlController::default(),
            kl_target: 0.1,
            kl_horizon: 10_000.0,
            sync_ref_model: false,
            ref_model_mixup_alpha: 0.6,
            ref_model_sync_steps: 512,
            importance_sampling_correction: true,
            importance_sampling_mode: ImportanceSamplingMode::default(),
            importance_sampling_clip_max: 3.0,
            importance_sampling_clip_min: None,
            importance_sampling_batch_normalize: false,
            decoupled_objective: true,
            learning_rate: 1e-6,
            lr_scheduler_type: LrSchedulerType::default(),
            warmup_steps: 0,
            warmup_ratio: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            max_staleness: 0,
            weight_swap: WeightSwap::default(),
            rollout_device: Device::default(),
            rollout_dtype: RolloutDtype::default(),
            kv_dtype: KvDtype::default(),
            rollout_kernels: Kernels::default(),
            learner_device: Device::default(),
            rollout_threads: None,
            learner_threads: None,
            max_num_seqs: None,
            max_num_batched_tokens: 8192,
            speculative_tokens: 0,
            max_model_len: None,
            peer_timeout: 300.0,
            max_restarts: 3,
            seed: 42,
            save_steps: 500,
            save_total_limit: None,
            eval_steps: None,
            logging_steps: 1,
            log_completions: true,
            save_step_batches: false,
            rollout_trace: false,
            resume_from_checkpoint: None,
        }
    }
}
