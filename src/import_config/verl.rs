//! verl's Hydra configuration (`verl.trainer.main_ppo`).

use std::sync::LazyLock;

use serde_json::Value;
use shared::config::LossType;

use super::rules::{Converted, Count, Keys, Lookup, Options, Rules, limit, one_path, paths, top_k};

/// verl's keys.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: false,
    implied: IMPLIED,
    counts: COUNTS,
    combine,
    remarks: |_| Vec::new(),
    launcher: None,
};

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

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::parse(include_str!("verl.toml")));

/// Keys whose values are written differently.
const CONVERTED: &[Converted] = &[
    ("algorithm.filter_groups.max_num_gen_batches", "dynamic_sampling_max_attempts", attempts),
    ("algorithm.filter_groups.metric", "filter_groups_metric", filter_metric),
    ("data.train_files", "dataset", paths),
    ("data.val_files", "eval_dataset", one_path),
    ("actor_rollout_ref.model.path", "model", one_path),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps", "warmup_steps", warmup_steps),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "loss_type", loss_mode),
    ("actor_rollout_ref.rollout.top_k", "top_k", top_k),
    ("critic.model.path", "critic_model", one_path),
    ("trainer.total_training_steps", "max_steps", limit),
    ("trainer.save_freq", "save_steps", frequency),
    ("trainer.test_freq", "eval_steps", limit),
    ("trainer.default_local_dir", "output_dir", one_path),
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
    // Its default reaches GSPO too since 0.9.1; ours is that of the paper.
    if actor("policy_loss.loss_mode").is_some_and(|loss| loss == "gspo") && actor("loss_agg_mode").is_none() {
        set("loss_aggregation", "token-mean".into());
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
    let of_model = |key: &str| get(&format!("actor_rollout_ref.model.{key}"));
    if let Some(rank) = of_model("lora_rank").filter(|rank| rank.as_u64().is_some_and(|rank| rank > 0)) {
        set("use_peft", true.into());
        set("lora_r", rank);
        set("lora_alpha", of_model("lora_alpha").unwrap_or_else(|| 16.into()));
        // One name, which means every layer, or a list.
        let modules = of_model("target_modules").filter(Value::is_array);
        set("lora_target_modules", modules.unwrap_or_else(|| Value::Array(Vec::new())));
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
