//! TRL's `GRPOConfig` (1.16) with the arguments of its scripts.

use serde_json::Value;

use super::rules::{
    Count,
    Rule::{self, Convert, Hint},
    Rules, limit, top_k,
};

/// TRL's keys are ours, but for these; and the defaults are the same where they change what is trained.
pub const RULES: Rules = Rules { keys: KEYS, ours: true, implied: &[], counts: COUNTS, combine: |_| Vec::new() };

/// The Trainer's step is an optimiser update. (Its warm-up is counted in updates here too.)
const COUNTS: &[(&str, Count)] = &[
    ("max_steps", Count::Updates),
    ("save_steps", Count::Updates),
    ("eval_steps", Count::Updates),
    ("ref_model_sync_steps", Count::Updates),
];

const PRECISION: Rule = Hint("the learner computes in float32");
const ENGINE: Rule = Hint("the sampler is ONNX Runtime in a process of its own; see rollout_device and max_num_seqs");
const REPORT: Rule = Hint("metrics are in metrics.jsonl and report.html of the run directory");
const LORA: Rule = Hint("all weights are trained; there is no LoRA");
const HUB: Rule = Hint("nothing is uploaded; every checkpoint is a Hugging Face directory");
const PARALLEL: Rule = Hint("one device learns and one samples; there is no sharding");
const WHEN: Rule = Hint("saving and evaluating go by steps: save_steps, eval_steps, logging_steps");
const TOOLS: Rule = Hint("there are no tools");
const LOADING: Rule = Hint("the model is read as it is in its directory");
const SPLIT: Rule = Hint("`dataset` is one local JSONL file; write the split to a file");

const KEYS: &[(&str, Rule)] = &[
    ("reward_funcs", Convert("reward_funcs", reward_funcs)),
    ("scale_rewards", Convert("scale_rewards", scale_rewards)),
    ("max_steps", Convert("max_steps", limit)),
    ("top_k", Convert("top_k", top_k)),
    ("resume_from_checkpoint", Convert("resume_from_checkpoint", resume)),
    ("max_staleness", Rule::Option("max_staleness")),
    ("importance_sampling_ratio_clip*", Hint("see importance_sampling_clip_max")),
    ("bf16", PRECISION),
    ("fp16", PRECISION),
    ("tf32", PRECISION),
    ("dtype", PRECISION),
    ("torch_dtype", PRECISION),
    ("cast_lm_head_to_fp32", PRECISION),
    ("gradient_checkpointing*", Hint("memory is bounded by micro_batch_tokens")),
    ("per_device_eval_batch_size", Hint("evaluation decodes max_num_seqs sequences at once")),
    ("num_generations_eval", Hint("evaluation samples one greedy completion per prompt")),
    ("optim*", Hint("the optimiser is AdamW; see adam_beta1, adam_beta2, adam_epsilon")),
    ("use_vllm", ENGINE),
    ("vllm_*", ENGINE),
    ("use_transformers_continuous_batching", ENGINE),
    ("cache_implementation", ENGINE),
    ("report_to", REPORT),
    ("run_name", REPORT),
    ("logging_*", REPORT),
    ("num_completions_to_print", REPORT),
    ("log_unique_prompts", REPORT),
    ("log_completions_hub_repo", HUB),
    ("use_peft", LORA),
    ("lora_*", LORA),
    ("peft_config*", LORA),
    ("load_in_*", LORA),
    ("push_to_hub*", HUB),
    ("hub_*", HUB),
    ("deepspeed*", PARALLEL),
    ("fsdp*", PARALLEL),
    ("ddp_*", PARALLEL),
    ("ds3_gather_for_generation", PARALLEL),
    ("dataloader_*", Hint("the dataset is read into memory once")),
    ("remove_unused_columns", Hint("every column reaches the reward functions")),
    ("save_strategy", WHEN),
    ("eval_strategy", WHEN),
    ("do_eval", WHEN),
    ("do_train", WHEN),
    ("save_only_model", Hint("a checkpoint always holds what exact resumption needs")),
    ("max_tool_calling_iterations", TOOLS),
    ("model_init_kwargs*", LOADING),
    ("attn_implementation", LOADING),
    ("trust_remote_code", LOADING),
    ("model_revision", LOADING),
    ("disable_dropout", Hint("there is no dropout")),
    ("chat_template_kwargs*", Hint("the chat template is that of the model directory; see system_prompt")),
    ("generation_kwargs*", Hint("temperature, top_p, top_k and min_p are options of their own")),
    ("dataset_train_split", SPLIT),
    ("dataset_test_split", SPLIT),
    ("dataset_config", SPLIT),
    ("reward_model_name_or_path", Hint("name the model among reward_funcs; see `rollout rewards`")),
    ("router_aux_loss_coef", Hint("there are no mixtures of experts")),
    ("queue_maxsize", Hint("max_staleness bounds how far the sampler works ahead")),
    ("weight_sync_steps", Hint("every step publishes its weights")),
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

/// Names only: functions of a Python module cannot be called.
fn reward_funcs(value: &Value) -> Result<Value, &'static str> {
    let list = match value {
        Value::String(one) => vec![Value::String(one.clone())],
        Value::Array(list) => list.clone(),
        _ => return Err("it must be a list of names"),
    };
    let in_module = |name: &Value| name.as_str().is_some_and(|name| name.contains('.') && !name.contains(':'));
    if list.iter().any(in_module) {
        return Err("functions of a Python module cannot be called; `rollout rewards` lists what there is");
    }
    Ok(Value::Array(list))
}
