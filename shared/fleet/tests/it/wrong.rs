//! Addresses without a coordinator, wrong tokens, and ports that are taken.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use shared_fleet::{
    FleetError, JoinOptions, ListenOptions, RefusedCalls, Stage, ZenohCoordinator, ZenohWorker, init_logging, probe,
};

use crate::support::{PATIENCE, Serving, alone, at, call, free_port, join, listen, loopback, token_file};

/// Why a worker is refused, and at which stage of a probe.
fn refused(options: &JoinOptions) -> (Stage, String) {
    let error = ZenohWorker::join(options, 1, Duration::from_millis(1500)).map(drop).unwrap_err().to_string();
    let (stage, seen) = probe(options, Duration::from_millis(1500)).failed.expect("it does not get in");
    assert_eq!(seen.to_string(), error);
    (stage, error)
}

#[test]
fn nothing_listens_there() {
    let address = format!("127.0.0.1:{}", free_port());
    let options = at(address.parse().unwrap());
    let words = format!(
        "--join tcp/{address}: nothing listens there ({address}: connection refused); is the run up, and does a \
         firewall let this host through?"
    );
    assert_eq!(refused(&options), (Stage::Connect, words));
    let start = Instant::now();
    let error = ZenohWorker::join(&options, 1, Duration::ZERO).map(drop).unwrap_err();
    assert!(matches!(error, FleetError::Nobody { .. }) && error.may_pass(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "it was not told to wait");
}

#[test]
fn the_name_has_no_address() {
    let (stage, words) = refused(&JoinOptions::to("tls/nowhere.invalid:7447").unwrap());
    assert_eq!(stage, Stage::Resolve);
    assert!(
        words.starts_with("--join tls/nowhere.invalid:7447: the name `nowhere.invalid` has no address ("),
        "{words}"
    );
}

#[test]
fn something_else_listens_there() {
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 100]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let error = ZenohWorker::join(&at(address), 1, Duration::from_millis(1500)).map(drop).unwrap_err().to_string();
        let words = "what listens there takes connections and ends them; is it a coordinator?";
        assert_eq!(error, format!("--join tcp/{address}: {words}"));
    }
}

#[test]
fn a_port_that_takes_connections_and_says_nothing_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let start = Instant::now();
    let options = at(listener.local_addr().unwrap());
    let error = ZenohWorker::join(&options, 1, Duration::from_millis(300)).map(drop).unwrap_err().to_string();
    assert!(error.ends_with(": what listens there takes connections and says nothing"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
}

#[test]
fn a_token_is_the_same_on_both_sides_or_on_neither() {
    let (_dir, word) = token_file("the word of the coordinator");
    let (_dir, other) = token_file("the word of somebody else");
    let guarded = Serving::new(&ListenOptions { token_file: Some(word.clone()), ..loopback() });
    let open = Serving::new(&loopback());
    let with = |coordinator: &Serving, file| JoinOptions { token_file: file, ..coordinator.join_options() };
    let there = |coordinator: &Serving, words: &str| {
        (Stage::Join, format!("--join tcp/{}: the coordinator {words}", coordinator.address))
    };
    let told = |coordinator: &Serving, reason: &str| {
        let words = coordinator.wait_for(reason, |words| words.ends_with(reason));
        assert!(words.starts_with("127.0.0.1:") && words.len() < reason.len() + 20, "{words}");
    };

    let wrong = "does not accept the token: --token-file has another word than its `token_file`";
    assert_eq!(refused(&with(&guarded, Some(other.clone()))), there(&guarded, wrong));
    told(&guarded, ": its token is not that of `token_file`");
    let missing = "asks for a token: give --token-file, with the word of its `token_file`";
    assert_eq!(refused(&with(&guarded, None)), there(&guarded, missing));
    told(&guarded, ": it has no token, and `token_file` asks for one");
    let needless = "has no token: leave out --token-file, or give it `token_file`";
    assert_eq!(refused(&with(&open, Some(word.clone()))), there(&open, needless));
    told(&open, ": it broke off: it has a token, and there is no `token_file`");

    call(&mut join(&with(&guarded, Some(word)), 1).unwrap(), 1);
    call(&mut join(&with(&open, None), 1).unwrap(), 1);
    // Waiting does not help.
    let start = Instant::now();
    assert!(ZenohWorker::join(&with(&guarded, Some(other)), 1, PATIENCE).is_err());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn who_gets_in_does_not_hang_on_the_reading_of_zenohs_log() {
    if !alone("wrong::who_gets_in_does_not_hang_on_the_reading_of_zenohs_log") {
        return;
    }
    // Only the first call counts.
    init_logging("info", RefusedCalls::AsLogged);
    let (_dir, word) = token_file("the word of the coordinator");
    let (_dir, other) = token_file("the word of somebody else");
    let coordinator = Serving::new(&ListenOptions { token_file: Some(word.clone()), ..loopback() });
    let with = |file| JoinOptions { token_file: file, ..coordinator.join_options() };
    let (stage, words) = refused(&with(Some(other)));
    assert!(stage == Stage::Join && words.contains("does not accept the token"), "{words}");
    let (stage, words) = refused(&with(None));
    assert!(stage == Stage::Join && words.contains("asks for a token"), "{words}");
    call(&mut join(&with(Some(word)), 1).unwrap(), 1);
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
    assert_eq!(coordinator.told(), ["gone 1"], "nobody has explained the refusals to it");
}

#[test]
fn a_worker_that_is_no_longer_let_in_says_why() {
    let (_dir, word) = token_file("the word of the coordinator");
    let (_dir, other) = token_file("the word of somebody else");
    let coordinator = Serving::new(&ListenOptions { token_file: Some(word.clone()), ..loopback() });
    let address = coordinator.address;
    let mut worker = join(&JoinOptions { token_file: Some(word), ..at(address) }, 1).unwrap();
    call(&mut worker, 1);
    drop(coordinator);
    let _coordinator = Serving::new(&ListenOptions { token_file: Some(other), ..listen(&format!("tcp/{address}")) });
    use shared::channel::fleet::WorkerEnd;
    let error = worker.exchange(&crate::support::report(1), Duration::from_millis(500)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "the coordinator cannot be reached: --join tcp/{address}: the coordinator does not accept the token: \
             --token-file has another word than its `token_file`"
        )
    );
}

#[test]
fn whoever_only_knocks_is_not_remarked_on() {
    let coordinator = Serving::new(&loopback());
    drop(std::net::TcpStream::connect(coordinator.address).unwrap());
    call(&mut coordinator.join(1), 1);
    coordinator.wait_for("the worker to be gone", |words| words == "gone 1");
    assert_eq!(coordinator.told(), ["gone 1"]);
    let mut stranger = std::net::TcpStream::connect(coordinator.address).unwrap();
    stranger.write_all(&[2, 0, 0xff, 0xff]).unwrap();
    let words = format!("{}: it does not speak zenoh", stranger.local_addr().unwrap());
    coordinator.wait_for("a word on the stranger", |told| told == words);
}

#[test]
fn a_coordinator_says_why_it_cannot_listen() {
    let open = |endpoint: &str| ZenohCoordinator::open(&listen(endpoint)).map(drop).unwrap_err().to_string();
    let coordinator = ZenohCoordinator::open(&loopback()).unwrap();
    let taken = coordinator.endpoint().to_string();
    assert_eq!(
        open(&taken),
        format!("`listen` {taken}: the port is in use; does another run listen there? choose another port")
    );
    assert_eq!(
        open("tcp/0.0.0.0:7447"),
        "`listen` tcp/0.0.0.0:7447 is open to everyone who reaches it: give `token_file`, or `tls_client_ca` with \
         tls/…, or listen on this host alone (tcp/127.0.0.1:7447)"
    );
    assert_eq!(open("tls/127.0.0.1:0"), "`listen` tls/127.0.0.1:0 needs `tls_certificate`: a file in PEM");
    let (_dir, word) = token_file("the word of the coordinator");
    let elsewhere = ListenOptions { token_file: Some(word), ..listen("tcp/192.0.2.1:7447") };
    assert_eq!(
        ZenohCoordinator::open(&elsewhere).map(drop).unwrap_err().to_string(),
        "`listen` tcp/192.0.2.1:7447: this host has no such address; 0.0.0.0 stands for all that it has"
    );
    drop(coordinator);
    drop(ZenohCoordinator::open(&listen(&taken)).unwrap());
}
