//! Checkpoints of other trainers, recognised by their files.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use super::{MOST_STATE, STATE_FILE};

/// A trainer, and its way to a model directory.
struct Trainer {
    name: &'static str,
    /// Whether it writes files or folders of this name.
    knows: fn(&str) -> bool,
    /// How to make a model directory from its checkpoint, if the checkpoint holds none.
    exports: &'static str,
}

/// The more specific ones first: most trainers build on others.
const TRAINERS: [Trainer; 8] = [
    Trainer {
        name: "verl",
        knows: |name| {
            matches!(name, "actor" | "latest_checkpointed_iteration.txt" | "fsdp_config.json" | "data.pt")
                || name.starts_with("model_world_size_")
                || name.strip_prefix("global_step_").is_some_and(|step| step.parse::<u64>().is_ok())
        },
        exports: "`python -m verl.model_merger merge` makes a model directory of it",
    },
    Trainer {
        name: "OpenRLHF",
        knows: |name| matches!(name, "_actor" | "_critic"),
        exports: "OpenRLHF's `--save_hf_ckpt`, or zero_to_fp32.py in it, makes a model directory of it",
    },
    Trainer {
        name: "NeMo-RL",
        knows: |name| name == "training_info.json" || name == "train_dataloader.pt",
        exports: "NeMo-RL's converter makes a model directory of it",
    },
    Trainer {
        name: "Megatron",
        knows: |name| {
            is_iteration(name)
                || name == "latest_checkpointed_iteration"
                || name.starts_with("mp_rank_") && !name.ends_with(".pt")
        },
        exports: "Megatron's converter makes a model directory of it",
    },
    Trainer {
        name: "TRL or transformers",
        knows: |name| {
            matches!(name, "training_args.bin" | "optimizer.pt" | "optimizer.bin" | "scheduler.pt" | "scaler.pt")
                || name.starts_with("rng_state")
        },
        exports: "`trainer.save_model` makes a model directory of it",
    },
    Trainer {
        name: "DeepSpeed",
        knows: |name| name == "zero_to_fp32.py" || name.contains("zero_pp_rank_") || name.ends_with("_model_states.pt"),
        exports: "zero_to_fp32.py in it makes weights of it",
    },
    Trainer {
        name: "FSDP",
        knows: |name| name.starts_with("pytorch_model_fsdp") || name == ".metadata" || name.ends_with(".distcp"),
        exports: "`accelerate merge-weights` makes weights of it",
    },
    Trainer {
        name: "accelerate or Lightning",
        knows: |name| name.starts_with("random_states_") || name == "sampler.bin" || name.ends_with(".ckpt"),
        exports: "save its model with `save_pretrained`",
    },
];

/// Whether this is a folder of Megatron for an iteration.
fn is_iteration(name: &str) -> bool {
    name.strip_prefix("iter_").is_some_and(|step| step.parse::<u64>().is_ok())
}

/// Folders in a checkpoint where a model directory may lie.
const INNER: [&str; 7] = ["", "huggingface", "actor/huggingface", "actor", "policy/weights", "hf", "hf_model"];

/// What to do with the checkpoint of another trainer, in words that follow the name of the option; none if it is none.
#[must_use]
pub fn foreign(checkpoint: &Path) -> Option<String> {
    if is_file_of_weights(checkpoint) {
        let shown = checkpoint.display();
        return Some(format!("{shown} is a file of weights; name its folder as `model` to begin a run with it"));
    }
    let names: Vec<String> = fs::read_dir(checkpoint)
        .ok()?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if names.iter().any(|name| name == STATE_FILE) && is_own(checkpoint) {
        return None;
    }
    let own_name = checkpoint.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let of_state = names.iter().any(|name| name == STATE_FILE).then_some(&TRAINERS[4]);
    // Another of Megatron's files has the name of one of verl's.
    let of_megatron = names.iter().any(|name| is_iteration(name)).then_some(&TRAINERS[3]);
    let of_files = TRAINERS.iter().find(|trainer| names.iter().any(|name| (trainer.knows)(name)));
    let of_name = own_name.strip_prefix("global_step_").map(|_| &TRAINERS[0]);
    let of_deepspeed = own_name.strip_prefix("global_step").filter(|step| step.parse::<u64>().is_ok());
    let trainer = of_megatron.or(of_files).or(of_state).or(of_name).or(of_deepspeed.map(|_| &TRAINERS[5]))?;
    let shown = checkpoint.display();
    let whose = format!("{shown} is a checkpoint of {}, whose optimiser cannot be gone on with", trainer.name);
    let model = INNER.iter().map(|inner| checkpoint.join(inner)).find(|folder| is_model(folder));
    Some(match model {
        Some(model) => {
            let model = model.components().collect::<std::path::PathBuf>();
            format!("{whose}; name {} as `model` and leave out `resume_from_checkpoint`", model.display())
        }
        None => format!("{whose}, and it holds no model directory; {}, to be named as `model`", trainer.exports),
    })
}

/// Whether a state is of this project, even if damaged: states of others have `global_step` and `log_history`.
fn is_own(checkpoint: &Path) -> bool {
    let Ok(text) = shared_bounds::read(&checkpoint.join(STATE_FILE), MOST_STATE) else { return true };
    let state: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    state.contains_key("format")
        || !["global_step", "log_history", "best_metric"].iter().any(|key| state.contains_key(*key))
}

fn is_model(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    let weights =
        ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"].iter().any(|name| has(name));
    has("config.json") && weights || has("adapter_config.json")
}

fn is_file_of_weights(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    path.is_file() && ["safetensors", "bin", "pt", "pth", "ckpt", "gguf"].contains(&ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with empty files, and with a state of transformers if `files` names one.
    fn folder(name: &str, files: &[&str]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        for file in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let state = file.ends_with(STATE_FILE);
            fs::write(&file, if state { r#"{"global_step": 10, "log_history": []}"# } else { "" }).unwrap();
        }
        (dir, path)
    }

    #[test]
    fn checkpoints_of_other_trainers_are_known_by_their_files() {
        const HF: [&str; 2] = ["config.json", "model.safetensors"];
        let cases: [(&str, &[&str], &str, bool); 15] = [
            ("checkpoint-10", &["trainer_state.json"], "TRL", false),
            ("checkpoint-10", &["trainer_state.json", "optimizer.pt", HF[0], HF[1]], "TRL", true),
            ("checkpoint-10", &["optimizer.pt", "scheduler.pt", HF[0], HF[1]], "TRL", true),
            ("checkpoint-10", &["training_args.bin", "adapter_config.json"], "TRL", true),
            ("checkpoint-10", &["rng_state_0.pth"], "TRL", false),
            (
                "global_step_100",
                &["actor/huggingface/config.json", "actor/huggingface/model.safetensors"],
                "verl",
                true,
            ),
            ("global_step_100", &["actor/model_world_size_2_rank_0.pt", "data.pt"], "verl", false),
            ("global_step_100", &[], "verl", false),
            ("actor", &["model_world_size_8_rank_0.pt"], "verl", false),
            ("checkpoints", &["global_step_100/data.pt"], "verl", false),
            (
                "checkpoints",
                &["iter_0000100/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"],
                "Megatron",
                false,
            ),
            ("global_step100", &["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "DeepSpeed", false),
            ("checkpoint-10", &["zero_to_fp32.py", "latest"], "DeepSpeed", false),
            ("checkpoint-10", &["pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/.metadata"], "FSDP", false),
            ("checkpoint-10", &["_actor/latest"], "OpenRLHF", false),
        ];
        for (name, files, trainer, has_model) in cases {
            let (_dir, path) = folder(name, files);
            let words = foreign(&path).unwrap_or_else(|| panic!("{name} {files:?}"));
            assert!(words.contains(&format!("is a checkpoint of {trainer}")), "{words}");
            assert!(words.contains("as `model`"), "{words}");
            assert_eq!(words.contains("holds no model directory"), !has_model, "{words}");
        }
        let (_dir, path) = folder("checkpoint-10", &["model.ckpt.safetensors"]);
        assert!(foreign(&path.join("model.ckpt.safetensors")).unwrap().contains("file of weights"));
    }

    #[test]
    fn a_checkpoint_of_this_project_is_none_of_theirs_even_if_it_is_damaged() {
        let own = ["config.json", "model.safetensors", "optimizer.safetensors", "manifest.json", "weights.data"];
        let (_dir, path) = folder("checkpoint-10", &own);
        for state in [r#"{"format": 1, "step": 10}"#, "", "\0\0\0\0", "{\"format\": 1, \"st", "{}"] {
            fs::write(path.join(STATE_FILE), state).unwrap();
            assert_eq!(foreign(&path), None, "{state}");
        }
        fs::remove_file(path.join(STATE_FILE)).unwrap();
        assert_eq!(foreign(&path), None);
        assert_eq!(foreign(&path.join("none")), None);
    }
}
