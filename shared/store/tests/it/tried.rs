//! Publishing and fetching, on a folder and on a server.

use std::{fs, thread};

use harness::s3::Server;
use shared_store::{CHUNK_BYTES, Store, StoreError, forget};

use crate::{THREE_CHUNKS, TestStore, Until, assert_same, assert_says, bytes, proxy::Proxy, version};

#[test]
fn what_is_published_is_fetched_and_neither_is_done_twice() {
    for place in TestStore::both() {
        let dir = version(&place.path(""), 1);
        fs::write(dir.join(".hidden"), "stays").unwrap();
        let (watch, total) = (Until::new(u64::MAX), THREE_CHUNKS as u64 + 300);
        let published = place.store.publish("v000001", &dir, &watch).unwrap();
        assert_eq!((published.bytes, published.total, watch.seen()), (total, total, total));
        let again = place.store.publish("v000001", &dir, &()).unwrap();
        assert_eq!((again.blake3, again.bytes), (published.blake3, 0));

        fs::remove_file(dir.join(".hidden")).unwrap();
        let (into, watch) = (place.path("deeper/v000001"), Until::new(u64::MAX));
        let fetched = place.store.fetch("v000001", &published.blake3, &into, &watch).unwrap();
        assert_eq!((fetched.bytes, fetched.total, watch.seen()), (total, total, total));
        assert_same(&into, &dir);
        assert_eq!(fs::read_dir(place.path("deeper")).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(place.store.fetch("v000001", &published.blake3, &into, &()).unwrap().bytes, 0);

        // Another folder at the target is replaced.
        fs::write(into.join("weights.data"), "other").unwrap();
        fs::write(into.join("more"), "").unwrap();
        assert_eq!(place.store.fetch("v000001", &published.blake3, &into, &()).unwrap().bytes, total);
        assert_same(&into, &dir);
    }
}

#[test]
fn files_of_several_folders_are_published_together() {
    for place in TestStore::both() {
        let (one, other) = (version(&place.path(""), 1), version(&place.path(""), 2));
        std::os::unix::fs::symlink(other.join("manifest.json"), place.path("link.json")).unwrap();
        let files = [one.join("weights.data"), place.path("link.json")];
        let published = place.store.publish_files("model", &files, &()).unwrap();
        place.store.fetch("model", &published.blake3, &place.path("model"), &()).unwrap();
        assert_eq!(fs::read(place.path("model/link.json")).unwrap(), bytes(1002, 300));
        assert_eq!(fs::read(place.path("model/weights.data")).unwrap(), bytes(1, THREE_CHUNKS));

        let twice = [one.join("manifest.json"), other.join("manifest.json")];
        assert_says(&place.store.publish_files("model", &twice, &()).unwrap_err(), &["manifest.json", "same name"]);
        fs::create_dir(one.join("folder")).unwrap();
        assert_says(&place.store.publish("model", &one, &()).unwrap_err(), &["version-1/folder", "not a file"]);
        fs::remove_dir(one.join("folder")).unwrap();
        fs::write(one.join("a b"), "").unwrap();
        assert_says(&place.store.publish("model", &one, &()).unwrap_err(), &["version-1/a b", "letters"]);
        assert_says(&place.store.publish("../x", &other, &()).unwrap_err(), &["../x", "letters"]);
        assert_eq!(place.store.list(&()).unwrap().len(), 1);
    }
}

#[test]
fn a_fetch_goes_on_where_it_was_given_up() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(server.address);
    let open = || Store::open_with("s3://bucket/x", server.variables(proxy.address)).unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let length = 20 * CHUNK_BYTES as usize;
    fs::write(source.join("weights.data"), bytes(1, length)).unwrap();
    let published = open().publish("v1", &source, &()).unwrap();
    proxy.passed();

    let into = dir.path().join("v1");
    let watch = Until::new(8 * CHUNK_BYTES);
    let error = open().fetch("v1", &published.blake3, &into, &watch).unwrap_err();
    assert!(matches!(error, StoreError::GaveUp) && !into.exists(), "{error}");
    // Foreign and damaged files there are noticed.
    let part = dir.path().join("v1.part");
    fs::write(part.join("stranger"), "").unwrap();
    fs::create_dir(part.join("folder")).unwrap();
    let gathered = fs::read(part.join("weights.data")).unwrap();
    let kept = (0..20).filter(|n| {
        let range = n * CHUNK_BYTES as usize..(n + 1) * CHUNK_BYTES as usize;
        gathered.get(range.clone()) == Some(&bytes(1, length)[range])
    });
    let kept = kept.count() as u64;
    assert!(kept >= 8, "{kept}");

    proxy.passed();
    let fetched = open().fetch("v1", &published.blake3, &into, &()).unwrap();
    assert_eq!(fetched.bytes, (20 - kept) * CHUNK_BYTES);
    let (down, _) = proxy.passed();
    assert!((fetched.bytes..fetched.bytes + 100_000).contains(&down), "{down} for {}", fetched.bytes);
    assert_same(&into, &source);

    // A chunk that is damaged on the disk is the only one that is fetched again.
    fs::rename(&into, &part).unwrap();
    let mut content = fs::read(part.join("weights.data")).unwrap();
    content[5 * CHUNK_BYTES as usize + 7] ^= 1;
    content.extend([0; 1000]);
    fs::write(part.join("weights.data"), content).unwrap();
    assert_eq!(open().fetch("v1", &published.blake3, &into, &()).unwrap().bytes, CHUNK_BYTES);
    assert_same(&into, &source);

    // A link in the place of a file is not written through.
    fs::rename(&into, &part).unwrap();
    fs::rename(part.join("weights.data"), dir.path().join("elsewhere")).unwrap();
    fs::write(dir.path().join("elsewhere"), "kept").unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), part.join("weights.data")).unwrap();
    open().fetch("v1", &published.blake3, &into, &()).unwrap();
    assert_same(&into, &source);
    assert_eq!(fs::read(dir.path().join("elsewhere")).unwrap(), b"kept");

    let fetch = |most| open().fetch("v1", &published.blake3, &dir.path().join("v2"), &Until::new(most));
    fetch(CHUNK_BYTES).unwrap_err();
    forget(&dir.path().join("v2")).unwrap();
    assert!(!dir.path().join("v2.part").exists());
    forget(&dir.path().join("v2")).unwrap();
}

#[test]
fn connections_that_are_cut_cost_what_was_under_way() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(server.address);
    let store = Store::open_with("s3://bucket/x", server.variables(proxy.address)).unwrap();
    let source = version(dir.path(), 1);
    // Answers to parts are short: the proxy cuts the connection as soon as one comes.
    proxy.cut(1, 4);
    let published = store.publish("v1", &source, &()).unwrap();
    assert_eq!(proxy.cuts_left(), 0);
    proxy.passed();

    proxy.cut(CHUNK_BYTES / 8, 5);
    let fetched = store.fetch("v1", &published.blake3, &dir.path().join("v1"), &()).unwrap();
    assert_eq!((proxy.cuts_left(), fetched.bytes), (0, fetched.total));
    let (down, _) = proxy.passed();
    assert!(down < fetched.total + 5 * CHUNK_BYTES, "{down} of {}", fetched.total);
    assert_same(&dir.path().join("v1"), &source);
}

#[test]
fn a_bit_that_changes_on_the_way_costs_one_chunk_and_not_more_than_a_few() {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(server.address);
    let store = Store::open_with("s3://bucket/x", server.variables(proxy.address)).unwrap();
    let source = version(dir.path(), 1);
    let published = store.publish("v1", &source, &()).unwrap();
    proxy.passed();
    proxy.flip(CHUNK_BYTES / 2, 1);
    let fetched = store.fetch("v1", &published.blake3, &dir.path().join("v1"), &()).unwrap();
    assert_same(&dir.path().join("v1"), &source);
    let (down, _) = proxy.passed();
    assert!((fetched.total + CHUNK_BYTES..fetched.total + CHUNK_BYTES + 100_000).contains(&down), "{down}");

    proxy.flip(CHUNK_BYTES / 2, 1000);
    let error = store.fetch("v1", &published.blake3, &dir.path().join("v2"), &()).unwrap_err();
    assert!(matches!(error, StoreError::Corrupted { .. }), "{error}");
    let (down, _) = proxy.passed();
    assert!(down < 8 * CHUNK_BYTES, "{down}");
}

#[test]
fn two_publishers_at_once_and_one_fetch_into_a_folder() {
    for place in TestStore::both() {
        let dir = version(&place.path(""), 1);
        let publish = || place.store.publish("v1", &dir, &()).unwrap();
        let both = thread::scope(|scope| [scope.spawn(publish), scope.spawn(publish)].map(|one| one.join().unwrap()));
        assert_eq!(both[0].blake3, both[1].blake3);
        assert_eq!(place.store.list(&()).unwrap().len(), 1);

        let (into, blake3) = (place.path("v1"), both[0].blake3);
        let fetch = || place.store.fetch("v1", &blake3, &into, &());
        let both = thread::scope(|scope| [scope.spawn(fetch), scope.spawn(fetch)].map(|one| one.join().unwrap()));
        for one in both {
            assert!(one.as_ref().is_ok() || matches!(one, Err(StoreError::Busy { .. })), "{one:?}");
        }
        assert_same(&into, &dir);
    }
}

#[test]
fn a_publication_goes_on_with_what_is_missing() {
    for place in TestStore::both() {
        let dir = version(&place.path(""), 1);
        let published = place.store.publish("v1", &dir, &()).unwrap();
        let object = |name| place.object("v1", &published.blake3, name);
        // The state after a publisher was killed.
        fs::remove_file(object("index.json")).unwrap();
        fs::remove_file(object("manifest.json")).unwrap();
        assert!(matches!(
            place.store.fetch("v1", &published.blake3, &place.path("into"), &()),
            Err(StoreError::NotFound { .. })
        ));
        assert!(!place.store.list(&()).unwrap()[0].whole);
        let again = place.store.publish("v1", &dir, &()).unwrap();
        assert_eq!((again.bytes, again.blake3), (300, published.blake3));
        place.store.fetch("v1", &published.blake3, &place.path("into"), &()).unwrap();
        assert_same(&place.path("into"), &dir);

        // A publication that was given up half-way leaves nothing that looks whole.
        let other = version(&place.path(""), 2);
        let error = place.store.publish("v2", &other, &Until::new(CHUNK_BYTES)).unwrap_err();
        assert!(matches!(error, StoreError::GaveUp), "{error}");
        assert!(place.store.list(&()).unwrap().iter().all(|held| held.whole == (held.prefix == "v1")));
    }
}

#[test]
fn the_newest_and_the_named_are_kept() {
    for place in TestStore::both() {
        let mut published = Vec::new();
        for n in 1..=5 {
            let dir = place.path(&n.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("weights.data"), bytes(n, 1000)).unwrap();
            let prefix = if n == 1 { "model".to_owned() } else { format!("v{n:06}") };
            published.push((prefix.clone(), place.store.publish(&prefix, &dir, &()).unwrap().blake3));
            // The clocks of stores and file systems are coarse.
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(100 - n);
            for name in ["index.json", "weights.data"] {
                let object = fs::File::open(place.object(&prefix, &published[n as usize - 1].1, name)).unwrap();
                object.set_modified(time).unwrap();
            }
        }
        fs::create_dir(place.objects.join("checkpoint-1")).unwrap();
        fs::write(place.objects.join("checkpoint-1/notes"), "").unwrap();
        // A publication under way, and an abandoned one.
        for (n, age) in [(1, 10), (2, 4000)] {
            let object = place.objects.join(format!("v00000{n}-0000000{n}/weights.data"));
            fs::create_dir_all(object.parent().unwrap()).unwrap();
            fs::write(&object, "half").unwrap();
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::open(&object).unwrap().set_modified(time).unwrap();
        }
        let names = |held: Vec<shared_store::Held>| held.into_iter().map(|held| held.prefix).collect::<Vec<_>>();
        let gone = place.store.keep("v", 1, &[published[2].clone()], &()).unwrap();
        assert!(gone.iter().any(|held| held.is(&published[1].0, &published[1].1) && held.whole && held.bytes > 1000));
        assert_eq!(names(gone), ["v000004", "v000002", "v000002"]);
        assert_eq!(names(place.store.list(&()).unwrap()), ["model", "v000003", "v000005", "v000001"]);

        let (prefix, blake3) = &published[4];
        fs::write(place.object(prefix, blake3, "weights.data#7"), "what a killed publisher leaves in a folder")
            .unwrap();
        place.store.remove(prefix, blake3, &()).unwrap();
        place.store.remove(prefix, blake3, &()).unwrap();
        assert_eq!(names(place.store.list(&()).unwrap()), ["model", "v000003", "v000001"]);
        let error = place.store.fetch(prefix, blake3, &place.path("into"), &()).unwrap_err();
        assert_says(&error, &["v000005-", "index.json is not there", place.store.place()]);
        assert!(place.objects.join("checkpoint-1/notes").exists());
    }
}

#[test]
fn a_trial_tells_times_and_leaves_nothing() {
    for place in TestStore::both() {
        assert_eq!(place.store.probe_reading(None, 1000, &()).unwrap().bytes, 0);
        let probe = place.store.probe(100_000, &()).unwrap();
        assert!(probe.bytes == 100_000 && probe.write_s.is_some_and(|s| s > 0.) && probe.read_s > 0.);
        let left = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let left: Vec<_> = fs::read_dir(&place.objects).into_iter().flatten().map(left).collect();
        assert!(left.is_empty(), "{left:?}");

        let published = place.store.publish("v1", &version(&place.path(""), 1), &()).unwrap();
        for known in [None, Some(("v1", &published.blake3))] {
            let probe = place.store.probe_reading(known, 1 << 20, &()).unwrap();
            assert!(probe.bytes == 1 << 20 && probe.write_s.is_none() && probe.read_s > 0.);
        }
        let error = place.store.probe_reading(Some(("v2", &[0; 32])), 1, &()).unwrap_err();
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
    }
}

#[test]
fn a_web_server_is_read() {
    let (server, dir) = (Server::open_to_all(), tempfile::tempdir().unwrap());
    let folder = Store::open(&server.bucket().join("run").display().to_string()).unwrap();
    let source = version(dir.path(), 1);
    let published = folder.publish("v1", &source, &()).unwrap();
    let web = Store::open_with(&format!("http://{}/bucket/run", server.address), []).unwrap();
    web.fetch("v1", &published.blake3, &dir.path().join("v1"), &()).unwrap();
    assert_same(&dir.path().join("v1"), &source);
    assert_eq!(web.probe_reading(Some(("v1", &published.blake3)), 1000, &()).unwrap().bytes, 1000);
    for refused in
        [web.publish("v1", &source, &()).map(drop), web.probe(10, &()).map(drop), web.remove("v1", &[0; 32], &())]
    {
        assert_says(&refused.unwrap_err(), &["is only read", "publish into the folder"]);
    }
}
