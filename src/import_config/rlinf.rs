//! RLinf's YAML for reasoning tasks.

use serde_json::Value;

use super::rules::{
    Lookup, Options,
    Rule::{self, Combined, Convert, Hint, Option as To},
    Rules, limit, one_path, top_k,
};

/// RLinf's keys.
pub const RULES: Rules = Rules { keys: KEYS, ours: false, implied: IMPLIED, counts: &[], combine };

/// What RLinf does without being asked, and the values that its documentation gives to keys that its code has no default
/// for (`megatron_actor_worker.py`: the KL term is added as it is).
const IMPLIED: &[(&str, &str)] = &[
    ("loss_type", "grpo"),
    ("importance_sampling_correction", "false"),
    ("use_bias_correction_kl", "false"),
    ("normalize_advantages", "true"),
    ("early_stop_imp_ratio", "5.0"),
];

const PARALLEL: Rule = Hint("one device learns and one samples; there is no sharding and no offloading");
const MEMORY: Rule = Hint("memory is bounded by micro_batch_tokens and never changes a gradient");
const REPORT: Rule = Hint("metrics are in metrics.jsonl and report.html of the run directory");
const ENGINE: Rule = Hint("the sampler is ONNX Runtime in a process of its own; see rollout_device and max_num_seqs");
const DATA: Rule = Hint("the dataset is a JSONL file with `prompt`, or with GSM8K's or countdown's columns");

const KEYS: &[(&str, Rule)] = &[
    ("algorithm.group_size", To("num_generations")),
    ("algorithm.n_minibatches", Combined),
    ("algorithm.adv_type", Convert("advantage_estimator", adv_type)),
    (
        "algorithm.loss_type",
        Hint("clip_ratio_c makes it vanilla, else it is grpo; advantage_estimator gae adds a critic"),
    ),
    ("algorithm.loss_agg_func", To("loss_aggregation")),
    ("algorithm.kl_beta", To("beta")),
    ("algorithm.kl_penalty_type", To("kl_estimator")),
    ("algorithm.ratio_clip_eps", Combined),
    ("algorithm.clip_ratio_low", Combined),
    ("algorithm.clip_ratio_high", To("epsilon_high")),
    ("algorithm.clip_ratio_c", Combined),
    ("algorithm.entropy_bonus", To("entropy_coef")),
    ("algorithm.calculate_entropy", Hint("the entropy is always measured")),
    ("algorithm.normalize_advantages", To("normalize_advantages")),
    ("algorithm.early_stop_imp_ratio", To("early_stop_imp_ratio")),
    ("algorithm.use_valid_token_scale", To("use_valid_token_scale")),
    ("algorithm.gamma", To("gamma")),
    ("algorithm.gae_lambda", To("lam")),
    ("algorithm.update_epoch", To("num_iterations")),
    ("algorithm.recompute_logprobs", Hint("old log-probs are always the learner's own")),
    (
        "algorithm.shuffle_rollout",
        Hint("the completions of a step are always shuffled, in an order that the seed gives"),
    ),
    ("algorithm.max_num_gen_batches", To("dynamic_sampling_max_attempts")),
    ("algorithm.training_batch_size_per_gpu", MEMORY),
    ("algorithm.rollout_batch_size_per_gpu", MEMORY),
    ("algorithm.logprob_forward_micro_batch_size", MEMORY),
    ("algorithm.sampling_params.do_sample", Hint("training always samples")),
    ("algorithm.sampling_params.use_greedy", Hint("training always samples")),
    ("algorithm.sampling_params.temperature", To("temperature")),
    ("algorithm.sampling_params.top_p", To("top_p")),
    ("algorithm.sampling_params.top_k", Convert("top_k", top_k)),
    ("algorithm.sampling_params.repetition_penalty", To("repetition_penalty")),
    ("algorithm.sampling_params.max_new_tokens", To("max_completion_length")),
    ("data.train_data_paths", Convert("dataset", one_path)),
    ("data.val_data_paths", Convert("eval_dataset", one_path)),
    ("data.max_prompt_length", To("max_prompt_length")),
    ("data.rollout_batch_size", Combined),
    ("data.shuffle", To("shuffle_dataset")),
    ("data.seed", To("seed")),
    ("data.*", DATA),
    ("actor.model.model_path", Convert("model", one_path)),
    ("actor.model.*", Hint("the model is read as it is in its directory")),
    ("actor.seed", Hint("one seed serves the whole run: data.seed")),
    ("actor.global_batch_size", Combined),
    ("actor.micro_batch_size", MEMORY),
    ("actor.optim.lr", To("learning_rate")),
    ("actor.optim.adam_beta1", To("adam_beta1")),
    ("actor.optim.adam_beta2", To("adam_beta2")),
    ("actor.optim.adam_eps", To("adam_epsilon")),
    ("actor.optim.weight_decay", To("weight_decay")),
    ("actor.optim.clip_grad", To("max_grad_norm")),
    ("actor.optim.lr_decay_style", To("lr_scheduler_type")),
    ("actor.optim.lr_warmup_steps", To("warmup_steps")),
    ("actor.optim.lr_warmup_iters", To("warmup_steps")),
    ("actor.*", PARALLEL),
    ("rollout.model_dir", Combined),
    ("rollout.model.model_path", Combined),
    ("rollout.*", ENGINE),
    ("inference.*", PARALLEL),
    ("cluster.*", PARALLEL),
    ("reward.*", Hint("rewards are chosen by name; `rollout rewards` lists them")),
    ("critic.*", Hint("see the options of the critic: critic_model, critic_learning_rate")),
    ("runner.max_epochs", To("num_train_epochs")),
    ("runner.max_steps", Convert("max_steps", limit)),
    ("runner.save_interval", To("save_steps")),
    ("runner.val_check_interval", Convert("eval_steps", limit)),
    ("runner.output_dir", Convert("output_dir", one_path)),
    ("runner.seq_length", To("max_model_len")),
    ("runner.resume_dir", To("resume_from_checkpoint")),
    ("runner.*", REPORT),
    ("hydra.*", REPORT),
    ("defaults", Hint("files that it includes are not read; give the composed configuration")),
];

/// Batch sizes count prompts in RLinf and completions here; its dual clip is our `loss_type` vanilla, and its GRPO adds 1e-6
/// to deviations (`advantages.py`).
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
        set("per_device_train_batch_size", update.into());
        set("gradient_accumulation_steps", 1.into());
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
    options
}

fn adv_type(value: &Value) -> Result<Value, &'static str> {
    Ok(match value.as_str() {
        Some("math_grpo") => "grpo".into(),
        Some("math_reinpp" | "math_reinforce_plus_plus") => "reinforce_plus_plus".into(),
        _ => value.clone(),
    })
}
