//! Golden cases, with every key accounted for.

use std::collections::BTreeSet;

use serde_json::Value;

/// The cases of a golden file. A key whose name here ends in `?` may be absent.
///
/// # Panics
/// When the file is missing, is of another kind or empty, or when a case lacks a key or has one that the test does not
/// read: a figure that nobody checks proves nothing.
#[must_use]
pub fn cases(file: &str, kind: &str, params: &[&str], inputs: &[&str], expected: &[&str]) -> Vec<Value> {
    let golden = crate::golden(file);
    assert_eq!(golden["kind"], kind, "{file}");
    let cases = golden["cases"].as_array().expect("a list of cases").clone();
    assert!(!cases.is_empty(), "{file} has no cases");
    for case in &cases {
        for (part, keys) in [("params", params), ("inputs", inputs), ("expected", expected)] {
            let found: BTreeSet<&str> = case[part].as_object().expect("an object").keys().map(String::as_str).collect();
            let known: BTreeSet<&str> = keys.iter().map(|key| key.trim_end_matches('?')).collect();
            let needed: BTreeSet<&str> = keys.iter().copied().filter(|key| !key.ends_with('?')).collect();
            let name = &case["name"];
            assert!(found.is_subset(&known), "{file}: {part} of {name}: {found:?} has keys besides {known:?}");
            assert!(needed.is_subset(&found), "{file}: {part} of {name}: {found:?} lacks keys of {needed:?}");
        }
    }
    cases
}
