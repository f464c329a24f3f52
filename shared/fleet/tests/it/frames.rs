//! Calls that no worker of this build sends.

use std::{sync::mpsc, time::Duration};

use shared::channel::{
    fleet::{Orders, WorkerEnd},
    frame::{self, HEADER_LEN},
};
use zenoh::{Config, Session, Wait, handlers::FifoChannel};

use crate::support::{COORDINATOR, PATIENCE, Serving, call, loopback, report};

/// A client that speaks zenoh and is no worker.
fn stranger(coordinator: &Serving) -> Session {
    let config = serde_json::json!({
        "mode": "client",
        "connect": { "endpoints": [format!("tcp/{}", coordinator.address)] },
        "scouting": { "multicast": { "enabled": false } },
    });
    zenoh::open(Config::from_json5(&config.to_string()).unwrap()).wait().unwrap()
}

/// The answer to a call of these bytes, or the reason of its refusal.
fn send(session: &Session, bytes: Vec<u8>) -> Result<Orders, String> {
    let call = session.get("tandem/fleet/call").payload(bytes).attachment("a stranger").timeout(PATIENCE);
    let answers = call.with(FifoChannel::new(1)).wait().unwrap();
    let answer = answers.recv_timeout(PATIENCE).unwrap().expect("an answer");
    match answer.result() {
        Ok(sample) => Ok(frame::decode(&sample.payload().to_bytes()).unwrap()),
        Err(error) => Err(error.payload().try_to_string().unwrap().into_owned()),
    }
}

#[test]
fn a_frame_that_cannot_be_read_is_refused_on_both_sides() {
    let coordinator = Serving::new(&loopback());
    let session = stranger(&coordinator);
    let good = frame::encode(&report(5));
    assert_eq!(send(&session, good.clone()).unwrap().leases, [5]);
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        bad
    };
    let damaged = "the checksum does not match: the frame is damaged";
    let cases = [
        ("forged", with(HEADER_LEN, !good[HEADER_LEN]), damaged.to_owned()),
        ("a forged checksum", with(16, !good[16]), damaged.to_owned()),
        (
            "truncated",
            good[..good.len() - 1].to_vec(),
            format!(
                "the header states a body of {} bytes, there are {}",
                good.len() - HEADER_LEN,
                good.len() - HEADER_LEN - 1
            ),
        ),
        ("a stump", good[..9].to_vec(), "9 bytes are too few for a frame header of 32".to_owned()),
        (
            "foreign",
            b"GET / HTTP/1.1\r\nHost: run\r\n\r\n".to_vec(),
            "it begins with [47, 45, 54, 20] and not with \"TNDM\"".to_owned(),
        ),
        (
            "another build",
            with(4, 5),
            format!(
                "frame version 5 is not version {} of this program; run one build everywhere",
                frame::FRAME_VERSION
            ),
        ),
        ("an answer", frame::encode(&Orders::default()), "message kind 5 instead of Report".to_owned()),
    ];
    for (index, (what, bytes, reason)) in cases.into_iter().enumerate() {
        assert_eq!(send(&session, bytes), Err(reason.clone()), "{what}");
        let told = format!("a stranger: {reason}");
        crate::support::wait_for(what, || (coordinator.told().len() > index).then_some(()));
        assert_eq!(coordinator.told().last(), Some(&told), "{what}");
    }
    // Nobody else notices.
    call(&mut coordinator.join(1), 1);
}

#[test]
fn the_same_call_twice_is_answered_twice() {
    let coordinator = Serving::new(&loopback());
    let session = stranger(&coordinator);
    let call = frame::encode(&report(5));
    assert_eq!(send(&session, call.clone()).unwrap(), send(&session, call).unwrap());
    assert_eq!(coordinator.told(), Vec::<String>::new());
}

#[test]
fn a_flood_of_bad_calls_fills_no_log() {
    let coordinator = Serving::new(&loopback());
    let session = stranger(&coordinator);
    for _ in 0..500 {
        assert!(send(&session, vec![1; 100]).is_err());
    }
    call(&mut coordinator.join(1), 1);
    let told = coordinator.told().iter().filter(|words| words.starts_with("a stranger")).count();
    assert!((1..=32).contains(&told), "{told}");
}

#[test]
fn a_worker_hears_and_answers_nothing_that_is_for_others() {
    let coordinator = Serving::new(&loopback());
    let (thief, forger) = (stranger(&coordinator), stranger(&coordinator));
    let (stolen, heard) = (mpsc::channel(), mpsc::channel());
    let calls = thief.declare_queryable("tandem/fleet/call").callback(move |_| stolen.0.send(()).unwrap());
    let all = thief.declare_subscriber("**").callback(move |sample| {
        heard.0.send(sample.key_expr().to_string()).unwrap();
    });
    let tokens = thief.liveliness().declare_subscriber("**").history(true).callback(|_| panic!("a token"));
    let tricks = (calls.wait().unwrap(), all.wait().unwrap(), tokens.wait().unwrap());
    let mut worker = coordinator.join(1);
    for _ in 0..20 {
        call(&mut worker, 1);
        for key in ["tandem/fleet/bell", "tandem/fleet/call", "another"] {
            forger.put(key, "forged").wait().unwrap();
        }
    }
    assert_eq!(send(&forger, frame::encode(&report(9))).unwrap().coordinator, COORDINATOR);
    assert!(!worker.listen(Duration::from_millis(100)), "only the coordinator wakes");
    drop(tricks);
    assert!(stolen.1.try_recv().is_err(), "calls go to the coordinator alone");
    assert_eq!(heard.1.try_iter().collect::<Vec<_>>(), Vec::<String>::new());
}
