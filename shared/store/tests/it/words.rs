//! Messages about stores that cannot be used.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use harness::s3::{SECRET, Server, variables};
use shared_store::{Doing, Store, StoreError};

use crate::{Until, assert_says, proxy::Proxy, version};

/// A server that gives the same answer to everybody.
fn says(status: &'static str, body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut request = [0; 64 << 10];
                let _ = stream.read(&mut request);
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    address
}

fn s3(address: SocketAddr, more: &[(&str, &str)]) -> Store {
    let more = more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    Store::open_with("s3://bucket/x", variables(address, SECRET).into_iter().chain(more)).unwrap()
}

#[test]
fn what_a_server_says_becomes_a_typed_error() {
    type Is = fn(&StoreError) -> bool;
    let cases: [(&str, &str, Is, &str); 7] = [
        (
            "404 Not Found",
            "<Error><Code>NoSuchBucket</Code><Message>None.</Message></Error>",
            |e| matches!(e, StoreError::NoBucket { .. }),
            "make it first",
        ),
        (
            "404 Not Found",
            "<Error><Code>NoSuchKey</Code></Error>",
            |e| matches!(e, StoreError::NotFound { .. }),
            "is not there",
        ),
        (
            "403 Forbidden",
            "<Error><Code>AccessDenied</Code><Message>No &amp; no.</Message></Error>",
            |e| matches!(e, StoreError::Denied { doing: Doing::Writing, .. }),
            "AccessDenied: No &amp; no.",
        ),
        (
            "400 Bad Request",
            "<Error><Code>ExpiredToken</Code></Error>",
            |e| matches!(e, StoreError::Denied { .. }),
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "400 Bad Request",
            "<Error><Code>EntityTooLarge</Code></Error>",
            |e| matches!(e, StoreError::Other { .. }),
            "EntityTooLarge",
        ),
        (
            "507 Insufficient Storage",
            "<Error><Code>XMinioStorageFull</Code></Error>",
            |e| matches!(e, StoreError::Full { .. }),
            "free some space there",
        ),
        ("301 Moved Permanently", "", |e| matches!(e, StoreError::Other { .. }), "region"),
    ];
    thread::scope(|scope| {
        for (status, body, is, words) in cases {
            scope.spawn(move || {
                let error = s3(says(status, body), &[]).probe(10, &()).unwrap_err();
                assert!(is(&error), "{status} {body}: {error:?}");
                assert_says(&error, &["s3://bucket/x", words]);
                assert!(!error.to_string().contains(SECRET));
            });
        }
    });
}

#[test]
fn a_real_server_refuses_strangers_and_knows_no_other_bucket() {
    let server = Server::start();
    let stranger = Store::open_with("s3://bucket/x", variables(server.address, "wrong")).unwrap();
    let error = stranger.probe(10, &()).unwrap_err();
    assert!(matches!(error, StoreError::Denied { doing: Doing::Writing, .. }), "{error:?}");
    assert_says(&error, &["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY allow it"]);
    let elsewhere = Store::open_with("s3://elsewhere/x", server.variables(server.address)).unwrap();
    let error = elsewhere.list(&()).unwrap_err();
    assert!(matches!(error, StoreError::NoBucket { .. }), "{error:?}");
}

/// An address without a listener.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_store_that_is_down_is_called_so() {
    let error = s3(nobody(), &[]).probe(10, &()).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert_says(&error, &["s3://bucket/x: cannot be reached", "refused"]);
}

#[test]
fn a_store_that_is_silent_is_called_so() {
    let server = Server::start();
    let proxy = Proxy::start(server.address);
    proxy.silence();
    let error = s3(proxy.address, &[("AWS_READ_TIMEOUT", "100ms")]).probe(10, &()).unwrap_err();
    assert!(matches!(error, StoreError::TimedOut { .. }), "{error:?}");
}

#[test]
fn somebody_without_credentials_is_told_where_they_go() {
    // The address where clouds give machines their credentials; the real one must not be asked here.
    let variables = [("AWS_METADATA_ENDPOINT".to_owned(), format!("http://{}", nobody()))];
    let error = Store::open_with("s3://bucket/x", variables).unwrap().probe(10, &()).unwrap_err();
    assert!(matches!(error, StoreError::NoCredentials { .. }), "{error:?}");
    assert_says(&error, &["give them in AWS_ACCESS_KEY_ID"]);
}

#[test]
fn who_gives_up_does_not_wait_for_a_silent_server() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(server.address);
    proxy.silence();
    let store = s3(proxy.address, &[]);
    let begin = Instant::now();
    for given_up in [
        store.publish("v1", &version(dir.path(), 1), &Until::new(0)).map(drop),
        store.fetch("v1", &[0; 32], &dir.path().join("v1"), &Until::new(0)).map(drop),
        store.probe(10, &Until::new(0)).map(drop),
    ] {
        assert!(matches!(given_up, Err(StoreError::GaveUp)), "{given_up:?}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5));
}
