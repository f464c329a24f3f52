//! The pool with functions that are slow, fail or hang.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::reward::Reward;

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
    RewardFunction::custom("of_text", Arc::new(OfText(f)))
}

fn input(texts: &[&str]) -> RewardInput {
    RewardInput::of_texts("p", serde_json::Map::new(), texts.iter().copied())
}

fn length(text: &str) -> RewardOutcome {
    RewardOutcome::Score(text.len() as f64)
}

fn pool(functions: Vec<RewardFunction>, threads: usize, deadline: f64) -> RewardPool {
    RewardPool::new(functions, threads, Duration::from_secs_f64(deadline)).unwrap()
}

#[test]
fn outcomes_are_ordered_by_completion_and_function() {
    let functions = vec![of_text(length), RewardFunction::custom("size", Arc::new(GroupSize))];
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
            RewardFunction::custom("short", Arc::new(Short)),
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

#[test]
fn a_call_that_hangs_holds_nobody_up() {
    let hanging = of_text(|text| match text {
        "hang" => loop {
            std::thread::park();
        },
        text => length(text),
    });
    // One thread: without replacement, the first call that hangs would block everything behind it.
    let mut pool = pool(vec![hanging], 1, 0.1);
    pool.submit(0, input(&["hang", "fine", "hang"]));
    pool.submit(1, input(&["good"]));
    let started = Instant::now();
    let mut groups = [pool.recv().unwrap(), pool.recv().unwrap()];
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    groups.sort_by_key(|g| g.tag);
    let late = vec![RewardOutcome::Failed("no result within 0.1 s".into())];
    assert_eq!(groups[0].outcomes, [late.clone(), vec![RewardOutcome::Score(4.0)], late]);
    assert_eq!(groups[1].outcomes, [vec![RewardOutcome::Score(4.0)]]);
}

#[test]
fn a_function_that_keeps_hanging_is_not_called_for_ever() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let hanging = of_text(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        loop {
            std::thread::park();
        }
    });
    let mut pool = pool(vec![hanging, of_text(length)], 4, 0.05);
    for tag in 0..10 {
        pool.submit(tag, input(&["ab"; 10]));
    }
    while let Some(group) = pool.recv() {
        for outcomes in group.outcomes {
            assert!(matches!(outcomes[0], RewardOutcome::Failed(_)));
            assert_eq!(outcomes[1], RewardOutcome::Score(2.0));
        }
    }
    let calls = calls.load(Ordering::Relaxed);
    assert!((MAX_LOST_CALLS..=MAX_LOST_CALLS + 4).contains(&calls), "{calls}");
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
    assert!(started.elapsed() < Duration::from_secs(1));
}
