//! TRL's `GRPOConfig` (1.16) with the arguments of its scripts.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    accelerate, mixture, prompts, rewards,
    rules::{Converted, Count, Keys, Lookup, Options, Reason, Refusal, Rules, limit, top_k},
    tools,
};

/// TRL's keys are ours, except for these, and its defaults are ours where they change what is trained.
pub static RULES: Rules = Rules {
    keys: &KEYS,
    converted: CONVERTED,
    ours: true,
    implied: &[],
    implied_by,
    counts: COUNTS,
    overruled,
    combine,
    remarks,
    refusals,
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
    ("chat_template", "chat_template", prompts::template),
    ("chat_template_path", "chat_template", prompts::template),
    ("scale_rewards", "scale_rewards", scale_rewards),
    ("max_steps", "max_steps", limit),
    ("top_k", "top_k", top_k),
    ("resume_from_checkpoint", "resume_from_checkpoint", resume),
    ("tools", "tools", tools::list),
];

fn scale_rewards(value: &Value) -> Result<Value, Reason> {
    Ok(match value {
        Value::Bool(true) => "group".into(),
        Value::Bool(false) => "none".into(),
        other => other.clone(),
    })
}

fn resume(value: &Value) -> Result<Value, Reason> {
    Ok(match value {
        Value::Bool(true) => "latest".into(),
        Value::Bool(false) => Value::Null,
        other => other.clone(),
    })
}

/// PEFT's layers for the families that it knows, where no key names any. TRL's ratio of the sequence for the KL term,
/// where ours is that of the token.
fn implied_by(get: Lookup<'_>) -> Options {
    let wanted = get("use_peft").is_some_and(|value| value == true);
    let is_named = get("lora_target_modules").is_some_and(|value| value != Value::Array(Vec::new()));
    let layers = || Value::from(vec!["q_proj", "v_proj"]);
    let layers = (wanted && !is_named).then(|| ("lora_target_modules".to_owned(), layers()));
    let by_sequence = get("importance_sampling_level").is_some_and(|level| level == "sequence");
    let has_kl = get("beta").and_then(|beta| beta.as_f64()).is_some_and(|beta| beta != 0.0);
    let is_given = get("use_bias_correction_kl").is_some_and(|value| !value.is_null());
    let factor = (by_sequence && has_kl && !is_given).then(|| ("use_bias_correction_kl".to_owned(), Value::Bool(true)));
    layers.into_iter().chain(factor).collect()
}

/// With the strategy `no`, the Trainer evaluates nothing, whatever `eval_steps` is. Where none is named, `eval_steps`
/// is ours, which stands for itself.
fn overruled(get: Lookup<'_>) -> Vec<(&'static str, &'static str)> {
    // In YAML 1.1, `no` is false.
    let is_off = get("eval_strategy").is_some_and(|strategy| strategy == "no" || strategy == false);
    if is_off { vec![("eval_steps", "nothing is evaluated, since eval_strategy is `no`")] } else { Vec::new() }
}

/// Options that follow from several keys about the batch, the rewards and the data.
fn combine(get: Lookup<'_>) -> Options {
    let mut options = Options::new();
    if let Some(processes) = accelerate::processes(get).ok().flatten().filter(|processes| *processes > 1) {
        options.push(("per_device_train_batch_size".to_owned(), per_process(get).saturating_mul(processes).into()));
    }
    let functions = functions(get).unwrap_or_default();
    if !functions.is_empty() {
        let list: Value = functions.into_iter().map(|function| Value::String(function.entry)).collect();
        options.push(("reward_funcs".to_owned(), list));
    }
    for key in TABLES {
        if let Ok(Some(values)) = prompts::named_values(get(key), get(&format!("{key}.*"))) {
            options.push((key.to_owned(), Value::Object(values)));
        }
    }
    options.extend(tools::environments(get).ok().flatten().map(|found| ("environment_factory".to_owned(), found)));
    options.extend(prompts::generation("generation_kwargs", &generation(get)).0);
    options.extend(datasets(get).map(|list| mixture::options(&list)).unwrap_or_default());
    options
}

/// The reward functions: the model that the script names, then the functions.
fn functions(get: Lookup<'_>) -> Result<Vec<rewards::Function>, String> {
    let given = get("reward_funcs").filter(|value| !value.is_null());
    let mut functions = given.map_or(Ok(Vec::new()), |value| rewards::functions(&value, get))?;
    if let Some(Value::String(model)) = get("reward_model_name_or_path") {
        functions.insert(0, rewards::Function { entry: rewards::model(&model), remark: None });
    }
    Ok(functions)
}

/// Options that are tables, whose keys are given one by one.
const TABLES: [&str; 2] = ["chat_template_kwargs", "lr_scheduler_kwargs"];

fn generation(get: Lookup<'_>) -> serde_json::Map<String, Value> {
    let mut all = get("generation_kwargs").and_then(|value| value.as_object().cloned()).unwrap_or_default();
    all.extend(get("generation_kwargs.*").and_then(|value| value.as_object().cloned()).unwrap_or_default());
    all
}

fn refusals(get: Lookup<'_>) -> Vec<Refusal> {
    let mut list = prompts::generation("generation_kwargs", &generation(get)).1;
    if get("generation_kwargs").is_some_and(|value| !value.is_object()) {
        list.push((
            "generation_kwargs".to_owned(),
            String::new(),
            "it must be a mapping of names to values, or one in JSON".to_owned(),
        ));
    }
    if let Err(reason) = functions(get) {
        list.push(("reward_funcs".to_owned(), "reward_funcs".to_owned(), reason));
    }
    if let Err(reason) = tools::environments(get) {
        list.push(("environment_factory".to_owned(), "environment_factory".to_owned(), reason.into_owned()));
    }
    for key in TABLES {
        if let Err(reason) = prompts::named_values(get(key), get(&format!("{key}.*"))) {
            list.push((key.to_owned(), key.to_owned(), reason));
        }
    }
    list
}

/// Completions of a minibatch of each process.
fn per_process(get: Lookup<'_>) -> u64 {
    get("per_device_train_batch_size").and_then(|size| size.as_u64()).unwrap_or(8)
}

fn remarks(get: Lookup<'_>) -> Vec<String> {
    let mut list = prompts::without_effect("generation_kwargs", &generation(get));
    list.extend(functions(get).unwrap_or_default().into_iter().filter_map(|function| function.remark));
    if get("use_peft").is_some_and(|value| value == true) && get("lora_dropout").is_none() {
        list.push("TRL drops 0.05 of what goes into an adapter (`lora_dropout`); here nothing is dropped".to_owned());
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
    list.extend(datasets(get).map(|list| mixture::remarks(&list)).unwrap_or_default());
    list
}

/// Several datasets: TRL's list, or open-r1's, which names the same things otherwise.
fn datasets(get: Lookup<'_>) -> Option<Value> {
    get("datasets").or_else(|| Some(mixture::of_open_r1(get("dataset_mixture.datasets")?)))
}
