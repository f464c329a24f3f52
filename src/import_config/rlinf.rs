//! RLinf's YAML for reasoning tasks.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    rules::{
        Converted, Keys, Lookup, Options, Reason, Refusal, Rules, limit, nothing_implied, one_path, paths, texts, top_k,
    },
    schedule::Told,
};

/// RLinf's keys.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: false,
    implied: IMPLIED,
    implied_by: nothing_implied,
    counts: &[],
    overruled: |_| Vec::new(),
    combine,
    remarks: |_| Vec::new(),
    refusals,
    launcher: None,
};

/// RLinf's defaults, and for keys without a default in its code the values from its documentation
/// (`megatron_actor_worker.py`: the KL term is added as it is).
const IMPLIED: &[(&str, &str)] = &[
    ("loss_type", "grpo"),
    ("importance_sampling_correction", "false"),
    ("use_bias_correction_kl", "false"),
    ("normalize_advantages", "true"),
    ("early_stop_imp_ratio", "5.0"),
    ("lr_scheduler_type", "constant"),
    ("weight_decay", "0.01"),
];

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::parse(include_str!("rlinf.toml")));

/// Keys whose values are written differently.
const CONVERTED: &[Converted] = &[
    ("algorithm.adv_type", "advantage_estimator", adv_type),
    ("algorithm.sampling_params.top_k", "top_k", top_k),
    ("algorithm.sampling_params.stop", "stop", texts),
    ("rollout.stop", "stop", texts),
    ("data.train_data_paths", "dataset", paths),
    ("data.val_data_paths", "eval_dataset", one_path),
    ("actor.model.model_path", "model", one_path),
    ("runner.max_steps", "max_steps", limit),
    ("runner.val_check_interval", "eval_steps", limit),
    ("runner.output_dir", "output_dir", one_path),
];

/// Batch sizes count prompts in RLinf and completions here; its dual clip is our `loss_type` vanilla, and its GRPO adds
/// 1e-6 to deviations (`advantages.py`).
fn combine(get: Lookup<'_>) -> Options {
    let mut options = Options::new();
    let mut set = |key: &str, value: Value| options.push((key.to_owned(), value));
    let number = |key: &str| get(key).and_then(|value| value.as_u64());
    let group = number("algorithm.group_size").unwrap_or(1);
    let batch = number("data.rollout_batch_size").map(|prompts| prompts * group);
    if let Some(batch) = batch {
        set("generation_batch_size", batch.into());
    }
    let update = number("actor.global_batch_size")
        .or_else(|| Some(batch? / number("algorithm.n_minibatches").filter(|n| *n > 0)?));
    if let Some(update) = update {
        // RLinf's early stop and token scale each look at one micro-batch.
        let micro = number("actor.micro_batch_size").filter(|micro| update.checked_rem(*micro) == Some(0));
        let minibatch = micro.unwrap_or(update).max(1);
        set("per_device_train_batch_size", minibatch.into());
        set("gradient_accumulation_steps", (update / minibatch).max(1).into());
    }
    if get("algorithm.adv_type").is_none_or(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("grpo"))) {
        set("advantage_epsilon", 1e-6.into());
    }
    let given = |key: &str| get(key).filter(|value| !value.is_null());
    if let Some(low) = given("algorithm.clip_ratio_low").or_else(|| given("algorithm.ratio_clip_eps")) {
        set("epsilon", low);
    }
    if let Some(bound) = given("algorithm.clip_ratio_c") {
        set("loss_type", "vanilla".into());
        set("clip_ratio_c", bound);
    }
    let path = get("rollout.model.model_path").or_else(|| get("rollout.model_dir"));
    if let Some(path) = path.filter(|_| get("actor.model.model_path").is_none()) {
        set("model", path);
    }
    options.extend(rate_schedule(get).unwrap_or_default());
    options
}

/// Schedule and warm-up: Megatron's, which have a section of their own, or FSDP's among the keys of the optimiser.
fn rate_schedule(get: Lookup<'_>) -> Result<Options, String> {
    let first = |keys: &[&str]| keys.iter().find_map(|key| get(&format!("actor.{key}")));
    let number = |keys: &[&str]| first(keys).and_then(|value| value.as_f64()).filter(|value| *value > 0.0);
    let style = first(&["lr_sched.lr_decay_style", "optim.lr_decay_style", "optim.lr_scheduler", "optim.warmup_style"]);
    let warmup_share =
        number(&["lr_sched.lr_warmup_fraction", "optim.lr_warmup_fraction", "optim.lr_warmup_steps_ratio"]);
    let warmup_steps = number(&["lr_sched.lr_warmup_iters", "optim.lr_warmup_iters", "optim.lr_warmup_steps"]);
    Told {
        style: style.and_then(|style| style.as_str().map(str::to_owned)),
        min_lr: number(&["lr_sched.min_lr", "optim.min_lr"]).unwrap_or(0.0),
        lr: number(&["optim.lr"]),
        decay_updates: number(&["lr_sched.lr_decay_iters", "optim.total_training_steps"]).map(|updates| updates as u64),
        warmup_steps: warmup_steps.unwrap_or(0.0) as u64,
        // In Megatron the share takes precedence over the number.
        warmup_share: warmup_share.unwrap_or(0.0),
    }
    .options()
}

fn refusals(get: Lookup<'_>) -> Vec<Refusal> {
    let mut list = Vec::new();
    if let Err(reason) = rate_schedule(get) {
        list.push(("actor.lr_sched.lr_decay_style".to_owned(), "lr_scheduler_type".to_owned(), reason));
    }
    if get("actor.model.is_lora") == Some(true.into()) {
        let rank = get("actor.model.lora_rank").map_or_else(|| "RANK".to_owned(), |rank| rank.to_string());
        list.push((
            "actor.model.is_lora".to_owned(),
            "use_peft".to_owned(),
            format!(
                "RLinf chooses the layers of the adapter by the model; give --use_peft true --lora_r {rank} \
                 --lora_alpha {rank}, and the layers as --lora_target_modules, or all without it"
            ),
        ));
    }
    list
}

fn adv_type(value: &Value) -> Result<Value, Reason> {
    Ok(match value.as_str() {
        Some("math_grpo") => "grpo".into(),
        Some("math_reinpp" | "math_reinforce_plus_plus") => "reinforce_plus_plus".into(),
        _ => value.clone(),
    })
}
