//! Memory of the published versions of a run, and whether shared memory has room for it.

use std::{io, path::Path};

use super::adapter_numbers;
use crate::{
    ModelConfig,
    config::{TrainConfig, VersionStorage},
    files::atomic,
    system::memory::{self, SHARED_MEMORY},
};

/// Versions take at most one part in so many of the memory: the models that compute need the rest.
const SHARE: u64 = 4;
/// Rows of the rotary tables of an export, unless the model or `max_model_len` says otherwise.
const POSITIONS: usize = 32_768;

/// Memory of a run's versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRoom {
    /// Bytes of one version.
    pub version_bytes: u64,
    /// Most versions at the same time: the one that the sampler uses, later ones, and the one being written.
    pub versions: u64,
}

impl VersionRoom {
    /// The room for the versions of a model.
    #[must_use]
    pub fn of(config: &TrainConfig, model: &ModelConfig) -> Self {
        let positions = config.max_model_len.unwrap_or(POSITIONS).min(model.max_position_embeddings);
        let bytes = if config.use_peft {
            adapter_numbers(config, model) * size_of::<f32>() as u64
        } else {
            let entries: usize = model.rotaries().map(|rotary| model.rotary_entries(rotary)).sum();
            let constants = model.rotary_rows(positions) * entries + model.query_scaling.map_or(0, |_| positions);
            let values = model.parameter_count() + constants as u64;
            values * config.rollout_device.export_dtype().size() as u64
        };
        Self { version_bytes: bytes, versions: 2 + config.max_staleness / config.publish_every }
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.version_bytes.saturating_mul(self.versions)
    }

    /// Whether the versions lie in shared memory; the error says why not. There they take from the machine's memory.
    ///
    /// # Errors
    /// The obstacle, for the user.
    pub fn in_shared_memory(&self, storage: VersionStorage) -> Result<(), String> {
        self.fits(storage, Path::new(SHARED_MEMORY), memory::total())
    }

    fn fits(&self, storage: VersionStorage, folder: &Path, memory: io::Result<u64>) -> Result<(), String> {
        if storage == VersionStorage::Disk {
            return Err("`version_storage` is disk".into());
        }
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let needed = format!("{} versions take up to {}", self.versions, gib(self.bytes()));
        let free = atomic::free_space(folder).map_err(|e| e.to_string())?;
        if self.bytes() > free {
            return Err(format!("{needed}, and {} has {} free", folder.display(), gib(free)));
        }
        let memory = memory.map_err(|e| e.to_string())?;
        if self.bytes() > memory / SHARE {
            return Err(format!("{needed}, which is more than a quarter of the {} of memory", gib(memory)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn versions_go_to_shared_memory_where_they_fit_and_leave_room_for_the_models() {
        let folder = tempfile::tempdir().unwrap();
        let room = |version_bytes| VersionRoom { version_bytes, versions: 2 };
        let fits = |room: VersionRoom, storage, memory| room.fits(storage, folder.path(), Ok(memory));
        let auto = VersionStorage::Auto;
        assert_eq!(fits(room(1 << 20), auto, GIB), Ok(()));
        let error = fits(room(1 << 20), VersionStorage::Disk, GIB).unwrap_err();
        assert_eq!(error, "`version_storage` is disk");
        let error = fits(room(GIB / 4), auto, GIB).unwrap_err();
        assert_eq!(error, "2 versions take up to 0.5 GiB, which is more than a quarter of the 1.0 GiB of memory");
        let error = fits(room(u64::MAX), auto, u64::MAX).unwrap_err();
        assert!(error.starts_with("2 versions take up to") && error.ends_with("GiB free"), "{error}");
        let error = room(1).fits(auto, Path::new("/nowhere"), Ok(GIB)).unwrap_err();
        assert!(error.starts_with("/nowhere: "), "{error}");
    }

    #[test]
    fn versions_since_the_one_in_use_are_counted() {
        let of = |max_staleness, publish_every| {
            let config = TrainConfig { max_staleness, publish_every, ..TrainConfig::default() };
            let model = crate::ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
            (VersionRoom::of(&config, model.config()), model.config().clone())
        };
        assert_eq!([of(0, 1), of(1, 1), of(3, 2), of(3, 4)].map(|(room, _)| room.versions), [2, 3, 3, 2]);
        let (room, model) = of(0, 1);
        let tables = (model.max_position_embeddings * model.head_dim) as u64;
        assert_eq!(room.version_bytes, 4 * (model.parameter_count() + tables));
        let (r, layers) = (8, model.num_hidden_layers);
        let adapter = TrainConfig { use_peft: true, lora_r: r, ..TrainConfig::default() };
        let [hidden, inner] = [model.hidden_size, model.intermediate_size];
        let [q, kv] = [model.num_attention_heads, model.num_key_value_heads].map(|heads| heads * model.head_dim);
        // q, k, v, o, gate, up and down.
        let sides = 2 * (hidden + q) + 2 * (hidden + kv) + 3 * (hidden + inner);
        let values = r as usize * layers * sides;
        assert_eq!(VersionRoom::of(&adapter, &model).version_bytes, 4 * values as u64);
    }
}
