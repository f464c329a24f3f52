//! The learner's half of the pair, joined to a sampler thread through memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use exporters::ExportOptions;
use harness::memory;
use learner::{
    LearnerError,
    batch::Sequence,
    checkpoint::open_trainer,
    model::{LoadOptions, load},
    pair::{Outcome, run},
    publish::{NewVersion, Publisher},
    step::evaluate,
};
use shared::{
    Canaries, Dtype, ModelDir, PolicyVersion, RunDir, WeightManifest, WeightSender,
    channel::{LearnerStatus, RunId},
    config::{AdvantageEstimator, Choice, ImportanceSamplingMode, LossType, TrainConfig},
    metrics::{self, catalogue},
    run::notices::{self, Notice, NoticeKind, NoticesFile},
};
use tch::Device;

use crate::support::{self, Manners};

pub(crate) struct Folder {
    root: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("prompts.jsonl"), "{\"prompt\": \"x\"}\n".repeat(10)).unwrap();
        tch::set_num_threads(1);
        Self { root }
    }

    pub(crate) fn config(&self) -> TrainConfig {
        support::config(self.root.path().join("prompts.jsonl"))
    }

    pub(crate) fn run_dir(&self, name: &str) -> RunDir {
        RunDir::new(self.root.path().join(name))
    }
}

pub(crate) fn train(run_dir: &RunDir, config: &TrainConfig, manners: Manners) -> LearnerStatus {
    let (sampler, learner) = memory::pair(4);
    let sampler = support::sampler(sampler, config.clone(), manners);
    let outcome = run((run_dir, RunId::NONE), config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    sampler.join().unwrap()
}

/// Every file of a checkpoint with its bytes, those of its folders included.
fn content(checkpoint: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut entries: Vec<PathBuf> = fs::read_dir(checkpoint).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    let of = |path: PathBuf| {
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            content(&path).into_iter().map(|(file, bytes)| (name.join(file), bytes)).collect()
        } else {
            vec![(name, fs::read(path).unwrap())]
        }
    };
    entries.into_iter().flat_map(of).collect()
}

pub(crate) fn assert_same_checkpoint(a: &RunDir, b: &RunDir, step: u64) {
    let (a, b) = (content(&a.checkpoint(step)), content(&b.checkpoint(step)));
    assert!(a.len() >= 6, "a checkpoint has more files than {}", a.len());
    for (left, right) in a.iter().zip(&b) {
        assert_eq!(left.0, right.0);
        assert!(left.1 == right.1, "{} differs", left.0.display());
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn a_run_repeated_gives_the_same_bytes_whatever_order_groups_come_in() {
    let folder = Folder::new();
    let config = folder.config();
    let (tidy, again, untidy) = (folder.run_dir("tidy"), folder.run_dir("again"), folder.run_dir("untidy"));
    let last = train(&tidy, &config, Manners::default());
    assert!(last.finished);
    assert_eq!((last.version.0, last.durable_step.0, last.cursor), (6, 6, 18));
    train(&again, &config, Manners::default());
    train(&untidy, &config, Manners { untidy: true, ..Manners::default() });
    assert_eq!(tidy.checkpoints().unwrap(), [2, 4, 6]);
    for step in [2, 4, 6] {
        assert_same_checkpoint(&tidy, &again, step);
        assert_same_checkpoint(&tidy, &untidy, step);
    }
    let start = fs::read(support::model().join("model.safetensors")).unwrap();
    assert_ne!(start, fs::read(tidy.checkpoint(6).join("model.safetensors")).unwrap());
}

#[test]
fn more_positions_than_the_model_has_are_refused() {
    let folder = Folder::new();
    let config = TrainConfig { max_model_len: Some(300), peer_timeout: 1.0, ..folder.config() };
    let (_sampler, learner) = memory::pair(4);
    let error = run((&folder.run_dir("long"), RunId::NONE), &config, Device::Cpu, learner, &AtomicBool::new(false))
        .unwrap_err();
    assert!(error.to_string().contains("`max_model_len` 300 is above the model's limit of 256"), "{error}");
}

/// Another start may take the directory after this one was let in. The id with which this one was let in counts, not
/// the id that is found there.
#[test]
fn a_run_whose_directory_is_another_runs_by_now_makes_no_step() {
    let folder = Folder::new();
    let (config, run_dir) = (folder.config(), folder.run_dir("run"));
    run_dir.create().unwrap();
    RunId::from_number(9).leave(&run_dir).unwrap();
    let (sampler, learner) = memory::pair(4);
    let sampler = support::sampler(sampler, config.clone(), Manners::default());
    let own = (&run_dir, RunId::from_number(7));
    let error = run(own, &config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap_err();
    drop(sampler);
    assert!(matches!(error, LearnerError::Run(_)), "{error}");
    assert_eq!(run_dir.checkpoints().unwrap(), Vec::<u64>::new());
    assert_eq!(fs::read_to_string(run_dir.metrics()).unwrap(), "");
}

/// Stops a run and goes on with it, as every kind of model under training must allow.
fn stop_and_go_on(change: impl Fn(&mut TrainConfig)) {
    let folder = Folder::new();
    let mut config = TrainConfig {
        save_steps: 100,
        beta: 0.1,
        sync_ref_model: true,
        ref_model_sync_steps: 2,
        use_adaptive_entropy: true,
        entropy_coef: 0.01,
        entropy_target: 100.0,
        ..folder.config()
    };
    change(&mut config);
    config.validate().unwrap();
    let (whole, parts) = (folder.run_dir("whole"), folder.run_dir("parts"));
    train(&whole, &config, Manners::default());

    let (sampler, learner) = memory::pair(4);
    let sampler = support::sampler(sampler, config.clone(), Manners::default());
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (stop, metrics) = (Arc::clone(&stop), parts.metrics());
        thread::spawn(move || {
            while metrics::read(&metrics).map_or(0, |records| records.len()) < 3 {
                thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::Relaxed);
        })
    };
    let outcome = run((&parts, RunId::NONE), &config, Device::Cpu, learner, &stop).unwrap();
    watcher.join().unwrap();
    assert!(sampler.join().unwrap().finished, "the sampler is told of the end");
    assert_eq!(outcome, Outcome::Stopped);
    let stopped_at = *parts.checkpoints().unwrap().last().unwrap();
    assert!((3..6).contains(&stopped_at), "stopped after step {stopped_at}");
    // What a killed process leaves behind: a version that no checkpoint knows, a record of it, half a file.
    let future = parts.version(PolicyVersion(stopped_at + 1));
    fs::create_dir_all(&future).unwrap();
    fs::write(parts.weights().join(".tmp-1-v000009"), "half").unwrap();
    let record = format!("{{\"step\": {}, \"reward\": 9.0}}\n{{\"st", stopped_at + 1);
    let mut log = fs::read(parts.metrics()).unwrap();
    log.extend(record.as_bytes());
    fs::write(parts.metrics(), log).unwrap();
    let mut notices = NoticesFile::open(&parts.notices(), stopped_at).unwrap();
    notices.add(Notice::new(NoticeKind::EntropyGone, stopped_at + 1, "lost", "lost")).unwrap();

    train(&parts, &config, Manners::default());
    assert_same_checkpoint(&whole, &parts, 6);
    let told = |run: &RunDir| fs::read_to_string(run.notices()).unwrap();
    assert_eq!(told(&parts), told(&whole));
    assert!(told(&whole).contains("mismatch"), "the sampler's log-probs are made up");
    assert!(content(&parts.checkpoint(6)).iter().any(|(file, _)| file.starts_with("reference")));
    assert!(!parts.weights().join(".tmp-1-v000009").exists());
    let steps: Vec<f64> =
        metrics::read(&parts.metrics()).unwrap().iter().map(|r| r.get(metrics::STEP).unwrap()).collect();
    assert_eq!(steps, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn a_stopped_run_goes_on_to_the_same_bytes() {
    stop_and_go_on(|_| ());
}

#[test]
fn a_stopped_run_in_bfloat16_goes_on_to_the_same_bytes() {
    stop_and_go_on(|config| config.bf16 = true);
}

#[test]
fn a_stopped_run_of_an_adapter_goes_on_to_the_same_bytes() {
    stop_and_go_on(|config| (config.use_peft, config.ref_model_mixup_alpha) = (true, 1.0));
}

#[test]
fn versions_and_checkpoints_of_an_adapter_are_peft_directories_with_what_was_trained() {
    let folder = Folder::new();
    let config = TrainConfig { use_peft: true, bf16: true, ..folder.config() };
    let run_dir = folder.run_dir("adapter");
    train(&run_dir, &config, Manners::default());
    let (trainer, _) =
        open_trainer(&config, &ModelDir::open(&config.model).unwrap(), Some(&run_dir.checkpoint(6)), Device::Cpu)
            .unwrap();
    let weights = trainer.policy().model().weights();
    let version = run_dir.version(PolicyVersion(6));
    let parameters = || ModelDir::open(&config.model).unwrap().config().parameters();
    let open = |dir: &Path| exporters::Adapter::open(dir, parameters()).unwrap();
    let (read, saved) = (open(&version), open(&run_dir.checkpoint(6)));
    assert!(read.config().base_blake3.is_some() && read.config() == saved.config());
    let (config, rounded) = weights.adapter().unwrap();
    for (module, _) in config.modules(parameters()).unwrap() {
        let [a, b] = exporters::AdapterConfig::tensor_names(&module);
        let found = read.update(&format!("{module}.weight")).unwrap();
        assert_eq!(found.a(), rounded.read_f32(&a).unwrap(), "a version is what passes compute with");
        assert_eq!(found.b(), rounded.read_f32(&b).unwrap());
        let saved = saved.update(&format!("{module}.weight")).unwrap();
        assert_eq!(saved.b(), weights.trained().read_f32(&b).unwrap());
        assert_ne!(saved.b(), found.b(), "a checkpoint is what the optimiser moves");
    }
    let size: u64 = fs::read_dir(&version).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    let base = fs::metadata(support::model().join("model.safetensors")).unwrap().len();
    assert!(size < base / 2, "a version has {size} bytes, the model {base}");
    // A run that trains a whole model cannot go on from it, and the other way round.
    let whole = TrainConfig { use_peft: false, ..folder.config() };
    let model = ModelDir::open(&whole.model).unwrap();
    let error = open_trainer(&whole, &model, Some(&run_dir.checkpoint(6)), Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("`use_peft`") && error.contains("checkpoint-6"), "{error}");
}

#[test]
fn versions_come_every_so_many_steps_and_a_run_goes_on_from_a_step_without_one() {
    let folder = Folder::new();
    let config =
        TrainConfig { publish_every: 2, max_staleness: 1, save_steps: 3, max_steps: Some(7), ..folder.config() };
    let run_dir = folder.run_dir("run");
    let pinned = Manners { pinned: Some(0), ..Manners::default() };
    let versions = || run_dir.versions().unwrap().iter().map(|v| v.0).collect::<Vec<u64>>();
    let last = train(&run_dir, &config, pinned);
    assert_eq!((last.version.0, last.step.0, versions()), (7, 7, vec![0, 2, 4, 6, 7]));
    for step in [3, 6, 7] {
        let version = exporters::VersionDir::open(&run_dir.checkpoint(step)).unwrap();
        assert!(version.manifest().version.0 == step && version.is_intact());
    }
    let whole = content(&run_dir.checkpoint(7));
    for step in [6, 7] {
        fs::remove_dir_all(run_dir.checkpoint(step)).unwrap();
    }
    train(&run_dir, &config, pinned);
    assert_eq!(versions(), [0, 2, 3, 4, 6, 7], "the version that the run goes on from is made");
    assert!(content(&run_dir.checkpoint(7)) == whole);
}

#[test]
fn a_version_that_was_damaged_is_written_again() {
    let folder = Folder::new();
    let (config, run_dir) = (folder.config(), folder.run_dir("run"));
    train(&run_dir, &config, Manners::default());
    let data = run_dir.version(PolicyVersion(6)).join("weights.data");
    let good = fs::read(&data).unwrap();
    let mut bad = good.clone();
    bad[100] ^= 1;
    fs::write(&data, bad).unwrap();
    train(&run_dir, &config, Manners::default());
    assert!(fs::read(&data).unwrap() == good);
}

#[test]
fn a_step_leaves_metrics_completions_versions_and_a_usable_checkpoint() {
    let folder = Folder::new();
    let config = TrainConfig { beta: 0.04, save_total_limit: Some(2), ..folder.config() };
    let run_dir = folder.run_dir("run");
    train(&run_dir, &config, Manners { pinned: Some(1), ..Manners::default() });

    let records = metrics::read(&run_dir.metrics()).unwrap();
    assert_eq!(records.len(), 6);
    let keys = "step total_steps epoch num_tokens loss grad_norm learning_rate reward reward_std \
                frac_reward_zero_std rewards/a/mean rewards/a/std rewards/b/mean rewards/b/std rewards/a/failed \
                completions/mean_length completions/min_length completions/max_length \
                completions/mean_terminated_length completions/min_terminated_length \
                completions/max_terminated_length completions/clipped_ratio entropy kl clip_ratio/low_mean \
                clip_ratio/low_min clip_ratio/high_mean clip_ratio/high_max clip_ratio/region_mean mismatch_kl \
                sampling/sampling_logp_difference/mean sampling/sampling_logp_difference/max step_time \
                perf/rollout_wait_s perf/fwd_bwd_s perf/old_logps_s perf/ref_logps_s perf/optimizer_s perf/publish_s \
                perf/gate_s rollout/gate_s rollout/swap_s sample/staleness_mean sample/staleness_max skipped_updates";
    for record in &records {
        for key in keys.split_whitespace() {
            assert!(record.values()[key].is_number(), "{key} is missing in {:?}", record.values());
        }
    }
    let last = records.last().unwrap();
    assert_eq!(last.get(metrics::EPOCH), Some(1.8));
    assert!(last.get(metrics::KL).unwrap() > 0.0, "the policy has moved away from its reference");
    let moved = records.iter().any(|r| r.get(metrics::CLIP_RATIO_REGION_MEAN).unwrap() > 0.0);
    assert!(moved, "with two iterations at this rate some token is clipped");

    let text = fs::read_to_string(run_dir.step_completions(6)).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 12);
    assert_eq!(rows[5]["sample"], 1);
    assert_eq!(rows[5]["version"], 5);
    assert!(rows[5]["rewards"]["a"].is_number() && rows[5]["advantage"].is_number());

    let versions: Vec<u64> = run_dir.versions().unwrap().iter().map(|v| v.0).collect();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6], "nothing from the mapped version on is removed, and nothing older stays");
    assert_eq!(run_dir.checkpoints().unwrap(), [4, 6]);

    let checkpoint = run_dir.checkpoint(6);
    let manifest = WeightManifest::read(&checkpoint).unwrap();
    assert_eq!(manifest.version, PolicyVersion(6));
    let model = ModelDir::open(&checkpoint).unwrap();
    let weights = exporters::Checkpoint::open(&model).unwrap();
    let version = exporters::VersionDir::open(&run_dir.version(PolicyVersion(6))).unwrap();
    for (name, _) in model.config().parameters() {
        assert_eq!(weights.read_f32(&name).unwrap(), version.read_f32(&name).unwrap(), "{name}");
    }
    // The checkpoint is its own export: nothing has to be made before a sampler opens it.
    let export = exporters::ensure_export(&model, &exporters::ExportOptions::default()).unwrap();
    assert_eq!(export.canonicalize().unwrap(), checkpoint.canonicalize().unwrap());
}

/// Runs that together have every option that a metric needs.
fn runs_of_every_method(usual: &TrainConfig) -> Vec<TrainConfig> {
    let of = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = usual.clone();
        change(&mut config);
        config
    };
    let mut runs: Vec<TrainConfig> =
        LossType::ALL.iter().map(|&loss| of(&|c| (c.loss_type, c.dro_beta) = (loss, Some(0.3)))).collect();
    runs.push(of(&|c| (c.beta, c.entropy_coef) = (0.04, 0.01)));
    runs.push(of(&|c| c.old_policy_kl_coef = 0.1));
    runs.push(of(&|c| (c.off_policy_mask_threshold, c.top_entropy_quantile) = (Some(0.5), 0.5)));
    runs.push(of(&|c| c.importance_sampling_mode = ImportanceSamplingMode::TokenMask));
    runs.push(of(&|c| (c.top_k, c.dynamic_sampling) = (8, true)));
    runs.push(of(&|c| {
        (c.advantage_estimator, c.use_kl_in_reward, c.beta) = (AdvantageEstimator::Gae, true, 0.1);
    }));
    for action in ["roll_back", "lower_learning_rate"] {
        runs.push(of(&|c| (c.guard, c.max_steps) = (vec![format!("mismatch={action}:above=0")], Some(2))));
    }
    runs
}

#[test]
fn every_metric_is_recorded_by_the_runs_that_have_it_and_no_other_is_recorded() {
    let folder = Folder::new();
    let usual = TrainConfig { max_steps: Some(1), save_steps: 1, ..folder.config() };
    let record = |name: &str, config: &TrainConfig| -> BTreeSet<&'static str> {
        let run_dir = folder.run_dir(name);
        train(&run_dir, config, Manners::default());
        let records = metrics::read(&run_dir.metrics()).unwrap();
        let declared = |key: &String| catalogue::find(key).unwrap_or_else(|| panic!("{key} is not declared")).key;
        records.last().unwrap().values().keys().map(declared).collect()
    };
    let of_training = || {
        let sections = catalogue::SECTIONS.iter().filter(|section| section.title != catalogue::EVALUATION.title);
        sections.flat_map(|section| section.metrics)
    };
    let mut recorded = record("usual", &usual);
    for metric in of_training().filter(|metric| metric.when.is_none()) {
        assert!(recorded.contains(metric.key), "{} is missing", metric.key);
    }
    for (index, config) in runs_of_every_method(&usual).iter().enumerate() {
        recorded.append(&mut record(&format!("method-{index}"), config));
    }
    // Metrics of experts are recorded by runs of such a model (`tests/tests/programs/families.rs`).
    // Metrics of workers are recorded by runs with workers (`tests/tests/programs/fleet.rs`), those that reward
    // functions log by runs with such functions (`tests/tests/programs/ui/columns.rs`), those of conversations by runs
    // with tools (`tests/tests/programs/agents.rs`), and those of endpoints by runs with an agent
    // (`tests/tests/programs/agent_endpoint.rs`).
    let elsewhere = |key: &str| {
        let begins = ["fleet/", "logged/", "tools/", "turns/", "environment/", "episode/", "endpoint/"];
        ["load_balancing_loss", "max_vio", "router_agreement"].contains(&key)
            || begins.iter().any(|begin| key.starts_with(begin))
    };
    for metric in of_training().filter(|metric| !elsewhere(metric.key)) {
        assert!(recorded.contains(metric.key), "no run records {}", metric.key);
    }
}

#[test]
fn a_silent_sampler_ends_the_run_with_a_clear_error() {
    let folder = Folder::new();
    let config = TrainConfig { peer_timeout: 0.3, ..folder.config() };
    let (sampler, learner) = memory::pair(4);
    drop(sampler);
    let failed =
        run((&folder.run_dir("run"), RunId::NONE), &config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap_err();
    let message = failed.to_string();
    assert!(message.contains("no sign of life") && message.contains("rollout.log"), "{message}");
}

#[test]
fn a_reward_that_fails_on_everything_ends_the_run_and_loses_no_step() {
    let folder = Folder::new();
    let manners = Manners { fails_from: Some(3), ..Manners::default() };
    let config = folder.config();
    let (sampler, learner) = memory::pair(4);
    let _sampler = support::sampler(sampler, config.clone(), manners);
    let run_dir = folder.run_dir("run");
    let failed = run((&run_dir, RunId::NONE), &config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(failed, LearnerError::Reward(_)), "{failed}");
    let message = failed.to_string();
    for words in ["reward function `a` failed on all 12 completions of step 4", "Traceback: NameError;", "rollout.log"]
    {
        assert!(message.contains(words), "{words}: {message}");
    }
    assert_eq!(run_dir.checkpoints().unwrap(), [2, 3], "nothing is lost");
    assert_eq!(metrics::read(&run_dir.metrics()).unwrap().len(), 3);

    let lenient = TrainConfig { reward_failure_stops: false, ..config };
    train(&run_dir, &lenient, manners);
    let records = metrics::read(&run_dir.metrics()).unwrap();
    for (step, record) in records.iter().enumerate() {
        let failed = Some(if step < 3 { 0.0 } else { 12.0 });
        assert_eq!(record.get(metrics::REWARDS_FAILED.of("a")), failed);
        assert_eq!(record.get(metrics::SAMPLE_REWARD_FAILED), failed);
    }
}

#[test]
fn what_the_learner_cannot_do_is_refused() {
    let folder = Folder::new();
    for (config, word) in [
        (TrainConfig { max_steps: None, ..folder.config() }, "max_steps"),
        (TrainConfig { model: folder.root.path().join("nowhere"), ..folder.config() }, "nowhere"),
        (TrainConfig { resume_from_checkpoint: Some("nowhere".into()), ..folder.config() }, "nowhere"),
    ] {
        let (_sampler, learner) = memory::pair(4);
        let failed = run((&folder.run_dir("run"), RunId::NONE), &config, Device::Cpu, learner, &AtomicBool::new(false))
            .unwrap_err();
        assert!(!matches!(failed, LearnerError::Peer(_)));
        assert!(failed.to_string().contains(word), "{failed}");
    }
}

#[test]
fn a_refused_version_is_published_again_and_changes_nothing() {
    let folder = Folder::new();
    let config = folder.config();
    let (plain, refused) = (folder.run_dir("plain"), folder.run_dir("refused"));
    train(&plain, &config, Manners::default());
    let last = train(&refused, &config, Manners { refuses: Some((3, 2)), ..Manners::default() });
    assert_eq!((last.version.0, last.publication), (6, 2));
    assert_same_checkpoint(&plain, &refused, 6);
    let told = notices::read(&refused.notices()).unwrap();
    let told: Vec<_> =
        told.iter().filter(|n| n.kind == NoticeKind::VersionRefused).map(|n| (n.step, &n.text)).collect();
    let text = |count| format!("the sampler refused the weights v3 ({count} of 3 in a row): of the test's own making");
    assert_eq!(told, [(3, &text(1)), (3, &text(2))]);
}

#[test]
fn refusals_in_a_row_end_the_run_with_a_checkpoint_from_which_it_goes_on() {
    let folder = Folder::new();
    let config = TrainConfig { save_steps: 100, ..folder.config() };
    let (plain, refused) = (folder.run_dir("plain"), folder.run_dir("refused"));
    train(&plain, &config, Manners::default());
    let (sampler, learner) = memory::pair(4);
    let manners = Manners { refuses: Some((4, u64::MAX)), ..Manners::default() };
    let sampler = support::sampler(sampler, config.clone(), manners);
    let error = run((&refused, RunId::NONE), &config, Device::Cpu, learner, &AtomicBool::new(false)).unwrap_err();
    drop(sampler);
    assert!(matches!(error, LearnerError::Conformity(_)), "{error}");
    let words =
        ["refused 3 weights in a row (`max_refusals`)", "v4: of the test's own making", "--resume_from_checkpoint"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    assert_eq!(refused.checkpoints().unwrap(), [4]);
    train(&refused, &config, Manners::default());
    assert_same_checkpoint(&plain, &refused, 6);
}

#[test]
fn canaries_are_what_the_learner_says_of_a_version() {
    let folder = Folder::new();
    let pinned = Manners { pinned: Some(0), ..Manners::default() };
    for config in [folder.config(), TrainConfig { use_peft: true, ..folder.config() }] {
        let run_dir = folder.run_dir(&format!("run-{}", config.use_peft));
        train(&run_dir, &config, pinned);
        let canaries = |version| Canaries::read(&run_dir.version(PolicyVersion(version))).unwrap().unwrap();
        let longest = (0..3).map(|index| support::group(&config, 0, index, 0));
        let longest = longest.map(|group| {
            let completions = group.completions.iter().map(|completion| completion.token_ids().len());
            group.prompt_ids.len() + completions.max().unwrap()
        });
        assert_eq!(canaries(0).token_ids.len(), 9);
        assert_eq!(canaries(1).token_ids.len(), longest.max().unwrap(), "the first of a batch is a whole sequence");
        assert!((2..=6).all(|version| canaries(version).token_ids.len() <= 9));

        let model = ModelDir::open(&config.model).unwrap();
        let (trainer, _) = open_trainer(&config, &model, Some(&run_dir.checkpoint(6)), Device::Cpu).unwrap();
        let (policy, last) = (trainer.policy().model(), canaries(6));
        let (prompt, completion) = last.token_ids.split_at(last.token_ids.len() - last.scored());
        let sequence = [Sequence::new(prompt, completion)];
        let found = evaluate(policy, &sequence, &[0], 1.0, 64, Device::Cpu).unwrap();
        assert_eq!(found.logprobs[0], last.logprobs);
        let norms =
            policy.weights().trained().named().map(|(name, _)| {
                (name.to_owned(), exporters::norm(&policy.weights().trained().read_f32(name).unwrap()))
            });
        assert_eq!(norms.collect::<BTreeMap<_, _>>(), last.norms);
    }
    let run_dir = folder.run_dir("ungated");
    train(&run_dir, &TrainConfig { conformity_gate: false, ..folder.config() }, pinned);
    assert!(run_dir.versions().unwrap().iter().all(|v| Canaries::read(&run_dir.version(*v)).unwrap().is_none()));
}

/// After a resumption on another device the version on disk has the right weights and the wrong graph.
#[test]
fn a_version_is_written_again_when_the_graph_has_changed() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    run_dir.create().unwrap();
    let model = ModelDir::open(support::model()).unwrap();
    let policy = load(&model, LoadOptions::default()).unwrap();
    let version = PolicyVersion(3);
    let publisher = |dtype: Dtype| {
        Publisher::new(run_dir.clone(), model.clone(), ExportOptions { dtype, ..ExportOptions::default() }).unwrap()
    };
    publisher(Dtype::Fp32).publish(NewVersion { version, policy: &policy, canaries: None }).unwrap();
    let dtype_after = |dtype: Dtype| {
        publisher(dtype).rewind(version, &policy, None).unwrap();
        WeightManifest::read(&run_dir.version(version)).unwrap().tensor("model.embed_tokens.weight").unwrap().dtype
    };
    assert_eq!([dtype_after(Dtype::Fp32), dtype_after(Dtype::Fp16)], [Dtype::Fp32, Dtype::Fp16]);
}

/// This also holds with rounded weights, and with adapters, of which a checkpoint has no export.
#[test]
fn a_version_that_is_there_with_the_policys_values_is_not_written_again() {
    let folder = Folder::new();
    let config = folder.config();
    let model = ModelDir::open(&config.model).unwrap();
    for (name, config) in [
        ("fp32", config.clone()),
        ("bf16", TrainConfig { bf16: true, ..config.clone() }),
        ("lora", TrainConfig { use_peft: true, ..config }),
    ] {
        let run_dir = folder.run_dir(name);
        train(&run_dir, &config, Manners { pinned: Some(0), ..Manners::default() });
        let mut publisher = Publisher::new(run_dir.clone(), model.clone(), ExportOptions::default()).unwrap();
        let mut goes_back_to = |version: u64, step: u64| {
            let (trainer, _) = open_trainer(&config, &model, Some(&run_dir.checkpoint(step)), Device::Cpu).unwrap();
            let of = |dir: PathBuf| std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir).unwrap());
            let dir = run_dir.version(PolicyVersion(version));
            let before = of(dir.clone());
            publisher.rewind(PolicyVersion(version), trainer.policy().model(), None).unwrap();
            of(dir) == before
        };
        assert!(goes_back_to(6, 6), "{name}: it is there");
        assert!(goes_back_to(4, 4), "{name}: it is there");
        assert!(!goes_back_to(3, 2), "{name}: other values");
        assert!(goes_back_to(3, 2), "{name}: these were written now");
    }
}

/// Passes in bfloat16 compute with rounded weights, but training goes on from the unrounded ones: a checkpoint has the
/// unrounded weights in both forms.
#[test]
fn the_export_of_a_checkpoint_is_that_of_its_safetensors_in_bfloat16_too() {
    let folder = Folder::new();
    let run_dir = folder.run_dir("run");
    run_dir.create().unwrap();
    let model = ModelDir::open(support::model()).unwrap();
    let config = TrainConfig { bf16: true, ..support::config("unused.jsonl".into()) };
    let (trainer, state) = learner::checkpoint::open_trainer(&config, &model, None, Device::Cpu).unwrap();
    let publisher = Publisher::new(run_dir.clone(), model.clone(), ExportOptions::default()).unwrap();
    let checkpoint = run_dir.root().join("checkpoint-1");
    std::fs::create_dir(&checkpoint).unwrap();
    learner::checkpoint::fill(&checkpoint, &model, &trainer, &state).unwrap();
    publisher.fill(&checkpoint, PolicyVersion(1), trainer.policy().model().weights()).unwrap();
    let saved = ModelDir::open(&checkpoint).unwrap();
    assert_eq!(exporters::ensure_export(&saved, &ExportOptions::default()).unwrap(), checkpoint, "it is used as it is");
}
