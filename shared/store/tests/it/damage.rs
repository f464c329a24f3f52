//! Stores whose objects are not as they were published.

use std::fs;

use shared_store::{CHUNK_BYTES, Index, StoreError};

use crate::{THREE_CHUNKS, TestStore, assert_same, assert_says, version};

#[test]
fn a_damaged_object_is_named_and_changes_nothing() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage, &str); 5] = [
        (
            "weights.data",
            |bytes| bytes[CHUNK_BYTES as usize + 9] ^= 1,
            "bytes 8388608 to 16777216 do not have the hash",
        ),
        ("weights.data", |bytes| bytes.truncate(THREE_CHUNKS - 1), "has 16789560 bytes, and 16789561"),
        ("weights.data", |bytes| bytes.truncate(100), "has 100 bytes, and 16789561"),
        ("weights.data", |bytes| bytes.push(0), "has 16789562 bytes, and 16789561"),
        ("index.json", |bytes| bytes[20] ^= 1, "does not have the hash that is asked for"),
    ];
    for place in TestStore::both() {
        let dir = version(&place.path(""), 1);
        let published = place.store.publish("v1", &dir, &()).unwrap();
        let into = place.path("v1");
        fs::create_dir(&into).unwrap();
        fs::write(into.join("old"), "old").unwrap();
        for (name, damage, what) in cases {
            let object = place.object("v1", &published.blake3, name);
            let whole = fs::read(&object).unwrap();
            let mut damaged = whole.clone();
            damage(&mut damaged);
            fs::write(&object, damaged).unwrap();
            let error = place.store.fetch("v1", &published.blake3, &into, &()).unwrap_err();
            assert!(matches!(error, StoreError::Corrupted { .. }), "{what}: {error}");
            assert_says(&error, &[place.store.place(), name, what, "published again"]);
            assert_eq!(fs::read(into.join("old")).unwrap(), b"old");
            fs::write(&object, whole).unwrap();
        }
        // After the repair, only the missing bytes are fetched.
        let fetched = place.store.fetch("v1", &published.blake3, &into, &()).unwrap();
        assert!(fetched.bytes < fetched.total, "{fetched:?}");
        assert_same(&into, &dir);
    }
}

#[test]
fn a_missing_object_is_named_and_published_again() {
    for place in TestStore::both() {
        let dir = version(&place.path(""), 1);
        let published = place.store.publish("v1", &dir, &()).unwrap();
        let into = place.path("v1");
        for (name, length) in [("weights.data", THREE_CHUNKS as u64), ("manifest.json", 300)] {
            fs::remove_file(place.object("v1", &published.blake3, name)).unwrap();
            let error = place.store.fetch("v1", &published.blake3, &into, &()).unwrap_err();
            assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
            assert_says(&error, &[place.store.place(), name, "is not there"]);
            assert_eq!(place.store.publish("v1", &dir, &()).unwrap().bytes, length);
            shared_store::forget(&into).unwrap();
        }
        // An index with another content is written again; so is an object that is too short.
        fs::write(place.object("v1", &published.blake3, "manifest.json"), "short").unwrap();
        let index = place.object("v1", &published.blake3, "index.json");
        let length = fs::read(&index).unwrap().len();
        fs::write(&index, vec![b' '; length]).unwrap();
        assert_eq!(place.store.publish("v1", &dir, &()).unwrap().bytes, 300);
        place.store.fetch("v1", &published.blake3, &into, &()).unwrap();
        assert_same(&into, &dir);
    }
}

#[test]
fn an_index_that_lies_leads_nowhere() {
    for place in TestStore::both() {
        let honest = place.store.publish("v1", &version(&place.path(""), 1), &()).unwrap();
        let text = fs::read_to_string(place.object("v1", &honest.blake3, "index.json")).unwrap();
        assert!(Index::parse(text.as_bytes()).is_ok());
        for (from, to, what) in [
            ("manifest.json", "../../escaped.json", "not the plain name"),
            ("16789561", "9000000000000000000", "has 3 chunks"),
            ("\"format\":1", "\"format\":9", "of format 9"),
            ("[", "", "expected a sequence"),
        ] {
            let lie = text.replacen(from, to, 1);
            let blake3 = *blake3::hash(lie.as_bytes()).as_bytes();
            let object = place.object("v1", &blake3, "index.json");
            fs::create_dir_all(object.parent().unwrap()).unwrap();
            fs::write(&object, &lie).unwrap();
            let error = place.store.fetch("v1", &blake3, &place.path("into/v1"), &()).unwrap_err();
            assert_says(&error, &[place.store.place(), "index.json is damaged", what]);
            assert!(!place.path("into").exists() && !place.path("escaped.json").exists());
        }
    }
}
