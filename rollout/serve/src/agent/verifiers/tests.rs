//! Episodes on a server that does as it is told.

use crossbeam::channel::{Receiver, unbounded};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{connection::router::Peer, *};

const URL: &str = "http://127.0.0.1:1/v1";

/// What a server does with the rows that it gets, by their column `do`.
const SCRIPT: &str = "well | refuse | garble | end | wait | big";

/// A message that a server has got: its kind, and its payload.
type Heard = (String, Value);

/// The ends of episodes, by their places.
type Ends = Receiver<(Place, Outcome)>;

/// A server on a thread of its own, on a port that stays when it ends.
struct Server {
    host: String,
    heard: Receiver<Heard>,
}

impl Server {
    /// Serves so many connections, one after the other.
    fn start(connections: usize) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (tell, heard) = unbounded();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = TcpListener::from_std(listener).unwrap();
                for _ in 0..connections {
                    let mut peer = Peer::accept(&listener).await.unwrap();
                    while let Ok(message) = peer.hear().await {
                        if !answer(&mut peer, &message, &tell).await {
                            break;
                        }
                    }
                }
            });
        });
        Self { host, heard }
    }

    fn meet(&self, timeout: f64) -> Verifiers {
        let policy = Policy { base_url: URL.into(), temperature: 0.5, top_p: 1.0 };
        let patience = Duration::from_secs_f64(1.0);
        Verifiers::meet_within(&self.host, policy, Duration::from_secs_f64(timeout), patience).unwrap()
    }

    /// The next message that is no question for its health.
    fn next(&self) -> Heard {
        loop {
            let heard = self.heard.recv_timeout(Duration::from_secs(20)).unwrap();
            if heard.0 != "health" {
                return heard;
            }
        }
    }
}

/// Answers a message. Returns whether the connection goes on.
async fn answer(peer: &mut Peer, message: &[Vec<u8>], tell: &Sender<Heard>) -> bool {
    let [id, kind, payload] = message else { panic!("{} frames", message.len()) };
    let payload: Value = rmp_serde::from_slice(payload).unwrap();
    let kind = String::from_utf8(kind.clone()).unwrap();
    let (row, headers) = (payload["task_data"].clone(), payload["client"]["headers"].clone());
    let _ = tell.send((kind.clone(), payload));
    let packed = |value: &Value| rmp_serde::to_vec_named(value).unwrap();
    let agent = json!({ "name": "agent", "trainable": true, "config": { "client": { "base_url": URL } } });
    let rewards = json!({ "right": { "score": row["score"], "weight": 2.0 } });
    let delta = json!({ "trace": "t", "nodes": [1], "set": { "agent": agent, "rewards": rewards } });
    let head = json!({ "ok": true, "is_timeout": false, "errors": [], "key": headers["X-Tandem-Sample"] });
    let reply = json!({ "success": true, "head": head, "traces": [{ "id": "t", "nodes": 1, "calls": 0 }] });
    match (kind.as_str(), row["do"].as_str()) {
        ("health", _) => peer.say(&[id, b"reply", &packed(&json!({ "success": true, "error": null }))]).await,
        ("run", Some("well")) => {
            peer.say(&[b"of-nobody", b"reply", b"\xc1"]).await;
            peer.say(&[id, b"delta", &packed(&delta)]).await;
            peer.say(&[id, b"reply", &packed(&reply)]).await;
        }
        ("run", Some("refuse")) => {
            peer.say(&[id, b"reply", &packed(&json!({ "success": false, "error": "ValueError: no" }))]).await;
        }
        ("run", Some("garble")) => peer.say(&[id, b"delta", b"\xc1"]).await,
        ("run", Some("end")) => return false,
        ("run", Some("big")) => peer.write(&[2, 1, 0, 0, 0, 0, 0, 0, 0]).await,
        ("run", Some("wait")) | ("cancel", _) => {}
        other => panic!("{other:?} is none of {SCRIPT}"),
    }
    true
}

/// Begins episodes with these rows. Their ends come by their places.
fn begin(verifiers: &Verifiers, rows: &[Value]) -> (Vec<Box<dyn Send>>, Ends) {
    let (tell, ends) = unbounded();
    let start = |(at, row): (usize, &Value)| {
        verifiers.start(format!("key-{at}"), row.to_string().into(), (7, at as u32), tell.clone()).unwrap()
    };
    (rows.iter().enumerate().map(start).collect(), ends)
}

fn end(ends: &Ends) -> Outcome {
    ends.recv_timeout(Duration::from_secs(20)).unwrap().1
}

/// The reason of a failure.
fn failure(ends: &Ends) -> String {
    match end(ends) {
        Outcome::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_episodes_share_a_connection_and_each_has_its_key_and_its_reward() {
    let server = Server::start(1);
    let mut verifiers = server.meet(20.0);
    let rows: Vec<Value> = (0..40).map(|score| json!({ "do": "well", "score": score })).collect();
    let (_begun, ends) = begin(&verifiers, &rows);
    for _ in &rows {
        let ((group, at), outcome) = ends.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!((group, outcome), (7, Outcome::Rewarded(2.0 * f64::from(at))));
    }
    for (at, row) in rows.iter().enumerate() {
        let (kind, asked) = server.next();
        assert_eq!((kind.as_str(), &asked["task_data"]), ("run", row));
        assert_eq!(asked["client"]["headers"]["X-Tandem-Sample"], format!("key-{at}"));
        assert_eq!(asked["sampling"]["temperature"], 0.5);
    }
    assert_eq!(verifiers.close(), Some(Counts { rewarded: 40, ..Counts::default() }));
}

#[test]
fn a_failure_has_its_reason_and_its_neighbour_a_reward() {
    let server = Server::start(1);
    let mut verifiers = server.meet(20.0);
    for (how, expected) in [
        ("refuse", "the episode of verifiers was refused by its server: ValueError: no"),
        ("garble", "the server of verifiers has sent a delta that cannot be read"),
    ] {
        let (_begun, ends) = begin(&verifiers, &[json!({ "do": how })]);
        let reason = failure(&ends);
        assert!(reason.starts_with(expected), "{reason}");
        let (_begun, ends) = begin(&verifiers, &[json!({ "do": "well", "score": 1 })]);
        assert_eq!(end(&ends), Outcome::Rewarded(2.0));
    }
    assert_eq!(verifiers.close(), Some(Counts { rewarded: 2, failed: 2, ..Counts::default() }));
}

#[test]
fn an_episode_that_is_late_or_given_up_is_aborted_on_the_server() {
    let server = Server::start(1);
    let mut verifiers = server.meet(0.3);
    let (begun, ends) = begin(&verifiers, &[json!({ "do": "wait" })]);
    let late = "the episode of verifiers has not ended within 0.3 s (`agent_timeout`)";
    assert_eq!(end(&ends), Outcome::Late(late.into()));
    drop(begun);
    drop(begin(&verifiers, &[json!({ "do": "wait" })]));
    let (run, cancel, again, given_up) = (server.next(), server.next(), server.next(), server.next());
    assert_eq!([&run.0, &cancel.0, &again.0, &given_up.0], ["run", "cancel", "run", "cancel"]);
    let ids = [&cancel.1["request_id"], &given_up.1["request_id"]].map(|id| id.as_str().unwrap().to_owned());
    assert!(ids[0].ends_with("-0") && ids[1].ends_with("-1"), "{ids:?}");
    assert_eq!(verifiers.close(), Some(Counts { late: 1, given_up: 1, ..Counts::default() }));
}

#[test]
fn what_a_lost_server_had_fails_and_the_next_connection_has_what_came_meanwhile() {
    for (how, why) in [("end", "it has closed the connection"), ("big", "it has sent a message of more than 64 MiB")] {
        let server = Server::start(2);
        let mut verifiers = server.meet(20.0);
        let (_lost, ends) = begin(&verifiers, &[json!({ "do": "wait" }), json!({ "do": how })]);
        for reason in [failure(&ends), failure(&ends)] {
            let expected = format!("the server of verifiers at tcp://{} is gone: {why}", server.host);
            assert!(reason.starts_with(&expected), "{reason}");
        }
        let (_begun, ends) = begin(&verifiers, &[json!({ "do": "well", "score": 3 })]);
        assert_eq!(end(&ends), Outcome::Rewarded(6.0));
        // A server that still plays what it had is told that nobody wants it.
        let cancels = std::iter::repeat_with(|| server.next()).filter(|(kind, _)| kind == "cancel");
        let cancelled: Vec<String> =
            cancels.take(2).map(|(_, asked)| asked["request_id"].as_str().unwrap().to_owned()).collect();
        assert!(cancelled[0].ends_with("-0") && cancelled[1].ends_with("-1"), "{cancelled:?}");
        assert_eq!(verifiers.close(), Some(Counts { rewarded: 1, failed: 2, lost: 1, ..Counts::default() }));
    }
}

#[test]
fn a_server_that_does_not_come_back_is_waited_for_and_named() {
    let server = Server::start(1);
    let mut verifiers = server.meet(20.0);
    let (_lost, ends) = begin(&verifiers, &[json!({ "do": "end" })]);
    assert!(failure(&ends).contains("is gone"));
    let (_begun, ends) = begin(&verifiers, &[json!({ "do": "well" })]);
    let reason = failure(&ends);
    let expected = format!("no server of verifiers has answered at tcp://{} for 1 s: ", server.host);
    assert!(reason.starts_with(&expected), "{reason}");
    assert_eq!(verifiers.close(), Some(Counts { failed: 2, lost: 1, ..Counts::default() }));
}

#[test]
fn a_run_does_not_begin_without_a_server() {
    let policy = Policy { base_url: URL.into(), temperature: 1.0, top_p: 1.0 };
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let found = Verifiers::meet_within(&nobody, policy, Duration::from_secs(1), Duration::from_millis(300));
    let reason = found.err().unwrap();
    assert!(reason.starts_with(&format!("no server of verifiers has answered at tcp://{nobody}")), "{reason}");
}
