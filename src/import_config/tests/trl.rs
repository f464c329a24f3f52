//! TRL's keys: what changes prompts, punishments and rewards, adapters, and the account of what is refused.

use super::*;

#[test]
fn the_kl_term_has_trls_factor_where_ours_is_another() {
    let factor = |text: &str| import(&format!("learning_rate: 1e-6\n{text}")).1.config.use_bias_correction_kl;
    assert_eq!(factor("importance_sampling_level: sequence\nbeta: 0.04\n"), Some(true));
    assert_eq!(factor("importance_sampling_level: sequence\nbeta: 0.04\nuse_bias_correction_kl: false\n"), Some(false));
    for text in ["importance_sampling_level: token\nbeta: 0.04\n", "importance_sampling_level: sequence\n"] {
        assert_eq!(factor(text), None, "{text}");
    }
}

#[test]
fn what_changes_prompts_is_an_option_or_ends_the_start() {
    let (_, found) = import(
        "chat_template_kwargs: {enable_thinking: false}\nchat_template_path: t.jinja\ndataset_prompt_column: problem\n\
         generation_kwargs: {stop: ['</answer>'], top_p: 0.9}\nseed: 1\n",
    );
    let config = &found.config;
    let variables = config.chat_template_kwargs.as_ref().unwrap().values().clone();
    assert_eq!(serde_json::Value::Object(variables), serde_json::json!({ "enable_thinking": false }));
    assert_eq!((config.stop.as_slice(), config.top_p), (&["</answer>".to_owned()][..], 0.9));
    assert_eq!(config.prompt_column.as_deref(), Some("problem"));
    assert_eq!(config.chat_template.as_deref(), Some(Path::new("t.jinja")));
    for (line, words) in [
        ("eos_token: '<|im_end|>'", "end tokens of the model directory"),
        ("chat_template: '{{ messages }}'", "write it to a file"),
        ("tools: [search]", "my_tools.py:search"),
        ("environment_factory: Maze", "my_env.py:Maze"),
        ("rollout_func: f", "sampled by the run itself"),
        ("response_template: 'A:'", "chat template"),
        ("generation_kwargs: {logit_bias: {5: 1.0}}", "has no counterpart"),
    ] {
        let (_, found) = import(&format!("{line}\nseed: 1\nlearning_rate: 1e-6\n"));
        assert!(found.refused.len() == 1 && found.left_out[0].1.contains(words), "{line}: {:?}", found.left_out);
    }
    for key in ["vllm_structured_outputs_regex", "vllm_guided_decoding_regex", "structured_outputs_regex"] {
        let (_, found) = import(&format!("{key}: '\\d+ = [a-z]{{2}}'\nseed: 1\nlearning_rate: 1e-6\n"));
        assert_eq!(found.config.structured_outputs_regex.as_deref(), Some(r"\d+ = [a-z]{2}"), "{key}");
        assert!(found.refused.is_empty(), "{key}: {:?}", found.refused);
    }
    let (_, found) = import(
        "tools: ['my_tools.py:add', lib.search]\nenvironment_factory: {a: 'my_env.py:Maze'}\nseed: 1\n\
         max_tool_calling_iterations: 3\n",
    );
    assert_eq!(found.config.tools, ["my_tools.py:add", "lib.search"]);
    assert_eq!(found.config.environment_factory, r#"{"a": "my_env.py:Maze"}"#.parse().ok());
    assert_eq!(found.config.max_tool_calling_iterations, Some(3));
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    let (_, found) = import("eos_token: null\ntools: []\nvllm_structured_outputs_regex: null\nseed: 1\n");
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    let verl = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4";
    let (_, found) =
        import(&format!("{verl} +data.apply_chat_template_kwargs.enable_thinking=False data.max_prompt_length=9\n"));
    assert!(found.config.chat_template_kwargs.is_some());
    assert!(found.remarks.iter().any(|remark| remark.contains("loses its beginning")), "{:?}", found.remarks);
    for (key, words) in [
        ("data.tool_config_path=t.yaml", "no tools"),
        ("data.custom_cls.path=c.py", "a class of your own"),
        ("data.train_max_samples=5", "all rows"),
    ] {
        let (_, found) = import(&format!("{verl} {key}\n"));
        assert!(found.refused.len() == 1 && found.left_out[0].1.contains(words), "{key}: {:?}", found.left_out);
    }
}

#[test]
fn an_argument_without_an_effect_has_none_with_any_value() {
    for key in [
        "accelerator_config",
        "activation_checkpointing_kwargs",
        "deepspeed",
        "fsdp_config",
        "gradient_checkpointing_kwargs",
        "liger_kernel_config",
        "model_init_kwargs",
        "parallelism_config",
        "transformers_continuous_batching_config",
    ] {
        let (_, found) = import(&format!("learning_rate: 1e-6\n{key}: {{split_batches: true, b: {{c: 1}}}}\n"));
        let reasons: Vec<&str> = found.left_out.iter().map(|(_, reason)| reason.as_str()).collect();
        assert!(!reasons.is_empty() && !reasons.iter().any(|reason| translate::is_unknown(reason)), "{key}: {found:?}");
        assert_eq!(found.refused, [], "{key}");
    }
    let (_, found) = import("learning_rate: 1e-6\ngeneration_kwargs: {seed: 3, use_cache: true, detokenize: null}\n");
    let told: Vec<&String> = found.remarks.iter().filter(|remark| remark.contains("has no effect: ")).collect();
    assert!(told.len() == 2 && told[0].starts_with("generation_kwargs.seed has no effect: one seed"), "{told:?}");
}

#[test]
fn dapo_s_punishment_of_long_completions_keeps_its_figures() {
    for place in [
        "reward_model.overlong_buffer",
        "+reward_model.reward_kwargs.overlong_buffer_cfg",
        "+reward.reward_kwargs.overlong_buffer_cfg",
    ] {
        let script = format!(
            "python3 -m recipe.dapo.main_dapo algorithm.adv_estimator=grpo data.max_response_length=$((1024 * 20)) \
             {place}.enable=True {place}.len=$((1024 * 4)) {place}.penalty_factor=0.5\n"
        );
        let (_, found) = import(&script);
        let expected = ["verl_reward.py:score", "soft_overlong:max_completion_len=20480:soft_punish_cache=4096"];
        assert_eq!(found.config.reward_funcs, expected, "{place}");
        assert_eq!(found.config.reward_weights, [1.0, 0.5]);
        assert!(found.remarks.iter().any(|remark| remark.contains("data_source")), "{:?}", found.remarks);
        let (_, found) = import(&script.replace("enable=True", "enable=False"));
        assert!(found.config.reward_funcs.is_empty());
    }
}

#[test]
fn a_cap_and_a_reward_model_keep_their_meaning() {
    let (_, found) =
        import("vllm_importance_sampling_cap: 2.0\nreward_funcs: weqweasdas/RM-Gemma-2B\nuse_peft: true\n");
    assert_eq!(found.config.importance_sampling_clip_max, 2.0);
    assert_eq!(found.config.reward_funcs, ["model:path=hf://weqweasdas/RM-Gemma-2B"]);
    assert!(found.remarks.iter().any(|remark| remark.contains("TRL drops 0.05")), "{:?}", found.remarks);
    let (_, found) =
        import("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1}\nseed: 1\n");
    assert_eq!(found.config.lr_scheduler_type, LrSchedulerType::CosineWithMinLr);
    assert_eq!(found.config.schedule_settings().unwrap().min_lr_rate, Some(0.1));
}

/// TRL hands PEFT no names, and PEFT takes two layers of the families that it knows.
#[test]
fn an_adapter_without_layers_has_pefts() {
    let (_, found) = import("num_generations: 4\nuse_peft: true\n");
    assert_eq!(found.config.lora_target_modules, ["q_proj", "v_proj"]);
    assert!(found.filled_in().iter().any(|line| line == "lora_target_modules = [\"q_proj\", \"v_proj\"]"));
    let (_, found) = import("num_generations: 4\nuse_peft: true\nlora_target_modules: all-linear\n");
    assert_eq!(found.config.lora_target_modules, ["all-linear"]);
    let (_, found) = import("num_generations: 4\nuse_peft: false\n");
    assert!(found.config.lora_target_modules.is_empty());
}

#[test]
fn keys_that_a_start_would_refuse_have_a_heading_and_a_line_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "num_generations: 4\noptim: adafactor\nuse_vllm: true\nlearning_rate: 1e-5x\n").unwrap();
    let imported = Imported::read(&path, None).unwrap();
    let (account, toml) = (imported.account(), imported.to_toml());
    let (others, refused) = account.split_once(&format!("2 keys {REFUSED}:")).unwrap();
    assert!(others.contains("1 key without a counterpart:\n  use_vllm: "), "{account}");
    assert!(refused.contains("  optim: ") && refused.contains("  learning_rate: "), "{account}");
    assert!(toml.contains("\n# Not taken over, and changes the training: ") && toml.contains("optim"), "{toml}");
}

#[test]
fn sizes_of_zero_are_left_to_the_check_of_the_configuration() {
    for key in ["num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"] {
        let (_, found) = import(&format!("beta: 0.1\nepsilon: 0.2\nmax_steps: 8\n{key}: 0\n"));
        let problems: Vec<String> = found.config.problems().iter().map(ToString::to_string).collect();
        let words = format!("`{key}` must be at least");
        assert!(problems.iter().any(|problem| problem.contains(&words)), "{problems:?}");
    }
}

#[test]
fn a_file_of_a_command_with_words_behind_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("train.sh");
    fs::write(&script, "trl grpo --config b.yaml extra --max_steps 3\n").unwrap();
    let error = format!("{:#}", Imported::read(&script, None).unwrap_err());
    assert!(error.contains("--config takes one file") && error.contains("extra"), "{error}");
}
