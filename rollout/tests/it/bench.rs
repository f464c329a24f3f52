//! `rollout bench` from the outside.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use harness::timeline::Timeline;
use serde_json::Value;

fn bench(model: &Path, cache: &Path, arguments: &[&str]) -> Output {
    let repeat: &[&str] = if arguments.contains(&"--repeat") { &[] } else { &["--repeat", "1"] };
    Command::new(harness::binary("rollout"))
        .args(["bench", "--threads", "1", "--num-prompts", "2", "--num-generations", "3"])
        .args(repeat)
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
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error line in: {text}")).into()
}

#[test]
fn the_last_line_is_one_flat_record_of_the_asked_work() {
    let (model, cache) = (harness::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
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
    assert!(inside <= number("seconds") && phases[0] > 0.0 && phases[1] > 0.0, "{phases:?}");
    let shares = ["linear", "head", "attention", "graph_rest", "sampling", "scheduling", "idle"]
        .map(|p| number(&format!("{p}_share")));
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6 && shares.iter().all(|&s| s >= 0.0), "{shares:?}");
    for name in ["kv_use", "batch_occupancy"] {
        assert!(number(name) > 0.0 && number(name) <= 1.0, "{name}: {}", number(name));
    }
    // The machine's limits are measured after the work: where another process takes the cores just then, a share
    // exceeds 1.
    let of_peak = number("gemm_flops_per_s") / number("gemm_peak_flops_per_s");
    assert!(of_peak > 0.0 && (number("gemm_peak_share") - of_peak).abs() < 1e-9 * of_peak);
    assert!(number("bandwidth_share") > 0.0 && number("read_peak_bytes_per_s") > 0.0);
    assert!(number("queue_seconds_p50") >= 0.0 && number("queue_seconds_p50") <= number("queue_seconds_p99"));
    let quantiles = ["p50", "p90", "p99"].map(|q| number(&format!("tpot_seconds_{q}")));
    assert!(quantiles.is_sorted(), "{quantiles:?}");
    // Positions 5 to 10 are attended to from the second token on: of the prompt, the tokens so far and the own one.
    assert_eq!(number("mean_positions"), (6..=11).sum::<u32>() as f64 / 6.0);

    let stock = ["--kernels", "stock", "--candidates", "64", "--prefill-batch", "2"];
    for kernels in [&stock[..2], &stock, &["--rollout-dtype", "int8"]] {
        let swapped =
            last_line(&bench(&model, cache.path(), &[kernels, &["--completion-length", "7", "--swap"]].concat()));
        assert_eq!(
            (&swapped["generated_tokens"], &swapped[&kernels[0][2..].replace('-', "_")]),
            (&Value::from(42), &Value::from(kernels[1]))
        );
        let seconds = |name: &str| swapped[name].as_f64().unwrap();
        assert!(seconds("swap_seconds") > 0.0 && seconds("swap_stall_seconds") <= seconds("swap_seconds"));
        assert!(seconds("swap_first_token_seconds") > seconds("swap_seconds"));
    }

    let lengths = cache.path().join("lengths");
    fs::write(&lengths, "1\n2\n3\n4\n5\n6\n").unwrap();
    let lengths = lengths.to_str().unwrap();
    let sweep = last_line(&bench(&model, cache.path(), &["--lengths-file", lengths, "--sweep", "1,4,64"]));
    let sizes: Vec<_> = sweep.as_array().unwrap().iter().map(|r| r["max_num_seqs"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 4], "sizes beyond the six sequences are left out");
    assert!(sweep.as_array().unwrap().iter().all(|r| r["generated_tokens"] == 21));
    // One at a time fills its place in every step; four places are not all taken towards the end of ragged lengths.
    let occupancy = |i: usize| sweep[i]["batch_occupancy"].as_f64().unwrap();
    assert!(occupancy(0) == 1.0 && occupancy(1) < 1.0, "{sweep}");
}

#[test]
fn the_timeline_and_the_profile_tell_the_same() {
    let (model, cache) = (harness::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
    let file = cache.path().join("trace.json");
    for kernels in ["packed", "stock"] {
        let arguments = ["--completion-length", "20", "--kernels", kernels, "--max-num-seqs", "4", "--trace"];
        let record = last_line(&bench(&model, cache.path(), &[&arguments[..], &[file.to_str().unwrap()]].concat()));
        let timeline = Timeline::read(&file);
        assert_eq!(timeline.track("generation").len(), 1);
        for part in ["prefill", "decode", "sampler", "KV copies"] {
            assert!(timeline.within(part, "engine steps"), "{part}");
        }
        // The warm-up comes before the repeat and is no part of the profile.
        let repeat = &timeline.track("generation")[0];
        let seconds = |track: &str| -> f64 {
            let spans = timeline.track(track).iter().filter(|span| span.begin >= repeat.begin);
            spans.map(|span| (span.end - span.begin) as f64 / 1e9).sum()
        };
        let number = |name: &str| record[name].as_f64().unwrap();
        for (track, name) in [
            ("prefill", "prefill_seconds"),
            ("decode", "decode_seconds"),
            ("sampler", "sampling_seconds"),
            ("KV copies", "kv_copy_seconds"),
        ] {
            assert!(
                (seconds(track) - number(name)).abs() < 1e-6,
                "{track}: {} against {}",
                seconds(track),
                number(name)
            );
        }
        let inside =
            ["prefill", "decode", "sampling", "kv_copy", "scheduling"].map(|p| number(&format!("{p}_seconds")));
        assert!((seconds("engine steps") - inside.iter().sum::<f64>()).abs() < 1e-6);
        let steps: Vec<_> = timeline.track("decode").iter().filter(|span| span.begin >= repeat.begin).collect();
        assert_eq!(steps.len() as u64, record["decode_steps"].as_u64().unwrap());
        let rows: u64 = steps.iter().map(|span| span.args["rows"].as_u64().unwrap()).sum();
        assert_eq!(rows + 6, 120, "the first token of each completion comes from the prefill");
        let running = timeline.counter("running");
        assert!(running.contains(&4.0) && running.last() == Some(&0.0), "{running:?}");
        assert!(timeline.counter("KV bytes").iter().any(|&bytes| bytes > 0.0));
    }
}

#[test]
fn two_settings_are_compared_in_turns() {
    let (model, cache) = (harness::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
    let work = ["--completion-length", "5", "--repeat", "2"];
    let output = bench(&model, cache.path(), &[&work[..], &["--compare", "--max_num_seqs 1 --kernels stock"]].concat());
    let summary = last_line(&output);
    assert_eq!(summary["rounds"], 2);
    let line = |side: &str| summary[side].as_str().unwrap().to_owned();
    assert!(!line("a").contains("stock") && line("b").ends_with("--max-num-seqs 1 --kernels stock"), "{summary}");
    assert!(!line("a").contains("--compare") && !line("a").contains("--repeat"), "{summary}");
    let rate = &summary["figures"]["tokens_per_s"];
    let number = |name: &str| rate[name].as_f64().unwrap();
    assert!(number("ratio_min") <= number("ratio") && number("ratio") <= number("ratio_max") && number("a") > 0.0);
    // One repeat of each a round, in turns.
    let log = String::from_utf8(output.stderr).unwrap();
    let order: Vec<&str> = log.lines().filter_map(|l| l.strip_prefix("round ")?.split(':').next()).collect();
    assert_eq!(order, ["1, A", "1, B", "2, A", "2, B"]);

    let binary = harness::binary("rollout");
    let binary = binary.to_str().unwrap();
    let with_itself = last_line(&bench(&model, cache.path(), &[&work[..], &["--compare-binary", binary]].concat()));
    let lines = ["a", "b"].map(|side| with_itself[side].as_str().unwrap().to_owned());
    assert!(lines[0].starts_with("rollout bench") && lines[1].starts_with(binary), "{lines:?}");
}

#[test]
fn what_cannot_be_done_is_one_clear_line() {
    let (model, cache) = (harness::golden_dir().join("models/llama"), tempfile::tempdir().unwrap());
    let refused = |model: &Path, arguments: &[&str], parts: &[&str]| {
        let line = refusal(&bench(model, cache.path(), arguments));
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    };
    refused(&model, &["--completion-length", "100000"], &["limit"]);
    refused(&model, &["--completion-length", "7", "--compare", "--sweep 2"], &["--compare", "--sweep"]);
    refused(&model, &["--lengths-file", "/nonexistent"], &["--lengths-file", "/nonexistent"]);
    refused(&cache.path().join("none"), &["--completion-length", "7"], &["--model", "no such directory"]);
    refused(&model, &["--completion-length", "7", "--kernels", "own"], &["--kernels", "'own'"]);
    let unknown = bench(&model, cache.path(), &["--completion-length", "7", "--kernels", "own"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("[possible values: packed, stock]"));
    refused(&model, &["--completion-length", "7", "--cuda-graphs"], &["--cuda-graphs needs --device cuda"]);
    let compare = |flags: &'static str| ["--completion-length", "7", "--compare", flags];
    refused(&model, &compare("--max-num-sequences 3"), &["--compare", "--max-num-sequences"]);
    refused(&model, &compare("stock"), &["--compare", "stock"]);
    refused(&model, &compare("--repeat 3"), &["--compare", "--repeat"]);
    refused(&model, &compare("--max-model-len 3"), &["B (", "--max-model-len"]);
    refused(
        &model,
        &["--completion-length", "7", "--compare-binary", "/nonexistent"],
        &["--compare-binary", "no such"],
    );
    refused(&model, &["--completion-length", "7", "--trace", "/nonexistent/t.json"], &["--trace", "no such folder"]);
    let no_library = Command::new(harness::binary("rollout"))
        .args(["bench", "--completion-length", "7", "--model"])
        .arg(&model)
        .env("TANDEM_CACHE_DIR", cache.path())
        .env("ORT_DYLIB_PATH", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output();
    let line = refusal(&no_library.unwrap());
    assert!(line.contains("cannot load") && line.contains("Cargo.toml"), "{line}");
    for too_many in ["2000000000", "18446744073709551615"] {
        let parts = ["does not fit into memory", "KV cache", &format!("max_num_seqs ({too_many})")];
        refused(&model, &["--completion-length", "7", "--max-num-seqs", too_many], &parts);
    }
}
