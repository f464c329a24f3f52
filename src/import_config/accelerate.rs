//! accelerate's configuration, which says how to start a script.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    read::Entry,
    rules::{Converted, Keys, Lookup, Reason, Rules, nothing_implied},
};

/// accelerate's keys.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: false,
    implied: &[],
    implied_by: nothing_implied,
    counts: &[],
    overruled: |_| Vec::new(),
    combine: |_| Vec::new(),
    remarks: |_| Vec::new(),
    refusals: |_| Vec::new(),
    launcher: None,
};

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::parse(include_str!("accelerate.toml")));

/// Keys whose values are written differently.
const CONVERTED: &[Converted] = &[("mixed_precision", "bf16", mixed_precision)];

fn mixed_precision(value: &Value) -> Result<Value, Reason> {
    match value.as_str() {
        Some("bf16") => Ok(true.into()),
        Some("no") => Ok(false.into()),
        _ if *value == Value::Bool(false) => Ok(false.into()),
        _ => Err("the learner computes in float32, or with bf16 in bfloat16".into()),
    }
}

/// Options that follow from a configuration that comes with TRL, known by its name. All have bfloat16.
pub fn of_trl(name: &str) -> Option<Vec<Entry>> {
    let processes = match name {
        "single_gpu" => 1,
        "multi_gpu" | "fsdp1" | "fsdp2" | "zero1" | "zero2" | "zero3" => 8,
        _ => return None,
    };
    Some(vec![Entry::new("mixed_precision", "bf16"), Entry::new("num_processes", processes)])
}

/// Keys that give the number of processes, in all or on each machine.
const COUNTS: [(&str, bool); 3] = [("num_processes", true), ("nproc_per_node", false), ("num_gpus", false)];

/// Whether a key gives a number of processes; a remark is made if that number is not known.
pub fn counts(key: &str) -> bool {
    COUNTS.iter().any(|(name, _)| *name == key) || ["nnodes", "num_nodes"].contains(&key)
}

/// The number of learner processes, if it is given; or the key whose value is no number.
///
/// # Errors
/// That key.
pub fn processes(get: Lookup<'_>) -> Result<Option<u64>, &'static str> {
    if get("distributed_type").is_some_and(|kind| kind == "NO") {
        return Ok(Some(1));
    }
    let Some((key, in_all, value)) = COUNTS.iter().find_map(|&(key, in_all)| Some((key, in_all, get(key)?))) else {
        return Ok(None);
    };
    let machines = ["nnodes", "num_nodes"].into_iter().find_map(|key| Some((key, get(key)?)));
    let machines = match machines.filter(|_| !in_all) {
        Some((key, value)) => value.as_u64().ok_or(key)?,
        None => 1,
    };
    value.as_u64().map(|count| Some(count.saturating_mul(machines))).ok_or(key)
}
