//! verl's configurations and defaults: no key changes its meaning without a remark.

use shared::config::{ImportanceSamplingMode, OPTIONS, TrainConfig};

use super::*;

const V: &str = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 \
                 data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8";

fn with(more: &str) -> Translation {
    import(&format!("{V} {more}\n")).1
}

/// Why a key keeps the run from starting.
fn refusal(found: &Translation, key: &str) -> String {
    let refused = found.refused.iter().any(|(name, _)| name == key);
    assert!(refused, "{key}: {:?}", found.refused);
    reason(found, key).to_owned()
}

#[test]
fn null_is_not_given() {
    let found = with(
        "actor_rollout_ref.actor.optim.lr_scheduler_type=null actor_rollout_ref.actor.policy_loss.loss_mode=null \
         actor_rollout_ref.actor.kl_loss_coef=null actor_rollout_ref.actor.use_kl_loss=True \
         algorithm.adv_estimator=gae algorithm.lam=null",
    );
    let config = &found.config;
    assert_eq!((config.lr_scheduler_type, config.loss_type), (LrSchedulerType::Constant, LossType::Vanilla));
    assert_eq!((config.beta, config.lam, config.weight_decay), (0.001, 1.0, 0.01));
    for optim in ["{lr_scheduler_type: cosine, warmup_style: null}", "{warmup_style: null, lr_scheduler_type: cosine}"]
    {
        let (_, found) = import(&format!("actor_rollout_ref: {{rollout: {{n: 4}}, actor: {{optim: {optim}}}}}\n"));
        assert_eq!(found.config.lr_scheduler_type, LrSchedulerType::Cosine, "{optim}");
    }
    let both =
        "actor_rollout_ref: {rollout: {n: 4}, actor: {optim: {warmup_style: cosine, lr_scheduler_type: constant}}}\n";
    assert_eq!(import(both).1.config.lr_scheduler_type, LrSchedulerType::Cosine, "the older key goes before");
}

#[test]
fn defaults_of_verl_count_where_nothing_is_given() {
    let (_, found) =
        import("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae actor_rollout_ref.rollout.n=2\n");
    let config = &found.config;
    assert_eq!((config.generation_batch_size, config.per_device_train_batch_size), (Some(2048), 512));
    assert_eq!((config.num_train_epochs, config.cliprange_value), (30.0, 0.5));
    let told = "data.train_batch_size 1024, actor_rollout_ref.actor.ppo_mini_batch_size 256";
    assert!(found.remarks.iter().any(|remark| remark.contains(told)), "{:?}", found.remarks);
    let (_, found) = import("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64\n");
    assert!(refusal(&found, "actor_rollout_ref.rollout.n").contains("verl's default is 1"));
    assert_eq!(found.refused[0].1, "num_generations");
    assert_eq!((found.config.generation_batch_size, found.config.per_device_train_batch_size), (Some(64), 64));
}

/// A constant rate has a warm-up in verl, and none in transformers.
#[test]
fn a_warm_up_is_kept_with_every_schedule() {
    let of = |more: &str| {
        let config = with(more).config;
        (config.lr_scheduler_type, config.warmup_steps, config.warmup_ratio)
    };
    use LrSchedulerType::{Constant, ConstantWithWarmup, Cosine, CosineWithMinLr};
    let key = "actor_rollout_ref.actor.optim";
    assert_eq!(of(""), (Constant, 0, 0.0));
    assert_eq!(of(&format!("{key}.lr_warmup_steps=10")), (ConstantWithWarmup, 10, 0.0));
    assert_eq!(of(&format!("{key}.lr_warmup_steps=-1 {key}.lr_warmup_steps_ratio=0.1")), (ConstantWithWarmup, 0, 0.1));
    assert_eq!(of(&format!("{key}.warmup_style=cosine {key}.lr_warmup_steps=10")), (Cosine, 10, 0.0));
    assert_eq!(of(&format!("{key}.lr_decay_style=cosine {key}.min_lr=1e-7")), (CosineWithMinLr, 0, 0.0));
    let found = with(&format!("{key}.lr_decay_style=cosine {key}.lr_decay_steps=500"));
    assert!(refusal(&found, &format!("{key}.lr_decay_style")).contains("500 updates"));
}

#[test]
fn mappings_are_read_as_hydra_reads_them() {
    for kwargs in [
        "'+data.apply_chat_template_kwargs={enable_thinking:False}'",
        "'+data.apply_chat_template_kwargs={enable_thinking: False}'",
    ] {
        let variables = with(kwargs).config.chat_template_kwargs.expect(kwargs);
        assert_eq!(variables.values().get("enable_thinking"), Some(&false.into()), "{kwargs}");
    }
    let found = with(
        "'actor_rollout_ref.actor.policy_loss={loss_mode: gspo}' \
         'actor_rollout_ref.rollout={temperature:0.7,top_p:0.9}'",
    );
    assert_eq!(found.config.loss_type, LossType::Gspo);
    assert_eq!((found.config.temperature, found.config.top_p, found.config.num_generations), (0.7, 0.9, 4));
}

#[test]
fn files_of_hydra_that_are_not_read_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |more: &str| {
        let path = dir.path().join("run.sh");
        fs::write(&path, format!("{V} {more}\n")).unwrap();
        read::read(&path).unwrap().notes
    };
    for (more, words) in [
        ("--config-name gsm8k_multiturn", "line 1: `--config-name gsm8k_multiturn` is not read"),
        ("--config-path=\"$X\"/conf", "`--config-path $X/conf` is not read"),
        ("-cn=mine", "`-cn mine` is not read"),
        ("+experiment=z", "`+experiment=z` chooses a file"),
        ("strange", "`strange` is no override"),
    ] {
        let notes = notes(more);
        assert!(notes.len() == 1 && notes[0].contains(words), "{more}: {notes:?}");
    }
    assert!(notes("--config-name=ppo_trainer --config-name ppo_megatron_trainer.yaml $@").is_empty());
    let broken = notes("data.seed=1 \\ \n  data.shuffle=False");
    assert!(broken[0].contains("line 2: is read as part of the command of line 1; a shell does not"), "{broken:?}");
}

#[test]
fn what_changes_the_training_is_mapped() {
    let actor = "actor_rollout_ref.actor";
    let model = "actor_rollout_ref.model";
    let config = with(&format!(
        "{actor}.optim.clip_grad=0.3 {actor}.policy_loss.loss_mode=sapo {actor}.tau_pos=1.5 \
         +{actor}.policy_loss.tau_neg=2.0 +{actor}.optim.override_optimizer_config.eps=1e-15 \
         +actor_rollout_ref.rollout.min_p=0.05 +actor_rollout_ref.rollout.repetition_penalty=1.1 \
         data.max_response_length=512 actor_rollout_ref.rollout.response_length=300 +{actor}.tis_imp_ratio_cap=2.5 \
         {model}.lora.rank=8 {model}.lora.alpha=4 {model}.lora.target_modules=[q_proj,v_proj] {model}.use_rslora=True"
    ))
    .config;
    assert_eq!((config.max_grad_norm, config.loss_type, config.adam_epsilon), (0.3, LossType::Sapo, 1e-15));
    assert_eq!((config.sapo_temperature_pos, config.sapo_temperature_neg), (1.5, 2.0));
    assert_eq!((config.min_p, config.repetition_penalty, config.max_completion_length), (Some(0.05), 1.1, 300));
    assert!(config.importance_sampling_correction);
    assert_eq!(config.importance_sampling_mode, ImportanceSamplingMode::TokenTruncate);
    assert_eq!(config.importance_sampling_clip_max, 2.5);
    assert_eq!((config.use_peft, config.lora_r, config.lora_alpha, config.use_rslora), (true, 8, 4.0, true));
    assert_eq!(config.lora_target_modules, ["q_proj", "v_proj"]);
}

#[test]
fn what_has_no_counterpart_ends_the_start() {
    for (more, words) in [
        ("actor_rollout_ref.actor.optim.optimizer=AdamW8bit", "the optimiser is AdamW"),
        ("+actor_rollout_ref.actor.optim.override_optimizer_config.amsgrad=True", "the optimiser is AdamW"),
        ("+actor_rollout_ref.model.override_config.attention_dropout=0.1", "config.json"),
        ("actor_rollout_ref.model.lora.dropout=0.05", "dropout"),
        ("actor_rollout_ref.model.exclude_modules='.*visual.*'", "without exception"),
        ("actor_rollout_ref.model.lora_adapter_path=a/b", "named as `model`"),
        ("algorithm.rollout_correction.rollout_rs=geometric", "not thrown away"),
        ("algorithm.rollout_correction.bypass_mode=True", "clips against"),
        ("algorithm.rollout_correction.loss_type=reinforce", "clips against"),
        ("distillation.enabled=True", "no teacher"),
        ("algorithm.use_pf_ppo=True", "not weighed again"),
        ("actor_rollout_ref.ref.model.path=org/other", "reference policy"),
        ("actor_rollout_ref.rollout.do_sample=False", "always samples"),
        ("actor_rollout_ref.rollout.presence_penalty=0.5", "take the key out"),
    ] {
        let found = with(more);
        let key = more.trim_start_matches('+').split('=').next().unwrap();
        assert!(refusal(&found, key).contains(words), "{more}: {}", reason(&found, key));
        assert_eq!(found.refused.len(), 1, "{more}: {:?}", found.refused);
    }
    let rank = "actor_rollout_ref.model.lora_rank=8 'actor_rollout_ref.model.target_modules=.*(q|v)_proj'";
    let found = with(rank);
    assert!(refusal(&found, "actor_rollout_ref.model.target_modules").contains("regular expression"));
    assert_eq!(found.refused, [("actor_rollout_ref.model.target_modules".into(), "lora_target_modules".into())]);
    let found = with("algorithm.use_kl_in_reward=True actor_rollout_ref.actor.use_kl_loss=True");
    assert!(refusal(&found, "actor_rollout_ref.actor.use_kl_loss").contains("one penalty"));
    let found = with("actor_rollout_ref.actor.grad_clip=1.0 actor_rollout_ref.actor.optim.clip_grad=0.5");
    assert!(refusal(&found, "actor_rollout_ref.actor.optim.clip_grad").contains("depends on the version"));
    let neutral = "actor_rollout_ref.actor.optim.optimizer=AdamW \
        actor_rollout_ref.actor.optim.override_optimizer_config=null actor_rollout_ref.rollout.presence_penalty=0.0 \
        algorithm.rollout_correction.rollout_rs=null algorithm.rollout_correction.bypass_mode=False \
        algorithm.use_pf_ppo=False distillation.enabled=False";
    assert_eq!(with(neutral).refused, []);
}

#[test]
fn a_function_beside_a_reward_model_is_not_forgotten() {
    let found = with(
        "reward_model.enable=True reward_model.model.path=org/RM custom_reward_function.path=x.py \
         custom_reward_function.name=f",
    );
    refusal(&found, "custom_reward_function.path");
    assert_eq!(found.refused[0].1, "reward_funcs");
    assert_eq!(with("reward_model.enable=True reward_model.model.path=org/RM").refused, []);
}

#[test]
fn a_key_that_is_not_known_and_may_matter_is_told() {
    let found = with("+actor_rollout_ref.actor.new_trick=0.5 algorithm.other=1 actor_rollout_ref.rollout.name=vllm");
    let told = "not known, and may change the training: actor_rollout_ref.actor.new_trick, algorithm.other";
    assert!(found.remarks.iter().any(|remark| remark == told), "{:?}", found.remarks);
    let found = with("+actor_rollout_ref.actor.new_trick=False");
    assert!(!found.remarks.iter().any(|remark| remark.contains("new_trick")), "{:?}", found.remarks);
}

#[test]
fn vectorised_estimators_are_those_that_they_compute() {
    let of = |estimator: &str| with(&format!("algorithm.adv_estimator={estimator}"));
    let grpo = of("grpo_vectorized").config;
    assert_eq!(grpo.advantage_estimator, AdvantageEstimator::Grpo);
    assert_eq!((grpo.advantage_epsilon, grpo.lone_advantage), (Some(1e-6), LoneAdvantage::Reward));
    let rloo = of("rloo_vectorized");
    assert_eq!(rloo.config.advantage_estimator, AdvantageEstimator::Rloo);
    assert!(rloo.remarks.iter().any(|remark| remark.contains("rloo_vectorized")), "{:?}", rloo.remarks);
}

#[test]
fn losses_of_verl_come_with_their_figures_and_without_those_of_others() {
    let config = |given: &str| {
        let figures = "{p}.clip_cov_ratio=0.01 {p}.clip_cov_lb=0.5 {p}.clip_cov_ub=4 {p}.kl_cov_ratio=0.02 \
            {p}.ppo_kl_coef=0.3 {p}.dro_beta=0.05 {p}.loss_mode=";
        with(&format!("{figures}{given}").replace("{p}", "actor_rollout_ref.actor.policy_loss")).config
    };
    let (clip, kl, dro, tv) = (config("clip_cov"), config("kl_cov"), config("dro"), config("dppo_tv"));
    let defaults = TrainConfig::default();
    assert_eq!((clip.loss_type, clip.clip_cov_ratio), (LossType::ClipCov, 0.01));
    assert_eq!((clip.clip_cov_lb, clip.clip_cov_ub, clip.kl_cov_ratio), (0.5, 4.0, defaults.kl_cov_ratio));
    assert_eq!((kl.loss_type, kl.kl_cov_ratio, kl.ppo_kl_coef, kl.dro_beta), (LossType::KlCov, 0.02, 0.3, None));
    assert_eq!((dro.loss_type, dro.dro_beta, dro.clip_cov_lb), (LossType::Dro, Some(0.05), defaults.clip_cov_lb));
    assert_eq!((tv.loss_type, tv.dro_beta), (LossType::DppoTv, None));
    let remarks =
        |mode: &str| with(&format!("actor_rollout_ref.actor.policy_loss.loss_mode={mode}")).remarks.join("\n");
    assert!(remarks("kl_cov").contains("over a micro-batch") && !remarks("gspo").contains("over a micro-batch"));
}

/// The parts that every composed configuration has are all known.
#[test]
fn a_composed_configuration_leaves_no_doubt() {
    let yaml = "\
actor_rollout_ref:
  hybrid_engine: true
  nccl_timeout: 600
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_micro_batch_size_per_gpu: 4
    use_dynamic_bsz: false
    ppo_max_token_len_per_gpu: 16384
    clip_ratio: 0.2
    clip_ratio_low: 0.2
    clip_ratio_high: 0.2
    policy_loss: {_target_: x, loss_mode: vanilla, clip_cov_ratio: 0.0002, kl_cov_ratio: 0.0002, ppo_kl_coef: 0.1}
    clip_ratio_c: 3.0
    loss_agg_mode: token-mean
    entropy_coeff: 0
    use_kl_loss: false
    use_torch_compile: true
    kl_loss_coef: 0.001
    kl_loss_type: low_var_kl
    ppo_epochs: 1
    shuffle: false
    checkpoint: {save_contents: [model], load_contents: '${.save_contents}'}
    optim: {lr: 1.0e-06, lr_warmup_steps_ratio: 0.0, total_training_steps: -1, weight_decay: 0.01, lr_warmup_steps: -1,
      min_lr_ratio: 0.0, num_cycles: 0.5, lr_scheduler_type: constant, warmup_style: null, betas: [0.9, 0.999], \
      clip_grad: 1.0,
      optimizer: AdamW, optimizer_impl: torch.optim, override_optimizer_config: null}
    grad_clip: 1.0
    fsdp_config: {param_offload: false, fsdp_size: -1}
    use_remove_padding: '${oc.select:actor_rollout_ref.model.use_remove_padding,false}'
  ref: {strategy: fsdp, model: null, log_prob_micro_batch_size: null}
  rollout:
    name: vllm
    temperature: 1.0
    top_k: -1
    top_p: 1
    prompt_length: '${oc.select:data.max_prompt_length,512}'
    response_length: '${oc.select:data.max_response_length,512}'
    dtype: bfloat16
    gpu_memory_utilization: 0.5
    ignore_eos: false
    do_sample: true
    'n': 5
    engine_kwargs: {vllm: {}}
    val_kwargs: {temperature: 0, 'n': 1}
    multi_turn: {enable: false, tool_config_path: null, format: hermes}
    calculate_log_probs: false
  model: {path: m, custom_chat_template: null, override_config: \
  {}, lora_rank: 0, lora_alpha: 16, target_modules: all-linear,
    exclude_modules: null, lora_adapter_path: null, use_liger: false}
data: {train_files: a.parquet, val_files: b.parquet, max_prompt_length: 512, max_response_length: 700, \
  train_batch_size: 1024}
critic: {optim: {lr: 1.0e-05, weight_decay: 0.01}, cliprange_value: 0.5}
reward_model: {enable: false, model: {path: x}}
custom_reward_function: {path: null, name: compute_score}
algorithm: \
{_target_: x, gamma: 1.0, lam: 1.0, adv_estimator: grpo, norm_adv_by_std_in_grpo: true, use_kl_in_reward: false,
  kl_penalty: kl, kl_ctrl: {type: fixed, kl_coef: 0.001}, use_pf_ppo: false, pf_ppo: {weight_pow: 2.0},
  rollout_correction: \
  {rollout_is: null, rollout_is_threshold: 2.0, rollout_rs: null, bypass_mode: false, loss_type: ppo_clip}}
trainer: {total_epochs: 30, save_freq: 20, test_freq: 5, val_only: false}
";
    let (_, found) = import(yaml);
    assert_eq!(found.refused, []);
    assert!(!found.remarks.iter().any(|remark| remark.contains("not known")), "{:?}", found.remarks);
    let config = &found.config;
    assert_eq!((config.lr_scheduler_type, config.loss_type), (LrSchedulerType::Constant, LossType::Vanilla));
    assert_eq!((config.max_completion_length, config.num_generations, config.use_peft), (700, 5, false));
    assert!(OPTIONS.iter().any(|option| option.key == "lr_scheduler_type"));
}

#[test]
fn a_fully_asynchronous_batch_is_refused_with_its_size() {
    let found = with("data.train_batch_size=0 async_training.require_batches=4");
    let told = refusal(&found, "data.train_batch_size");
    assert!(told.contains("async_training.require_batches") && told.contains("--generation_batch_size 128"), "{told}");
    assert_eq!(found.refused[0].1, "generation_batch_size");
    assert!(found.config.generation_batch_size.is_none());
}

/// The command line gives the value that a script leaves open, and nothing is computed from the open value meanwhile.
#[test]
fn an_option_makes_up_for_a_key_that_is_looked_at_with_others() {
    let (_, found) = import(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 \
         data.train_batch_size=$BS actor_rollout_ref.actor.ppo_mini_batch_size=8 \
         actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=$KL \
         actor_rollout_ref.actor.clip_ratio=$CLIP\n",
    );
    let options: Vec<&str> = found.refused.iter().map(|(_, option)| option.as_str()).collect();
    assert_eq!(options, ["generation_batch_size", "beta", "epsilon"]);
    assert_eq!(found.config.generation_batch_size, None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sh");
    fs::write(&path, format!("{V} data.train_batch_size=$BS\n")).unwrap();
    let imported = Imported::read(&path, None).unwrap();
    imported.require_all(|option| option == "generation_batch_size").unwrap();
    assert!(imported.require_all(|_| false).unwrap_err().to_string().contains("--generation_batch_size"));
}

/// Hydra's `~key`, which the shell leaves as it is.
#[test]
fn a_key_that_an_override_deletes_is_named() {
    let found = with("trainer.total_epochs=3 ~trainer.logger ~trainer.total_epochs '~critic.cliprange_value=0.5'");
    assert_eq!(
        reason(&found, "trainer.logger"),
        "line 1: `~trainer.logger` deletes the key, so that its default there is gone"
    );
    let told = reason(&found, "trainer.total_epochs");
    assert!(told.ends_with("is gone; `num_train_epochs` is as if nothing had been said"), "{told}");
    let ours = TrainConfig::default();
    let config = &found.config;
    assert_eq!((config.num_train_epochs, config.cliprange_value), (ours.num_train_epochs, ours.cliprange_value));
    assert_eq!(with("~trainer.total_epochs +trainer.total_epochs=3").config.num_train_epochs, 3.0);
    assert_eq!(found.refused, []);
    let found = with("~data.train_batch_size");
    assert!(refusal(&found, "data.train_batch_size").ends_with("and what takes its place is not known"));
    assert_eq!(found.config.generation_batch_size, None);
}
