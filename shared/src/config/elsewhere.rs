//! Names that other systems, and people, use for options. They are no other spellings: their units or meanings may
//! differ there, so they are refused, with the option that is probably meant.

/// Names, each with the option that is probably meant; dashes are written as underscores.
const NAMES: &[(&str, &str)] = &[
    ("lr", "learning_rate"),
    ("actor_lr", "learning_rate"),
    ("actor_learning_rate", "learning_rate"),
    ("policy_lr", "learning_rate"),
    ("critic_lr", "critic_learning_rate"),
    ("batch_size", "per_device_train_batch_size"),
    ("train_batch_size", "generation_batch_size"),
    ("rollout_batch_size", "generation_batch_size"),
    ("global_batch_size", "generation_batch_size"),
    ("mini_batch_size", "per_device_train_batch_size"),
    ("micro_batch_size", "micro_batch_tokens"),
    ("micro_train_batch_size", "micro_batch_tokens"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("accumulation_steps", "gradient_accumulation_steps"),
    ("epochs", "num_train_epochs"),
    ("num_epochs", "num_train_epochs"),
    ("max_epochs", "num_train_epochs"),
    ("n_epochs", "num_train_epochs"),
    ("steps", "max_steps"),
    ("num_steps", "max_steps"),
    ("iterations", "max_steps"),
    ("n", "num_generations"),
    ("g", "num_generations"),
    ("num_samples", "num_generations"),
    ("n_samples", "num_generations"),
    ("rollouts_per_example", "num_generations"),
    ("max_tokens", "max_completion_length"),
    ("max_length", "max_completion_length"),
    ("max_seq_length", "max_model_len"),
    ("max_seq_len", "max_model_len"),
    ("seq_len", "max_model_len"),
    ("max_gen_len", "max_completion_length"),
    ("generate_max_len", "max_completion_length"),
    ("prompt_max_len", "max_prompt_length"),
    ("max_response_len", "max_completion_length"),
    ("kl_coef", "beta"),
    ("kl_coeff", "beta"),
    ("init_kl_coef", "beta"),
    ("kl_penalty", "beta"),
    ("kl_loss", "beta"),
    ("kl", "beta"),
    ("clip_range", "epsilon"),
    ("cliprange", "epsilon"),
    ("clip_eps", "epsilon"),
    ("clip_low", "epsilon"),
    ("clip_high", "epsilon_high"),
    ("entropy_loss_coef", "entropy_coef"),
    ("ent_coef", "entropy_coef"),
    ("clip_grad", "max_grad_norm"),
    ("gradient_clipping", "max_grad_norm"),
    ("max_norm", "max_grad_norm"),
    ("wd", "weight_decay"),
    ("scheduler", "lr_scheduler_type"),
    ("lr_scheduler", "lr_scheduler_type"),
    ("lr_schedule", "lr_scheduler_type"),
    ("warmup", "warmup_steps"),
    ("num_warmup_steps", "warmup_steps"),
    ("lr_warmup_steps", "warmup_steps"),
    ("lr_warmup_ratio", "warmup_ratio"),
    ("beta1", "adam_beta1"),
    ("beta2", "adam_beta2"),
    ("adam_eps", "adam_epsilon"),
    ("data", "dataset"),
    ("train_data", "dataset"),
    ("train_file", "dataset"),
    ("train_files", "dataset"),
    ("prompt_data", "dataset"),
    ("eval_data", "eval_dataset"),
    ("val_files", "eval_dataset"),
    ("test_data", "eval_dataset"),
    ("model_path", "model"),
    ("model_name", "model"),
    ("base_model", "model"),
    ("pretrain", "model"),
    ("reward", "reward_funcs"),
    ("rewards", "reward_funcs"),
    ("reward_fn", "reward_funcs"),
    ("reward_func", "reward_funcs"),
    ("reward_functions", "reward_funcs"),
    ("save_freq", "save_steps"),
    ("save_every", "save_steps"),
    ("save_interval", "save_steps"),
    ("checkpoint_interval", "save_steps"),
    ("eval_freq", "eval_steps"),
    ("eval_every", "eval_steps"),
    ("test_freq", "eval_steps"),
    ("eval_interval", "eval_steps"),
    ("log_interval", "logging_steps"),
    ("log_every", "logging_steps"),
    ("output", "output_dir"),
    ("save_path", "output_dir"),
    ("out_dir", "output_dir"),
    ("algo", "advantage_estimator"),
    ("algorithm", "advantage_estimator"),
    ("estimator", "advantage_estimator"),
    ("loss", "loss_type"),
    ("lora_rank", "lora_r"),
    ("lora", "use_peft"),
    ("use_lora", "use_peft"),
    ("resume", "resume_from_checkpoint"),
    ("temp", "temperature"),
    ("random_seed", "seed"),
    ("stop_words", "stop"),
    ("stop_sequences", "stop"),
    ("stop_strings", "stop"),
    ("enable_thinking", "chat_template_kwargs"),
];

/// The option that a name elsewhere stands for.
pub(super) fn meant(spelling: &str) -> Option<&'static str> {
    let name = spelling.to_ascii_lowercase();
    NAMES.iter().find(|(theirs, _)| *theirs == name).map(|(_, option)| *option)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::option;

    #[test]
    fn every_name_leads_to_an_option_and_is_none() {
        for (name, meant) in NAMES {
            assert_eq!(option(meant).map(|option| option.key), Some(*meant), "{name}");
            assert!(option(name).is_none(), "{name} is an option");
        }
        assert_eq!((meant("LR"), meant("n"), meant("zzz")), (Some("learning_rate"), Some("num_generations"), None));
    }
}
