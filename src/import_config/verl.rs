//! verl's Hydra configuration (`verl.trainer.main_ppo`).

use std::sync::LazyLock;

use serde_json::Value;
use shared::config::LossType;

use super::{
    prompts, rewards,
    rules::{
        Converted, Count, Keys, Lookup, Options, Reason, Refusal, Rules, limit, nothing_implied, one_path, paths,
        texts, top_k,
    },
    schedule::Told,
};

/// verl's keys.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: false,
    implied: IMPLIED,
    implied_by: nothing_implied,
    counts: COUNTS,
    overruled,
    combine,
    remarks,
    refusals,
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
    ("cliprange_value", "0.5"),
    ("num_train_epochs", "30"),
];

/// Prompts of a generation batch and of an update, where the configuration does not give them.
const BATCH: [(&str, u64); 2] = [("data.train_batch_size", 1024), ("actor_rollout_ref.actor.ppo_mini_batch_size", 256)];

/// Completions of a prompt; 1 where the configuration does not give them.
const N: &str = "actor_rollout_ref.rollout.n";

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::parse(include_str!("verl.toml")));

/// Keys whose values are written differently.
const CONVERTED: &[Converted] = &[
    ("algorithm.adv_estimator", "advantage_estimator", estimator),
    ("algorithm.filter_groups.max_num_gen_batches", "dynamic_sampling_max_attempts", attempts),
    ("algorithm.filter_groups.metric", "filter_groups_metric", filter_metric),
    ("data.train_files", "dataset", paths),
    ("data.val_files", "eval_dataset", one_path),
    ("actor_rollout_ref.model.path", "model", one_path),
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "loss_type", loss_mode),
    ("actor_rollout_ref.rollout.top_k", "top_k", top_k),
    ("actor_rollout_ref.rollout.stop", "stop", texts),
    ("actor_rollout_ref.model.custom_chat_template", "chat_template", prompts::template),
    ("critic.model.path", "critic_model", one_path),
    ("trainer.total_training_steps", "max_steps", limit),
    ("trainer.save_freq", "save_steps", frequency),
    ("trainer.test_freq", "eval_steps", limit),
    ("trainer.default_local_dir", "output_dir", one_path),
];

/// Options that one loss reads each. A composed configuration always has all of them.
const FIGURES: [(&str, &str); 6] = [
    ("actor_rollout_ref.actor.policy_loss.clip_cov_ratio", "clip_cov"),
    ("actor_rollout_ref.actor.policy_loss.clip_cov_lb", "clip_cov"),
    ("actor_rollout_ref.actor.policy_loss.clip_cov_ub", "clip_cov"),
    ("actor_rollout_ref.actor.policy_loss.kl_cov_ratio", "kl_cov"),
    ("actor_rollout_ref.actor.policy_loss.ppo_kl_coef", "kl_cov"),
    ("actor_rollout_ref.actor.policy_loss.dro_beta", "dro"),
];

fn overruled(get: Lookup<'_>) -> Vec<(&'static str, &'static str)> {
    let mode = get("actor_rollout_ref.actor.policy_loss.loss_mode");
    let is_named = |loss: &str| mode.as_ref().is_some_and(|mode| mode == loss);
    let of_others = FIGURES.into_iter().filter(|(_, loss)| !is_named(loss));
    of_others.map(|(key, _)| (key, "a figure of a loss that `loss_mode` does not name")).collect()
}

/// Batch sizes count prompts in verl and completions here; a KL coefficient counts only where it is switched on.
fn combine(get: Lookup<'_>) -> Options {
    let mut options = Options::new();
    let mut set = |key: &str, value: Value| options.push((key.to_owned(), value));
    let actor = |key: &str| get(&format!("actor_rollout_ref.actor.{key}"));
    let [batch, update] = batches(get);
    if let Some(size) = batch {
        set("generation_batch_size", size.into());
    }
    if let Some(size) = update {
        set("per_device_train_batch_size", size.into());
        set("gradient_accumulation_steps", 1.into());
    }
    if let Some(length) = get("actor_rollout_ref.rollout.response_length").filter(Value::is_number) {
        set("max_completion_length", length);
    }
    if let (Some(norm), None) = (actor("optim.clip_grad"), actor("grad_clip")) {
        set("max_grad_norm", norm);
    }
    // Truncated importance sampling, before `rollout_correction` had it.
    if let Some(cap) = actor("tis_imp_ratio_cap").filter(|cap| cap.as_f64().is_some_and(|cap| cap > 0.0)) {
        set("importance_sampling_correction", true.into());
        set("importance_sampling_mode", "token_truncate".into());
        set("importance_sampling_clip_max", cap);
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
    // verl's default has reached GSPO too since 0.9.1; our default is that of the paper.
    if actor("policy_loss.loss_mode").is_some_and(|loss| loss == "gspo") && actor("loss_agg_mode").is_none() {
        set("loss_aggregation", "token-mean".into());
    }
    if let Some(low) = actor("clip_ratio_low").or_else(|| actor("clip_ratio")) {
        set("epsilon", low);
    }
    if get("algorithm.adv_estimator").is_some_and(|named| named == "grpo" || named == "grpo_vectorized") {
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
    if let Some(Adapter { rank, alpha, modules, .. }) = Adapter::of(get) {
        set("use_peft", true.into());
        set("lora_r", rank);
        set("lora_alpha", alpha);
        set("lora_target_modules", modules.unwrap_or_default().into());
    }
    let rate = rate_schedule(get).unwrap_or_default();
    if let Ok(Some(variables)) = template_variables(get) {
        set("chat_template_kwargs", Value::Object(variables));
    }
    let schedule: serde_json::Map<String, Value> = ["num_cycles"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), actor(&format!("optim.{name}"))?)))
        .collect();
    if !schedule.is_empty() && style(get).as_deref() == Some("cosine") {
        set("lr_scheduler_kwargs", Value::Object(schedule));
    }
    if let Some((functions, weights)) = reward(get) {
        set("reward_funcs", functions.into());
        set("reward_weights", weights.into());
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
    options.extend(rate);
    options
}

/// Whether it is a configuration of verl at all; only then do its defaults count.
fn is_verl(get: Lookup<'_>) -> bool {
    let has = |below: &str| get(below).is_some_and(|keys| keys.as_object().is_some_and(|keys| !keys.is_empty()));
    has("actor_rollout_ref.*") || has("algorithm.*")
}

/// Completions of a generation batch and of an update, where they are known.
fn batches(get: Lookup<'_>) -> [Option<u64>; 2] {
    let n = get(N).map_or(Some(1), |n| n.as_u64());
    let [batch, update] = BATCH.map(|(key, default)| match get(key) {
        None => is_verl(get).then_some(default),
        Some(prompts) => prompts.as_u64(),
    });
    // An update of the default size has at most the prompts of the batch.
    let update =
        if get(BATCH[1].0).is_none() { update.zip(batch).map(|(update, batch)| update.min(batch)) } else { update };
    [batch, update].map(|prompts| prompts?.checked_mul(n?).filter(|size| *size > 0))
}

/// The name of the schedule; the older key takes precedence.
fn style(get: Lookup<'_>) -> Option<String> {
    let named = |key: &str| get(&format!("actor_rollout_ref.actor.optim.{key}"))?.as_str().map(str::to_owned);
    named("warmup_style").or_else(|| named("lr_scheduler_type"))
}

/// Schedule and warm-up: FSDP's, or Megatron's. In verl, a constant rate has a warm-up.
fn rate_schedule(get: Lookup<'_>) -> Result<Options, String> {
    let optim = |key: &str| get(&format!("actor_rollout_ref.actor.optim.{key}"));
    let number = |key: &str| optim(key).and_then(|value| value.as_f64()).filter(|value| *value > 0.0);
    let warmup_steps = number("lr_warmup_steps").unwrap_or(0.0) as u64;
    let warmup_share = number("lr_warmup_steps_ratio").filter(|_| warmup_steps == 0).unwrap_or(0.0);
    let told = Told { warmup_steps, warmup_share, ..Told::default() };
    match (style(get), optim("lr_decay_style")) {
        (None, Some(style)) => Told {
            style: style.as_str().map(str::to_owned),
            min_lr: number("min_lr").unwrap_or(0.0),
            lr: number("lr"),
            decay_updates: number("lr_decay_steps").map(|updates| updates as u64),
            ..told
        }
        .options(),
        (Some(style), _) if style != "constant" => {
            let mut options = told.options()?;
            options.retain(|(option, _)| option.starts_with("warmup"));
            options.push(("lr_scheduler_type".to_owned(), style.into()));
            Ok(options)
        }
        _ => told.options(),
    }
}

/// An adapter.
struct Adapter {
    rank: Value,
    alpha: Value,
    /// The layers, none for all; an outer none if they cannot be expressed.
    modules: Option<Vec<Value>>,
    /// The key of the layers.
    key: &'static str,
}

impl Adapter {
    /// The adapter, if there is one: FSDP's, or Megatron's.
    fn of(get: Lookup<'_>) -> Option<Self> {
        const PLACES: [[&str; 3]; 2] = [
            [
                "actor_rollout_ref.model.lora_rank",
                "actor_rollout_ref.model.lora_alpha",
                "actor_rollout_ref.model.target_modules",
            ],
            [
                "actor_rollout_ref.model.lora.rank",
                "actor_rollout_ref.model.lora.alpha",
                "actor_rollout_ref.model.lora.target_modules",
            ],
        ];
        PLACES.iter().enumerate().find_map(|(index, &[rank, alpha, key])| {
            let rank = get(rank).filter(|rank| rank.as_u64().is_some_and(|rank| rank > 0))?;
            let alpha = get(alpha).unwrap_or_else(|| if index == 0 { 16.into() } else { 32.into() });
            let modules = match get(key) {
                None => Some(Vec::new()),
                Some(Value::String(name)) if name == "all-linear" => Some(Vec::new()),
                // Megatron's names: there are only these four.
                Some(Value::Array(names))
                    if names.iter().any(|name| name.as_str().is_some_and(|name| name.contains("linear_"))) =>
                {
                    (names.len() == 4).then(Vec::new)
                }
                Some(Value::Array(names)) => Some(names),
                Some(_) => None,
            };
            Some(Self { rank, alpha, modules, key })
        })
    }
}

/// Completions of an update.
fn completions_of_update(get: Lookup<'_>) -> Option<u64> {
    let prompts = get(BATCH[1].0).map_or(Some(BATCH[1].1), |prompts| prompts.as_u64())?;
    prompts.checked_mul(get(N)?.as_u64()?)
}

fn template_variables(get: Lookup<'_>) -> Result<Option<serde_json::Map<String, Value>>, String> {
    prompts::named_values(get("data.apply_chat_template_kwargs"), get("data.apply_chat_template_kwargs.*"))
}

/// Stands for verl's own function of the row's `data_source`: the user must write such a file, as docs/importing.md
/// shows.
const OWN_FUNCTION: &str = "verl_reward.py:score";

/// Keys for the bounds of DAPO's penalty on long completions, in all versions.
const OVERLONG: [&str; 4] = [
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_manager.overlong_buffer",
];

/// Tokens and weight of DAPO's penalty on long completions, if it is on.
fn overlong(get: Lookup<'_>) -> Option<(u64, u64, f64)> {
    let place = OVERLONG.iter().find(|place| get(&format!("{place}.enable")) == Some(true.into()))?;
    let longest =
        ["reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len", "data.max_response_length"];
    let longest = longest.iter().find_map(|key| get(key)?.as_u64())?;
    let buffer = get(&format!("{place}.len"))?.as_u64()?;
    let factor = get(&format!("{place}.penalty_factor")).and_then(|factor| factor.as_f64()).unwrap_or(1.0);
    Some((longest, buffer, factor))
}

/// Functions and weights, if the configuration has any: a reward model, and DAPO's penalty.
fn reward(get: Lookup<'_>) -> Option<(Vec<String>, Vec<f64>)> {
    let model = ["reward_model.model.path", "reward.reward_model.model_path"].iter().find_map(|key| get(key));
    let on = ["reward_model.enable", "reward.reward_model.enable"].iter().any(|key| get(key) == Some(true.into()));
    let model = model.as_ref().and_then(Value::as_str).filter(|_| on).map(rewards::model);
    let punishment = overlong(get);
    if model.is_none() && punishment.is_none() {
        return None;
    }
    let (mut functions, mut weights) = (vec![model.unwrap_or_else(|| OWN_FUNCTION.to_owned())], vec![1.0]);
    if let Some((longest, buffer, factor)) = punishment {
        functions.push(format!("soft_overlong:max_completion_len={longest}:soft_punish_cache={buffer}"));
        weights.push(factor);
    }
    Some((functions, weights))
}

fn remarks(get: Lookup<'_>) -> Vec<String> {
    let mut list = Vec::new();
    let absent = BATCH.iter().filter(|(key, _)| get(key).is_none() && is_verl(get));
    let absent: Vec<String> = absent.map(|(key, prompts)| format!("{key} {prompts}")).collect();
    if !absent.is_empty() {
        list.push(format!("not given, so that verl's defaults count, in prompts: {}", absent.join(", ")));
    }
    let functions = reward(get).map(|(functions, _)| functions).unwrap_or_default();
    if functions.iter().any(|function| function == OWN_FUNCTION) {
        list.push(format!(
            "`{OWN_FUNCTION}` stands for verl's reward by the row's `data_source`: write that function \
             (docs/importing.md), or name a rule in its place (`gsm8k`, `accuracy`), with --reward_funcs, which must \
             name all of them"
        ));
    } else if functions.is_empty() {
        list.push(
            "verl's reward goes by the row's `data_source`, which no option stands for: name the functions with \
             --reward_funcs (`gsm8k` for GSM8K, `accuracy` for answers in \\boxed{})"
                .to_owned(),
        );
    }
    if get("algorithm.adv_estimator").is_some_and(|named| named == "rloo_vectorized") {
        list.push(
            "of `advantage_estimator` rloo: where a group has one completion with a reward, its advantage is 0 in \
             verl's rloo_vectorized, and its reward here"
                .to_owned(),
        );
    }
    let mode = get("actor_rollout_ref.actor.policy_loss.loss_mode");
    if let Some(mode @ ("clip_cov" | "kl_cov")) = mode.as_ref().and_then(Value::as_str) {
        list.push(format!(
            "of `loss_type` {mode}: verl takes covariances, and their share of the tokens, over a micro-batch, and \
             here they are those of `per_device_train_batch_size` completions"
        ));
    }
    if get("data.max_prompt_length").is_some() {
        let theirs = if get("data.filter_overlong_prompts") == Some(true.into()) {
            "leaves rows with longer prompts out (`data.filter_overlong_prompts`)"
        } else {
            match get("data.truncation").as_ref().and_then(Value::as_str) {
                Some("right") => "cuts longer prompts at their end (`data.truncation`)",
                Some("middle") => "cuts longer prompts in their middle (`data.truncation`)",
                Some("left") => return list,
                _ => "stops at a longer prompt (`data.truncation`)",
            }
        };
        list.push(format!("of `max_prompt_length`: verl {theirs}, and here such a prompt loses its beginning"));
    }
    list
}

fn refusals(get: Lookup<'_>) -> Vec<Refusal> {
    let mut list = Vec::new();
    if let Err(reason) = template_variables(get) {
        list.push(("data.apply_chat_template_kwargs".to_owned(), "chat_template_kwargs".to_owned(), reason));
    }
    let mut refuse = |key: &str, option: &str, reason: String| list.push((key.to_owned(), option.to_owned(), reason));
    let is_on = |key: &str| get(key) == Some(true.into());
    match get(N) {
        None if is_verl(get) => refuse(
            N,
            "num_generations",
            "it is not given, and verl's default is 1 completion of each prompt, while an advantage by comparison \
             needs at least 2; add it to the file, or give the option: the batches, which count completions, are then \
             those of n = 1"
                .to_owned(),
        ),
        Some(n) if n.as_u64().is_none() => {
            let unsaid = |key: &str| get(key).is_none_or(|size| size.is_number());
            let sizes = [(BATCH[0].0, "generation_batch_size"), (BATCH[1].0, "per_device_train_batch_size")];
            for (key, option) in sizes.into_iter().filter(|(key, _)| unsaid(key)) {
                let reason = format!("it counts prompts of `{N}` completions each, and that number is not known here");
                refuse(key, option, reason);
            }
        }
        _ => {}
    }
    if get(BATCH[0].0).is_some_and(|size| size == 0) {
        let count = get("async_training.require_batches").and_then(|count| count.as_u64());
        let size = count.zip(completions_of_update(get)).and_then(|(count, update)| count.checked_mul(update));
        refuse(
            BATCH[0].0,
            "generation_batch_size",
            format!(
                "0 is said to verl's fully asynchronous trainer, whose batch is `async_training.require_batches` times \
                 `ppo_mini_batch_size` prompts of `n` completions; give --generation_batch_size {}, and \
                 --max_staleness for sampling ahead",
                size.map_or_else(|| "with their product".to_owned(), |size| size.to_string())
            ),
        );
    }
    if is_on("algorithm.use_kl_in_reward") && is_on("actor_rollout_ref.actor.use_kl_loss") {
        refuse(
            "actor_rollout_ref.actor.use_kl_loss",
            "",
            "there is one penalty, in the reward or in the loss, and `use_kl_in_reward` is switched on too; switch one \
             of them off"
                .to_owned(),
        );
    }
    if get("actor_rollout_ref.rollout.do_sample") == Some(false.into()) {
        refuse("actor_rollout_ref.rollout.do_sample", "", "training always samples; take the key out".to_owned());
    }
    let norms = ["actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.optim.clip_grad"].map(get);
    if let [Some(first), Some(second)] = &norms
        && first.as_f64() != second.as_f64()
    {
        refuse(
            "actor_rollout_ref.actor.optim.clip_grad",
            "max_grad_norm",
            format!("`actor.grad_clip` is {first} and this {second}; which counts depends on the version"),
        );
    }
    if let Some(Adapter { modules: None, key, .. }) = Adapter::of(get) {
        refuse(
            key,
            "lora_target_modules",
            "it is a regular expression, or names of Megatron; list the ends of the layers' names, as \
             [\"q_proj\", \"v_proj\"]"
                .to_owned(),
        );
    }
    if let Err(reason) = rate_schedule(get) {
        refuse("actor_rollout_ref.actor.optim.lr_decay_style", "lr_scheduler_type", reason);
    }
    let own = ["custom_reward_function.path", "reward.custom_reward_function.path"]
        .into_iter()
        .find(|key| get(key).is_some());
    if let (Some(key), Some((functions, _))) = (own, reward(get))
        && functions[0] != OWN_FUNCTION
    {
        refuse(
            key,
            "reward_funcs",
            "it stands beside a reward model; name all functions with --reward_funcs".to_owned(),
        );
    }
    let on = OVERLONG.iter().find(|place| get(&format!("{place}.enable")) == Some(true.into()));
    if let (Some(place), None) = (on, overlong(get)) {
        list.push((
            format!("{place}.enable"),
            "reward_funcs".to_owned(),
            "its `len`, or the longest completion, is missing; name \
             soft_overlong:max_completion_len=N:soft_punish_cache=N"
                .to_owned(),
        ));
    }
    let least = get("actor_rollout_ref.actor.optim.min_lr_ratio").and_then(|ratio| ratio.as_f64()).unwrap_or(0.0);
    if least > 0.0 && style(get).as_deref() == Some("cosine") {
        list.push((
            "actor_rollout_ref.actor.optim.min_lr_ratio".to_owned(),
            "lr_scheduler_kwargs".to_owned(),
            format!(
                "name the schedule as `lr_scheduler_type` cosine_with_min_lr with `lr_scheduler_kwargs` {{ min_lr_rate \
                 = {least} }}; verl's warm-up begins at that rate too, which `warmup_stable_decay` can have"
            ),
        ));
    }
    let rows = |key: &str| get(key).and_then(|count| count.as_i64()).is_some_and(|count| count > 0);
    for key in ["data.train_max_samples", "data.val_max_samples"] {
        if rows(key) {
            list.push((
                key.to_owned(),
                String::new(),
                "all rows are trained on; write those that are meant to a file".to_owned(),
            ));
        }
    }
    list
}

/// verl's vectorised forms of two estimators.
fn estimator(value: &Value) -> Result<Value, Reason> {
    Ok(match value.as_str() {
        Some("rloo_vectorized") => "rloo".into(),
        Some("grpo_vectorized") => "grpo".into(),
        _ => value.clone(),
    })
}

/// Names of losses that mean something else in verl: its `cispo` clips on both sides, unlike TRL's.
fn loss_mode(value: &Value) -> Result<Value, Reason> {
    let loss = value.as_str().and_then(LossType::of_verl);
    Ok(loss.and_then(|loss| serde_json::to_value(loss).ok()).unwrap_or_else(|| value.clone()))
}

fn attempts(value: &Value) -> Result<Value, Reason> {
    if value.as_f64().is_some_and(|attempts| attempts > 0.0) {
        return Ok(value.clone());
    }
    Err("without a limit, hopeless prompts would be tried for ever; the default limit stays".into())
}

/// verl looks at the standard deviation of the named metric; `acc` is whether answers are right, which is our default.
fn filter_metric(value: &Value) -> Result<Value, Reason> {
    match value.as_str() {
        Some("acc") => Ok(Value::Null),
        None if value.is_null() => Ok(Value::Null),
        Some("score" | "seq_reward" | "seq_final_reward") => Ok("reward".into()),
        _ => Err("no metric of this name; groups are kept when some answers are right, but not all".into()),
    }
}

fn frequency(value: &Value) -> Result<Value, Reason> {
    if value.as_f64().is_some_and(|steps| steps > 0.0) {
        return Ok(value.clone());
    }
    Err("checkpoints are what a run goes on from after a crash; the default interval stays".into())
}
