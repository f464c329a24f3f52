//! `rollout bench` from the outside.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn bench(model: &Path, cache: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rollout"))
        .args(["bench", "--threads", "1", "--repeat", "1", "--num-prompts", "2", "--num-generations", "3"])
        .args(["--prompt-length", "5", "--model"])
        .arg(model)
        .args(arguments)
        .env("TANDEM_CACHE_DIR", cache)
        .output()
        .unwrap()
}

fn last_line(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(text.trim_end().lines().last().expect("a last line")).unwrap()
}

fn refusal(output: &Output) -> String {
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error line in: {text}")).into()
}

#[test]
fn the_last_line_is_one_flat_record_of_the_asked_work() {
    let (model, cache) = (tests::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
    let record = last_line(&bench(&model, cache.path(), &["--completion-length", "7"]));
    let fields = record.as_object().unwrap();
    assert!(fields.values().all(|value| !value.is_object() && !value.is_array()));
    assert_eq!((&record["generated_tokens"], &record["prefill_tokens"]), (&Value::from(42), &Value::from(10)));
    let number = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name} is no number"));
    for name in ["seconds", "prefill_seconds", "tokens_per_s", "peak_rss_bytes", "ttft_seconds_p50", "tpot_seconds_p50"]
    {
        assert!(number(name) > 0.0, "{name}");
    }
    assert!((number("tokens_per_s") * number("seconds") - 42.0).abs() < 1e-6);
    let phases = ["prefill", "decode", "sampling", "kv_copy", "scheduling"].map(|p| number(&format!("{p}_seconds")));
    let inside: f64 = phases.iter().sum();
    assert!(inside <= number("seconds") && inside >= 0.5 * number("seconds"), "{phases:?}");

    for kernels in [&["--kernels", "stock"][..], &["--rollout-dtype", "int8"]] {
        let swapped =
            last_line(&bench(&model, cache.path(), &[kernels, &["--completion-length", "7", "--swap"]].concat()));
        assert_eq!(
            (&swapped["generated_tokens"], &swapped[&kernels[0][2..].replace('-', "_")]),
            (&Value::from(42), &Value::from(kernels[1]))
        );
        let seconds = |name: &str| swapped[name].as_f64().unwrap();
        assert!(seconds("swap_seconds") > 0.0 && seconds("swap_stall_seconds") <= seconds("swap_seconds"));
    }

    let lengths = cache.path().join("lengths");
    fs::write(&lengths, "1\n2\n3\n4\n5\n6\n").unwrap();
    let lengths = lengths.to_str().unwrap();
    let sweep = last_line(&bench(&model, cache.path(), &["--lengths-file", lengths, "--sweep", "1,4,64"]));
    let sizes: Vec<_> = sweep.as_array().unwrap().iter().map(|r| r["max_num_seqs"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 4], "sizes beyond the six sequences are left out");
    assert!(sweep.as_array().unwrap().iter().all(|r| r["generated_tokens"] == 21));
}

#[test]
fn what_cannot_be_done_is_one_clear_line() {
    let (model, cache) = (tests::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
    let refused = |model: &Path, arguments: &[&str], parts: &[&str]| {
        let line = refusal(&bench(model, cache.path(), arguments));
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    };
    refused(&model, &[], &["--completion-length", "--lengths-file"]);
    refused(&model, &["--completion-length", "100000"], &["limit"]);
    refused(&model, &["--lengths-file", "/nonexistent"], &["--lengths-file", "/nonexistent"]);
    refused(&cache.path().join("none"), &["--completion-length", "7"], &["--model", "no such directory"]);
    refused(&model, &["--completion-length", "7", "--kernels", "own"], &["--kernels", "packed, stock"]);
    let too_many = ["--completion-length", "7", "--max-num-seqs", "2000000000"];
    refused(&model, &too_many, &["does not fit into memory", "KV cache", "max_num_seqs (2000000000)"]);
}
