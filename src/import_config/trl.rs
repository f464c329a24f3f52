//! TRL's `GRPOConfig` (1.16) with the arguments of its scripts.

use std::sync::LazyLock;

use serde_json::Value;

use super::rules::{Converted, Count, Keys, Rules, limit, top_k};

/// TRL's keys are ours, but for these; and the defaults are the same where they change what is trained.
pub static RULES: Rules =
    Rules { keys: &KEYS, converted: CONVERTED, ours: true, implied: &[], counts: COUNTS, combine: |_| Vec::new() };

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

/// Names of rules, and of functions in Python modules as TRL's command line has them, which mean the same here.
fn reward_funcs(value: &Value) -> Result<Value, &'static str> {
    match value {
        Value::String(one) => Ok(vec![one.clone()].into()),
        Value::Array(list) => Ok(list.clone().into()),
        _ => Err("it must be a list of names"),
    }
}
