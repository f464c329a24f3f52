//! Configurations of RLinf and TRL: no key changes its meaning without a remark.

use super::*;

const R: &str = "runner: {max_epochs: 1}\nalgorithm: {group_size: 4}\ndata: {rollout_batch_size: 8}\n";

#[test]
fn the_schedule_of_rlinf_is_kept() {
    let of = |actor: &str| {
        let found = import(&format!("{R}actor: {actor}\n")).1;
        assert_eq!(found.refused, [], "{actor}");
        (found.config.lr_scheduler_type, found.config.warmup_steps, found.config.warmup_ratio)
    };
    use LrSchedulerType::{Constant, ConstantWithWarmup, Cosine, CosineWithMinLr};
    assert_eq!(of("{optim: {lr: 2e-6}}"), (Constant, 0, 0.0), "RLinf's default");
    assert_eq!(import(R).1.config.weight_decay, 0.01, "RLinf's default");
    let recipe = "{optim: {lr: 2e-5, optimizer: adam, min_lr: 2e-6}, lr_sched: \
        {lr_warmup_fraction: 0.01, lr_warmup_init: 0.0, lr_warmup_iters: 0, max_lr: 2e-5, min_lr: 0.0, \
            lr_decay_style: constant, lr_decay_iters: 10}}";
    assert_eq!(of(recipe), (ConstantWithWarmup, 1, 0.0));
    assert_eq!(of("{lr_sched: {lr_decay_style: cosine, lr_warmup_fraction: 0.1}}"), (Cosine, 0, 0.1));
    assert_eq!(of("{lr_sched: {lr_decay_style: constant, lr_warmup_iters: 5}}"), (ConstantWithWarmup, 5, 0.0));
    assert_eq!(of("{optim: {lr: 1e-5, min_lr: 1e-6, lr_scheduler: cosine}}"), (CosineWithMinLr, 0, 0.0));
    let (_, found) = import(&format!("{R}actor: {{lr_sched: {{lr_decay_style: WSD}}}}\n"));
    assert_eq!(found.refused, [("actor.lr_sched.lr_decay_style".into(), "lr_scheduler_type".into())]);
}

#[test]
fn what_rlinf_changes_is_mapped_or_ends_the_start() {
    let (_, found) = import(&format!("{R}rollout: {{stop: '</answer>', name: x}}\n"));
    assert_eq!(found.config.stop, ["</answer>"]);
    for (lines, key) in [
        ("rollout: {ignore_eos: true}", "rollout.ignore_eos"),
        ("actor: {model: {is_lora: true, lora_rank: 32}}", "actor.model.is_lora"),
        ("actor: {optim: {optimizer: sgd}}", "actor.optim.optimizer"),
    ] {
        let (_, found) = import(&format!("{R}{lines}\n"));
        assert_eq!(found.refused.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [key], "{lines}");
    }
    let (_, found) = import(&format!("{R}actor: {{model: {{is_lora: true, lora_rank: 32}}}}\n"));
    assert!(reason(&found, "actor.model.is_lora").contains("--lora_r 32"));
    let (_, found) = import(&format!("{R}rollout: {{new_trick: 3}}\nactor: {{model: {{is_lora: false}}}}\n"));
    assert_eq!(found.refused, []);
    assert!(found.remarks.iter().any(|remark| remark.ends_with("may change the training: rollout.new_trick")));
}

#[test]
fn settings_of_generation_are_read_in_every_spelling() {
    for text in [
        "generation_kwargs: '{\"stop\": [\"=\"], \"top_k\": -1, \"min_p\": 0.1}'\nseed: 1\n",
        "generation_kwargs: {stop: ['='], top_k: -1, min_p: 0.1}\nseed: 1\n",
        "trl grpo --seed 1 --generation_kwargs '{\"stop\": [\"=\"], \"top_k\": -1, \"min_p\": 0.1}'\n",
    ] {
        let (_, found) = import(text);
        assert_eq!((found.config.stop.as_slice(), found.config.top_k), (&["=".to_owned()][..], 0), "{text}");
        assert_eq!((found.config.min_p, found.refused.len()), (Some(0.1), 0), "{text}");
    }
    let (_, found) = import("generation_kwargs: stop here\nseed: 1\n");
    assert_eq!(found.refused, [("generation_kwargs".into(), String::new())]);
    let (_, found) = import("model_init_kwargs: '{\"revision\": \"v2\"}'\nseed: 1\n");
    assert_eq!(found.config.model_revision, "v2");
}

#[test]
fn what_trl_changes_and_is_not_there_ends_the_start() {
    for (line, words) in [
        ("use_dora: true", "of adapters only"),
        ("lora_modules_to_save: [embed_tokens]", "of adapters only"),
        ("lora_bias: all", "of adapters only"),
        ("init_lora_weights: pissa", "PEFT's usual one"),
        ("peft_config: {r: 8}", "of adapters only"),
        ("model_init_kwargs: {load_in_4bit: true}", "no other quantised weights"),
        ("optim: muon", "the optimiser is AdamW"),
        ("optim: adafactor", "the optimiser is AdamW"),
        ("neftune_noise_alpha: 5", "embeddings"),
        ("chat_template_path: Qwen/Qwen3-0.6B", "a name on the Hub"),
    ] {
        let (_, found) = import(&format!("{line}\nseed: 1\nlearning_rate: 1e-6\n"));
        assert!(found.refused.len() == 1 && found.left_out[0].1.contains(words), "{line}: {:?}", found.left_out);
    }
    let neutral = "use_dora: false\nlora_bias: none\noptim: adamw_torch_fused\nload_in_4bit: \
        false\nlora_modules_to_save: null\n\
                   init_lora_weights: true\nneftune_noise_alpha: null\nseed: 1\n";
    assert_eq!(import(neutral).1.refused, []);
}

#[test]
fn a_mixture_of_open_r1_is_one_of_trl() {
    let (_, found) = import(
        "dataset_mixture:\n  datasets:\n    - \
         {id: org/a, config: main, split: train, columns: [problem], weight: 0.5}\n    - \
         {id: org/b, config: main, split: train, weight: 0.25}\n  seed: 42\n  test_split_size: 0.1\nseed: 1\n",
    );
    let paths: Vec<_> = found.config.dataset.iter().map(|path| path.to_str().unwrap()).collect();
    assert_eq!((paths, found.config.dataset_weights.as_slice()), (vec!["org/a", "org/b"], &[0.5, 0.25][..]));
    assert_eq!(found.config.dataset_config.as_deref(), Some("main"));
}

#[test]
fn commands_within_commands_and_lines_as_on_windows_are_read() {
    for script in [
        "srun --nodes=1 bash -c \"trl grpo --seed 3 --beta 0.1\"\n",
        "B=0.1\nsrun bash -lc \"\n  cd x && trl grpo --seed 3 --beta $B\n\"\n",
        "#!/bin/bash\r\ntrl grpo --seed 3 \\\r\n  --beta 0.1\r\n",
    ] {
        let (_, found) = import(script);
        assert_eq!((found.config.seed, found.config.beta), (3, 0.1), "{script:?}");
    }
    let (_, found) = import("trl grpo --seed 3 --model_name_or_path ~/models/x\n");
    assert!(reason(&found, "model_name_or_path").contains("put HOME=FOLDER on the first line"), "{:?}", found.left_out);
    let (_, found) = import("HOME=/h\ntrl grpo --seed 3 --model_name_or_path ~/models/x --output_dir $HOME/o\n");
    assert_eq!((found.config.model.to_str(), found.config.output_dir.to_str()), (Some("/h/models/x"), Some("/h/o")));
    let (_, found) = import("model_name_or_path: ~/models/x\nseed: 1\n");
    assert!(reason(&found, "model_name_or_path").contains("write the path out"), "{:?}", found.left_out);
}
