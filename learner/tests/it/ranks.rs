//! Several ranks make the step that one makes, for any method.

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use learner::{
    LearnerError,
    ranks::{Gloo, Meeting, Ranks},
    step::{StepBatch, TrainedStep, Trainer, record},
};
use proptest::prelude::*;
use shared::{
    PolicyVersion, RolloutGroup,
    config::{Choice, LossType, TrainConfig},
};
use tch::{Kind, Tensor};

use crate::invariance::{Options, config, distance, groups, options, step, trainer};

/// Ranks that are threads of the test.
#[derive(Debug)]
struct Threads {
    rank: usize,
    count: usize,
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    barrier: Barrier,
    values: Mutex<Vec<Vec<f64>>>,
}

impl Threads {
    fn all(count: usize) -> Vec<Self> {
        let table = Arc::new(Table { barrier: Barrier::new(count), values: Mutex::new(vec![Vec::new(); count]) });
        (0..count).map(|rank| Self { rank, count, table: Arc::clone(&table) }).collect()
    }
}

impl Ranks for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), LearnerError> {
        self.table.values.lock().unwrap()[self.rank] = values.to_vec();
        self.table.barrier.wait();
        let all = self.table.values.lock().unwrap().clone();
        self.table.barrier.wait();
        for (at, value) in values.iter_mut().enumerate() {
            assert!(all.iter().all(|of_rank| of_rank.len() > at), "all ranks add up the same");
            *value = all.iter().map(|of_rank| of_rank[at]).sum();
        }
        Ok(())
    }

    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError> {
        let mut host = Vec::<f64>::try_from(&values.to_kind(Kind::Double)).unwrap();
        self.sum(&mut host)?;
        values.shallow_clone().copy_(&Tensor::from_slice(&host));
        Ok(())
    }
}

/// One step by several ranks.
fn by_ranks(count: usize, config: &TrainConfig, groups: &[RolloutGroup], kind: Kind) -> Vec<(Trainer, TrainedStep)> {
    let of_rank = |ranks: Threads| {
        let mut trainer = trainer(config, kind).with_ranks(Arc::new(ranks));
        let stats = trainer.step(&StepBatch::new(groups, config, PolicyVersion(3)), 3).unwrap();
        (trainer, stats)
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = Threads::all(count).into_iter().map(|ranks| scope.spawn(|| of_rank(ranks))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// All ranks have the same weights bit for bit, and those, the gradient and every figure of the record are those of one
/// rank.
fn compare(count: usize, config: &TrainConfig) {
    let groups = groups(config, config.seed);
    let (one, of_one) = step(config, &groups, Kind::Double);
    let ranks = by_ranks(count, config, &groups, Kind::Double);
    let (first, of_first) = &ranks[0];
    for (other, _) in &ranks[1..] {
        assert!(other.policy().parameters().flat().equal(first.policy().parameters().flat()), "ranks have moved apart");
    }
    let found = distance(first, &one, f64::MIN_POSITIVE);
    assert!(found < 1e-9, "{count} ranks: gradients differ by {found}");
    let weights = first.policy().parameters().flat() - one.policy().parameters().flat();
    assert!(weights.abs().max().double_value(&[]) < 1e-9);
    let batch = StepBatch::new(&groups, config, PolicyVersion(3));
    let told = |step: &TrainedStep| {
        let mut figures = record(&batch, &step.inputs, &step.metrics).values().clone();
        figures.retain(|key, _| !key.starts_with("perf/"));
        figures
    };
    let (a, b) = (told(of_first), told(&of_one));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (key, value) in &b {
        match (a[key].as_f64(), value.as_f64()) {
            (Some(x), Some(y)) => assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{key}: {x} is not {y}"),
            _ => assert_eq!(&a[key], value, "{key}"),
        }
    }
}

#[test]
fn two_and_four_ranks_make_the_step_of_one_for_every_loss() {
    for loss_type in LossType::ALL.iter().copied() {
        // Of four ranks at least one has nothing to do: there are three groups.
        for count in [2, 4] {
            compare(count, &TrainConfig { loss_type, beta: 0.05, ..config() });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn ranks_change_nothing(Options(config) in options(), count in 2usize..5, budget in 1u32..120, num_iterations in 1u32..3) {
        compare(count, &TrainConfig { micro_batch_tokens: Some(budget), num_iterations, ..config });
    }
}

/// In float32 the gradient of every tensor is that of one rank up to rounding.
#[test]
fn two_ranks_make_the_gradient_of_one_in_single_precision() {
    for loss_type in LossType::ALL.iter().copied() {
        // One update: a second would begin with weights that rounding has moved apart.
        let config = TrainConfig { loss_type, num_iterations: 1, gradient_accumulation_steps: 4, ..config() };
        let groups = groups(&config, 3);
        let (one, _) = step(&config, &groups, Kind::Float);
        let ranks = by_ranks(2, &config, &groups, Kind::Float);
        let found = distance(&ranks[0].0, &one, 1e-3);
        assert!(found < 1e-5, "{loss_type:?}: gradients differ by {found}");
    }
}

/// Says to [`one_of_several_processes`] which rank it is, of how many, and in which directory they meet.
const PROCESS: &str = "TANDEM_TEST_RANK";

fn process_config() -> TrainConfig {
    TrainConfig { beta: 0.05, ..config() }
}

/// Starts this test program again, as one of several ranks.
fn process(rank: usize, count: usize, dir: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "ranks::one_of_several_processes", "--nocapture"]);
    command.env(PROCESS, format!("{rank} {count} {}", dir.display()));
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a process does that [`process`] started; nothing without one.
#[test]
fn one_of_several_processes() {
    let Ok(place) = env::var(PROCESS) else { return };
    let [rank, count, dir] = place.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let (rank, count, dir) = (rank.parse().unwrap(), count.parse().unwrap(), Path::new(dir));
    let config = process_config();
    let mut trainer = trainer(&config, Kind::Double);
    let groups = groups(&config, 3);
    let ranks = Gloo::join(&Meeting::File(dir.join("meeting")), rank, count, Duration::from_secs(30)).unwrap();
    if dir.join(format!("rank-{rank}-ends")).exists() {
        std::process::abort();
    }
    trainer = trainer.with_ranks(Arc::new(ranks));
    match trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3) {
        Ok(_) => {
            let weights = Vec::<f64>::try_from(trainer.policy().parameters().flat()).unwrap();
            let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
            fs::write(dir.join(format!("weights-{rank}")), bytes).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn two_and_four_processes_have_the_weights_of_one() {
    let config = process_config();
    let (one, _) = step(&config, &groups(&config, 3), Kind::Double);
    let one = Vec::<f64>::try_from(one.policy().parameters().flat()).unwrap();
    let run = |count: usize| {
        let dir = tempfile::tempdir().unwrap();
        let processes: Vec<Child> = (0..count).map(|rank| process(rank, count, dir.path())).collect();
        for process in processes {
            let output = process.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let weights = |rank: usize| fs::read(dir.path().join(format!("weights-{rank}"))).unwrap();
        (1..count).for_each(|rank| assert!(weights(rank) == weights(0), "rank {rank} of {count} has moved apart"));
        weights(0)
    };
    for count in [2, 4] {
        let found = run(count);
        assert_eq!(found.len(), 8 * one.len());
        let found = found.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
        let apart = found.zip(&one).map(|(found, one)| (found - one).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-9, "{count} processes: {apart}");
    }
    assert!(run(2) == run(2), "the same ranks repeat byte for byte");
}

#[test]
fn a_rank_that_ends_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rank-1-ends"), "").unwrap();
    let begin = Instant::now();
    let processes: Vec<Child> = (0..3).map(|rank| process(rank, 3, dir.path())).collect();
    for (rank, process) in processes.into_iter().enumerate() {
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        // Another that was busy when the first gave up may be named beside it.
        let named = said.split_once("no sign of life within 5 s of rank ").and_then(|(_, rest)| rest.split_once(" ("));
        let named = named.is_some_and(|(ranks, _)| ranks.split(", ").any(|rank| rank == "1"));
        assert!(rank == 1 || named, "rank {rank}: {said}");
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}
