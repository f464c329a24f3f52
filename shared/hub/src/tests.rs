//! Redirects, between servers at several addresses and ports of this machine.

use std::{fs, path::Path, time::Duration};

use harness::hub::{Faults, Hub as Server};

use super::{Hub, HubError, Settings};

const TOKEN: &str = "hf_secret";

fn files() -> Vec<(String, Vec<u8>)> {
    // The second one is in large-file storage.
    let files =
        [("config.json", b"{}".to_vec()), ("model.safetensors", vec![7; 5000]), ("tokenizer.json", b"{}".to_vec())];
    files.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec()
}

fn server(host: &str) -> Server {
    let server = Server::on(host);
    let _ = server.commit("models/a/b", files());
    server
}

fn fetch(server: &Server, cache: &Path) -> Result<(), HubError> {
    let settings = Settings {
        endpoint: server.endpoint.clone(),
        cache: cache.to_owned(),
        token: Some(TOKEN.to_owned()),
        offline: None,
        patience: Duration::from_secs(20),
    };
    let snapshot = Hub::new(settings, || false, |_| {}).model("a/b", "main")?;
    for (name, bytes) in files() {
        assert!(fs::read(snapshot.path.join(&name)).unwrap() == bytes, "{name}");
    }
    Ok(())
}

fn redirecting(place: &str) -> Faults {
    Faults { redirect: Some(place.to_owned()), ..Faults::default() }
}

#[test]
fn the_token_goes_to_the_hub_alone_whatever_it_redirects_to() {
    for host in ["127.0.0.1", "127.0.0.2"] {
        let (hub, other) = (server("127.0.0.1"), server(host));
        hub.faults(redirecting(&format!("{}{{path}}", other.endpoint)));
        let cache = tempfile::tempdir().unwrap();
        fetch(&hub, cache.path()).unwrap();
        assert!(hub.tokens().iter().all(|token| token.as_deref() == Some(TOKEN)));
        let foreign = other.tokens();
        assert!(foreign.len() > files().len() && foreign.iter().all(Option::is_none), "{host}: {foreign:?}");
    }
}

#[test]
fn the_token_comes_along_to_another_path_of_the_hub() {
    let hub = server("127.0.0.1");
    for place in ["{path}?there".to_owned(), format!("{}{{path}}?there", hub.endpoint)] {
        hub.faults(Faults { token: Some(TOKEN), ..redirecting(&place) });
        let cache = tempfile::tempdir().unwrap();
        fetch(&hub, cache.path()).unwrap();
    }
    // By way of another host, too.
    let other = server("127.0.0.2");
    other.faults(redirecting(&format!("{}{{path}}?there", hub.endpoint)));
    hub.faults(Faults { token: Some(TOKEN), ..redirecting(&format!("{}{{path}}", other.endpoint)) });
    let cache = tempfile::tempdir().unwrap();
    fetch(&hub, cache.path()).unwrap();
    assert!(other.tokens().iter().all(Option::is_none));
}

#[test]
fn redirects_without_end_are_told_with_their_address() {
    let (hub, other) = (server("127.0.0.1"), server("127.0.0.2"));
    let cache = tempfile::tempdir().unwrap();
    let back = format!("{}{{path}}", hub.endpoint);
    other.faults(redirecting(&back));
    for place in ["{path}".to_owned(), back, format!("{}{{path}}", other.endpoint)] {
        hub.faults(redirecting(&place));
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        assert!(error.contains("redirects more than 10 times") && error.contains("/api/models/a/b"), "{error}");
        assert!(hub.requests().len() <= 11);
    }
}

#[test]
fn a_redirect_to_what_is_no_web_address_is_refused_in_words() {
    let hub = server("127.0.0.1");
    let cache = tempfile::tempdir().unwrap();
    for place in ["file:///etc/hostname", "ftp://127.0.0.1/x", "http://"] {
        hub.faults(redirecting(place));
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        assert!(error.contains("is no address of the web"), "{place}: {error}");
    }
}
