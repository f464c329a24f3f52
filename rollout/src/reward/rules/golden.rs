//! Golden cases, with every key accounted for.

use std::collections::BTreeSet;

use serde_json::Value;

/// The cases of a golden file.
///
/// # Panics
/// When the file is missing, is of another kind or empty, or when a case carries other keys than the test looks at: a
/// figure that nobody checks is a test that does not test.
pub fn cases(file: &str, kind: &str, params: &[&str], inputs: &[&str], expected: &[&str]) -> Vec<Value> {
    let golden = ::tests::golden(file);
    assert_eq!(golden["kind"], kind, "{file}");
    let cases = golden["cases"].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{file} has no cases");
    for case in &cases {
        for (part, known) in [("params", params), ("inputs", inputs), ("expected", expected)] {
            let found: BTreeSet<&str> = case[part].as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(found, known.iter().copied().collect(), "{file}: {part} of {}", case["name"]);
        }
    }
    cases
}
