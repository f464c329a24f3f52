//! Systems whose files and commands are recognised but not read: they are refused by name, with the way out.

use std::path::Path;

use anyhow::{Result, bail};

use super::{read::Entry, shell};

/// A system, and the signs of its files and commands.
struct Trainer {
    name: &'static str,
    /// Beginnings of words of its commands.
    words: &'static [&'static str],
    /// Two words, one behind the other.
    pairs: &'static [(&'static str, &'static str)],
    /// Beginnings of keys: a file is the system's if it has all of one of these lists.
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
        keys: &[
            &["rlhf_type"],
            &["tuner_type", "torch_dtype"],
            &["train_type", "torch_dtype"],
            &["tuner_type", "reward_funcs"],
            &["train_type", "reward_funcs"],
            &["external_plugins"],
        ],
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
        words: &["unsloth-cli", "unsloth_cli", "unsloth.", "unsloth/cli"],
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
        name: "EasyR1",
        words: &[],
        pairs: &[("-m", "verl.trainer.main")],
        keys: &[
            &["worker.actor.", "worker.rollout."],
            &["worker.actor.", "algorithm."],
            &["worker.rollout.", "algorithm."],
        ],
    },
    Trainer {
        name: "rLLM",
        words: &["rllm.trainer.", "rllm/trainer/", "rllm.train."],
        pairs: &[],
        keys: &[&["rllm."]],
    },
    Trainer {
        name: "RAGEN",
        words: &["ragen.train", "ragen/train"],
        pairs: &[],
        keys: &[&["agent_proxy."], &["es_manager."]],
    },
    Trainer {
        name: "verifiers",
        words: &["verifiers.scripts", "verifiers/scripts"],
        pairs: &[("vf-rl", "@"), ("-m", "verifiers")],
        keys: &[],
    },
    Trainer {
        name: "OAT",
        words: &["oat.experiment.", "oat/experiment/", "--critic_type=drgrpo"],
        pairs: &[("--critic_type", "drgrpo")],
        keys: &[&["prompt_data", "critic_type"], &["oracle", "prompt_data"]],
    },
    Trainer {
        name: "Open-Reasoner-Zero",
        words: &["playground.orz_", "playground/orz_", "orz.ppo", "orz/ppo"],
        pairs: &[],
        keys: &[],
    },
    Trainer { name: "tinker", words: &["tinker_cookbook.", "tinker_cookbook/"], pairs: &[], keys: &[] },
    Trainer {
        name: "PipelineRL",
        words: &["pipelinerl.", "pipelinerl/"],
        pairs: &[],
        keys: &[&["finetune.", "actor.", "vllm_config."], &["finetune.", "llm.", "world."]],
    },
    Trainer {
        name: "NeMo-Aligner",
        words: &["examples/nlp/gpt/train_gpt", "nemo_aligner", "/opt/NeMo-Aligner"],
        pairs: &[],
        keys: &[&["trainer.ppo."], &["trainer.reinforce."], &["trainer.grpo.", "model."]],
    },
    Trainer {
        name: "DeepSpeed-Chat",
        words: &["--actor_model_name_or_path", "--num_padding_at_beginning", "training/step3_rlhf_finetuning"],
        pairs: &[],
        keys: &[&["actor_model_name_or_path", "critic_model_name_or_path"]],
    },
    Trainer {
        name: "trlX",
        words: &["trlx.", "trlx/"],
        pairs: &[],
        keys: &[&["method.name", "train.", "optimizer."], &["train.trainer", "train.pipeline"]],
    },
    Trainer { name: "ART", words: &["openpipe_art", "art.local", "art.serverless"], pairs: &[], keys: &[] },
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

/// Refuses files without a configuration, and configurations of another system in a format that is not read at all.
///
/// # Errors
/// The kind of file, and the way out.
pub fn refuse_file(path: &Path, text: &str) -> Result<()> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    if extension == "ipynb" || (text.trim_start().starts_with('{') && text.contains("\"nbformat\"")) {
        bail!("is a notebook, which is not read; {}", PROGRAM);
    }
    if is_python(path) {
        let imports = |name: &str| text.lines().filter_map(imported).any(|module| is_of(module, name));
        if imports("tandem_rl") {
            bail!("is a Python script that trains with tandem_rl; run it with Python (docs/python.md)");
        }
        let library = [
            "unsloth",
            "verifiers",
            "verl",
            "openrlhf",
            "swift",
            "prime_rl",
            "nemo_rl",
            "nemo_aligner",
            "skyrl_train",
            "rllm",
            "ragen",
            "oat",
            "tinker",
            "pipelinerl",
            "trlx",
            "art",
            "trl",
        ];
        let used = library.into_iter().find(|name| imports(name));
        if used == Some("trl") {
            return Ok(());
        }
        let of = used.map(|name| format!(" that uses {name}"));
        bail!("is a Python script{}, which is not read; {}", of.unwrap_or_default(), PROGRAM);
    }
    if extension == "toml" {
        refuse_toml(text)?;
    }
    Ok(())
}

/// Whether a file is a Python script by its name.
pub fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("py"))
}

/// The module that a line of Python imports.
fn imported(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("import ").or_else(|| line.strip_prefix("from "))
}

/// Whether a module is that library, or inside it.
fn is_of(module: &str, library: &str) -> bool {
    let rest = module.trim_start().strip_prefix(library);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// What to do with a program instead.
const PROGRAM: &str = "write the arguments of its GRPOConfig as YAML (`learning_rate: 1e-6` …), which `tandem train \
    FILE.yaml` reads, or as run.toml, and name a reward function of its as my_rewards.py:my_function";

/// Refuses TOML of another system.
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
    // A key that ends in a point stands for all keys below it.
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
/// The line, the system's name, and the way out.
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
    refuse_others_of_trl(commands)
}

/// Commands and scripts of TRL that train with other methods than GRPO, each with our counterpart if there is one.
const OTHERS_OF_TRL: [(&str, &str); 13] = [
    ("sft", "`tandem sft` fine-tunes on pairs of prompt and completion"),
    ("reward", "`tandem reward-model` trains reward models"),
    ("reward_modeling", "`tandem reward-model` trains reward models"),
    ("rloo", "write its options as run.toml with `advantage_estimator = \"rloo\"`"),
    ("ppo", "write its options as run.toml with `advantage_estimator = \"gae\"`, which has a critic"),
    ("dpo", NOTHING_OF_THE_KIND),
    ("kto", NOTHING_OF_THE_KIND),
    ("orpo", NOTHING_OF_THE_KIND),
    ("cpo", NOTHING_OF_THE_KIND),
    ("gkd", NOTHING_OF_THE_KIND),
    ("nash_md", NOTHING_OF_THE_KIND),
    ("xpo", NOTHING_OF_THE_KIND),
    ("online_dpo", NOTHING_OF_THE_KIND),
];

const NOTHING_OF_THE_KIND: &str = "there is no method of this kind here";

/// Refuses a script that trains with TRL and not with GRPO: it takes TRL's flags too, which would be read as if they
/// were meant for GRPO. A script that trains further, as after a warm start, is read.
fn refuse_others_of_trl(commands: &[shell::Command]) -> Result<()> {
    let (others, rest): (Vec<_>, Vec<_>) =
        commands.iter().map(|command| (command, other_of_trl(command))).partition(|(_, other)| other.is_some());
    let trains = |word: &shell::Word| word.ends_with(".py") || ["-m", "grpo"].contains(&&**word);
    match others.first() {
        Some((command, Some((of, way)))) if !rest.iter().any(|(command, _)| command.words.iter().any(trains)) => {
            bail!("line {}: the command is TRL's {of}, which is not GRPO; {way}", command.line)
        }
        _ => Ok(()),
    }
}

/// The command or script of TRL that is run, if it does not train with GRPO.
fn other_of_trl(command: &shell::Command) -> Option<&'static (&'static str, &'static str)> {
    let words: Vec<&str> = command.words.iter().map(|word| &**word).collect();
    let name = |word: &str| Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned());
    let other = |(of, _): &&(&str, &str)| {
        let is_pair = |pair: &[&str]| name(pair[0]).as_deref() == Some("trl") && pair[1] == *of;
        let is_script = |word: &&str| {
            let stem = word.strip_suffix(".py").unwrap_or_default().replace('/', ".");
            let stem = if stem.is_empty() { word.to_string() } else { stem };
            let is_of_trl = stem.starts_with("trl.scripts.") || stem.starts_with("examples.scripts.");
            let bare = !stem.contains('.') && word.ends_with(".py");
            (is_of_trl || stem.contains(".trl.scripts.") || bare) && stem.rsplit('.').next() == Some(*of)
        };
        words.windows(2).any(is_pair) || words.iter().any(is_script)
    };
    OTHERS_OF_TRL.iter().find(other)
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
            ("python3 -m verl.trainer.main config=c.yaml worker.actor.model.model_path=m", "EasyR1's"),
            ("python3 -m rllm.trainer.verl.train_agent_ppo algorithm.adv_estimator=grpo", "rLLM's"),
            ("python -m ragen.train --config-name base", "RAGEN's"),
            ("python -m oat.experiment.run_ppo --pretrain m --num_samples 8", "OAT's"),
            ("python -m playground.orz_7b_ppo", "Open-Reasoner-Zero's"),
            ("python -m tinker_cookbook.recipes.rl_basic model_name=m", "tinker's"),
            ("python -m pipelinerl.launch output_dir=results", "PipelineRL's"),
            (
                "python /opt/NeMo-Aligner/examples/nlp/gpt/train_gpt_ppo_actor.py trainer.ppo.max_epochs=1",
                "NeMo-Aligner's",
            ),
            ("deepspeed main.py --actor_model_name_or_path m --num_padding_at_beginning 1", "DeepSpeed-Chat's"),
            ("python -m trlx.examples.ppo_sentiments", "trlX's"),
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
            ("c.yaml", "tuner_type: lora\nreward_funcs: [accuracy]\nlearning_rate: 1e-6\n", "ms-swift's"),
            (
                "c.yaml",
                "worker: {actor: {clip_ratio_low: 0.2}, rollout: {n: 5}}\nalgorithm: {adv_estimator: grpo}\n",
                "EasyR1's",
            ),
            ("c.yaml", "rllm: {agent: {name: a}}\nalgorithm: {adv_estimator: grpo}\n", "rLLM's"),
            ("c.yaml", "es_manager: {train: {env_groups: 8}}\nalgorithm: {adv_estimator: grpo}\n", "RAGEN's"),
            ("c.yaml", "method: {name: ppoconfig}\ntrain: {seed: 1}\noptimizer: {name: adamw}\n", "trlX's"),
            ("c.yml", "base_model: m\nrl: grpo\ntrl: {beta: 0.1}\nlearning_rate: 1e-6\n", "axolotl's"),
            ("c.yaml", "stage: ppo\nfinetuning_type: lora\nlearning_rate: 1e-6\n", "LLaMA-Factory's"),
            ("c.yaml", "model: {_component_: torchtune.models.qwen2_5.x}\nseed: 1\n", "torchtune's"),
            ("c.yaml", "trainer: {algorithm: {advantage_estimator: grpo}}\ngenerator: {n: 4}\n", "SkyRL's"),
            ("rl.toml", "max_steps = 100\n[orchestrator]\nbatch_size = 64\n[trainer.optim]\nlr = 1e-6\n", "prime-rl's"),
            ("a.ipynb", "{\"cells\": [], \"nbformat\": 4}", "a notebook"),
            ("train.py", "import verifiers as vf\nfrom trl import GRPOConfig\n", "uses verifiers"),
            ("train.py", "import art\n", "uses art"),
            ("train.py", "# an article\nimport artful\n", "a Python script, which"),
            ("train.py", "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig\n", "uses unsloth"),
        ] {
            let message = refusal(file, text);
            assert!(message.contains(name) && message.contains("which is not read; write"), "{text}: {message}");
        }
    }

    #[test]
    fn a_script_of_our_own_package_is_python_s_to_run() {
        let message =
            refusal("train.py", "from tandem_rl import GRPOTrainer\nfrom trl.rewards import accuracy_reward\n");
        assert!(message.contains("trains with tandem_rl; run it with Python"), "{message}");
    }

    #[test]
    fn a_script_that_warms_up_first_and_a_model_of_an_organisation_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.sh");
        fs::write(&path, "trl sft --seed 1\ntrl grpo --model_name_or_path unsloth/Qwen3-0.6B --seed 2\n").unwrap();
        let toml = Imported::read(&path, None).unwrap().to_toml();
        assert!(toml.contains("seed = 2") && toml.contains("unsloth/Qwen3-0.6B"), "{toml}");
    }

    #[test]
    fn what_is_trl_s_and_not_grpo_is_refused_by_name() {
        for (command, words) in [
            ("trl dpo --model_name_or_path m --learning_rate 1e-6", "TRL's dpo, which is not GRPO; there is no method"),
            (".venv/bin/trl sft --seed 1", "`tandem sft`"),
            ("accelerate launch trl/scripts/kto.py --seed 1", "TRL's kto"),
            ("python -m trl.scripts.reward --seed 1", "`tandem reward-model`"),
            (
                "accelerate launch examples/scripts/ppo/ppo.py --seed 1 --learning_rate 1e-6",
                "advantage_estimator = \"gae\"",
            ),
            ("python dpo.py --seed 1 --learning_rate 1e-6", "TRL's dpo"),
            ("trl rloo --seed 1", "advantage_estimator = \"rloo\""),
        ] {
            let message = refusal("train.sh", &format!("{command}\n"));
            assert!(
                message.contains("line 1: the command is TRL's") && message.contains(words),
                "{command}: {message}"
            );
        }
    }

    #[test]
    fn a_command_with_a_few_flags_of_trl_is_not_taken_for_trl_s() {
        let message = refusal("train.sh", "#!/bin/bash\npython ours.py --seed 1 --ours a --theirs b --other c\n");
        assert!(message.contains("line 2: of the 4 flags of this command 1 are TRL's"), "{message}");
    }
}
