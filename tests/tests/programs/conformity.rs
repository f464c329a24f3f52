//! The conformity gate through the real programs: what is damaged on its way from the learner to the sampler is refused
//! and published again, and the run is the one that it would have been.

use std::{
    fs::{self, OpenOptions},
    ops::Deref,
    os::unix::fs::FileExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench,
    cli::{self, Finished},
    processes::{children, signal},
    training::json_lines,
};
use shared::{PolicyVersion, RunDir, WeightManifest, model::manifest::DATA_FILE};

const STEPS: u64 = 30;
const TENSOR: &str = "model.layers.0.mlp.down_proj.weight";
const STUCK: Duration = Duration::from_secs(300);

/// Where runs of one configuration are made.
struct Bench(bench::Bench);

impl Deref for Bench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.0
    }
}

impl Bench {
    /// With a learner that takes longer than the sampler: that is stopped while it waits for a version, most of the
    /// time.
    fn new() -> Self {
        Self(bench::Bench::new(&format!(
            "dataset = \"prompts.jsonl\"\nmax_steps = {STEPS}\nnum_generations = 4\ngeneration_batch_size = 16\n\
             per_device_train_batch_size = 4\nnum_iterations = 8\nmax_completion_length = 16\nlearning_rate = 1e-4\n\
             max_restarts = 4\n"
        )))
    }

    fn train(&self, run: &str, more: &[&str]) -> Finished {
        cli::finish(self.command(run, more))
    }

    fn weights(&self, run: &str) -> Vec<u8> {
        fs::read(self.path(run).join(format!("checkpoint-{STEPS}/weights.data"))).unwrap()
    }

    /// Notices of refusals.
    fn refusals(&self, run: &str) -> Vec<String> {
        let path = self.path(run).join("notices.jsonl");
        let told = if path.exists() { json_lines(&path) } else { Vec::new() };
        let refused = told.iter().filter(|notice| notice["kind"] == "version_refused");
        refused.map(|notice| notice["text"].as_str().unwrap().to_owned()).collect()
    }

    /// Stops the sampler of a run again and again until a version was damaged before it was loaded; the version.
    fn damage_a_version(&self, run: &str, launcher: u32) -> PolicyVersion {
        let (run_dir, begun) = (RunDir::new(self.path(run)), Instant::now());
        let wait = |ready: &dyn Fn() -> bool| {
            while !ready() {
                assert!(begun.elapsed() < STUCK, "{run} does not get on");
                thread::sleep(Duration::from_millis(2));
            }
        };
        let newest = || run_dir.versions().unwrap_or_default().last().copied().unwrap_or_default();
        wait(&|| newest().0 >= 2);
        let sampler = children(launcher, "rollout")[0];
        for attempt in 1.. {
            // Somewhere in the time that the learner takes for its part of the step. That hangs on the load of the
            // machine, and each attempt takes a step or more of the run.
            thread::sleep(Duration::from_millis(10).mul_f64(1.4_f64.powi(attempt)));
            let before = newest();
            signal(sampler, "STOP");
            // It publishes now, unless it is without the groups that it needs.
            let stopped = Instant::now();
            wait(&|| newest() > before || stopped.elapsed() > Duration::from_secs(1));
            let version = newest();
            if version > before {
                corrupt(&run_dir.version(version));
            }
            signal(sampler, "CONT");
            if version > before {
                return version;
            }
            wait(&|| newest() > before);
        }
        unreachable!("attempts do not end")
    }
}

/// Changes a byte in the middle of a tensor of a version, where it lies.
fn corrupt(dir: &Path) {
    let manifest = WeightManifest::read(dir).unwrap();
    let entry = manifest.tensor(TENSOR).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(dir.join(DATA_FILE)).unwrap();
    let (place, mut byte) = (entry.offset + entry.length / 2, [0]);
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
}

#[test]
fn a_version_that_was_damaged_on_its_way_is_published_again_and_the_run_is_the_same() {
    let bench = Bench::new();
    let _ = bench.train("undisturbed", &[]).success();
    assert_eq!(bench.refusals("undisturbed"), Vec::<String>::new());
    let mut run = bench.start("damaged", &[]);
    let version = bench.damage_a_version("damaged", run.id());
    assert!(run.wait().unwrap().success(), "{}", fs::read_to_string(bench.path("stderr")).unwrap());
    let told = bench.refusals("damaged");
    let expected = format!("the sampler refused the weights v{version} (1 of 3 in a row): bytes that are not those");
    assert!(told.len() == 1 && told[0].starts_with(&expected) && told[0].contains(TENSOR), "{told:?}");
    assert!(
        bench.weights("damaged") == bench.weights("undisturbed"),
        "the weights differ from those of the undisturbed run"
    );
    let log = fs::read_to_string(bench.path("damaged/logs/rollout.log")).unwrap();
    assert!(log.contains(&format!("weights v{version} are refused")), "{log}");

    // The end of patience is an end in order, after which the run goes on to the same weights.
    let mut run = bench.start("ended", &["--max_refusals", "1"]);
    let version = bench.damage_a_version("ended", run.id());
    assert!(!run.wait().unwrap().success());
    let said = fs::read_to_string(bench.path("stderr")).unwrap();
    assert!(said.contains(&format!("the last of v{version}: ")) && said.contains(TENSOR), "{said}");
    assert!(said.contains("`max_refusals`") && !said.contains("restarting the learner"), "{said}");
    assert!(bench.path("ended").join(format!("checkpoint-{}", version.0)).is_dir());
    let _ = bench.train("ended", &["--resume_from_checkpoint", "latest"]).success();
    assert!(bench.weights("ended") == bench.weights("undisturbed"));
}

#[test]
fn a_damaged_export_in_the_cache_is_made_again() {
    let bench = Bench::new();
    let adapter = ["--use_peft", "true", "--max_steps", "3"];
    let _ = bench.train("whole", &adapter).success();
    let exports = bench.path("cache/exports");
    let export = fs::read_dir(exports).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(export.join(DATA_FILE)).unwrap();
    corrupt(&export);
    let _ = bench.train("again", &adapter).success();
    let told = bench.refusals("again");
    assert!(told.len() == 1 && told[0].contains("its base ") && told[0].contains(TENSOR), "{told:?}");
    assert!(fs::read(export.join(DATA_FILE)).unwrap() == good);
    let trained = |run: &str| fs::read(bench.path(run).join("checkpoint-3/adapter_model.safetensors")).unwrap();
    assert!(trained("whole") == trained("again"));
}
