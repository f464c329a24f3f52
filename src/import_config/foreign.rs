//! Systems whose files and commands are known and not read: they are refused by name, with the way out.

use std::path::Path;

use anyhow::{Result, bail};

use super::{read::Entry, shell};

/// A system, and what its files and commands are told by.
struct Trainer {
    name: &'static str,
    /// Beginnings of words of its commands.
    words: &'static [&'static str],
    /// Two words, one behind the other.
    pairs: &'static [(&'static str, &'static str)],
    /// Beginnings of keys, which are all there in a file of its; any of the lists.
    keys: &'static [&'static [&'static str]],
}

const TRAINERS: &[Trainer] = &[
    Trainer {
        name: "OpenRLHF",
        words: &["openrlhf.cli.", "openrlhf/cli/"],
        pairs: &[],
        keys: &[&["pretrain", "prompt_data"], &["pretrain", "remote_rm_url"]],
    },
    Trainer {
        name: "ms-swift",
        words: &["swift.cli.", "swift/cli/"],
        pairs: &[("swift", "rlhf"), ("swift", "sft"), ("swift", "pt"), ("megatron", "rlhf"), ("megatron", "sft")],
        keys: &[&["rlhf_type"], &["tuner_type", "torch_dtype"], &["train_type", "torch_dtype"]],
    },
    Trainer {
        name: "prime-rl",
        words: &["prime_rl.", "src/prime_rl/"],
        pairs: &[("rl", "@"), ("run", "rl"), ("run", "orchestrator"), ("run", "trainer")],
        keys: &[&["orchestrator."], &["trainer.", "inference."], &["trainer.model.", "ckpt"]],
    },
    Trainer {
        name: "NeMo-RL",
        words: &["nemo_rl", "examples/run_grpo", "examples/run_sft", "examples/run_dpo", "run_grpo_math.py"],
        pairs: &[],
        keys: &[&["grpo.", "policy."], &["grpo.", "loss_fn."], &["loss_fn.", "policy."]],
    },
    Trainer {
        name: "slime's or miles'",
        words: &["--hf-checkpoint", "--rollout-function-path", "--sglang-", "--rm-type", "--n-samples-per-prompt"],
        pairs: &[],
        keys: &[],
    },
    Trainer {
        name: "SkyRL",
        words: &["skyrl_train.", "skyrl_train/", "skyrl."],
        pairs: &[],
        keys: &[&["trainer.algorithm.", "generator."], &["trainer.policy.", "generator."]],
    },
    Trainer {
        name: "axolotl",
        words: &["axolotl.cli."],
        pairs: &[("axolotl", "train"), ("axolotl", "preprocess")],
        keys: &[
            &["base_model", "datasets"],
            &["base_model", "rl"],
            &["base_model", "trl."],
            &["base_model", "sequence_len"],
        ],
    },
    Trainer {
        name: "LLaMA-Factory",
        words: &["llamafactory"],
        pairs: &[("llamafactory-cli", "train")],
        keys: &[&["stage", "finetuning_type"], &["stage", "cutoff_len"], &["finetuning_type", "template"]],
    },
    Trainer {
        name: "torchtune",
        words: &["torchtune."],
        pairs: &[("tune", "run")],
        keys: &[&["model._component_"], &["tokenizer._component_"], &["dataset._component_"]],
    },
    Trainer {
        name: "unsloth",
        words: &["unsloth"],
        pairs: &[],
        keys: &[&["max_seq_length", "load_in_4bit", "finetune_"]],
    },
    Trainer {
        name: "AReaL",
        words: &["areal.launcher", "areal/launcher"],
        pairs: &[],
        keys: &[&["gconfig."], &["experiment_name", "allocation_mode"]],
    },
    Trainer {
        name: "ROLL",
        words: &["start_rlvr_pipeline"],
        pairs: &[],
        keys: &[&["actor_train."], &["pg_variant", "exp_name"]],
    },
    Trainer {
        name: "open-instruct",
        words: &["open_instruct/", "open_instruct."],
        pairs: &[],
        keys: &[&["dataset_mixer_list", "model_name_or_path"]],
    },
];

fn not_read(name: &str) -> String {
    let of = if name.ends_with('\'') { name.to_owned() } else { format!("{name}'s") };
    format!(
        "is {of}, which is not read; write its options as run.toml (`tandem train --dry-run` prints all there are, \
         docs/configuration.md explains them)"
    )
}

/// Refuses files that hold no configuration, or one of another system in a format that is not read at all.
///
/// # Errors
/// What it is, and the way out.
pub fn refuse_file(path: &Path, text: &str) -> Result<()> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    if extension == "ipynb" || (text.trim_start().starts_with('{') && text.contains("\"nbformat\"")) {
        bail!("is a notebook, which is not read; {}", PROGRAM);
    }
    if extension == "py" {
        let imports = |name: &str| text.contains(&format!("import {name}")) || text.contains(&format!("from {name}"));
        let library = ["unsloth", "verl", "openrlhf", "swift", "prime_rl", "nemo_rl", "skyrl_train", "trl"];
        let of = library.into_iter().find(|name| imports(name)).map(|name| format!(" that uses {name}"));
        bail!("is a Python script{}, which is not read; {}", of.unwrap_or_default(), PROGRAM);
    }
    if extension == "toml" {
        refuse_toml(text)?;
    }
    Ok(())
}

/// What to do with a program.
const PROGRAM: &str = "write the arguments of its GRPOConfig as YAML (`learning_rate: 1e-6` …), which `tandem train FILE.yaml` \
                       reads, or as run.toml, and name a reward function of its as my_rewards.py:my_function";

/// Refuses the TOML of another system.
///
/// # Errors
/// Its name, and the way out.
pub fn refuse_toml(text: &str) -> Result<()> {
    let Ok(table) = text.parse::<toml::Table>() else { return Ok(()) };
    let mut keys = Vec::new();
    for (key, value) in &table {
        match value {
            toml::Value::Table(inner) if !inner.is_empty() => {
                keys.extend(inner.keys().map(|name| format!("{key}.{name}")));
            }
            _ => keys.push(key.clone()),
        }
    }
    refuse(&keys)
}

/// Refuses a mapping, or overrides, of another system.
///
/// # Errors
/// Its name, and the way out.
pub fn refuse_keys(entries: &[Entry]) -> Result<()> {
    let keys: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    refuse(&keys)
}

fn refuse(keys: &[String]) -> Result<()> {
    // A key that ends in a point stands for all below it.
    let has = |wanted: &str| {
        let below = wanted.ends_with(['.', '_']);
        keys.iter().any(|key| if below { key.starts_with(wanted) } else { key == wanted })
    };
    let found = TRAINERS.iter().find(|trainer| trainer.keys.iter().any(|keys| keys.iter().all(|key| has(key))));
    found.map_or(Ok(()), |trainer| bail!(not_read(trainer.name)))
}

/// Refuses commands of another system.
///
/// # Errors
/// The line, its name, and the way out.
pub fn refuse_commands(commands: &[shell::Command]) -> Result<()> {
    for command in commands {
        let words: Vec<&str> = command.words.iter().map(|word| &**word).collect();
        let name = |word: &str| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
        let is_of = |trainer: &&Trainer| {
            let begins = words.iter().any(|word| trainer.words.iter().any(|begin| word.starts_with(begin)));
            let paired = words.windows(2).any(|pair| {
                let first = name(pair[0]);
                trainer.pairs.iter().any(|(one, other)| first.as_deref() == Some(one) && pair[1] == *other)
            });
            begins || paired
        };
        if let Some(trainer) = TRAINERS.iter().find(is_of) {
            bail!("line {}: {}", command.line, not_read(trainer.name).replacen("is ", "the command is ", 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::import_config::Imported;

    fn refusal(name: &str, text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        format!("{:#}", Imported::read(&path, None).expect_err(text))
    }

    #[test]
    fn commands_of_other_trainers_are_refused_by_name() {
        for (command, name) in [
            ("python3 -m openrlhf.cli.train_ppo_ray --pretrain m --learning_rate 1e-6 --seed 1", "OpenRLHF's"),
            ("deepspeed --module openrlhf.cli.train_sft --max_len 2048 --bf16", "OpenRLHF's"),
            ("ray job submit --address=http://h:8265 -- python3 -m openrlhf.cli.train_ppo_ray --n 8", "OpenRLHF's"),
            ("CUDA_VISIBLE_DEVICES=0 swift rlhf --rlhf_type grpo --learning_rate 1e-6", "ms-swift's"),
            ("swift sft --model m --learning_rate 1e-6", "ms-swift's"),
            ("uv run rl @ configs/rl.toml", "prime-rl's"),
            ("uv run python examples/run_grpo_math.py grpo.num_prompts_per_step=32 policy.model_name=m", "NeMo-RL's"),
            ("ARGS=(--hf-checkpoint m --bf16)\npython3 train.py ${ARGS[@]}", "slime's or miles'"),
            ("uv run -m skyrl_train.entrypoints.main_base trainer.algorithm.advantage_estimator=grpo", "SkyRL's"),
            ("axolotl train config.yml", "axolotl's"),
            ("llamafactory-cli train config.yaml", "LLaMA-Factory's"),
            ("tune run lora_finetune_single_device --config c", "torchtune's"),
            ("python -m areal.launcher.local train.py --config c.yaml", "AReaL's"),
        ] {
            let message = refusal("train.sh", &format!("#!/bin/bash\n{command}\n"));
            assert!(message.contains(name) && message.contains("which is not read; write"), "{command}: {message}");
            assert!(message.contains("line 2") || message.contains("line 3"), "{command}: {message}");
        }
    }

    #[test]
    fn files_of_other_trainers_are_refused_by_name() {
        for (file, text, name) in [
            ("c.yaml", "rlhf_type: grpo\nlearning_rate: 1e-6\nreward_funcs: [accuracy]\n", "ms-swift's"),
            ("c.yaml", "grpo: {num_prompts_per_step: 32}\npolicy: {model_name: m}\n", "NeMo-RL's"),
            ("c.yml", "base_model: m\nrl: grpo\ntrl: {beta: 0.1}\nlearning_rate: 1e-6\n", "axolotl's"),
            ("c.yaml", "stage: ppo\nfinetuning_type: lora\nlearning_rate: 1e-6\n", "LLaMA-Factory's"),
            ("c.yaml", "model: {_component_: torchtune.models.qwen2_5.x}\nseed: 1\n", "torchtune's"),
            ("c.yaml", "trainer: {algorithm: {advantage_estimator: grpo}}\ngenerator: {n: 4}\n", "SkyRL's"),
            ("rl.toml", "max_steps = 100\n[orchestrator]\nbatch_size = 64\n[trainer.optim]\nlr = 1e-6\n", "prime-rl's"),
            ("a.ipynb", "{\"cells\": [], \"nbformat\": 4}", "a notebook"),
            ("train.py", "from trl import GRPOConfig\n", "a Python script that uses trl"),
            ("train.py", "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig\n", "uses unsloth"),
        ] {
            let message = refusal(file, text);
            assert!(message.contains(name) && message.contains("which is not read; write"), "{text}: {message}");
        }
    }

    #[test]
    fn a_command_with_a_few_flags_of_trl_is_not_taken_for_trl_s() {
        let message = refusal("train.sh", "#!/bin/bash\npython ours.py --seed 1 --ours a --theirs b --other c\n");
        assert!(message.contains("line 2: of the 4 flags of this command 1 are TRL's"), "{message}");
    }
}
