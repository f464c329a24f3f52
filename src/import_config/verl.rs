//! verl's Hydra configuration (`verl.trainer.main_ppo`).

use serde_json::Value;
use shared::config::LossType;

use super::rules::{
    Count, Lookup, Options,
    Rule::{self, Combined, Convert, Hint, Option as To},
    Rules, limit, one_path, top_k,
};

/// verl's keys.
pub const RULES: Rules = Rules { keys: KEYS, ours: false, implied: IMPLIED, counts: COUNTS, combine };

/// verl's schedule moves once for a generation batch, however many updates it has.
const COUNTS: &[(&str, Count)] = &[("warmup_steps", Count::Batches)];

/// verl's defaults that differ from ours and change what is trained.
const IMPLIED: &[(&str, &str)] = &[
    ("advantage_estimator", "gae"),
    ("loss_type", "vanilla"),
    ("importance_sampling_correction", "false"),
    ("lam", "1.0"),
    ("lr_scheduler_type", "constant"),
    ("weight_decay", "0.01"),
];

const PARALLEL: Rule = Hint("one device learns and one samples; there is no sharding and no offloading");
const MEMORY: Rule = Hint("memory is bounded by micro_batch_tokens and never changes a gradient");
const REPORT: Rule = Hint("metrics are in metrics.jsonl and report.html of the run directory");
const ENGINE: Rule = Hint("the sampler is ONNX Runtime in a process of its own; see rollout_device and max_num_seqs");
const DATA: Rule = Hint("the dataset is a JSONL file with `prompt`, or with GSM8K's or countdown's columns");
const REWARD: Rule = Hint("rewards are chosen by name; `rollout rewards` lists them");

const KEYS: &[(&str, Rule)] = &[
    ("algorithm.adv_estimator", To("advantage_estimator")),
    ("algorithm.gamma", To("gamma")),
    ("algorithm.lam", To("lam")),
    ("algorithm.norm_adv_by_std_in_grpo", Combined),
    ("algorithm.use_kl_in_reward", To("use_kl_in_reward")),
    ("algorithm.kl_penalty", Combined),
    ("algorithm.kl_ctrl.type", To("kl_controller")),
    ("algorithm.kl_ctrl.kl_coef", Combined),
    ("algorithm.kl_ctrl.horizon", To("kl_horizon")),
    ("algorithm.kl_ctrl.target_kl", To("kl_target")),
    ("algorithm.filter_groups.enable", To("dynamic_sampling")),
    ("algorithm.filter_groups.max_num_gen_batches", Convert("dynamic_sampling_max_attempts", attempts)),
    ("algorithm.filter_groups.metric", Convert("filter_groups_metric", filter_metric)),
    ("algorithm.rollout_correction.rollout_is", Combined),
    ("algorithm.rollout_correction.rollout_is_threshold", Combined),
    ("algorithm.rollout_correction.rollout_is_batch_normalize", Combined),
    ("data.train_files", Convert("dataset", one_path)),
    ("data.val_files", Convert("eval_dataset", one_path)),
    ("data.train_batch_size", Combined),
    ("data.max_prompt_length", To("max_prompt_length")),
    ("data.max_response_length", To("max_completion_length")),
    ("data.shuffle", To("shuffle_dataset")),
    ("data.seed", To("seed")),
    ("data.*", DATA),
    ("actor_rollout_ref.model.path", Convert("model", one_path)),
    ("actor_rollout_ref.model.enable_gradient_checkpointing", MEMORY),
    ("actor_rollout_ref.model.lora_*", Hint("all weights are trained; there is no LoRA")),
    ("actor_rollout_ref.actor.optim.lr", To("learning_rate")),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps", Convert("warmup_steps", warmup_steps)),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", To("warmup_ratio")),
    ("actor_rollout_ref.actor.optim.lr_scheduler_type", To("lr_scheduler_type")),
    ("actor_rollout_ref.actor.optim.warmup_style", To("lr_scheduler_type")),
    ("actor_rollout_ref.actor.optim.weight_decay", To("weight_decay")),
    ("actor_rollout_ref.actor.optim.betas", Combined),
    ("actor_rollout_ref.actor.grad_clip", To("max_grad_norm")),
    ("actor_rollout_ref.actor.ppo_mini_batch_size", Combined),
    ("actor_rollout_ref.actor.ppo_epochs", To("num_iterations")),
    ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", To("micro_batch_tokens")),
    ("actor_rollout_ref.actor.ppo_micro_batch_size*", MEMORY),
    ("actor_rollout_ref.actor.use_dynamic_bsz", MEMORY),
    ("actor_rollout_ref.actor.clip_ratio", Combined),
    ("actor_rollout_ref.actor.clip_ratio_low", Combined),
    ("actor_rollout_ref.actor.clip_ratio_high", To("epsilon_high")),
    ("actor_rollout_ref.actor.clip_ratio_c", To("clip_ratio_c")),
    ("actor_rollout_ref.actor.loss_agg_mode", To("loss_aggregation")),
    ("actor_rollout_ref.actor.loss_scale_factor", To("loss_scale_factor")),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", Convert("loss_type", loss_mode)),
    ("actor_rollout_ref.actor.entropy_coeff", To("entropy_coef")),
    ("actor_rollout_ref.actor.use_kl_loss", Combined),
    ("actor_rollout_ref.actor.kl_loss_coef", Combined),
    ("actor_rollout_ref.actor.kl_loss_type", Combined),
    ("actor_rollout_ref.actor.*", PARALLEL),
    ("actor_rollout_ref.ref.*", PARALLEL),
    ("actor_rollout_ref.rollout.n", To("num_generations")),
    ("actor_rollout_ref.rollout.temperature", To("temperature")),
    ("actor_rollout_ref.rollout.top_p", To("top_p")),
    ("actor_rollout_ref.rollout.top_k", Convert("top_k", top_k)),
    ("actor_rollout_ref.rollout.max_num_seqs", To("max_num_seqs")),
    ("actor_rollout_ref.rollout.max_num_batched_tokens", To("max_num_batched_tokens")),
    ("actor_rollout_ref.rollout.max_model_len", To("max_model_len")),
    ("actor_rollout_ref.rollout.*", ENGINE),
    ("actor_rollout_ref.*", PARALLEL),
    ("critic.model.path", Convert("critic_model", one_path)),
    ("critic.optim.lr", To("critic_learning_rate")),
    ("critic.cliprange_value", To("cliprange_value")),
    ("critic.*", MEMORY),
    ("reward_model.*", REWARD),
    ("reward.*", REWARD),
    ("custom_reward_function.*", REWARD),
    ("trainer.total_epochs", To("num_train_epochs")),
    ("trainer.total_training_steps", Convert("max_steps", limit)),
    ("trainer.save_freq", Convert("save_steps", frequency)),
    ("trainer.test_freq", Convert("eval_steps", limit)),
    ("trainer.critic_warmup", To("critic_warmup_steps")),
    ("trainer.max_actor_ckpt_to_keep", To("save_total_limit")),
    ("trainer.default_local_dir", Convert("output_dir", one_path)),
    ("trainer.resume_mode", Hint("--resume_from_checkpoint latest goes on")),
    ("trainer.val_before_train", Hint("the first evaluation is of the starting model")),
    ("trainer.nnodes", PARALLEL),
    ("trainer.n_gpus_per_node", PARALLEL),
    ("trainer.*", REPORT),
];

/// Batch sizes count prompts in verl and completions here; a KL coefficient counts only where it is switched on.
fn combine(get: Lookup<'_>) -> Options {
    let mut options = Options::new();
    let mut set = |key: &str, value: Value| options.push((key.to_owned(), value));
    let actor = |key: &str| get(&format!("actor_rollout_ref.actor.{key}"));
    let n = get("actor_rollout_ref.rollout.n").and_then(|n| n.as_u64()).unwrap_or(1);
    let completions = |prompts: Option<Value>| prompts.and_then(|prompts| prompts.as_u64()).map(|prompts| prompts * n);
    if let Some(size) = completions(get("data.train_batch_size")) {
        set("generation_batch_size", size.into());
    }
    if let Some(size) = completions(actor("ppo_mini_batch_size")) {
        set("per_device_train_batch_size", size.into());
        set("gradient_accumulation_steps", 1.into());
    }
    let is_on = |value: Option<Value>| value.is_some_and(|value| value == true);
    if is_on(get("algorithm.use_kl_in_reward")) {
        set("beta", get("algorithm.kl_ctrl.kl_coef").unwrap_or_else(|| 0.001.into()));
        set("kl_estimator", get("algorithm.kl_penalty").unwrap_or_else(|| "kl".into()));
    } else if is_on(actor("use_kl_loss")) {
        set("beta", actor("kl_loss_coef").unwrap_or_else(|| 0.001.into()));
        set("kl_estimator", actor("kl_loss_type").unwrap_or_else(|| "low_var_kl".into()));
        set("use_bias_correction_kl", false.into());
    }
    if let Some(low) = actor("clip_ratio_low").or_else(|| actor("clip_ratio")) {
        set("epsilon", low);
    }
    if get("algorithm.adv_estimator").is_some_and(|estimator| estimator == "grpo") {
        set("advantage_epsilon", 1e-6.into());
        set("lone_advantage", "reward".into());
    }
    if get("algorithm.norm_adv_by_std_in_grpo") == Some(false.into()) {
        set("scale_rewards", "none".into());
    }
    if let Some(Value::Array(betas)) = actor("optim.betas")
        && let [first, second] = betas.as_slice()
    {
        set("adam_beta1", first.clone());
        set("adam_beta2", second.clone());
    }
    let correction = |key: &str| get(&format!("algorithm.rollout_correction.{key}"));
    if let Some(Value::String(level)) = correction("rollout_is") {
        set("importance_sampling_correction", true.into());
        set("importance_sampling_mode", format!("{level}_truncate").into());
        set("importance_sampling_clip_max", correction("rollout_is_threshold").unwrap_or_else(|| 2.0.into()));
        if let Some(normalize) = correction("rollout_is_batch_normalize") {
            set("importance_sampling_batch_normalize", normalize);
        }
    }
    options
}

/// Not every loss has verl's name: its `cispo` clips on both sides, unlike TRL's.
fn loss_mode(value: &Value) -> Result<Value, &'static str> {
    let loss = value.as_str().and_then(LossType::of_verl);
    Ok(loss.and_then(|loss| serde_json::to_value(loss).ok()).unwrap_or_else(|| value.clone()))
}

fn warmup_steps(value: &Value) -> Result<Value, &'static str> {
    Ok(if value.as_f64().is_some_and(|steps| steps < 0.0) { Value::Null } else { value.clone() })
}

fn attempts(value: &Value) -> Result<Value, &'static str> {
    if value.as_f64().is_some_and(|attempts| attempts > 0.0) {
        return Ok(value.clone());
    }
    Err("without a limit, hopeless prompts would be tried for ever; the default limit stays")
}

/// verl compares the standard deviation of what is named; `acc` is whether answers are right, which is our default.
fn filter_metric(value: &Value) -> Result<Value, &'static str> {
    match value.as_str() {
        Some("acc") => Ok(Value::Null),
        None if value.is_null() => Ok(Value::Null),
        Some("score" | "seq_reward" | "seq_final_reward") => Ok("reward".into()),
        _ => Err("no metric of this name; groups are kept when some answers are right, but not all"),
    }
}

fn frequency(value: &Value) -> Result<Value, &'static str> {
    if value.as_f64().is_some_and(|steps| steps > 0.0) {
        return Ok(value.clone());
    }
    Err("checkpoints are what a run goes on from after a crash; the default interval stays")
}
