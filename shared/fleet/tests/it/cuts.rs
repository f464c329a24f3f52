//! Connections that are cut or dead, and coordinators that die.

use std::{
    thread,
    time::{Duration, Instant},
};

use harness::proxy::{Proxy, Way};
use shared::channel::{
    ChannelError,
    fleet::{CoordinatorEnd, Orders, RunFacts, WorkerEnd},
};

use crate::support::{COORDINATOR, PATIENCE, Serving, at, call, call_again, join, listen, loopback, report};

#[test]
fn a_connection_that_is_cut_comes_back_by_itself() {
    let coordinator = Serving::new(&loopback());
    let proxy = Proxy::to(coordinator.address);
    let mut worker = join(&at(proxy.address()), 1).unwrap();
    call(&mut worker, 1);
    proxy.cut();
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
    call(&mut worker, 1);

    proxy.cut_for(Duration::from_secs(1));
    let start = Instant::now();
    let errors = call_again(&mut worker, 1);
    assert!(start.elapsed() >= Duration::from_millis(990) && start.elapsed() < Duration::from_secs(10));
    assert!(errors.iter().all(|error| !matches!(error, ChannelError::Frame(_))), "{errors:?}");
    let mut end = coordinator.stop();
    end.wake();
    assert!(worker.listen(PATIENCE), "it hears the wake-up again, too");
}

#[test]
fn a_long_and_narrow_way_is_only_slow() {
    let coordinator = Serving::new(&loopback());
    let proxy = Proxy::to(coordinator.address);
    proxy.set(Way { delay: Duration::from_millis(20), bytes_per_s: Some(2 << 20) });
    let mut worker = join(&at(proxy.address()), 1).unwrap();
    let large = shared::channel::fleet::Report { name: "n".repeat(1 << 20), ..report(1) };
    let start = Instant::now();
    let orders = worker.exchange(&large, PATIENCE).unwrap();
    assert_eq!(orders.leases, [1]);
    assert!(start.elapsed() >= Duration::from_millis(520), "{:?}", start.elapsed());
}

#[test]
fn workers_find_a_new_coordinator_at_the_place_of_the_old_one() {
    let coordinator = Serving::new(&loopback());
    let address = coordinator.address;
    let mut worker = coordinator.join(1);
    call(&mut worker, 1);
    drop(coordinator);
    let error = worker.exchange(&report(1), Duration::from_millis(200)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "the coordinator cannot be reached: --join tcp/{address}: nothing listens there ({address}: connection \
             refused); is the run up, and does a firewall let this host through?"
        )
    );
    let coordinator = Serving::new(&listen(&format!("tcp/{address}")));
    let start = Instant::now();
    call_again(&mut worker, 1);
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    drop(worker);
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
}

/// A worker behind a dead connection, with a large answer stuck on the way to it.
#[test]
fn a_worker_that_does_not_read_holds_up_nobody() {
    let coordinator = Serving::with(&loopback(), |report| {
        let config = "n".repeat(if report.worker == 1 { 64 << 20 } else { 0 });
        let facts = RunFacts { config, model: [0; 32], max_model_len: 0, store: String::new(), run_dir: None };
        Orders { coordinator: COORDINATOR, leases: vec![report.worker], facts: Some(facts), ..Orders::default() }
    });
    let proxy = Proxy::to(coordinator.address);
    // A narrow link, so that the answer is still on the way when the link goes dead.
    let mut stuck = join(&at(proxy.address()), 1).unwrap();
    let mut other = coordinator.join(2);
    call(&mut other, 2);
    proxy.set(Way { delay: Duration::ZERO, bytes_per_s: Some(4 << 20) });
    let before = proxy.passed();
    let calls = thread::spawn(move || {
        let start = Instant::now();
        let error = stuck.exchange(&report(1), Duration::from_secs(2)).unwrap_err();
        (error, start.elapsed(), stuck)
    });
    crate::support::wait_for("the answer to be on its way", || (proxy.passed() > before + (1 << 20)).then_some(()));
    proxy.hole(true);
    let start = Instant::now();
    for _ in 0..50 {
        call(&mut other, 2);
    }
    call(&mut coordinator.join(3), 3);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let (error, took, mut stuck) = calls.join().unwrap();
    assert!(matches!(error, ChannelError::Timeout { .. }), "{error:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    // The coordinator gives the connection up, and the worker comes back once the way is open.
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
    call(&mut other, 2);
    proxy.set(Way::default());
    proxy.hole(false);
    call_again(&mut stuck, 1);
    // Neither side waits for a connection that is dead when it leaves.
    proxy.hole(true);
    let start = Instant::now();
    drop(stuck);
    drop(coordinator);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
