//! Talk between coordinator and workers when nothing is wrong.

use std::time::{Duration, Instant};

use shared::channel::{
    ChannelError,
    fleet::{CoordinatorEnd, CoordinatorEvent, MOST_BYTES, Orders, Report, RunFacts, WorkerEnd},
};
use shared_fleet::{ZenohCoordinator, probe};

use crate::support::{COORDINATOR, PATIENCE, Serving, call, join, listen, loopback, report, token_file, wait_for};

#[test]
fn calls_are_answered_and_the_wake_up_is_heard() {
    let coordinator = Serving::new(&loopback());
    let (mut first, mut second) = (coordinator.join(1), coordinator.join(2));
    for _ in 0..3 {
        call(&mut first, 1);
        call(&mut second, 2);
    }
    assert!(!first.listen(Duration::from_millis(1)));
    let mut end = coordinator.stop();
    end.wake();
    assert!(first.listen(PATIENCE) && second.listen(PATIENCE));
    assert!(!first.listen(Duration::from_millis(20)), "it was woken once");
    drop(first);
    let event = end.next(PATIENCE).unwrap();
    assert!(matches!(event, Some(CoordinatorEvent::Gone(1))));
    assert!(end.next(Duration::from_millis(20)).unwrap().is_none());
}

#[test]
fn a_wake_up_that_nobody_hears_and_a_call_that_nobody_answers_are_lost() {
    let mut coordinator = ZenohCoordinator::open(&loopback()).unwrap();
    coordinator.wake();
    let mut worker = join(&crate::support::at(address(&coordinator)), 1).unwrap();
    let calls = std::thread::spawn(move || {
        let dropped = worker.exchange(&report(1), PATIENCE);
        (dropped, worker.exchange(&report(1), Duration::from_millis(200)))
    });
    let event = coordinator.next(PATIENCE).unwrap();
    let Some(CoordinatorEvent::Call(first)) = event else { panic!("no call") };
    drop(first);
    let (dropped, late) = calls.join().unwrap();
    assert!(
        matches!(dropped, Err(ChannelError::Timeout { peer: "coordinator", seconds }) if seconds < 20.0),
        "{dropped:?}"
    );
    assert!(matches!(late, Err(ChannelError::Timeout { .. })), "{late:?}");
}

fn address(coordinator: &ZenohCoordinator) -> std::net::SocketAddr {
    format!("127.0.0.1:{}", coordinator.endpoint().port).parse().unwrap()
}

#[test]
fn twenty_megabytes_pass_each_way() {
    let most = 20 << 20;
    let coordinator = Serving::with(&loopback(), move |report: &Report| {
        let config = "ü".repeat(most / 2);
        let facts = RunFacts {
            config,
            model: [1; 32],
            max_model_len: report.name.len() as u64,
            store: String::new(),
            run_dir: None,
        };
        Orders { coordinator: COORDINATOR, facts: Some(facts), ..Orders::default() }
    });
    let mut worker = coordinator.join(1);
    let large = Report { name: "n".repeat(most), ..report(1) };
    let orders = worker.exchange(&large, PATIENCE).unwrap();
    let facts = orders.facts.unwrap();
    assert_eq!((facts.max_model_len, facts.config.len()), (most as u64, most));
    assert!(facts.config.chars().all(|c| c == 'ü'));
}

#[test]
fn what_is_too_large_is_not_sent() {
    let coordinator = Serving::new(&loopback());
    let mut worker = coordinator.join(1);
    let huge = Report { name: "n".repeat(MOST_BYTES), ..report(1) };
    let error = worker.exchange(&huge, PATIENCE).unwrap_err().to_string();
    assert!(
        error.starts_with("a call was refused: it has 2684") && error.ends_with("268435456 are the most"),
        "{error}"
    );
    call(&mut worker, 1);
}

#[test]
fn a_worker_waits_for_its_coordinator_as_long_as_it_is_told() {
    let port = crate::support::free_port();
    let options = shared_fleet::JoinOptions::to(&format!("tcp/127.0.0.1:{port}")).unwrap();
    let joins = std::thread::spawn(move || shared_fleet::ZenohWorker::join(&options, 1, PATIENCE).map(drop));
    std::thread::sleep(Duration::from_millis(50));
    let coordinator = Serving::new(&listen(&format!("tcp/127.0.0.1:{port}")));
    joins.join().unwrap().unwrap();
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
}

#[test]
fn whoever_has_the_token_joins_over_ipv6_too() {
    let (_dir, file) = token_file("a word of some length: with signs ü=;#");
    let options = shared_fleet::ListenOptions { token_file: Some(file.clone()), ..listen("tcp/[::1]:0") };
    let mut coordinator = ZenohCoordinator::open(&options).unwrap();
    let endpoint = coordinator.endpoint().to_string();
    assert!(endpoint.starts_with("tcp/[::1]:") && !endpoint.ends_with(":0"), "{endpoint}");
    let options =
        shared_fleet::JoinOptions { token_file: Some(file), ..shared_fleet::JoinOptions::to(&endpoint).unwrap() };
    drop(join(&options, 3).unwrap());
    let event = coordinator.next(PATIENCE).unwrap();
    assert!(matches!(event, Some(CoordinatorEvent::Gone(3))));
}

#[test]
fn a_probe_sees_the_way_and_is_no_worker() {
    let coordinator = Serving::new(&loopback());
    let start = Instant::now();
    let seen = probe(&coordinator.join_options(), PATIENCE);
    let took = start.elapsed().as_secs_f64();
    assert!(seen.failed.is_none(), "{seen:?}");
    assert_eq!((seen.resolved.as_slice(), seen.address), ([coordinator.address].as_slice(), Some(coordinator.address)));
    assert_eq!(seen.coordinator_build.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(seen.coordinator_frames, Some(shared::channel::frame::FRAME_VERSION));
    assert!(seen.clock_ahead_s.unwrap().abs() < 1.0);
    assert!(seen.tcp_connect_s.unwrap() + seen.join_s.unwrap() + seen.round_trip_s.unwrap() <= took);
    assert_eq!(seen.tls_handshake_s, None);
    let mut worker = coordinator.join(1);
    call(&mut worker, 1);
    drop(worker);
    wait_for("the worker to be gone", || (coordinator.told() == ["gone 1"]).then_some(()));
}
