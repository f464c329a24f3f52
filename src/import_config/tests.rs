//! One realistic file of each system.

use std::{fs, path::Path};

use shared::config::{
    AdvantageEstimator, KlEstimator, LoneAdvantage, LossAggregation, LossType, LrSchedulerType, ScaleRewards, layers,
};

use super::*;

mod others;
mod trl;
mod verl;

fn import(text: &str) -> (Dialect, Translation) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, text).unwrap();
    import_file(&path)
}

fn import_file(path: &Path) -> (Dialect, Translation) {
    let entries = read::read(path).unwrap().entries;
    let imported = Imported::read(path, None).unwrap();
    let shown = imported.account();
    assert!(entries.iter().all(|entry| shown.contains(entry.key.as_str())), "{shown}");
    let toml = imported.to_toml();
    let Imported { dialect, translation, .. } = imported;
    // Every key is accounted for.
    for read::Entry { key, .. } in &entries {
        let named = translation.mapped.iter().chain(&translation.left_out).any(|(from, _)| from == key);
        assert!(named || translation.combined.contains(key), "{key} is dropped in silence");
    }
    // The written file holds the configuration that was understood.
    let read_back = layers::parse(&toml, Path::new("run.toml"), &Vec::new()).unwrap();
    assert!(translate::as_given(read_back, &Vec::new()) == translation.config, "{toml}");
    (dialect, translation)
}

fn reason<'a>(translation: &'a Translation, key: &str) -> &'a str {
    translation.left_out.iter().find(|(name, _)| name == key).map_or("", |(_, reason)| reason)
}

const TRL: &str = "\
# GRPOConfig and script arguments
model_name_or_path: Qwen2.5-0.5B-Instruct
dataset_name: gsm8k.jsonl
dataset_train_split: train
reward_funcs: [accuracy_reward, think_format_reward]
reward_weights: [1.0, 0.5]
output_dir: out
learning_rate: 1e-5
lr_scheduler_type: cosine
warmup_ratio: 0.03
max_steps: -1
num_train_epochs: 2
num_generations: 16
max_completion_length: 1024
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
beta: 0.04
loss_type: dr_grpo
scale_rewards: false
epsilon: 0.2
epsilon_high: 0.28
temperature: 0.9
top_k:
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.3
vllm_importance_sampling_mode: token_truncate
vllm_importance_sampling_clip_max: 2.0
bf16: true
gradient_checkpointing: true
report_to: [wandb]
logging_steps: 1
save_strategy: steps
save_steps: 50
unheard_of_option: 3
";

#[test]
fn a_config_of_trl() {
    let (dialect, found) = import(TRL);
    assert_eq!(dialect, Dialect::Trl);
    let config = &found.config;
    assert_eq!(config.reward_funcs, ["trl.rewards.accuracy_reward", "think_format_reward"]);
    assert_eq!((config.learning_rate, config.lr_scheduler_type), (1e-5, LrSchedulerType::Cosine));
    assert_eq!((config.max_steps, config.num_generations, config.top_k), (None, 16, 0));
    assert_eq!((config.loss_type, config.scale_rewards), (LossType::DrGrpo, ScaleRewards::None));
    assert_eq!((config.beta, config.epsilon_high), (0.04, Some(0.28)));
    assert_eq!(config.importance_sampling_clip_max, 2.0);
    assert!(config.bf16 && config.gradient_checkpointing);
    assert_eq!(config.logging_steps, 1);
    assert_eq!((config.updates_per_step(), config.save_steps), (1, 50), "an update is a step here");
    config.validate().unwrap();
    assert!(reason(&found, "use_vllm").contains("ONNX Runtime"));
    assert!(reason(&found, "vllm_gpu_memory_utilization").contains("ONNX Runtime"));
    assert_eq!(reason(&found, "unheard_of_option"), "not known");
    let toml = found.to_toml();
    assert!(!toml.contains("max_steps") && toml.contains("\ntemperature = 0.9\n"), "{toml}");
}

/// In the other systems an empty text is false, so it says as little as an absent one.
#[test]
fn an_empty_text_counts_as_absent() {
    let texts = "model_name_or_path: m\ndataset_name: d\nreward_funcs: r.py\nrun_name: \"\"\n\
        resume_from_checkpoint: \"\"\n";
    let (_, found) = import(texts);
    let absent = ["run_name (absent)", "resume_from_checkpoint (absent)"];
    assert!(absent.iter().all(|name| found.mapped.iter().any(|(_, option)| option == name)), "{:?}", found.mapped);
    found.config.validate().unwrap();
}

/// The Trainer counts optimiser updates. With two passes over each of 4 updates, one of our steps has 8 of them, so 100
/// are 12.5 steps.
#[test]
fn steps_of_trl_are_optimiser_updates() {
    let text = "per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nsteps_per_generation: 8\n\
                num_iterations: 2\nmax_steps: 100\neval_steps: 16\nwarmup_steps: 10\nbeta: 0.1\n\
                sync_ref_model: true\n";
    let (dialect, found) = import(text);
    let config = &found.config;
    assert_eq!(config.updates_per_step(), 8);
    assert_eq!((config.max_steps, config.eval_steps, config.warmup_steps), (Some(13), Some(2), 10));
    assert_eq!((config.save_steps, config.ref_model_sync_steps), (63, 64), "defaults of TRL's, 500 and 512");
    let shown = account(&found, dialect);
    for words in [
        "max_steps: 100 optimiser updates are 13 generation batches of 8 updates each, rounded up",
        "2 defaults of TRL that differ from ours filled in:\n  save_steps = 63\n  ref_model_sync_steps = 64\n",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let (dialect, exact) = import("steps_per_generation: 4\nmax_steps: 8\neval_steps: 10\n");
    let shown = account(&exact, dialect);
    for line in [
        "max_steps: 8 optimiser updates are 2 generation batches of 4 updates each\n",
        "eval_steps: 10 optimiser updates are 3 generation batches of 4 updates each, rounded up\n",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let (_, plain) = import("max_steps: 100\n");
    assert_eq!((plain.config.max_steps, plain.recounted.len()), (Some(100), 0));
}

#[test]
fn the_best_model_of_trl_is_the_best_checkpoint() {
    let (_, found) = import(
        "eval_strategy: steps\neval_steps: 4\nsave_steps: 8\nmetric_for_best_model: eval_reward\n\
         greater_is_better: true\nload_best_model_at_end: true\nsave_total_limit: 1\n",
    );
    let config = &found.config;
    assert_eq!((config.metric_for_best_model.as_deref(), config.greater_is_better), (Some("eval_reward"), Some(true)));
    assert!(config.load_best_model_at_end);
    assert_eq!((config.eval_steps, config.save_steps, config.save_total_limit), (Some(4), 8, Some(1)));
}

/// Without a strategy, TRL evaluates nothing; a file that names none is read as one of ours.
#[test]
fn a_file_of_trl_that_evaluates_nothing_has_no_evaluations() {
    for (line, expected) in [
        ("eval_strategy: 'no'\n", None),
        ("eval_strategy: no\n", None),
        ("eval_strategy: false\n", None),
        ("eval_strategy: steps\n", Some(3)),
        ("", Some(3)),
    ] {
        let (_, found) = import(&format!("learning_rate: 1e-6\neval_steps: 3\n{line}"));
        assert_eq!(found.config.eval_steps, expected, "{line}");
        assert_eq!(reason(&found, "eval_steps").contains("eval_strategy is `no`"), expected.is_none(), "{line}");
        assert_eq!(found.refused, [], "{line}");
    }
}

#[test]
fn values_that_mean_nothing_here_are_left_out_with_the_reason() {
    let (_, found) = import("learning_rate: fast\nloss_type: other\nreward_funcs: 3\nseed: 3\n");
    assert!(reason(&found, "learning_rate").contains("`learning_rate`"));
    assert!(reason(&found, "loss_type").contains("must be one of grpo, bnpo"));
    assert!(reason(&found, "reward_funcs").contains("list of names"));
    assert_eq!(found.to_toml(), "seed = 3\n");
}

#[test]
fn functions_of_python_modules_are_kept() {
    let (_, found) = import("reward_funcs: [accuracy_reward, my_lib.rewards.f]\nnum_generations: 4\n");
    assert_eq!(found.config.reward_funcs, ["trl.rewards.accuracy_reward", "my_lib.rewards.f"]);
    assert_eq!(found.left_out, []);
}

const VERL: &str = "\
set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet \\
    data.val_files=test.jsonl \\
    data.train_batch_size=256 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.loss_agg_mode=token-mean \\
    actor_rollout_ref.actor.entropy_coeff=0 \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    algorithm.use_kl_in_reward=False \\
    +algorithm.filter_groups.enable=True \\
    +algorithm.filter_groups.max_num_gen_batches=10 \\
    +algorithm.filter_groups.metric=seq_final_reward \\
    trainer.logger='[\"console\",\"wandb\"]' \\
    trainer.n_gpus_per_node=8 \\
    trainer.save_freq=20 \\
    trainer.test_freq=5 \\
    trainer.total_epochs=15 $@
";

#[test]
fn a_command_of_verl() {
    let (dialect, found) = import(VERL);
    assert_eq!(dialect, Dialect::Verl);
    let config = &found.config;
    assert_eq!(config.advantage_estimator, AdvantageEstimator::Grpo);
    assert_eq!((config.advantage_epsilon, config.lone_advantage), (Some(1e-6), LoneAdvantage::Reward));
    assert_eq!((config.loss_type, config.loss_aggregation), (LossType::Vanilla, Some(LossAggregation::TokenMean)));
    assert_eq!((config.num_generations, config.groups_per_step()), (5, 256));
    assert_eq!((config.per_device_train_batch_size, config.updates_per_step()), (320, 4));
    assert_eq!((config.beta, config.kl_estimator), (0.001, Some(KlEstimator::K3)));
    assert_eq!((config.epsilon, config.epsilon_high), (0.2, Some(0.28)));
    assert_eq!((config.dynamic_sampling, config.dynamic_sampling_max_attempts), (true, 10));
    assert_eq!(config.filter_groups_metric.as_deref(), Some("reward"));
    assert_eq!((config.save_steps, config.eval_steps, config.num_train_epochs), (20, Some(5), 15.0));
    assert!(!config.importance_sampling_correction, "verl corrects nothing unless told to");
    assert_eq!(config.weight_decay, 0.01, "a default of verl's");
    assert!(reason(&found, "data.train_files").contains("shell variable"));
    assert!(reason(&found, "trainer.logger").contains("metrics.jsonl"));
    assert!(reason(&found, "actor_rollout_ref.actor.fsdp_config.param_offload").contains("sharding"));
    let shown = account(&found, dialect);
    assert!(shown.contains("algorithm.adv_estimator -> advantage_estimator\n"), "{shown}");
    assert!(
        shown.contains("defaults of verl that differ from ours filled in:\n  loss_type = \"vanilla\"\n"),
        "{shown}"
    );
}

const RLINF: &str = "\
defaults:
  - model/qwen2.5@actor.model
runner:
  task_type: math
  max_epochs: 10
  max_steps: -1
  save_interval: 50
cluster: {num_nodes: 1}
algorithm:
  group_size: 8
  n_minibatches: 4
  kl_beta: 0.01
  kl_penalty_type: low_var_kl
  ratio_clip_eps: 0.2
  clip_ratio_c: 3.0
  entropy_bonus: 0.001
  adv_type: grpo
  normalize_advantages: true
  early_stop_imp_ratio: 5.0
  use_valid_token_scale: false
  loss_type: actor
  loss_agg_func: token-mean
  shuffle_rollout: false
  sampling_params:
    temperature: 0.9
    top_k: 1000000
    max_new_tokens: 2048
data:
  rollout_batch_size: 64
  max_prompt_length: 256
  train_data_paths: [train.jsonl]
  seed: 1234
actor:
  model: {model_path: Qwen2.5-1.5B, precision: bf16}
  optim: {lr: 2e-6, adam_eps: 1e-5, clip_grad: 0.5, weight_decay: 0.01}
rollout:
  model: {model_path: '${actor.model.model_path}'}
  tensor_parallel_size: 1
";

/// verl's default mode has reached GSPO since 0.9.1; a mode that its recipes give wins.
#[test]
fn the_mode_of_verl_is_that_of_its_gspo() {
    let of = |more: &str| {
        let gspo = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo";
        let (_, found) =
            import(&VERL.replace("actor_rollout_ref.actor.loss_agg_mode=token-mean", &format!("{gspo}{more}")));
        (found.config.loss_type, found.config.loss_aggregation)
    };
    assert_eq!(of(""), (LossType::Gspo, Some(LossAggregation::TokenMean)));
    for (word, mode) in [
        ("seq-mean-token-mean", LossAggregation::SeqMeanTokenMean),
        ("seq-mean-token-sum-norm", LossAggregation::SeqMeanTokenSumNorm),
        ("token-sum", LossAggregation::TokenSum),
    ] {
        let more = format!(" \\\n    actor_rollout_ref.actor.loss_agg_mode={word}");
        assert_eq!(of(&more), (LossType::Gspo, Some(mode)), "{word}");
    }
}

#[test]
fn a_config_of_rlinf() {
    let (dialect, found) = import(RLINF);
    assert_eq!(dialect, Dialect::Rlinf);
    let config = &found.config;
    assert_eq!((config.num_generations, config.groups_per_step(), config.updates_per_step()), (8, 64, 4));
    assert_eq!((config.model.to_str(), config.dataset[0].to_str()), (Some("Qwen2.5-1.5B"), Some("train.jsonl")));
    assert_eq!((config.loss_type, config.clip_ratio_c), (LossType::Vanilla, 3.0));
    assert_eq!((config.top_k, config.temperature, config.max_completion_length), (0, 0.9, 2048));
    assert_eq!((config.beta, config.entropy_coef, config.early_stop_imp_ratio), (0.01, 0.001, Some(5.0)));
    assert_eq!((config.learning_rate, config.adam_epsilon, config.max_grad_norm), (2e-6, 1e-5, 0.5));
    assert!(config.normalize_advantages && config.max_steps.is_none());
    assert!(reason(&found, "defaults").contains("composed"));
    assert!(reason(&found, "cluster.num_nodes").contains("sharding"));
    assert_eq!(config.use_bias_correction_kl, Some(false), "RLinf adds the KL term as it is");
    assert!(reason(&found, "algorithm.shuffle_rollout").contains("always shuffled"));
}

#[test]
fn what_a_config_of_rlinf_does_not_say_is_as_rlinf_documents_it() {
    let silent = "runner: {max_epochs: 1}\nalgorithm: {group_size: 4, kl_beta: 0.1, ratio_clip_eps: 0.3}\n";
    let (dialect, found) = import(silent);
    let config = &found.config;
    assert_eq!((config.normalize_advantages, config.early_stop_imp_ratio), (true, Some(5.0)));
    assert_eq!((config.use_bias_correction_kl, config.epsilon), (Some(false), 0.3));
    assert_eq!(config.advantage_epsilon, Some(1e-6));
    let shown = account(&found, dialect);
    for default in ["normalize_advantages = true", "early_stop_imp_ratio = 5.0", "use_bias_correction_kl = false"] {
        assert!(shown.contains(&format!("\n  {default}\n")), "{default}: {shown}");
    }
    let told = "runner: {max_epochs: 1}\nalgorithm: \
        {clip_ratio_low: 0.1, ratio_clip_eps: 0.3, normalize_advantages: false, early_stop_imp_ratio: null}\n";
    let (_, found) = import(told);
    assert_eq!((found.config.normalize_advantages, found.config.early_stop_imp_ratio), (false, None));
    assert_eq!(found.config.epsilon, 0.1, "the bound of its own wins, wherever it stands");
}

#[test]
fn a_yaml_of_verl_means_what_its_overrides_mean() {
    let yaml = "algorithm: {adv_estimator: rloo, lam: 0.9}\nactor_rollout_ref:\n  actor:\n    policy_loss: {loss_mode: \
                cispo}\n    clip_ratio: 0.3\n    clip_ratio_high: 4.0\n  rollout: {n: 4, top_k: -1}\n";
    let (dialect, found) = import(yaml);
    assert_eq!(dialect, Dialect::Verl);
    let config = &found.config;
    assert_eq!((config.advantage_estimator, config.loss_type), (AdvantageEstimator::Rloo, LossType::VerlCispo));
    assert_eq!((config.epsilon, config.epsilon_high, config.top_k, config.lam), (0.3, Some(4.0), 0, 0.9));
    // verl's schedule moves once for a batch of 16 × 4 completions, which here are 4 updates.
    let (_, found) = import(
        "data.train_batch_size=16 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=4 \
         actor_rollout_ref.actor.optim.lr_warmup_steps=10",
    );
    assert_eq!((found.config.updates_per_step(), found.config.warmup_steps), (4, 40));
}

#[test]
fn texts_with_line_breaks_and_quotes_are_written_as_they_were() {
    let (_, found) = import(
        "learning_rate: 1e-5\nsystem_prompt: \"Think first.\\nseed = 3\\nThen say \\\"done\\\".\"\nstop: \
         [\"\\n\\n\", \"'''\"]\n",
    );
    assert_eq!(found.config.system_prompt.as_deref(), Some("Think first.\nseed = 3\nThen say \"done\"."));
    assert_eq!(found.config.stop, ["\n\n", "'''"]);
    assert_eq!(found.mapped.len(), 3);
}

#[test]
fn an_unknown_system_is_refused() {
    let entries = vec![read::Entry::new("a.b", 1)];
    let message = Dialect::detect(&entries).unwrap_err().to_string();
    assert!(message.contains("--from"), "{message}");
}

/// RLinf's decisions for a micro-batch, such as to stop early, are made for a minibatch here.
#[test]
fn a_micro_batch_of_rlinf_is_a_minibatch() {
    for (sizes, expected) in [
        ("global_batch_size: 64, micro_batch_size: 8", (8, 8)),
        ("global_batch_size: 64, micro_batch_size: 7", (64, 1)),
        ("global_batch_size: 64", (64, 1)),
    ] {
        let file = format!("runner: {{max_epochs: 1}}\nalgorithm: {{group_size: 4}}\nactor: {{{sizes}}}\n");
        let config = import(&file).1.config;
        assert_eq!((config.per_device_train_batch_size, config.gradient_accumulation_steps), expected, "{sizes}");
    }
}

#[test]
fn an_adapter_of_verl_is_one_of_peft_and_rank_0_is_none() {
    let of = |rank: u32| {
        let model = format!("{{path: m, lora_rank: {rank}, lora_alpha: 64, target_modules: all-linear}}");
        let text = format!(
            "actor_rollout_ref: {{model: {model}, actor: {{ppo_mini_batch_size: 8}}}}\ntrainer: {{nnodes: 1}}\n"
        );
        import(&text).1.config
    };
    let config = of(32);
    assert_eq!((config.use_peft, config.lora_r, config.lora_alpha), (true, 32, 64.0));
    assert!(config.lora_target_modules.is_empty(), "every linear layer");
    assert!(!of(0).use_peft && of(0).lora_r == 16);
}

/// Files beside a script.
fn import_files(files: &[(&str, &str)]) -> (Dialect, Translation) {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
    import_file(&dir.path().join(files[0].0))
}

#[test]
fn a_command_of_trl_with_its_files() {
    let script = "#!/bin/bash\n# don't ask\nset -e\nMODEL=models/qwen  # ours\nmkdir -p out; export LR=2e-6\n\
        CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file zero.yaml \\\n  --num_processes 2 \\\n  \
        trl grpo --config grpo.yaml --model_name_or_path \"$MODEL\" --learning-rate=$LR --max_steps -1 \\\n  \
        --reward_funcs think_format_reward my_lib.rewards.f --bf16 --no_shuffle_dataset \\\n  \
        --reward_weights 1.0 0.5 --system_prompt 'Think first: it\"s 5' --log_completions false \"$@\" 2>&1 | tee \
        log.txt\n";
    let zero = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n\
                mixed_precision: 'no'\nnum_processes: 8\n";
    let grpo =
        "learning_rate: 1e-5\nnum_generations: 4\ndataset_name: data\nper_device_train_batch_size: 6\nenv: {A: b}\n";
    let (dialect, found) = import_files(&[("train.sh", script), ("zero.yaml", zero), ("grpo.yaml", grpo)]);
    assert_eq!(dialect, Dialect::Trl);
    let config = &found.config;
    assert_eq!((config.model.to_str(), config.dataset[0].to_str()), (Some("models/qwen"), Some("data")));
    assert_eq!(
        (config.learning_rate, config.num_generations, config.max_steps),
        (2e-6, 4, None),
        "flags win over files"
    );
    assert_eq!(config.reward_funcs, ["think_format_reward", "my_lib.rewards.f"]);
    assert_eq!(config.reward_weights, [1.0, 0.5]);
    assert_eq!((config.bf16, config.shuffle_dataset, config.log_completions), (true, false, false));
    assert_eq!(config.system_prompt.as_deref(), Some("Think first: it\"s 5"));
    assert_eq!(config.per_device_train_batch_size, 12, "two processes take 6 each");
    assert!(found.remarks.iter().any(|remark| remark.contains("2 processes")), "{:?}", found.remarks);
    for (key, words) in [
        ("env.CUDA_VISIBLE_DEVICES", "environment"),
        ("env.A", "environment"),
        ("deepspeed_config.zero_stage", "sharding"),
        ("config_file", "among these"),
    ] {
        assert!(reason(&found, key).contains(words), "{key}: {:?}", found.left_out);
    }
}

#[test]
fn a_script_of_one_s_own_takes_trl_s_flags_too() {
    for start in
        ["python train.py", "accelerate launch --multi_gpu my/train.py", "torchrun --nproc_per_node=1 -m my.train"]
    {
        let (_, found) = import(&format!("{start} --learning_rate 1e-5 --dataset_name d --my_flag x y\n"));
        assert_eq!((found.config.learning_rate, found.config.dataset[0].to_str()), (1e-5, Some("d")), "{start}");
        assert_eq!(reason(&found, "my_flag"), "not known");
    }
    let (_, found) = import(".venv/bin/trl grpo --accelerate_config zero3 --num_processes 4 --output_dir $OUT/x\n");
    assert_eq!((found.config.bf16, found.config.per_device_train_batch_size), (true, 32));
    assert_eq!(found.refused, [("output_dir".to_owned(), "output_dir".to_owned())]);
    assert!(reason(&found, "output_dir").contains("shell variable"));
}

#[test]
fn a_command_that_is_not_clear_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.sh");
    for (script, words) in [
        ("trl grpo --seed 1\ntrl grpo --seed 2\n", "holds 2 commands that train"),
        ("trl grpo \"${ARGS[@]}\"\n", "write them out"),
        ("trl grpo --config absent.yaml\n", "--config absent.yaml: cannot be read"),
        ("trl sft --seed 1\n", "line 1: the command is TRL's sft"),
        ("trl grpo --seed 1 \\ \n  --beta 0.1\n", "line 2: `--beta` begins a command of its own"),
        ("trl grpo --seed 1 \\\n  # of ours\n  --beta 0.1\n", "a comment is between the two"),
    ] {
        fs::write(&file, script).unwrap();
        let message = format!("{:#}", read::read(&file).unwrap_err());
        assert!(message.contains(words), "{script}: {message}");
    }
}

#[test]
fn a_config_of_accelerate() {
    let text = "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: MULTI_GPU\ndowncast_bf16: 'no'\n\
                gpu_ids: all\nmachine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 1\n\
                num_processes: 8\nrdzv_backend: static\nsame_network: true\ntpu_env: []\nuse_cpu: false\n\
                fsdp_config: {fsdp_version: 2}\n";
    let (dialect, found) = import(text);
    assert_eq!((dialect, found.to_toml().as_str()), (Dialect::Accelerate, "bf16 = true\n"));
    assert!(found.left_out.iter().all(|(_, reason)| reason != "not known"), "{:?}", found.left_out);
    assert!(reason(&found, "num_processes").contains("per_device_train_batch_size"));
    let (_, found) = import(&text.replace("bf16\n", "fp16\n"));
    assert_eq!(found.to_toml(), "");
    assert!(reason(&found, "mixed_precision").contains("float32"));
}

#[test]
fn functions_of_trl_are_themselves_where_no_rule_has_their_figures() {
    let (_, found) = import(
        "reward_model_name_or_path: 'my:model'\nreward_funcs: [reasoning_accuracy_reward, \
         get_soft_overlong_punishment]\n",
    );
    let expected = [
        r"model:path=my\:model",
        "trl.rewards.reasoning_accuracy_reward",
        "soft_overlong:max_completion_len=1280:soft_punish_cache=256",
    ];
    assert_eq!(found.config.reward_funcs, expected);
    assert!(found.remarks[0].contains("the rule `reasoning_accuracy` needs no Python"), "{:?}", found.remarks);
    let (_, found) = import("reward_funcs: accuracy\nseed: 1\n");
    assert_eq!(found.config.reward_funcs, ["trl.rewards.accuracy_reward"]);
    assert!(found.remarks[0].contains("`accuracy` is read as open-r1's"), "{:?}", found.remarks);
}

#[test]
fn processes_are_multiplied_where_their_number_is_known() {
    let batch = |command: &str| {
        let script = format!("{command} train.py --learning_rate 1e-6 --per_device_train_batch_size 4\n");
        let (_, found) = import_files(&[("train.sh", &script)]);
        (found.config.per_device_train_batch_size, found.remarks.join(" "))
    };
    assert_eq!(batch("torchrun --nnodes 2 --nproc_per_node 8").0, 64);
    assert_eq!(batch("accelerate launch --num_processes 8 --num_machines 2").0, 32, "in all");
    for unknown in ["accelerate launch --num_processes $N", "torchrun --nproc_per_node auto"] {
        let (size, remarks) = batch(unknown);
        assert!(size == 4 && remarks.contains("is not known here, so the minibatch is that of one"), "{remarks}");
    }
}

#[test]
fn a_mixture_of_trl() {
    let (_, found) = import(
        "datasets:\n  - {path: parquet, data_files: a.parquet, fraction: 0.6}\n  \
         - {path: lib/b, data_dir: math, columns: [prompt], fraction: 0.4}\ndataset_name: other\nstreaming: true\n",
    );
    let paths: Vec<_> = found.config.dataset.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!((paths, found.config.dataset_weights.as_slice()), (vec!["a.parquet", "lib/b/math"], &[0.6, 0.4][..]));
    assert!(found.remarks[0].contains("first rows"), "{:?}", found.remarks);
    let (_, found) = import(
        "datasets:\n  - {path: d, split: test}\n  - {path: json, data_files: {test: [x.json, y.json]}, split: test}\n",
    );
    let paths: Vec<_> = found.config.dataset.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!((paths, found.config.dataset_train_split.as_str()), (vec!["d", "x.json", "y.json"], "test"));
    let (_, found) = import("datasets:\n  - {path: openai/gsm8k, name: main}\nseed: 1\n");
    assert_eq!((found.config.dataset_config.as_deref(), found.remarks.len()), (Some("main"), 0));
    for (list, words) in [
        ("[{path: a}, {path: b, split: test}]", "splits differ"),
        ("[{path: a, name: x}, {path: b}]", "configurations that they `name` differ"),
        ("[{path: a, split: 'train[:10%]'}]", "part of one"),
        ("[{path: csv, data_files: 'x/*.csv'}]", "pattern x/*.csv"),
        ("[{path: csv}]", "`data_files` is missing"),
        ("[{path: a, fraction: 0.1}, {path: b}]", "for some only"),
        ("[{name: a}]", "missing field `path`"),
    ] {
        let (_, found) = import(&format!("datasets: {list}\nseed: 1\n"));
        assert_eq!(found.to_toml(), "seed = 1\n");
        assert!(found.remarks[0].contains(words), "{list}: {:?}", found.remarks);
    }
}

#[test]
fn a_function_of_verl_is_left_out_with_the_way() {
    let (_, found) =
        import("trainer.nnodes=1 data.seed=1 algorithm.adv_estimator=grpo custom_reward_function.path=r.py\n");
    let reason = reason(&found, "custom_reward_function.path");
    assert!(reason.contains("solution_str") && reason.contains("docs/importing.md"), "{reason}");
}

/// Written as in TRL 1.16 with transformers 5.
#[test]
fn shares_of_steps_are_taken_over() {
    let (_, found) =
        import("warmup_steps: 0.1\nsave_steps: 0.25\neval_steps: 0.5\nlogging_steps: 0.05\nnum_generations: 8\n");
    let toml = found.to_toml();
    for line in ["warmup_ratio = 0.1\n", "save_ratio = 0.25\n", "eval_ratio = 0.5\n", "logging_ratio = 0.05\n"] {
        assert!(toml.contains(line), "{line}: {toml}");
    }
    assert!(!toml.contains("_steps"), "{toml}");
    let (_, found) =
        import("per_device_train_batch_size: 4\nsteps_per_generation: 4\nsave_steps: 0.5\nwarmup_steps: 1.0\n");
    assert!(found.recounted.is_empty(), "{:?}", found.recounted);
    assert_eq!((found.config.save_ratio, found.config.warmup_steps), (Some(0.5), 1));
    let (_, found) = import("save_steps: 1.5\nseed: 1\n");
    assert_eq!(
        reason(&found, "save_steps"),
        "`save_steps` must be a whole number of steps, or a share of all steps below 1, got 1.5"
    );
}

#[test]
fn what_a_script_leaves_open_is_refused_with_its_line() {
    let (_, found) = import(
        "if nvidia-smi; then N=8; else N=4; fi\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n  \
         actor_rollout_ref.rollout.n=$N data.train_batch_size=${BS:?} data.seed=3 \"$@\"\n",
    );
    assert_eq!(found.config.seed, 3);
    let refused: Vec<&str> = found.refused.iter().map(|(key, _)| key.as_str()).collect();
    let update = "actor_rollout_ref.actor.ppo_mini_batch_size";
    assert_eq!(refused, ["actor_rollout_ref.rollout.n", "data.train_batch_size", update]);
    assert_eq!(found.refused[1].1, "generation_batch_size", "given on the command line, it does");
    assert!(
        reason(&found, "actor_rollout_ref.rollout.n").starts_with("line 1: `$N` is a shell variable that is set under")
    );
    assert!(reason(&found, "data.train_batch_size").starts_with("line 3: `${BS:?}`"), "{:?}", found.left_out);
}

/// For programs, which tell the three kinds of keys without an option apart.
#[test]
fn as_json_the_account_has_every_key_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trl.json");
    let text = r#"{"learning_rate": 1e-5, "max_steps": 3, "num_iterations": 2, "optim": "adamw_torch", "use_vllm": true,
        "loss_type": "grop", "eos_token": "<end>", "frobnicate": {"a": 1}}"#;
    fs::write(&path, text).unwrap();
    let said = Imported::read(&path, Some(Dialect::Trl)).unwrap().to_json();
    // The default of `save_steps` counts updates as well.
    let options = json!({"learning_rate": 1e-5, "max_steps": 2, "num_iterations": 2, "save_steps": 250});
    assert_eq!(said["options"], options);
    let keys = |kind: &str| said[kind].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys("unknown"), ["frobnicate.a"]);
    assert_eq!(keys("refused"), ["loss_type", "eos_token"]);
    assert_eq!(keys("left_out"), ["optim", "use_vllm"]);
    assert!(said["notes"][0].as_str().unwrap().starts_with("max_steps: 3 optimiser updates are 2"), "{said}");
}
