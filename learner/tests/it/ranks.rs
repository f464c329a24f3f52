//! Several ranks make the step that one makes, for any method.

use std::{
    env, fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use learner::{
    LearnerError,
    checkpoint::{self, TrainerState, open_rank},
    ranks::{self, BUCKET_BYTES, Gloo, Ranks, Signs, TorchStore},
    step::{StepBatch, TrainedStep, Trainer, record},
    trained::Among,
};
use proptest::prelude::*;
use shared::{
    ModelDir, Placed, PolicyVersion,
    config::{AdvantageEstimator, Choice, LossType, TrainConfig},
    metrics,
};
use tch::{Device, Kind, Tensor};

use crate::{
    invariance::{Options, config, distance_of, groups, options, step, trainer_among},
    support,
};

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

    /// The values of every rank.
    fn exchange(&self, values: Vec<f64>) -> Vec<Vec<f64>> {
        let length = values.len();
        self.table.values.lock().unwrap()[self.rank] = values;
        self.table.barrier.wait();
        let all = self.table.values.lock().unwrap().clone();
        self.table.barrier.wait();
        assert!(all.iter().all(|of_rank| of_rank.len() == length), "all ranks do the same");
        all
    }
}

fn host(values: &Tensor) -> Vec<f64> {
    Vec::try_from(&values.to_kind(Kind::Double)).unwrap()
}

fn put(values: &Tensor, found: &[f64]) {
    values.shallow_clone().copy_(&Tensor::from_slice(found));
}

impl Ranks for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn sum(&self, values: &mut [f64]) -> Result<(), LearnerError> {
        let all = self.exchange(values.to_vec());
        for (at, value) in values.iter_mut().enumerate() {
            *value = all.iter().map(|of_rank| of_rank[at]).sum();
        }
        Ok(())
    }

    fn sum_tensor(&self, values: &Tensor) -> Result<(), LearnerError> {
        let mut found = host(values);
        self.sum(&mut found)?;
        put(values, &found);
        Ok(())
    }

    fn sum_at(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError> {
        let mut found = host(values);
        self.sum(&mut found)?;
        // Nobody may use the values that the other ranks are left with.
        found.iter_mut().filter(|_| self.rank != owner).for_each(|value| *value = f64::NAN);
        put(values, &found);
        Ok(())
    }

    fn copy_of(&self, values: &Tensor, owner: usize) -> Result<(), LearnerError> {
        put(values, &self.exchange(host(values))[owner]);
        Ok(())
    }
}

/// Runs `deed` as each of several ranks.
fn on_ranks<T: Send>(count: usize, deed: impl Fn(Arc<dyn Ranks>) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let deed = &deed;
        let of_rank = |ranks: Threads| scope.spawn(move || deed(Arc::new(ranks)));
        let ranks: Vec<_> = Threads::all(count).into_iter().map(of_rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// One step by several ranks.
fn by_ranks(count: usize, config: &TrainConfig, groups: &[Placed], kind: Kind) -> Vec<(Trainer, TrainedStep)> {
    on_ranks(count, |ranks| {
        let mut trainer = trainer_among(config, kind, &Among { ranks, shards: config.shard_optimizer });
        let stats = trainer.step(&StepBatch::new(groups, config, PolicyVersion(3)), 3).unwrap();
        (trainer, stats)
    })
}

/// The gradient. With shards, each rank has its own part alone.
fn gradient(ranks: &[(Trainer, TrainedStep)], config: &TrainConfig) -> Tensor {
    if !config.shard_optimizer {
        return ranks[0].0.policy().gradients().flat().copy();
    }
    let own = |(trainer, _): &(Trainer, TrainedStep)| {
        let own = trainer.policy().own();
        trainer.policy().gradients().flat().narrow(0, own.start, own.end - own.start)
    };
    Tensor::cat(&ranks.iter().map(own).collect::<Vec<_>>(), 0)
}

fn critic(trainer: &Trainer) -> Option<&Tensor> {
    trainer.credit().critic().map(|critic| critic.trained().parameters().flat())
}

/// All ranks have the same weights, bit for bit. These weights, the gradient and every figure of the record are those
/// of one rank.
fn compare(count: usize, config: &TrainConfig) {
    let groups = groups(config, config.seed);
    let (one, of_one) = step(config, &groups, Kind::Double);
    let ranks = by_ranks(count, config, &groups, Kind::Double);
    let (first, of_first) = &ranks[0];
    for (other, _) in &ranks[1..] {
        assert!(other.policy().parameters().flat().equal(first.policy().parameters().flat()), "ranks have moved apart");
        assert!(critic(other).zip(critic(first)).is_none_or(|(other, first)| other.equal(first)), "critics, too");
    }
    let parameters = first.policy().parameters();
    let found = distance_of(parameters, &gradient(&ranks, config), one.policy().gradients().flat(), f64::MIN_POSITIVE);
    assert!(found < 1e-9, "{count} ranks: gradients differ by {found}");
    let apart = |of_ranks: &Tensor, of_one: &Tensor| (of_ranks - of_one).abs().max().double_value(&[]);
    assert!(apart(parameters.flat(), one.policy().parameters().flat()) < 1e-9);
    assert!(critic(first).zip(critic(&one)).is_none_or(|(first, one)| apart(first, one) < 1e-9));
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

/// Two and four ranks, with and without shards. With four, at least one has nothing to do: there are three groups.
const WAYS: [(usize, bool); 4] = [(2, false), (2, true), (4, false), (4, true)];

#[test]
fn two_and_four_ranks_make_the_step_of_one_for_every_loss() {
    for loss_type in LossType::ALL.iter().copied() {
        for (count, shard_optimizer) in WAYS {
            compare(count, &TrainConfig { loss_type, shard_optimizer, beta: 0.05, ..config() });
        }
    }
}

/// Not every loss, but all else that a step is made of.
#[test]
fn ranks_make_the_step_of_one_with_a_critic_an_adapter_and_truncated_sampling() {
    let base = TrainConfig { beta: 0.05, max_grad_norm: 0.1, weight_decay: 0.1, ..config() };
    let adapter = TrainConfig { use_peft: true, lora_r: 3, ..base.clone() };
    let gae = AdvantageEstimator::Gae;
    let critic = TrainConfig { advantage_estimator: gae, critic_learning_rate: 1e-3, ..base.clone() };
    let truncated = TrainConfig { top_p: 0.9, top_k: 40, temperature: 0.7, ..base.clone() };
    for config in [adapter, critic, truncated] {
        for (count, shard_optimizer) in WAYS {
            compare(count, &TrainConfig { shard_optimizer, ..config.clone() });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn ranks_change_nothing(
        Options(config) in options(),
        (count, shard_optimizer) in (2usize..5, any::<bool>()),
        budget in 1u32..120,
        num_iterations in 1u32..3,
    ) {
        compare(count, &TrainConfig { micro_batch_tokens: Some(budget), num_iterations, shard_optimizer, ..config });
    }
}

/// In float32, and with layers in bfloat16, the gradient of every tensor is that of one rank up to rounding.
#[test]
fn ranks_make_the_gradient_of_one_in_single_precision() {
    let compare = |config: &TrainConfig, kind: Kind, bound: f64| {
        let groups = groups(config, 3);
        let (one, _) = step(config, &groups, kind);
        for (count, shard_optimizer) in WAYS {
            let config = TrainConfig { shard_optimizer, ..config.clone() };
            let ranks = by_ranks(count, &config, &groups, kind);
            let (found, policy) = (gradient(&ranks, &config), one.policy());
            let apart = distance_of(policy.parameters(), &found, policy.gradients().flat(), 1e-3);
            assert!(apart < bound, "{:?}, {count} ranks: gradients differ by {apart}", config.loss_type);
            let read = |trainer: &Trainer| trainer.policy().model().weights().read().flat().shallow_clone();
            assert!(ranks.iter().all(|(rank, _)| read(rank).equal(&read(&ranks[0].0))), "ranks have moved apart");
        }
    };
    // One update: a second would begin with weights that rounding has moved apart.
    let once = TrainConfig { num_iterations: 1, gradient_accumulation_steps: 4, ..config() };
    for loss_type in LossType::ALL.iter().copied() {
        compare(&TrainConfig { loss_type, ..once.clone() }, Kind::Float, 1e-5);
    }
    compare(&TrainConfig { use_peft: true, lora_r: 3, ..once.clone() }, Kind::Float, 1e-5);
    // A product in bfloat16 is rounded to 8 bits before it is added up, and each rank has other products.
    compare(&once, Kind::BFloat16, 2e-2);
}

/// A checkpoint that ranks write together is the one that a single rank writes, and any number of ranks goes on from
/// it.
#[test]
fn a_checkpoint_of_shards_is_that_of_one_rank_and_of_no_number_of_ranks() {
    let config = TrainConfig {
        advantage_estimator: AdvantageEstimator::Gae,
        critic_learning_rate: 1e-3,
        warmup_steps: 0,
        shard_optimizer: true,
        ..config()
    };
    let model = ModelDir::open(&config.model).unwrap();
    let run = tempfile::tempdir().unwrap();
    let folder = |name: &str| run.path().join(name);
    let save = |trainer: &Trainer, dir: &Path, is_first: bool| {
        if is_first {
            let state = TrainerState { carried: trainer.carried(), ..TrainerState::start(&config, 6) };
            fs::create_dir(dir).unwrap();
            checkpoint::fill(dir, &model, trainer, &state).unwrap();
        } else {
            checkpoint::help_to_save(trainer).unwrap();
        }
    };
    let go_on = |count: usize, from: Option<&str>, to: &str, shards: bool, steps: [u64; 2]| {
        on_ranks(count, |ranks| {
            let first = ranks.rank() == 0;
            let from = from.filter(|_| first).map(folder);
            let among = Among { ranks, shards };
            let (mut trainer, _) = open_rank(&config, &model, from.as_deref(), Device::Cpu, &among).unwrap();
            for number in steps[0]..steps[1] {
                let groups = support::groups(&config, number);
                trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(number)), number).unwrap();
            }
            if first || shards {
                save(&trainer, &folder(to), first);
            }
        });
    };
    go_on(2, None, "two", true, [0, 2]);
    // Two ranks get the same sum in either order, but a norm over shards rounds otherwise than one over tensors;
    // nothing is clipped here.
    go_on(2, None, "whole", false, [0, 2]);
    let files = ["optimizer.safetensors", "critic/optimizer.safetensors", "model.safetensors"];
    let read = |name: &str| files.map(|file| fs::read(folder(name).join(file)).unwrap());
    assert!(read("two") == read("whole"), "shards are in one file as moments of one rank are");
    // Nothing changes on the way through other numbers of ranks.
    for (count, shards, to) in [(3, true, "three"), (1, false, "one"), (4, false, "four")] {
        go_on(count, Some("two"), to, shards, [2, 2]);
        assert!(read(to) == read("two"), "{to}");
    }
    // A run that stops goes on to the same bytes.
    go_on(2, Some("two"), "stopped", true, [2, 4]);
    go_on(2, None, "straight", true, [0, 4]);
    assert!(read("stopped") == read("straight") && read("stopped") != read("two"));
}

/// Says to [`one_of_several_processes`] which rank it is, of how many, what it does, and in which directory they meet.
const PROCESS: &str = "TANDEM_TEST_RANK";

fn process_config() -> TrainConfig {
    TrainConfig { beta: 0.05, ..config() }
}

/// Starts this test program again, as one of several ranks.
fn process(rank: usize, count: usize, deed: &str, dir: &Path) -> Child {
    process_with(&[], rank, count, deed, dir)
}

/// The same, with something more in its environment.
fn process_with(variables: &[(&str, &str)], rank: usize, count: usize, deed: &str, dir: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "ranks::one_of_several_processes", "--nocapture"]);
    command.env(PROCESS, format!("{rank} {count} {deed} {}", dir.display())).envs(variables.iter().copied());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The result of several processes, which is the same in each.
fn by_processes(count: usize, deed: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let processes: Vec<Child> = (0..count).map(|rank| process(rank, count, deed, dir.path())).collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let left = |rank: usize| fs::read(dir.path().join(format!("left-{rank}"))).unwrap();
    (1..count).for_each(|rank| assert!(left(rank) == left(0), "{deed}: rank {rank} of {count} has something else"));
    left(0)
}

/// The work of a process that [`process`] started. Otherwise there is nothing to do.
#[test]
fn one_of_several_processes() {
    let Ok(place) = env::var(PROCESS) else { return };
    let [rank, count, deed, dir] = place.splitn(4, ' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let (rank, count, dir) = (rank.parse().unwrap(), count.parse().unwrap(), Path::new(dir));
    let patience = Duration::from_secs(30);
    let store = TorchStore::file(&dir.join("meeting"), patience).unwrap();
    let signs = Signs::start(&store, "test", [rank, count]).unwrap();
    let ranks = Gloo::join(&store, "test", [rank, count], "127.0.0.1", patience, signs.watch()).unwrap();
    match deed {
        "ends" if rank == 1 => std::process::abort(),
        "leaves" if rank == 1 => {
            signs.leave(&store, "it has had enough");
            std::process::exit(1);
        }
        _ => (),
    }
    let left = match deed {
        "sums" => sums(&ranks),
        _ => step_of_process(Arc::new(ranks), deed == "shards"),
    };
    fs::write(dir.join(format!("left-{rank}")), left).unwrap();
}

/// The weights after a step.
fn step_of_process(ranks: Arc<dyn Ranks>, shards: bool) -> Vec<u8> {
    let config = process_config();
    let mut trainer = trainer_among(&config, Kind::Double, &Among { ranks, shards });
    let groups = groups(&config, 3);
    trainer.step(&StepBatch::new(&groups, &config, PolicyVersion(3)), 3).unwrap();
    bytes(trainer.policy().parameters().flat())
}

fn bytes(values: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; values.numel() * values.kind().elt_size_in_bytes()];
    values.copy_data_u8(&mut bytes, values.numel());
    bytes
}

/// Sums of float32 of many sizes: below and above the size of Gloo's segments of a ring (1 MiB) and of a bucket.
fn sums(ranks: &Gloo) -> Vec<u8> {
    tch::set_num_threads(1);
    let (mut left, count) = (Vec::new(), ranks.count());
    for size in [3, 262_145, BUCKET_BYTES / 4 + 17] {
        let of_rank = |rank: usize| {
            tch::manual_seed(rank as i64);
            Tensor::randn([size], (Kind::Float, Device::Cpu)) * 10f64.powi(rank as i32)
        };
        let own = of_rank(ranks.rank());
        let exact = (0..count).map(|rank| of_rank(rank).to_kind(Kind::Double)).reduce(|a, b| a + b).unwrap();
        let near = |sum: &Tensor| (sum.to_kind(Kind::Double) - &exact).abs().max().double_value(&[]) < 1e-2;
        let [first, again, parts] = [(); 3].map(|()| own.copy());
        ranks::sum(ranks, &first).unwrap();
        ranks::sum(ranks, &again).unwrap();
        assert!(first.equal(&again), "{size}: the same sum has other bits");
        assert!(near(&first), "{size}");
        ranks::sum_shards(ranks, &parts).unwrap();
        ranks::gather(ranks, &parts).unwrap();
        assert!(near(&parts), "{size}");
        assert!(count > 2 || parts.equal(&first), "two numbers have one sum");
        left.extend([bytes(&first), bytes(&parts)].concat());
    }
    left
}

#[test]
fn sums_of_every_size_repeat_byte_for_byte() {
    for count in [2, 4] {
        assert!(by_processes(count, "sums") == by_processes(count, "sums"), "{count} ranks");
    }
}

#[test]
fn two_and_four_processes_have_the_weights_of_one() {
    let config = process_config();
    let (one, _) = step(&config, &groups(&config, 3), Kind::Double);
    let one = host(one.policy().parameters().flat());
    for (count, deed) in [(2, "step"), (4, "step"), (2, "shards"), (4, "shards")] {
        let found = by_processes(count, deed);
        assert_eq!(found.len(), 8 * one.len());
        let found = found.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
        let apart = found.zip(&one).map(|(found, one)| (found - one).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-9, "{count} processes, {deed}: {apart}");
    }
    for deed in ["step", "shards"] {
        assert!(by_processes(2, deed) == by_processes(2, deed), "the same ranks repeat byte for byte");
    }
}

/// By its silence, or at once if it has said why.
#[test]
fn a_rank_that_ends_is_named_by_all_others() {
    for (deed, words) in [
        ("ends", "rank 1 of the learner has given no sign of life for 8 s"),
        ("leaves", "rank 1 of the learner has ended: it has had enough"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let processes: Vec<Child> = (0..3).map(|rank| process(rank, 3, deed, dir.path())).collect();
        for (rank, process) in processes.into_iter().enumerate() {
            let output = process.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && (rank == 1 || said.contains(words)), "{deed}, rank {rank}: {said}");
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    }
}

/// It need not wait for a name: none of the others is to blame.
#[test]
fn a_rank_without_the_interface_that_it_was_told_says_so_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let output = process_with(&[("GLOO_SOCKET_IFNAME", "none0")], 0, 2, "sums", dir.path()).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("rank 0 could not join the 2 ranks: "), "{said}");
    assert!(said.contains("none0"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}: {said}", begin.elapsed());
}

/// torchrun's agent keeps the store, and with it the keys of ranks that are gone.
#[test]
fn ranks_find_each_other_again_in_a_store_that_others_keep() {
    let bench = harness::bench::Bench::new(
        "dataset = \"prompts.jsonl\"\nmax_steps = 2\nnum_generations = 4\ngeneration_batch_size = 16\n\
         per_device_train_batch_size = 16\nmax_completion_length = 16\nlearner_ranks = 2\nlearning_rate = 1e-3\n",
    );
    let weights = |run: &str| {
        let records = metrics::read(&bench.path(run).join("metrics.jsonl")).unwrap();
        assert!(records.len() == 2 && records.iter().all(|record| record.get(metrics::GRAD_NORM) > Some(0.0)), "{run}");
        fs::read(bench.path(run).join("checkpoint-2/weights.data")).unwrap()
    };
    let alone = harness::cli::finish(bench.command("one-host", &[]));
    assert!(alone.status.success(), "{}", alone.stderr);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _store = TorchStore::keep("127.0.0.1", free, Duration::from_secs(30)).unwrap();
    let told = |mut command: Command, rank: &str| {
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.env("MASTER_PORT", free.to_string()).env("TORCHELASTIC_USE_AGENT_STORE", "True");
        command
    };
    for name in ["first", "second"] {
        let mut rank = Command::new(harness::binary("tandem"));
        rank.arg("learner-rank");
        let mut rank = bench.start_command(told(rank, "1"), "rank");
        let run = harness::cli::finish(told(bench.command(name, &[]), "0"));
        assert!(run.status.success(), "{}", run.stderr);
        assert!(rank.wait().unwrap().success(), "{}", fs::read_to_string(bench.path("rank")).unwrap());
        assert!(
            weights(name) == weights("one-host"),
            "the weights of the {name} run are others than those of one host"
        );
    }
}
