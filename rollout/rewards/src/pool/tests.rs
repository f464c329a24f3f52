//! The pool with functions that are slow, fail or hang.

use std::sync::atomic::{AtomicUsize, Ordering};

use shared::FinishReason;

use super::*;
use crate::{Reward, testing};

/// A function of each completion's text.
struct OfText<F>(F);

impl<F: Fn(&str) -> RewardOutcome + Send + Sync> Reward for OfText<F> {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        input.completions.iter().map(|c| (self.0)(&c.text)).collect()
    }
}

/// The number of completions seen at once.
struct GroupSize;

impl Reward for GroupSize {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        vec![RewardOutcome::Score(input.completions.len() as f64); input.completions.len()]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }
}

/// Too few outcomes.
struct Short;

impl Reward for Short {
    fn score(&self, _: &RewardInput) -> Vec<RewardOutcome> {
        Vec::new()
    }
}

fn of_text(f: impl Fn(&str) -> RewardOutcome + Send + Sync + 'static) -> RewardFunction {
    function("of_text", OfText(f))
}

fn function(name: &str, reward: impl Reward + 'static) -> RewardFunction {
    RewardFunction { name: name.into(), columns: &[], own: false, is_rater: false, reward: Arc::new(reward) }
}

fn input(texts: &[&str]) -> RewardInput {
    RewardInput { completions: testing::completions(texts), ..RewardInput::default() }
}

fn length(text: &str) -> RewardOutcome {
    RewardOutcome::Score(text.len() as f64)
}

fn pool(functions: Vec<RewardFunction>, threads: usize, deadline: f64) -> RewardPool {
    RewardPool::new(functions, threads, Duration::from_secs_f64(deadline), |_| {}).unwrap()
}

#[test]
fn outcomes_are_ordered_by_completion_and_function() {
    let functions = vec![of_text(length), function("size", GroupSize)];
    let mut pool = pool(functions, 3, 10.0);
    for tag in 0..50 {
        pool.submit(tag, input(&["a", "bb", "ccc"]));
    }
    assert_eq!(pool.pending(), 50);
    let mut tags = Vec::new();
    while let Some(group) = pool.recv() {
        let expected: Vec<Vec<RewardOutcome>> =
            (1..=3).map(|n| vec![RewardOutcome::Score(f64::from(n)), RewardOutcome::Score(3.0)]).collect();
        assert_eq!(group.outcomes, expected);
        tags.push(group.tag);
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..50).collect::<Vec<_>>());
    assert_eq!(pool.pending(), 0);
    pool.submit(7, input(&[]));
    assert_eq!(pool.recv().unwrap().outcomes, Vec::<Vec<RewardOutcome>>::new());
}

#[test]
fn what_is_no_number_is_a_failure_and_not_a_score() {
    let mut pool = pool(
        vec![
            of_text(|text| match text {
                "nan" => RewardOutcome::Score(f64::NAN),
                "inf" => RewardOutcome::Score(f64::INFINITY),
                "panic" => panic!("no such answer"),
                "none" => RewardOutcome::NotApplicable,
                _ => RewardOutcome::Score(1.0),
            }),
            function("short", Short),
        ],
        2,
        10.0,
    );
    pool.submit(0, input(&["nan", "inf", "panic", "none", "fine"]));
    let outcomes: Vec<RewardOutcome> = pool.recv().unwrap().outcomes.into_iter().map(|mut o| o.remove(0)).collect();
    let failed = |reason: &str| RewardOutcome::Failed(reason.into());
    assert_eq!(
        outcomes,
        [
            failed("returned NaN"),
            failed("returned inf"),
            failed("panicked: no such answer"),
            RewardOutcome::NotApplicable,
            RewardOutcome::Score(1.0),
        ]
    );
    pool.submit(1, input(&["fine"]));
    assert_eq!(pool.recv().unwrap().outcomes[0][1], failed("returned 0 outcomes for 1 completions"));
}

/// Far more than any call takes here.
const HOUR: Duration = Duration::from_secs(3600);

/// A dispatcher that the test drives, so that no deadline passes by itself.
struct ByHand {
    dispatcher: Dispatcher,
    scored: Receiver<ScoredGroup>,
}

impl ByHand {
    fn new(functions: Vec<RewardFunction>, threads: usize) -> Self {
        let (results, scored) = unbounded();
        Self { dispatcher: Dispatcher::new(functions.into(), threads, HOUR, |_| {}, results).unwrap(), scored }
    }

    fn submit(&mut self, tag: u64, texts: &[&str]) {
        self.dispatcher.open_group(tag, input(texts));
        self.dispatcher.start_items();
    }

    /// The next thing that a thread says.
    fn hear(&mut self) {
        let notice = self.dispatcher.notices.1.recv().unwrap();
        self.dispatcher.take(notice);
        self.dispatcher.start_items();
    }

    /// Lets the deadline of everything that runs pass.
    fn give_up(&mut self) {
        self.dispatcher.give_up_overdue(Instant::now() + 2 * HOUR);
        self.dispatcher.start_items();
    }

    fn scored(&self) -> ScoredGroup {
        self.scored.try_recv().expect("the group is complete")
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

fn late(seconds: f64) -> Vec<RewardOutcome> {
    vec![RewardOutcome::Failed(format!("no result within {seconds} s"))]
}

#[test]
fn a_call_that_hangs_holds_nobody_up() {
    let hanging = of_text(|text| if text == "hang" { hang() } else { length(text) });
    // One thread: without replacement, the first call that hangs would block everything behind it.
    let mut pool = ByHand::new(vec![hanging], 1);
    pool.submit(0, &["hang", "fine", "hang"]);
    pool.submit(1, &["good"]);
    for hangs in [true, false, true, false] {
        // Every call begins.
        pool.hear();
        if hangs { pool.give_up() } else { pool.hear() }
    }
    let fine = vec![RewardOutcome::Score(4.0)];
    assert_eq!(pool.scored().outcomes, [late(3600.0), fine.clone(), late(3600.0)]);
    assert_eq!(pool.scored().outcomes, [fine]);
}

#[test]
fn the_deadline_passes_by_itself() {
    let mut pool = pool(vec![of_text(|_| hang())], 1, 1.0);
    pool.submit(0, input(&["a"]));
    assert_eq!(pool.recv().unwrap().outcomes, [late(1.0)]);
}

/// A dispatcher that wakes up late finds the outcome and the alarm at once.
#[test]
fn what_came_back_in_time_counts_however_late_it_is_heard() {
    let mut pool = ByHand::new(vec![of_text(length)], 1);
    pool.submit(0, &["ab"]);
    while pool.dispatcher.notices.1.len() < 2 {
        std::thread::yield_now();
    }
    pool.give_up();
    assert_eq!(pool.scored().outcomes, [[RewardOutcome::Score(2.0)]]);
}

/// A busy machine may take its time until a thread has a call.
#[test]
fn the_deadline_counts_from_the_start_of_the_call() {
    let mut pool = ByHand::new(vec![of_text(length)], 1);
    let (hold, held) = unbounded::<()>();
    pool.dispatcher.pool.spawn(move || {
        let _ = held.recv();
    });
    pool.submit(0, &["a"]);
    let before = Instant::now();
    drop(hold);
    pool.hear();
    let running: Vec<_> = pool.dispatcher.running.values().collect();
    assert!(running[0].given_up_at >= Some(before + HOUR + GRACE));
}

#[test]
fn a_function_that_keeps_hanging_is_not_called_for_ever() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let hanging = of_text(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        hang()
    });
    let mut pool = ByHand::new(vec![hanging, of_text(length)], 4);
    for tag in 0..10 {
        pool.submit(tag, &["ab"; 10]);
    }
    while !pool.dispatcher.open.is_empty() {
        // By the end of this loop, every call that comes back has done so; the others hang.
        while pool.dispatcher.running.values().any(|item| item.function == 1) {
            pool.hear();
        }
        pool.give_up();
    }
    for _ in 0..10 {
        for outcomes in pool.scored().outcomes {
            assert!(matches!(outcomes[0], RewardOutcome::Failed(_)));
            assert_eq!(outcomes[1], RewardOutcome::Score(2.0));
        }
    }
    let begun = Instant::now();
    while calls.load(Ordering::Relaxed) < MAX_LOST_CALLS && begun.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert_eq!(calls.load(Ordering::Relaxed), MAX_LOST_CALLS);
}

#[test]
fn a_pool_with_hanging_calls_can_be_dropped() {
    let mut pool = pool(
        vec![of_text(|_| {
            std::thread::sleep(Duration::from_secs(30));
            RewardOutcome::Score(0.0)
        })],
        2,
        20.0,
    );
    pool.submit(0, input(&["a", "b", "c"]));
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    drop(pool);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_step_of_given_tokens_alone_is_nobodys() {
    let steps = |ends: &[u32]| ends.iter().map(|&end| StepScore { end, score: f64::from(end) }).collect::<Vec<_>>();
    let of = |given: &[Range<usize>], ends: &[u32]| {
        let one_turn = RewardCompletion::of_one_turn("x", vec![5; 10], FinishReason::Stop);
        let completion = RewardCompletion { given: given.to_vec(), ..one_turn };
        match checked(RewardOutcome::Steps(steps(ends)), &Tokens::from(&completion)) {
            RewardOutcome::Steps(left) => left,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(of(&[], &[1, 4, 9]), steps(&[1, 4, 9]));
    // Tokens 0 and 1, 4 to 6 and 9 were given.
    let given = [0..2, 4..7, 9..10];
    assert_eq!(of(&given, &[1, 3, 5, 6, 8, 9]), steps(&[3, 8]), "steps that lie within given tokens");
    assert_eq!(of(&given, &[2, 6, 9]), steps(&[2, 6, 9]), "each has a sampled token");
    assert_eq!(of(&[0..4, 4..10], &[4, 9]), []);
}
