//! Redirects, between servers at several addresses and ports of this machine.

use std::{fs, path::Path, time::Duration};

use harness::hub::{Faults, Hub as Server};

use super::{Hub, HubError, Settings};

const TOKEN: &str = "hf_secret";

fn files() -> Vec<(String, Vec<u8>)> {
    // The second file is in large-file storage.
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
        unread: None,
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
    // The same through another host.
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

/// The content is thrown away and downloaded anew, and never gets beyond the length of the file.
#[test]
fn a_file_that_is_shorter_than_it_is_listed_ends_the_download() {
    for longer in [1, 1 << 50] {
        let hub = server("127.0.0.1");
        hub.faults(Faults { longer, ..Faults::default() });
        let cache = tempfile::tempdir().unwrap();
        let error = fetch(&hub, cache.path()).unwrap_err().to_string();
        assert!(error.starts_with("config.json of a/b: the download was cut"), "{longer}: {error}");
        let requests = hub.requests().len();
        assert!(requests <= 6, "{longer}: {requests} requests");
    }
}

/// A pipe or device in the place of a cached file may never end.
#[test]
fn what_is_no_file_in_the_cache_is_told_and_not_waited_for() {
    let hub = server("127.0.0.1");
    let cache = tempfile::tempdir().unwrap();
    fetch(&hub, cache.path()).unwrap();
    let offline = || {
        let settings = Settings {
            endpoint: hub.endpoint.clone(),
            cache: cache.path().to_owned(),
            token: None,
            unread: None,
            offline: Some("HF_HUB_OFFLINE"),
            patience: Duration::from_secs(20),
        };
        Hub::new(settings, || false, |_| {}).model("a/b", "main")
    };
    let snapshot = offline().unwrap().path;
    let index = snapshot.join("model.safetensors.index.json");
    std::os::unix::fs::symlink("/dev/zero", &index).unwrap();
    let error = offline().unwrap_err().to_string();
    assert!(error.contains("model.safetensors.index.json (is a pipe or device, not a file)"), "{error}");
    fs::remove_file(&index).unwrap();
    let refs = snapshot.join("../../refs/main");
    fs::remove_file(&refs).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &refs).unwrap();
    let error = offline().unwrap_err().to_string();
    assert!(error.contains("refs/main of the cache cannot be read: is a pipe or device, not a file"), "{error}");
}

#[test]
fn a_token_that_cannot_be_read_is_told_before_the_hub_is_asked() {
    let hub = server("127.0.0.1");
    let settings = Settings {
        endpoint: hub.endpoint.replace("http://", "http://user:SECRET@"),
        cache: tempfile::tempdir().unwrap().path().to_owned(),
        token: None,
        unread: Some("/there/token is a pipe or device, not a file".to_owned()),
        offline: None,
        patience: Duration::from_secs(20),
    };
    let error = Hub::new(settings.clone(), || false, |_| {}).model("a/b", "main").unwrap_err().to_string();
    assert!(error.contains("cannot be read: /there/token is a pipe") && hub.requests().is_empty(), "{error}");
    let settings = Settings { unread: None, ..settings };
    let error = Hub::new(settings, || false, |_| {}).model("no/such", "main").unwrap_err().to_string();
    assert!(error.contains("has no such model") && !error.contains("SECRET"), "{error}");
}
