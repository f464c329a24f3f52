//! Many faults in one run with workers: whatever becomes of workers, lines and learner, the weights are those of one
//! pair.

use std::{
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::Running,
    fleet::{FleetBench, Worker},
    processes::{children, signal},
    proxy::{Proxy, Way},
    training::json_lines,
};
use shared::generation::rng;

const FAULTS: u64 = 30;
/// Steps between two faults.
const BETWEEN: u64 = 2;
const SEED: u64 = 17;
/// Workers at a time.
const MOST: usize = 4;
const PATIENCE: Duration = Duration::from_secs(300);

/// A worker at the end of a line of its own.
struct Member {
    name: String,
    worker: Worker,
    line: Proxy,
}

impl Member {
    fn join(bench: &FleetBench, number: usize) -> Self {
        let line = Proxy::to(bench.address());
        line.set(Way { delay: Duration::from_millis(5), ..Way::default() });
        let name = format!("w{number}");
        let worker = bench.worker_at(&format!("tcp/{}", line.address()), &name, &[]);
        Self { name, worker, line }
    }
}

/// What a fault does to somebody, until it is over.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Killed,
    Stopped,
    Cut,
    Unreachable,
    Leaves,
    Joins,
}

const ALL: [Fault; 6] = [Fault::Killed, Fault::Stopped, Fault::Cut, Fault::Unreachable, Fault::Leaves, Fault::Joins];

struct Fleet<'a> {
    bench: &'a FleetBench,
    members: Vec<Member>,
    next: usize,
    /// Names of those that are stopped or cannot be reached, until when.
    troubled: Vec<(String, Fault, Instant)>,
    done: Vec<Fault>,
}

impl Fleet<'_> {
    fn join(&mut self) {
        self.members.push(Member::join(self.bench, self.next));
        self.next += 1;
    }

    fn befall(&mut self, fault: Fault, drawn: u64) {
        let who = (drawn % self.members.len() as u64) as usize;
        let until = Instant::now() + Duration::from_millis(300 + drawn / 7 % 4000);
        let member = &self.members[who];
        match fault {
            Fault::Killed => {
                self.members.remove(who);
                self.join();
            }
            Fault::Stopped => signal(member.worker.id(), "STOP"),
            Fault::Cut => member.line.cut_for(Duration::from_millis(drawn / 7 % 1500)),
            Fault::Unreachable => member.line.hole(true),
            Fault::Leaves if self.members.len() > 1 => {
                signal(member.worker.id(), "CONT");
                signal(member.worker.id(), "TERM");
                self.members.remove(who);
            }
            Fault::Joins if self.members.len() == MOST => return self.befall(Fault::Killed, drawn),
            Fault::Leaves | Fault::Joins => self.join(),
        }
        if matches!(fault, Fault::Stopped | Fault::Unreachable) {
            self.troubled.push((self.members[who].name.clone(), fault, until));
        }
        self.done.push(fault);
    }

    /// Ends the faults whose time is over.
    fn relieve(&mut self, all: bool) {
        let now = Instant::now();
        let members = &self.members;
        self.troubled.retain(|(name, fault, until)| {
            let over = all || now >= *until;
            if over && let Some(member) = members.iter().find(|member| member.name == *name) {
                match fault {
                    Fault::Stopped => signal(member.worker.id(), "CONT"),
                    _ => member.line.hole(false),
                }
            }
            !over
        });
    }

    fn wait_for_step(&mut self, run: &str, step: u64) {
        let begun = Instant::now();
        let path = self.bench.path(run).join("metrics.jsonl");
        while !path.is_file() || (json_lines(&path).len() as u64) < step {
            assert!(begun.elapsed() < PATIENCE, "step {step} does not come: {}", self.bench.run_said());
            self.relieve(false);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn kill_learner(run: &Running) {
    children(run.id(), "learner").into_iter().for_each(|process| signal(process, "KILL"));
}

#[test]
fn thirty_faults_of_workers_and_two_kills_of_the_learner_make_the_weights_of_one_pair() {
    let steps = (FAULTS + 2) * BETWEEN;
    let bench = FleetBench::new(steps, "");
    let expected = bench.pair(steps);
    let mut run = bench.start_fleet("fleet", &["--lease_timeout", "2", "--verify_share", "0.1"]);
    let mut fleet = Fleet { bench: &bench, members: Vec::new(), next: 0, troubled: Vec::new(), done: Vec::new() };
    (0..2).for_each(|_| fleet.join());
    for number in 0..FAULTS {
        fleet.wait_for_step("fleet", 1 + number * BETWEEN);
        let fault = ALL[(rng::hash(&[SEED, number, 0]) % ALL.len() as u64) as usize];
        fleet.befall(fault, rng::hash(&[SEED, number, 1]));
        if number % 15 == 7 {
            kill_learner(&run);
        }
    }
    fleet.relieve(true);
    // Who is cut off when the run ends calls on for a while.
    bench.ends(&mut run, Vec::new());
    assert!(bench.result("fleet", steps) == expected, "other weights after {:?}", fleet.done);
    let table = bench.table("fleet");
    assert_eq!(table["disputed"], 0, "{table}");
    let records = json_lines(&bench.path("fleet").join("metrics.jsonl"));
    let of_all = |key: &str| records.iter().filter_map(|record| record[key].as_f64()).sum::<f64>();
    let repeated = of_all("fleet/leases_expired") + of_all("fleet/completions_twice");
    assert!(repeated > 0.0, "nobody was missed: {:?}", fleet.done);
}

/// A run over lines with delays that are cut again and again.
fn over_bad_lines(bench: &FleetBench, run: &str, steps: u64, workers: usize) {
    let mut running = bench.start_fleet(run, &[]);
    let members: Vec<Member> = (0..workers).map(|number| Member::join(bench, number)).collect();
    for (number, member) in members.iter().enumerate() {
        member.line.set(Way { delay: Duration::from_millis(10 + 10 * number as u64), ..Way::default() });
    }
    for step in (2..steps).step_by(3) {
        bench.wait_for_step(run, step as usize);
        members[step as usize % workers].line.cut_for(Duration::from_millis(200));
    }
    bench.ends(&mut running, Vec::new());
}

#[test]
fn one_two_and_four_workers_over_bad_lines_make_the_weights_of_one_pair() {
    let bench = FleetBench::new(10, "");
    let expected = bench.pair(10);
    for workers in [1, 2, 4] {
        let run = format!("of-{workers}");
        over_bad_lines(&bench, &run, 10, workers);
        assert!(bench.result(&run, 10) == expected, "{workers} workers make other weights");
    }
}

#[test]
fn one_two_and_four_workers_over_bad_lines_keep_an_asynchronous_ledger_balanced() {
    let bench = FleetBench::new(10, "max_staleness = 2\nweight_swap = \"continue\"\n");
    for workers in [1, 2, 4] {
        let run = format!("of-{workers}");
        over_bad_lines(&bench, &run, 10, workers);
        bench.assert_balanced(&run, 10, 4);
    }
}
