//! Which files of a directory are its weights, and what else lies there in their place.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use shared::{model::model_dir::MOST_BYTES, run::checkpoints};

use crate::ExportError;

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct ShardIndex {
    /// Tensor name to file name.
    weight_map: BTreeMap<String, String>,
}

/// Refuses weight files of a checkpoint that are not what was written, by its list of checksums. A folder without a
/// list passes.
///
/// # Errors
/// The first file that differs, with the way out.
pub(crate) fn check_sums(dir: &Path, files: &[PathBuf]) -> Result<(), ExportError> {
    let names = files.iter().filter_map(|file| file.file_name()?.to_str());
    checkpoints::check_files(dir, names).map_err(|damage| {
        let list = checkpoints::CHECKSUMS_FILE;
        let message = format!("{damage}; take another checkpoint, or remove {list} if the change is meant");
        ExportError::content(dir, message)
    })
}

/// The weight files of a directory and, if they are shards, the file of each tensor. As in transformers, a single file
/// goes before shards.
///
/// # Errors
/// No weights, with what lies there instead and the way out; an index that cannot be read, or that names files which
/// are not beside it.
pub(crate) fn weight_files(dir: &Path) -> Result<(Vec<PathBuf>, BTreeMap<String, String>), ExportError> {
    let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
    if single.is_file() {
        return Ok((vec![single], BTreeMap::new()));
    }
    if !index.is_file() {
        return Err(ExportError::content(dir, format!("no {SINGLE} and no {INDEX}; {}", instead(dir, &names(dir)))));
    }
    let text = shared_bounds::read(&index, MOST_BYTES).map_err(|e| ExportError::io(&index, e))?;
    let ShardIndex { weight_map } = serde_json::from_slice(&text).map_err(|e| {
        let message =
            shared_bounds::foreign_content(&text).map_or_else(|| format!("not a safetensors index: {e}"), Into::into);
        ExportError::content(&index, message)
    })?;
    if weight_map.is_empty() {
        let message = "`weight_map` names no tensor; download the index again, or save the model again by \
            transformers' save_pretrained";
        return Err(ExportError::content(&index, message));
    }
    let shards: BTreeSet<&String> = weight_map.values().collect();
    if let Some(name) = shards.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref())) {
        return Err(ExportError::content(&index, format!("`{name}` is not the name of a file beside it")));
    }
    let missing: Vec<&str> = shards.iter().filter(|name| !dir.join(name).exists()).map(|name| name.as_str()).collect();
    if let Some(first) = missing.first() {
        let all = shards.len();
        let which = if missing.len() == 1 {
            format!("{first}, which")
        } else {
            format!("{first} and {} more, which", missing.len() - 1)
        };
        let message = format!(
            "names {which} {} not there ({} of its {all} files are); download {} again into this folder",
            if missing.len() == 1 { "is" } else { "are" },
            all - missing.len(),
            if missing.len() == 1 { "it" } else { "them" },
        );
        return Err(ExportError::content(&index, message));
    }
    Ok((shards.into_iter().map(|name| dir.join(name)).collect(), weight_map))
}

/// Names of the entries of a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// How weights of another format are known by their file names, and how they become safetensors.
type Known = (fn(&str) -> bool, &'static str);

const KNOWN: [Known; 11] = [
    (
        |name| name == "adapter_model.safetensors" || name == "adapter_model.bin",
        "is an adapter without its adapter_config.json; put that file beside it",
    ),
    (
        |name| is_shard(name),
        "is a shard, but the index that says what is where is missing; download it too, or save the model again by \
         transformers' save_pretrained",
    ),
    (
        |name| name.starts_with("consolidated") && has_end(name, &["pth", "pt", "safetensors"]),
        "is the publisher's own format; take the repository's files for transformers, or convert it with transformers' \
         conversion script",
    ),
    (
        |name| has_end(name, &["safetensors"]),
        "has another name than weights have; if it is the whole model, call it model.safetensors",
    ),
    (
        |name| has_end(name, &["gguf"]),
        "is GGUF; take the model's own repository, or load it with transformers' `gguf_file` and save_pretrained",
    ),
    (
        |name| has_end(name, &["distcp"]) || name == "pytorch_model_fsdp_0",
        "is a distributed checkpoint of FSDP; `accelerate merge-weights` makes one file of it",
    ),
    (
        |name| {
            let iteration = name.strip_prefix("iter_").is_some_and(|step| step.parse::<u64>().is_ok());
            iteration
                || name == "latest_checkpointed_iteration"
                || name.starts_with("mp_rank_") && !name.ends_with(".pt")
        },
        "is of a checkpoint of Megatron; its converter to Hugging Face makes a model of it",
    ),
    (
        |name| {
            let of_verl = name.strip_prefix("global_step_").is_some_and(|step| step.parse::<u64>().is_ok());
            let shard = name.starts_with("model_world_size_") && has_end(name, &["pt"]);
            of_verl || shard || matches!(name, "actor" | "fsdp_config.json" | "latest_checkpointed_iteration.txt")
        },
        "is of a checkpoint of verl (or another trainer with FSDP); `python -m verl.model_merger merge` makes one \
         model of it",
    ),
    (
        |name| matches!(name, "_actor" | "_critic"),
        "is of a checkpoint of OpenRLHF; its `--save_hf_ckpt`, or zero_to_fp32.py in it, makes a model of it",
    ),
    (
        |name| {
            let step = name.strip_prefix("global_step").is_some_and(|step| step.parse::<u64>().is_ok());
            let states = name.ends_with("_optim_states.pt") || name.ends_with("_model_states.pt");
            step || states || name == "zero_to_fp32.py"
        },
        "is of a checkpoint of DeepSpeed; `python zero_to_fp32.py . . --safe_serialization` makes one model of it",
    ),
    (
        |name| has_end(name, &["bin", "pt", "pth", "h5", "msgpack", "ckpt"]),
        "is in another format, which may hold programs and is not read; transformers' save_pretrained converts it",
    ),
];

fn has_end(name: &str, ends: &[&str]) -> bool {
    Path::new(name).extension().and_then(|end| end.to_str()).is_some_and(|end| ends.contains(&end))
}

/// `model-00001-of-00002.safetensors`.
fn is_shard(name: &str) -> bool {
    name.contains("-of-") && has_end(name, &["safetensors"])
}

/// Folders of a checkpoint of another trainer in which a model directory may lie.
const INNER: [&str; 6] = ["huggingface", "actor/huggingface", "actor", "policy/weights", "hf", "hf_model"];

/// Says what lies in the place of weights, and the way out.
fn instead(dir: &Path, names: &[String]) -> String {
    let has_weights = |folder: &Path| folder.join(SINGLE).is_file() || folder.join(INDEX).is_file();
    let inner = INNER.iter().map(|inner| dir.join(inner)).find(|folder| has_weights(folder));
    if let Some(folder) = inner {
        return format!("{} holds them; name that folder", folder.display());
    }
    let known = KNOWN.iter().find_map(|(is, words)| Some((names.iter().find(|name| is(name))?, words)));
    match known {
        Some((name, words)) => format!("{name} {words}"),
        None => "weights in another format are converted by transformers' save_pretrained".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_nothing_and_a_shard_that_is_missing_are_named_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        for (map, words) in [
            ("{}", "`weight_map` names no tensor; download the index again"),
            (
                r#"{"a": "model-1-of-3.safetensors", "b": "model-2-of-3.safetensors", "c": "model-3-of-3.safetensors"}"#,
                "names model-2-of-3.safetensors and 1 more, which are not there (1 of its 3 files are); download them \
                 again",
            ),
            (
                r#"{"a": "model-1-of-3.safetensors", "b": "model-2-of-3.safetensors"}"#,
                "names model-2-of-3.safetensors, which is not there (1 of its 2 files are); download it again",
            ),
        ] {
            fs::write(dir.path().join("model-1-of-3.safetensors"), "").unwrap();
            fs::write(dir.path().join(INDEX), format!(r#"{{"weight_map": {map}}}"#)).unwrap();
            let error = weight_files(dir.path()).unwrap_err().to_string();
            assert!(error.contains(INDEX) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_lies_in_the_place_of_weights_is_named_with_the_way_out() {
        for (name, words) in [
            ("model-00001-of-00002.safetensors", "the index that says what is where is missing"),
            ("consolidated.00.pth", "publisher's own format"),
            ("consolidated.safetensors", "publisher's own format"),
            ("adapter_model.safetensors", "without its adapter_config.json"),
            ("weights.safetensors", "call it model.safetensors"),
            ("model-q4_k_m.gguf", "is GGUF"),
            ("__0_0.distcp", "accelerate merge-weights"),
            ("zero_to_fp32.py", "DeepSpeed"),
            ("model_world_size_8_rank_0.pt", "verl.model_merger"),
            ("global_step_100", "verl.model_merger"),
            ("global_step100", "DeepSpeed"),
            ("latest_checkpointed_iteration.txt", "verl.model_merger"),
            ("iter_0000100", "Megatron"),
            ("mp_rank_00", "Megatron"),
            ("_actor", "OpenRLHF"),
            ("pytorch_model.bin", "save_pretrained converts it"),
            ("pytorch_model-00001-of-00002.bin", "save_pretrained converts it"),
            ("tf_model.h5", "save_pretrained converts it"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for file in ["config.json", "tokenizer.json", name] {
                fs::write(dir.path().join(file), "").unwrap();
            }
            let error = weight_files(dir.path()).unwrap_err().to_string();
            let begin = format!("no {SINGLE} and no {INDEX}; {name} ");
            assert!(error.contains(&begin) && error.contains(words), "{error}");
        }
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir_all(outer.path().join("actor/huggingface")).unwrap();
        fs::write(outer.path().join("actor/huggingface").join(SINGLE), "").unwrap();
        let error = weight_files(outer.path()).unwrap_err().to_string();
        assert!(error.contains("actor/huggingface holds them; name that folder"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(weight_files(empty.path()).unwrap_err().to_string().contains("converted by transformers'"));
    }
}
