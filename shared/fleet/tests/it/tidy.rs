//! What remains when coordinator and workers have gone.

use std::{
    env, fs, thread,
    time::{Duration, Instant},
};

use shared::channel::fleet::WorkerEnd;
use shared_fleet::{JoinOptions, ListenOptions};

use crate::support::{PATIENCE, Serving, alone, call, join, loopback, report, token_file};

fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Opens a coordinator with a token, has two workers talk to it, and closes everything.
fn cycle() {
    let (_dir, word) = token_file("the word of the coordinator");
    let coordinator = Serving::new(&ListenOptions { token_file: Some(word.clone()), ..loopback() });
    let options = JoinOptions { token_file: Some(word), ..coordinator.join_options() };
    for number in 1..=2 {
        call(&mut join(&options, number).unwrap(), number);
    }
}

#[test]
fn nothing_is_left_behind() {
    if !alone("tidy::nothing_is_left_behind") {
        return;
    }
    let places = ["/proc/self/task", "/proc/self/fd", env::temp_dir().to_str().unwrap()].map(str::to_owned);
    let counts = || places.each_ref().map(|place| count(place));
    // The first cycle starts zenoh's own threads, which stay with the process.
    let before = counts();
    cycle();
    let first = counts();
    println!("threads, open files, temporary files: {before:?} at first, then {first:?}");
    assert!(first[0] <= before[0] + 16, "{first:?}");
    for _ in 0..12 {
        cycle();
    }
    // Idle threads of zenoh's stay for a while, so a few more than before are no leak.
    let most = [first[0] + 6, first[1]];
    let deadline = Instant::now() + PATIENCE;
    while counts().iter().zip(most).any(|(&now, most)| now > most) {
        assert!(Instant::now() < deadline, "{first:?} became {:?}", counts());
        thread::sleep(Duration::from_millis(10));
    }
    // Other processes may have temporary files, and none of ours has a name: zenoh's list of users is an unnamed file.
    println!("in the end: {:?}", counts());
}

/// Prints figures and checks no bound: the cost of a call and of a session.
#[test]
fn what_it_costs() {
    if !alone("tidy::what_it_costs") {
        return;
    }
    let rss = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    };
    let (threads, memory) = (count("/proc/self/task"), rss());
    let coordinator = Serving::new(&loopback());
    println!("a coordinator: {} threads, {:.1} MB", count("/proc/self/task") - threads, rss() - memory);
    let (threads, memory) = (count("/proc/self/task"), rss());
    let mut worker = coordinator.join(1);
    println!("the first worker: {} threads, {:.1} MB", count("/proc/self/task") - threads, rss() - memory);
    let mut times: Vec<Duration> = (0..1000)
        .map(|_| {
            let start = Instant::now();
            call(&mut worker, 1);
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("a call: median {:?}, 99 % {:?}", times[500], times[990]);
    let large = shared::channel::fleet::Report { name: "n".repeat(20 << 20), ..report(1) };
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let start = Instant::now();
            worker.exchange(&large, PATIENCE).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("a call of 20 MiB: median {:?}, {:.0} MB/s", times[4], 20.97 / times[4].as_secs_f64());
    let (threads, memory) = (count("/proc/self/task"), rss());
    let more: Vec<_> = (2..10).map(|number| coordinator.join(number)).collect();
    println!("threads with eight more workers: {threads}, then {}; {:.1} MB", count("/proc/self/task"), rss() - memory);
    drop(more);
    assert!(times[4] < PATIENCE);
}
