//! Disk space that a run will take.

use std::{fmt, fs, io, path::Path};

use shared::{
    ModelConfig,
    config::TrainConfig,
    files::atomic,
    run::memory_plan::{VersionRoom, adapter_numbers},
    system::memory::Size,
};

/// Bytes of a stored number.
const FLOAT: u64 = 4;
/// AdamW's moments of a parameter.
const MOMENTS: u64 = 2;
/// Logs of both processes, with their older parts.
const LOGS: u64 = 2 * 4 * (16 << 20);

/// Bytes of a run on disk, at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPlan {
    /// One checkpoint: model, export, and the optimiser states.
    checkpoint: u64,
    /// Checkpoints that exist at the same time.
    checkpoints: u64,
    /// One step of `save_step_batches`.
    batch: u64,
    /// Steps that `save_step_batches` keeps.
    batches: u64,
    /// Published versions, unless they lie in shared memory.
    versions: u64,
    /// Completions, journals and events; none if they are not bounded.
    records: Option<u64>,
    /// Bytes that are free on the file system, with those that the run has already.
    free: Option<u64>,
    /// Bytes that the run has already.
    own: u64,
}

impl DiskPlan {
    /// The plan of a run with its policy and, if it has one, its critic.
    pub fn new(
        config: &TrainConfig,
        model: &ModelConfig,
        critic: Option<&ModelConfig>,
        in_shared_memory: bool,
    ) -> Self {
        let room = VersionRoom::of(config, model);
        let trained = if config.use_peft { adapter_numbers(config, model) } else { model.parameter_count() };
        let moved_reference = if config.sync_ref_model && config.beta != 0.0 { trained } else { 0 };
        let critic =
            critic.filter(|_| config.advantage_estimator.spec().critic).map_or(0, ModelConfig::parameter_count);
        let state = FLOAT * (trained * (1 + MOMENTS) + moved_reference + critic * (1 + MOMENTS));
        let steps = config.max_steps.unwrap_or(0);
        // The last step always has one, and the oldest is removed only when the newest is complete. The best one stays
        // beside the newest.
        let made = steps.div_ceil(config.save_steps.max(1));
        let least = if config.metric_for_best_model.is_some() { 2 } else { 1 };
        let checkpoints = config.save_total_limit.map_or(made, |limit| made.min(u64::from(limit.max(least)) + 1));
        let own = size(&config.output_dir);
        let records = (config.records_size_limit * f64::from(1 << 30)) as u64;
        Self {
            checkpoint: state + room.version_bytes,
            checkpoints,
            batch: state,
            batches: if config.save_step_batches { steps } else { 0 },
            versions: if in_shared_memory { 0 } else { room.bytes() },
            records: (records > 0).then_some(records),
            free: free_space(&config.output_dir).ok().map(|free| free.saturating_add(own)),
            own,
        }
    }

    /// All of it, without records that are not bounded.
    fn total(&self) -> u64 {
        let [checkpoints, batches] =
            [(self.checkpoint, self.checkpoints), (self.batch, self.batches)].map(|(bytes, n)| bytes.saturating_mul(n));
        [checkpoints, batches, self.versions, self.records.unwrap_or(0), LOGS].into_iter().fold(0, u64::saturating_add)
    }

    /// A warning that it is more than the free space, with the ways out.
    pub fn warning(&self) -> Option<String> {
        let free = self.free.filter(|free| self.total() > *free)?;
        Some(format!(
            "the run may take {} of the disk, which has {} {}: set `save_total_limit`, raise `save_steps`, or choose \
             another `output_dir`; when a checkpoint does not fit, what is oldest goes",
            Size(self.total()),
            Size(free),
            self.whose()
        ))
    }

    /// Words for `free`, which counts bytes that the run has already.
    fn whose(&self) -> &'static str {
        if self.own > 0 { "free or taken by the run already" } else { "free" }
    }
}

/// Bytes of the files below a folder, links not followed; 0 if it does not exist.
fn size(folder: &Path) -> u64 {
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    fs::read_dir(folder).into_iter().flatten().flatten().map(of).sum()
}

fn free_space(output_dir: &Path) -> io::Result<u64> {
    let output_dir = std::path::absolute(output_dir)?;
    atomic::free_space(output_dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")))
}

/// `disk: up to 5.20 GiB of 40.00 GiB free: 3 checkpoints of 1.20 GiB, …`.
impl fmt::Display for DiskPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = |n: u64, what: &str, bytes: u64| (n > 0).then(|| format!("{n} {what} of {}", Size(bytes)));
        let parts = [
            several(
                self.checkpoints,
                if self.checkpoints == 1 { "checkpoint" } else { "checkpoints" },
                self.checkpoint,
            ),
            several(self.batches, "kept steps (`save_step_batches`)", self.batch),
            (self.versions > 0).then(|| format!("published versions {}", Size(self.versions))),
            Some(self.records.map_or_else(
                || "records without a bound (`records_size_limit` 0)".to_owned(),
                |records| format!("records up to {} (`records_size_limit`)", Size(records)),
            )),
            Some(format!("logs up to {}", Size(LOGS))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let free = self.free.map_or_else(String::new, |free| format!(" of {} {}", Size(free), self.whose()));
        write!(f, "disk: up to {}{free}: {}", Size(self.total()), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use shared::ModelDir;

    use super::*;

    fn plan(config: &TrainConfig, in_shared_memory: bool) -> (DiskPlan, ModelConfig) {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap().config().clone();
        (DiskPlan::new(config, &model, None, in_shared_memory), model)
    }

    #[test]
    fn checkpoints_are_counted_with_their_optimiser_and_export_as_often_as_they_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let config = TrainConfig {
            output_dir: dir.path().join("to/come"),
            max_steps: Some(10),
            save_steps: 4,
            save_total_limit: Some(1),
            ..TrainConfig::default()
        };
        let (one, model) = plan(&config, true);
        let weights = 4 * model.parameter_count();
        let export = VersionRoom::of(&config, &model).version_bytes;
        assert_eq!((one.checkpoint, one.checkpoints), (3 * weights + export, 2), "the next is written before one goes");
        assert_eq!((one.versions, one.records, one.batches), (0, Some(1 << 30), 0));
        assert!(one.free.is_some_and(|free| free > 0));
        let best = TrainConfig { metric_for_best_model: Some("eval_reward".into()), ..config.clone() };
        assert_eq!(plan(&best, true).0.checkpoints, 3, "the best one stays too");
        let all =
            TrainConfig { save_total_limit: None, save_step_batches: true, records_size_limit: 0.0, ..config.clone() };
        let (all, _) = plan(&all, false);
        assert_eq!((all.checkpoints, all.batches, all.batch), (3, 10, 3 * weights), "after steps 4, 8 and 10");
        assert_eq!(all.versions, 2 * export);
        let text = all.to_string();
        for words in
            ["disk: up to ", " free: ", "3 checkpoints of ", "10 kept steps", "published versions", "without a bound"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let adapter = TrainConfig { use_peft: true, ..config };
        let numbers = adapter_numbers(&adapter, &model);
        assert_eq!(plan(&adapter, true).0.checkpoint, 3 * 4 * numbers + 4 * numbers);
    }

    /// A resumed run writes over its files: its checkpoints make room for the next ones.
    #[test]
    fn what_a_run_has_already_is_room_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let config = TrainConfig { output_dir: run.clone(), max_steps: Some(10), ..TrainConfig::default() };
        assert_eq!(plan(&config, true).0.own, 0);
        fs::create_dir_all(run.join("checkpoint-3/critic")).unwrap();
        fs::write(run.join("checkpoint-3/critic/optimizer.safetensors"), [0; 3000]).unwrap();
        fs::write(run.join("metrics.jsonl"), [0; 40]).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", run.join("link")).unwrap();
        let link = fs::symlink_metadata(run.join("link")).unwrap().len();
        let (plan, _) = plan(&config, true);
        assert_eq!(plan.own, 3040 + link);
        let more = DiskPlan { free: Some(plan.total()), ..plan.clone() };
        assert_eq!(more.warning(), None);
        let less = DiskPlan { free: Some(plan.total() - 1), ..plan };
        assert!(less.warning().unwrap().contains(" free or taken by the run already: "), "{less}");
        assert!(less.to_string().contains(" free or taken by the run already: "), "{less}");
    }

    #[test]
    fn more_than_there_is_free_is_a_warning_with_the_ways_out() {
        let (plan, _) = plan(&TrainConfig { max_steps: Some(10), ..TrainConfig::default() }, true);
        let short = DiskPlan { free: Some(1 << 20), ..plan.clone() };
        let warning = short.warning().unwrap();
        assert!(warning.contains("1.0 MiB free") && warning.contains("`save_total_limit`"), "{warning}");
        assert_eq!(DiskPlan { free: Some(u64::MAX), ..plan.clone() }.warning(), None);
        assert_eq!(DiskPlan { free: None, ..plan }.warning(), None, "what is unknown is no reason");
    }
}
