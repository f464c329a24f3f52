//! What the server of the page answers, and to whom.

use harness::cli;
use serde_json::json;

use super::{Ui, made_up_run};

#[test]
fn the_server_answers_to_this_machine_alone_and_to_others_with_the_token() {
    let dir = tempfile::tempdir().unwrap();
    made_up_run(&dir.path().join("run"), 3, |step, sample| format!("{step} {sample}"));
    let ui = Ui::of(dir.path());
    let (head, body) = ui.get("/", "Host: localhost");
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("<div id=\"page\">"), "{head}");
    for fixed in ["content-security-policy: default-src 'none'; script-src 'self'", "x-content-type-options: nosniff"] {
        assert!(head.contains(fixed), "{head}");
    }
    assert!(ui.get("/api/runs", "Host: evil.example").0.starts_with("HTTP/1.1 403"));
    for (path, status) in [
        ("/assets/nothing.js", 404),
        ("/assets/..%2f..%2fCargo.toml", 404),
        ("/api/runs/7/steps", 404),
        ("/api/runs/0/steps/9", 404),
    ] {
        assert!(ui.get(path, "Host: localhost").0.starts_with(&format!("HTTP/1.1 {status}")), "{path}");
    }
    assert_eq!(ui.json("runs")[0]["steps"], 3);
    let generation = &ui.json("runs/0/curves")["generation"];
    assert_eq!(ui.json(&format!("runs/0/curves?steps=2&generation={generation}"))["steps"]["step"], json!([3]));
    assert_eq!(ui.json("runs/0/curves?steps=2&generation=5")["steps"]["step"], json!([1, 2, 3]));
    assert_eq!(ui.json("runs/0/steps"), json!([1, 2, 3]));
    assert_eq!(ui.json("runs/0/steps/2")["groups"][1]["samples"][1]["completion"], "2 3");
    assert_eq!(ui.json("runs/0/steps/2/5/1")["row"]["state"], "stale");
    assert_eq!(ui.json("runs/0/search?q=2%203")["hits"][0]["step"], 2);

    let open = Ui::start(&[dir.path().to_str().unwrap(), "--host", "0.0.0.0"]);
    let (_, token) = open.address.split_once("token=").expect("the address has the token");
    assert!(open.get("/api/runs", "Host: x").0.starts_with("HTTP/1.1 401"));
    assert!(open.get("/?token=0123", "Host: x").0.starts_with("HTTP/1.1 401"));
    let (welcome, _) = open.get(&format!("/?token={token}"), "Host: x");
    assert!(
        welcome.starts_with("HTTP/1.1 303") && welcome.contains("location: /\r\n") && welcome.contains("HttpOnly"),
        "{welcome}"
    );
    let cookie = format!("Host: x\r\nCookie: tandem-{}={token}", open.port());
    assert!(open.get("/api/runs", &cookie).0.starts_with("HTTP/1.1 200"));
}

#[test]
fn what_cannot_be_shown_is_refused_by_name() {
    let refused = cli::run("tandem", ["ui", "/no/such/folder"]);
    assert_eq!(refused.refusal(), "error: /no/such/folder is no folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = cli::run("tandem", ["ui", env!("CARGO_MANIFEST_DIR"), "--port", &port]);
    assert!(refused.refusal().contains("--port 0"), "{}", refused.stderr);
}
