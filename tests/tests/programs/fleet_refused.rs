//! Whoever does not belong to a run with workers is told so, the run tells of it, and nothing else comes of it.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use harness::{
    certificates::{Authority, EXPIRED, TODAY},
    cli,
    fleet::{FleetBench, Worker, assert_says},
    processes::children,
    proxy::Proxy,
};
use shared::{
    channel::fleet::{Report, WorkerEnd},
    generation::rng,
};
use shared_fleet::{JoinOptions, ZenohWorker};

const STEPS: u64 = 6;
/// How long a call may take.
const CALL: Duration = Duration::from_secs(20);
/// How often bytes of each kind are sent by somebody who is no worker.
const ROUNDS: usize = 40;
/// Memory that this may cost the sampler's half, in KiB.
const GROWTH: u64 = 32 << 10;

fn text(path: &Path) -> &str {
    path.to_str().expect("tests have plain paths")
}

#[test]
fn a_wrong_token_another_build_and_other_kernels_are_named_on_both_sides() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    for (name, word) in [("token", "the word of this run itself"), ("other", "the word of another run")] {
        fs::write(bench.path(name), word).unwrap();
    }
    let (token, other) = (bench.path("token"), bench.path("other"));
    let mut run = bench.start_fleet("fleet", &["--token_file", text(&token)]);
    let with = ["--token-file", text(&token)];
    let wrong = bench.refused("wrong", &["--token-file", text(&other)]);
    let not_accepted = "the coordinator does not accept the token: --token-file has another word than its `token_file`";
    assert_says(&wrong, &[not_accepted]);
    let missing = bench.refused("missing", &[]);
    assert_says(&missing, &["the coordinator asks for a token: give --token-file, with the word of its `token_file`"]);
    let stock = bench.refused("stock", &[&with[..], &["--kernels", "stock"]].concat());
    assert_says(&stock, &["it computes with stock kernels on cpu", "the run with packed", "`accept_other_kernels`"]);
    let reason = of_another_build(&bench.listen, &token);
    assert_says(&reason, &["it is version 0.0.9 and the run is version", "use one build"]);
    // Nobody could begin before.
    let honest = bench.worker_at(&bench.listen, "honest", &with);
    bench.ends(&mut run, vec![("honest", honest)]);

    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    let stock = "it computes with stock kernels";
    let no_token = "it has no token, and `token_file` asks for one";
    let wrong_token = "its token is not that of `token_file`";
    let refused = [no_token, wrong_token].map(|reason| format!("is refused: {reason}"));
    assert_says(&bench.coordinator_said("fleet"), &refused.each_ref().map(String::as_str));
    assert_says(
        &bench.coordinator_said("fleet"),
        &[&format!("worker stock is refused: {stock}"), "worker old is refused: it is version 0.0.9"],
    );
    assert_says(
        &bench.run_said(),
        &[
            &format!("notice: somebody who called was refused: {no_token}"),
            &format!("notice: somebody who called was refused: {wrong_token}"),
            &format!("notice: worker stock was dropped: {stock}"),
            "notice: worker old was dropped: it is version 0.0.9",
        ],
    );
    let table = bench.table("fleet");
    assert!(
        table["refusals"][no_token].as_u64() > Some(0) && table["refusals"][wrong_token].as_u64() > Some(0),
        "{table}"
    );
    let rows = table["workers"].as_array().unwrap();
    let states: Vec<(&str, &str)> =
        rows.iter().map(|row| (row["name"].as_str().unwrap(), row["state"].as_str().unwrap())).collect();
    assert_eq!(states, [("stock", "dropped"), ("old", "dropped"), ("honest", "gone")]);
}

#[test]
fn a_dry_run_opens_the_files_that_guard_a_run() {
    let bench = FleetBench::new(STEPS, "");
    let dry_run = |token: &str| {
        let listen = ["--listen", &bench.listen, "--dry-run", "--token_file", token];
        cli::finish(bench.command("run", &listen))
    };
    fs::write(bench.path("empty"), "\n").unwrap();
    fs::write(bench.path("token"), "the word of this run itself\n").unwrap();
    for (name, words) in [("missing", "No such file or directory"), ("empty", "it is empty; write a long")] {
        let token = bench.path(name);
        assert_says(dry_run(name).refusal(), &[&format!("error: `token_file` {}: {words}", token.display())]);
    }
    assert!(dry_run("token").success().stdout.contains("token_file = "));
}

/// What a worker is told that is not of this build.
fn of_another_build(join: &str, token: &Path) -> String {
    let options = JoinOptions { token_file: Some(token.into()), ..JoinOptions::to(join).unwrap() };
    let mut end = ZenohWorker::join(&options, 7, CALL).unwrap();
    let report = Report { worker: 7, name: "old".into(), build: "0.0.9".into(), ..Report::default() };
    end.exchange(&report, CALL).unwrap().refused.expect("it is refused")
}

/// Flags of a worker that trusts this authority, and has this certificate.
fn join_flags(ca: &Path, own: Option<&(PathBuf, PathBuf)>) -> Vec<String> {
    let mut flags = vec!["--tls-ca", text(ca)];
    if let Some((certificate, key)) = own {
        flags.extend(["--tls-certificate", text(certificate), "--tls-private-key", text(key)]);
    }
    flags.into_iter().map(str::to_owned).collect()
}

fn worker_of(bench: &FleetBench, name: &str, flags: &[String]) -> Worker {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    bench.worker_at(&bench.listen, name, &flags)
}

#[test]
fn certificates_that_are_old_or_of_others_are_named_on_both_sides() {
    let mut bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    bench.listen = format!("tls/{}", bench.address());
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.sign("127.0.0.1", TODAY);
    let (ca, elsewhere) = (authority.ca(), other.ca());
    let mut run = bench.start_fleet(
        "fleet",
        &["--tls_certificate", text(&certificate), "--tls_private_key", text(&key), "--tls_client_ca", text(&ca)],
    );
    let own = authority.sign("worker", TODAY);
    let not = "the coordinator does not accept --tls-certificate: ";
    for (name, ca, own, words, told) in [
        (
            "expired",
            &ca,
            Some(&authority.sign("worker", EXPIRED)),
            format!("{not}it has expired"),
            "its certificate has expired",
        ),
        (
            "foreign",
            &ca,
            Some(&other.sign("worker", TODAY)),
            format!("{not}it is not signed by its `tls_client_ca`"),
            "its certificate is not signed by `tls_client_ca`",
        ),
        (
            "bare",
            &ca,
            None,
            "the coordinator asks for a certificate: give --tls-certificate and --tls-private-key".to_owned(),
            "it has no certificate, and `tls_client_ca` asks for one",
        ),
        (
            "astray",
            &elsewhere,
            Some(&own),
            "the coordinator's certificate is not accepted: it is signed by neither --tls-ca nor a public authority"
                .to_owned(),
            "it does not know who signed `tls_certificate`",
        ),
    ] {
        let mut worker = worker_of(&bench, name, &join_flags(ca, own));
        assert_says(&bench.fails(name, &mut worker), &[&words]);
        bench.coordinator_says("fleet", &format!("a call from somebody is refused: {told}"));
    }
    let honest = worker_of(&bench, "honest", &join_flags(&ca, Some(&own)));
    bench.ends(&mut run, vec![("honest", honest)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    assert_says(&bench.worker_said("expired"), &["the certificate expired on"]);
    assert_says(&bench.run_said(), &["notice: somebody who called was refused: its certificate has expired"]);
    let table = bench.table("fleet");
    assert_eq!(table["refusals"].as_object().unwrap().len(), 4, "{table}");
}

#[test]
fn a_run_whose_certificate_has_expired_is_named_on_both_sides() {
    let mut bench = FleetBench::new(STEPS, "");
    bench.listen = format!("tls/{}", bench.address());
    let authority = Authority::new();
    let (certificate, key) = authority.sign("127.0.0.1", EXPIRED);
    let run = bench.start_fleet("fleet", &["--tls_certificate", text(&certificate), "--tls_private_key", text(&key)]);
    let words = bench.refused("worker", &["--tls-ca", text(&authority.ca())]);
    let expired = "the coordinator's certificate is not accepted: it has expired; the coordinator needs a new one";
    assert_says(&words, &[expired]);
    bench.coordinator_says("fleet", "the certificate expired on");
    bench.coordinator_says("fleet", "a call from somebody is refused: `tls_certificate` has expired");
    bench.run_says("notice: somebody who called was refused: `tls_certificate` has expired");
    drop(run);
}

/// Passes the first connection on over which something is said, and knows what was sent to the coordinator.
fn recorder(target: SocketAddr) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let records = thread::spawn(move || {
        // Whoever joins looks first whether there is anybody, and waits for a coordinator that is not up yet.
        let speaks = |near: &TcpStream| near.peek(&mut [0]).unwrap_or(0) > 0;
        let connected = |near: TcpStream| Some((TcpStream::connect(target).ok()?, near));
        let (mut far, mut near) = listener.incoming().flatten().filter(speaks).find_map(connected).unwrap();
        let (mut back, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back, &mut to));
        let (mut all, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(count @ 1..) = near.read(&mut bytes) {
            all.extend_from_slice(&bytes[..count]);
            far.write_all(&bytes[..count]).unwrap();
        }
        let _ = far.shutdown(Shutdown::Both);
        all
    });
    (address, records)
}

/// Sends bytes to a port, and goes.
fn send(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // Whoever is sent away early has been answered.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read(&mut [0; 100]);
}

/// KiB of memory that a process has.
fn resident(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn forged_replayed_truncated_and_foreign_bytes_at_the_port_harm_nothing() {
    let bench = FleetBench::new(12, "");
    let expected = bench.pair(12);
    let mut run = bench.start_fleet("fleet", &[]);
    let (there, records) = recorder(bench.address());
    let recorded = bench.worker_at(&format!("tcp/{there}"), "recorded", &["--tokens-per-second", "300"]);
    bench.wait_for_step("fleet", 2);
    drop(recorded);
    let record = records.join().unwrap();
    // From here on the run waits, so that all of this happens to it.
    bench.coordinator_says("fleet", "worker recorded is gone");
    let coordinator = children(run.id(), "rollout-fleet")[0];
    let address = bench.address();
    let noise = |seed: u64| {
        let byte = |at: usize| (rng::hash(&[seed, at as u64]) % 256) as u8;
        (0..record.len()).map(byte).collect::<Vec<u8>>()
    };
    let attack = |round: usize| {
        let drawn = rng::hash(&[round as u64]) as usize;
        send(address, b"GET / HTTP/1.1\r\nHost: run\r\n\r\n");
        send(address, &record);
        send(address, &record[..drawn % record.len()]);
        send(address, &noise(round as u64));
        let mut forged = record.clone();
        forged[drawn % record.len()] ^= 1 << (round % 8);
        send(address, &forged);
    };
    attack(0);
    let before = resident(coordinator);
    (1..ROUNDS).for_each(attack);
    let after = resident(coordinator);
    assert!(after < before + GROWTH, "{before} KiB, then {after} KiB");
    // More than zenoh takes of itself, which say nothing and stay.
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let honest = bench.worker("honest");
    bench.ends(&mut run, vec![("honest", honest)]);
    drop(silent);

    assert!(bench.result("fleet", 12) == expected, "other weights");
    let log = bench.coordinator_said("fleet");
    assert!(!log.contains("panicked") && !bench.run_said().contains("restarting"), "{log}");
    assert!(log.contains("is refused: it does not speak zenoh"), "{log}");
    assert_says(&bench.run_said(), &["notice: somebody who called was refused: it does not speak zenoh"]);
    // A replayed worker is none.
    let names: Vec<String> =
        bench.table("fleet")["workers"].as_array().unwrap().iter().map(|row| row["name"].to_string()).collect();
    assert_eq!(names, ["\"recorded\"", "\"honest\""]);
}

#[test]
fn a_worker_that_is_cut_off_when_the_run_ends_says_so() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &[]);
    let line = Proxy::to(bench.address());
    let mut far =
        bench.worker_at(&format!("tcp/{}", line.address()), "far", &["--retry-for", "4", "--tokens-per-second", "200"]);
    bench.worker_says("far", "samples from weights");
    bench.wait_for_step("fleet", 2);
    line.cut_for(Duration::from_secs(600));
    let near = bench.worker("near");
    bench.ends(&mut run, vec![("near", near)]);
    let words = bench.fails("far", &mut far);
    assert_says(
        &words,
        &["no answer from the coordinator for", "(--retry-for)", "what listens there takes connections and ends them"],
    );
    assert_says(&bench.coordinator_said("fleet"), &["worker far is gone"]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
}
