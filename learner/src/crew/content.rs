//! Whether all ranks have the model of the first, each in a folder of its own.

use std::{fs, path::Path};

use shared::config::TrainConfig;

use crate::{error::LearnerError, ranks::Ranks};

/// Compares the model directories of the ranks; all ranks must call it. Weights that a checkpoint holds come from the
/// first rank in any case; weights that never change (a reference, the base of an adapter) do not.
///
/// # Errors
/// On a rank with another model, what is wrong; on the others, the number of that rank.
pub(super) fn agree_on_model(ranks: &dyn Ranks, config: &TrainConfig) -> Result<(), LearnerError> {
    let folders = [Some(&config.model), config.critic_model.as_ref()];
    let found: Result<Vec<String>, String> = folders.into_iter().flatten().map(|folder| hash(folder)).collect();
    let own = found.as_ref().map(|hashes| hashes.join("\n")).unwrap_or_default();
    let first = ranks.bytes_of_first(own.clone().into_bytes())?;
    let differs = found.is_err() || own.as_bytes() != first;
    let mut different = vec![0.0; ranks.count()];
    different[ranks.rank()] = f64::from(u8::from(differs));
    ranks.sum(&mut different)?;
    let way_out = "copy it from there, or name its folder with --model (--critic-model)";
    if let Err(why) = found {
        return Err(LearnerError::Config(format!("the model of the run cannot be read here: {why}; {way_out}")));
    }
    if differs {
        let folder = config.model.display();
        return Err(LearnerError::Config(format!("{folder} is not the model that the first rank has; {way_out}")));
    }
    let others: Vec<String> =
        (0..ranks.count()).filter(|&rank| different[rank] != 0.0).map(|rank| rank.to_string()).collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(LearnerError::Config(format!(
        "rank {} of the learner has not the model of this one; {way_out}",
        others.join(", ")
    )))
}

/// The hash of a model's weights and configuration.
fn hash(folder: &Path) -> Result<String, String> {
    let unread = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut files: Vec<_> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>())
        .map_err(|e| unread(folder, e))?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        path.extension().is_some_and(|ending| ending == "safetensors") || name == "config.json"
    });
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for path in &files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes()).update(b"\0");
        fs::File::open(path).and_then(|file| hasher.update_reader(file).map(drop)).map_err(|e| unread(path, e))?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}
