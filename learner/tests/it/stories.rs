//! A real pretrained model: log-probs through the command line against transformers'.

use std::process::Command;

use serde_json::Value;

#[test]
fn golden_stories_logprobs() {
    let Some(data) = harness::data_dir("golden_stories_logprobs") else {
        return;
    };
    let model = data.join("stories260K");
    let reference: Value = serde_json::from_slice(&std::fs::read(model.join("reference.json")).unwrap()).unwrap();
    let cases = reference["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    let lines: Vec<String> = cases
        .iter()
        .map(|case| {
            serde_json::json!({"prompt_ids": case["prompt_ids"], "token_ids": case["continuation_ids"]}).to_string()
        })
        .collect();
    std::fs::write(&input, lines.join("\n")).unwrap();
    let run = Command::new(harness::binary("learner"))
        .args(["logprobs", "--threads", "1", "--model"])
        .arg(&model)
        .arg("--input")
        .arg(&input)
        .arg("--output")
        .arg(&output)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = std::fs::read_to_string(&output).unwrap();
    assert_eq!(text.lines().count(), cases.len());
    for (line, case) in text.lines().zip(cases) {
        let row: Value = serde_json::from_str(line).unwrap();
        let (found, expected) = (row["logprobs"].as_array().unwrap(), case["logprobs"].as_array().unwrap());
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(expected) {
            assert!((f.as_f64().unwrap() - e.as_f64().unwrap()).abs() < 1e-4, "{f} is not {e}");
        }
    }
}
