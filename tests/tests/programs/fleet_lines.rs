//! Workers on hosts of their own, at the end of lines that are narrow, lose packets and are pulled out.

use std::{fs, net::TcpListener, time::Duration};

use harness::{fleet::FleetBench, line::Host, s3::Server, skipped};

const STEPS: u64 = 12;
/// What goes through a line, so that a version takes a good part of a second.
const KBIT_PER_S: u32 = 4000;
/// Slow enough for a step to outlast most of what happens to a line.
const TOKENS_PER_S: &str = "100";

#[test]
fn workers_on_narrow_lines_that_lose_packets_and_are_pulled_out_make_the_weights_of_one_pair() {
    const TEST: &str = "workers_on_narrow_lines_that_lose_packets_and_are_pulled_out_make_the_weights_of_one_pair";
    let Some(hosts) = (0..2).map(Host::new).collect::<Option<Vec<Host>>>() else {
        return skipped(TEST, "this user cannot make network namespaces with lines");
    };
    hosts.iter().for_each(|host| host.narrow(KBIT_PER_S));
    let mut bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let here = hosts[0].here;
    let free = TcpListener::bind((here, 0)).unwrap();
    bench.listen = format!("tcp/{}", free.local_addr().unwrap());
    drop(free);
    let server = Server::start_at(here);
    bench.variables = server.variables(server.address);
    let token = bench.path("token");
    fs::write(&token, "the word of this run itself").unwrap();
    let token = ["--token-file", token.to_str().unwrap()];
    let mut run = bench.start_fleet("fleet", &["--token_file", token[1], "--weights_store", "s3://bucket/run"]);
    let names = ["one", "two"];
    let flags = [&token[..], &["--tokens-per-second", TOKENS_PER_S]].concat();
    let workers = [0, 1].map(|n| bench.worker_on(&hosts[n], names[n], &flags));
    let versions_of = |name: &str| bench.worker_said(name).matches("in use after").count();
    let mut before = [0; 2];
    for (step, host, milliseconds) in [(1, 0, 1500), (2, 1, 300), (3, 0, 4000), (5, 1, 800)] {
        bench.wait_for_step("fleet", step);
        before[host] = versions_of(names[host]);
        hosts[host].pull_out_for(Duration::from_millis(milliseconds));
    }
    // Who is cut off when the run ends calls on for a while.
    bench.ends(&mut run, Vec::new());
    drop(workers);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    for (n, host) in hosts.iter().enumerate() {
        assert!(host.lost() > 0, "the line was wide enough");
        assert!(versions_of(names[n]) > before[n], "it has not come back: {}", bench.worker_said(names[n]));
    }
}
