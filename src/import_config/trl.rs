//! TRL's `GRPOConfig` (1.16) with the arguments of its scripts.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    accelerate, mixture,
    rules::{Converted, Count, Keys, Lookup, Options, Rules, limit, top_k},
};

/// TRL's keys are ours, but for these; and the defaults are the same where they change what is trained.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: true,
    implied: &[],
    counts: COUNTS,
    combine,
    remarks,
    launcher: Some(&accelerate::RULES),
};

/// The Trainer's step is an optimiser update. (Its warm-up is counted in updates here too.)
const COUNTS: &[(&str, Count)] = &[
    ("max_steps", Count::Updates),
    ("save_steps", Count::Updates),
    ("eval_steps", Count::Updates),
    ("ref_model_sync_steps", Count::Updates),
];

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::parse(include_str!("trl.toml")));

/// Keys whose values are written differently.
const CONVERTED: &[Converted] = &[
    ("reward_funcs", "reward_funcs", reward_funcs),
    ("scale_rewards", "scale_rewards", scale_rewards),
    ("max_steps", "max_steps", limit),
    ("top_k", "top_k", top_k),
    ("resume_from_checkpoint", "resume_from_checkpoint", resume),
];

fn scale_rewards(value: &Value) -> Result<Value, &'static str> {
    Ok(match value {
        Value::Bool(true) => "group".into(),
        Value::Bool(false) => "none".into(),
        other => other.clone(),
    })
}

fn resume(value: &Value) -> Result<Value, &'static str> {
    Ok(match value {
        Value::Bool(true) => "latest".into(),
        Value::Bool(false) => Value::Null,
        other => other.clone(),
    })
}

/// What TRL's script means by names that are none of a rule with the same figures. `think_format_reward` is one.
const FUNCTIONS: &[(&str, &str)] = &[
    ("accuracy_reward", "trl.rewards.accuracy_reward"),
    ("reasoning_accuracy_reward", "trl.rewards.reasoning_accuracy_reward"),
    ("get_soft_overlong_punishment", "soft_overlong:max_completion_len=1280:soft_punish_cache=256"),
];

/// Names of TRL's functions, and of functions in Python modules as TRL's command line has them, which mean the same here.
fn reward_funcs(value: &Value) -> Result<Value, &'static str> {
    let named = |value: &Value| {
        let meant = FUNCTIONS.iter().find(|(name, _)| value == name);
        meant.map_or_else(|| value.clone(), |(_, function)| (*function).into())
    };
    match value {
        Value::String(_) => Ok(vec![named(value)].into()),
        Value::Array(list) => Ok(list.iter().map(named).collect()),
        _ => Err("it must be a list of names"),
    }
}

/// What the batch, the rewards and the data follow from.
fn combine(get: Lookup<'_>) -> Options {
    let mut options = Options::new();
    if let Some(processes) = accelerate::processes(get).ok().flatten().filter(|processes| *processes > 1) {
        options.push(("per_device_train_batch_size".to_owned(), per_process(get).saturating_mul(processes).into()));
    }
    if let Some(Value::String(model)) = get("reward_model_name_or_path") {
        let functions = get("reward_funcs").and_then(|value| reward_funcs(&value).ok());
        let mut functions = functions.and_then(|value| value.as_array().cloned()).unwrap_or_default();
        functions.insert(0, format!("model:path={}", model.replace(':', "\\:")).into());
        options.push(("reward_funcs".to_owned(), functions.into()));
    }
    options.extend(get("datasets").map(|list| mixture::options(&list)).unwrap_or_default());
    options
}

/// Completions of a minibatch of each process.
fn per_process(get: Lookup<'_>) -> u64 {
    get("per_device_train_batch_size").and_then(|size| size.as_u64()).unwrap_or(8)
}

fn remarks(get: Lookup<'_>) -> Vec<String> {
    let mut list = Vec::new();
    let functions = get("reward_funcs").and_then(|value| reward_funcs(&value).ok()).unwrap_or_default();
    for rule in ["accuracy", "reasoning_accuracy"] {
        if functions.as_array().into_iter().flatten().any(|name| *name == format!("trl.rewards.{rule}_reward")) {
            list.push(format!(
                "`{rule}_reward` is TRL's own function, called in Python with math-verify (`reward_python` names the \
                 interpreter); the rule `{rule}` needs no Python and abstains where it is not sure"
            ));
        }
    }
    let size = per_process(get);
    match accelerate::processes(get) {
        Ok(Some(processes)) if processes > 1 => list.push(format!(
            "{processes} processes with minibatches of {size} are one with minibatches of {}",
            size.saturating_mul(processes)
        )),
        Ok(_) => {}
        Err(key) => list.push(format!(
            "how many processes there are (`{key}`) is not known here, so the minibatch is that of one; multiply \
             `per_device_train_batch_size` ({size}) by their number"
        )),
    }
    list.extend(get("datasets").map(|list| mixture::remarks(&list)).unwrap_or_default());
    list
}
