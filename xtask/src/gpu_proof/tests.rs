//! The proof as a whole: its plan, runs of it with shell scripts as programs, and the table of recorded results.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Parser;
use serde_json::{Value, json};

use super::{
    RunArgs,
    plan::{BATCH_SIZES, Device, LEVERS, PARTS, STEP_MODELS, STEPS, agreement_name, plan, rollout_name, step_name},
    results::{Outcome, Results, without_figures},
    run, table,
};

#[test]
fn every_measurement_has_a_name_and_time() {
    for device in [Device::Cuda, Device::Cpu] {
        let planned = plan(device, Path::new("work"));
        let names: HashSet<_> = planned.iter().map(|measurement| &measurement.name).collect();
        assert_eq!(names.len(), planned.len());
        assert!(planned.iter().all(|measurement| measurement.limit.as_secs() <= measurement.part.1));
        // The parts come one after the other, in their order.
        let mut parts: Vec<_> = planned.iter().map(|measurement| measurement.part).collect();
        parts.dedup();
        assert_eq!(parts, PARTS);
    }
}

/// A folder with a bundle whose programs are shell scripts.
struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Self {
        let fake = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(fake.path("onnxruntime")).unwrap();
        fs::write(fake.path("onnxruntime/libonnxruntime.so"), "").unwrap();
        fs::create_dir_all(fake.path("torch/lib")).unwrap();
        fs::write(fake.path("torch/lib/libtorch_cpu.so"), "").unwrap();
        fake.program("rollout", r#"echo '{"tokens_per_s": 100}'"#);
        fake.program("learner", r#"echo "noise"; echo '{"step_s": 2.0, "max_abs_difference": 0.001}'"#);
        fake.program("tandem", "exit 0");
        fake.program("engine-tests", "echo 'test result: ok. 4 passed; 0 failed; 0 ignored; finished'");
        fake.program("python", "echo 'transformers is not installed' >&2; exit 77");
        fake
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a program that notes each call. Another process writes it: if this process had it open for writing, a
    /// child forked meanwhile by another test could hold a copy of the descriptor, and the file could not be run.
    fn program(&self, name: &str, script: &str) {
        let script = format!("#!/bin/sh\necho {name} >> {}\n{script}\n", self.path("calls").display());
        let written = Command::new("/bin/sh")
            .args(["-c", r#"printf '%s' "$1" > "$2" && chmod +x "$2""#, "sh", &script])
            .arg(self.path(name))
            .status();
        assert!(written.unwrap().success());
    }

    fn run(&self, more: &[&str]) -> Results {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            args: RunArgs,
        }
        let path = |name: &str| self.path(name).display().to_string();
        let places =
            ["--out", &path("out"), "--bundle", &path(""), "--work", &path("work"), "--python", &path("python")];
        let libraries = ["--libtorch", &path("torch"), "--onnxruntime", &path("onnxruntime/libonnxruntime.so")];
        let words = [&["run"][..], &places, &libraries, &["--device", "cpu"], more].concat();
        run(Flags::parse_from(words).args).unwrap();
        Results::open(&self.path("out/results.jsonl")).unwrap()
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).map_or(0, |calls| calls.lines().count())
    }
}

#[test]
fn what_fails_is_named_and_the_rest_goes_on() {
    let fake = Fake::new();
    fake.program("learner", "echo 'error: no such flag' >&2; exit 2");
    fake.program(
        "engine-tests",
        "echo 'test engine_device::a ... ok'; echo 'test engine_device::b ... FAILED'
         echo 'test result: FAILED. 3 passed; 1 failed; 0 ignored; finished'; exit 101",
    );
    let results = fake.run(&[]);
    let planned = plan(Device::Cpu, Path::new("work"));
    assert!(planned.iter().all(|measurement| results.get(&measurement.name).is_some()));
    assert_eq!(results.get("learner 0.5B bf16").unwrap()["reason"], "no such flag");
    assert_eq!(results.get("engine tests").unwrap()["reason"], "engine_device::b");
    assert!(results.is("rollout 16 transformers", Outcome::Missing));
    // Without `learner init` there is no model to sample from.
    assert!(results.is("rollout 16", Outcome::Failed));
    assert_eq!(results.get("pair synchronous").unwrap()["outcome"], "failed");
    let page = fs::read_to_string(fake.path("out/table.md")).unwrap();
    assert!(page.contains("- learner 0.5B bf16: failed, no such flag\n"), "{page}");
    assert!(page.contains("- rollout 16 transformers: missing, transformers is not installed\n"), "{page}");
    assert!(page.contains("| engine tests | 3 passed, 1 failed"), "{page}");
}

#[test]
fn what_has_a_result_is_not_run_again() {
    let fake = Fake::new();
    let results = fake.run(&["--only", "learner", "--minutes", "0"]);
    assert!(results.get("learner 1.5B fp32").is_none() && fake.calls() == 0, "nothing fits into no time");
    let results = fake.run(&["--only", "learner 1.5B"]);
    assert!(results.is("learner 1.5B fp32", Outcome::Done) && results.get("engine tests").is_none());
    let calls = fake.calls();
    fake.run(&["--only", "learner 1.5B"]);
    assert_eq!(fake.calls(), calls);
    let missing = STEPS.iter().filter(|(_, _, has_rival)| *has_rival).count();
    let results = fake.run(&["--only", "learner 1.5B", "--retry"]);
    assert_eq!(fake.calls(), calls + missing, "what is missing is looked for again");
    assert!(results.is("learner 1.5B fp32 torch", Outcome::Missing));

    // The machine failed while a result was written.
    let path = fake.path("out/results.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let begun = text.lines().position(|line| line.contains(r#""name":"learner 1.5B lora""#)).unwrap();
    let whole: String = text.lines().take(begun).map(|line| format!("{line}\n")).collect();
    fs::write(&path, format!("{whole}{}", &text.lines().nth(begun).unwrap()[..40])).unwrap();
    let (calls, results) = (fake.calls(), fake.run(&["--only", "learner 1.5B l"]));
    assert_eq!(fake.calls(), calls + 1);
    assert!(results.is("learner 1.5B lora", Outcome::Done) && results.is("learner 1.5B fp32", Outcome::Done));
}

#[test]
fn a_part_has_an_end() {
    let fake = Fake::new();
    fs::create_dir(fake.path("out")).unwrap();
    let (part, seconds) = PARTS[2];
    let long = json!({"part": part, "name": "learner 1.5B bf16", "outcome": "done", "seconds": seconds, "figures": {}});
    let machine = json!({"name": "machine", "device": "cpu", "figures": {}});
    fs::write(fake.path("out/results.jsonl"), format!("{machine}\n{long}\n")).unwrap();
    let results = fake.run(&["--only", "learner", "--part", "3"]);
    assert_eq!(fake.calls(), 0);
    assert_eq!(results.get("learner 0.5B bf16").unwrap()["reason"], format!("the {seconds} s of the part are over"));
    assert!(results.get("learner 0.5B fp32").is_none(), "another part");
}

#[test]
fn the_first_parts_answer_the_first_questions() {
    let planned = plan(Device::Cuda, Path::new("work"));
    let of = |part: usize| {
        let names = planned.iter().filter(move |measurement| measurement.part == PARTS[part - 1]);
        names.map(|measurement| measurement.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of(1), ["engine tests", "log-probs learner", "log-probs sampler"]);
    let mut sampler = of(2);
    sampler.sort_unstable();
    let expected =
        ["", " cuda-graphs", " transformers"].map(|what| [256, 64].map(|size| format!("rollout {size}{what}")));
    let mut expected = expected.concat();
    expected.sort_unstable();
    assert_eq!(sampler, expected);
    assert_eq!(
        of(3),
        ["limits", "learner 1.5B bf16", "learner 1.5B bf16 torch", "learner 0.5B bf16", "learner 0.5B bf16 torch"]
    );
}

/// Results as a GPU might give them: each optional feature multiplies the tokens per second by its factor in `levers`.
fn recorded(levers: [f64; 4]) -> Results {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.jsonl");
    let mut results = Results::default();
    let mut add = |name: &str, figures: Value| {
        let result = json!({"name": name, "outcome": "done", "seconds": 1.0, "device_memory_bytes": 8_u64 << 30,
            "figures": figures});
        results.add(&path, result).unwrap();
    };
    let limits = json!({"copy_bytes_per_s": 4e12, "bf16_flops_per_s": 8e14, "fp32_flops_per_s": 5e13});
    add("limits", limits);
    add("engine tests", json!({"passed": 4, "failed": 0, "skipped": 1}));
    for what in ["learner", "sampler"].into_iter().chain(LEVERS.map(|(lever, _)| lever)) {
        add(&agreement_name(what), json!({"max_abs_difference": 0.01}));
    }
    for size in BATCH_SIZES {
        add(&rollout_name(size, "transformers"), json!({"tokens_per_s": 1000.0}));
        add(&rollout_name(size, ""), json!({"tokens_per_s": 4000.0, "read_bytes_per_s": 1e12}));
        for ((lever, _), gain) in LEVERS.iter().zip(levers) {
            add(&rollout_name(size, lever), json!({"tokens_per_s": 4000.0 * gain}));
        }
    }
    for model in STEP_MODELS {
        for (step, _, has_rival) in STEPS {
            let figures = json!({"step_s": 2.0, "fwd_bwd_s": 1.0, "gflops": 4e5, "completion_tokens_per_s": 4096.0});
            add(&step_name(model, step, false), figures);
            if has_rival {
                add(&step_name(model, step, true), json!({"step_s": 3.0, "fwd_bwd_s": 2.0}));
            }
        }
    }
    add("publish whole model", json!({"perf/publish_s": 1.5}));
    add("pair synchronous", json!({"steps": 20, "step_time": 4.0}));
    add("pair max_staleness 1", json!({"steps": 20, "step_time": 2.0}));
    results
}

#[test]
fn recorded_results_make_a_table() {
    let mut results = recorded([1.2, 1.0, 0.9, 1.1]);
    let page = table::render(&results);
    for line in [
        "| 64 | 1,000 | 4,000 | 4.00 × | 25 % | 1.20 × | 1.00 × | 0.90 × | 1.10 × |",
        "| 1.5B bf16 | 2.00 | 4,096 | 8.0 GiB | 50 % | 3.00 | 8.0 GiB | 25 % | 1.50 × |",
        "| 0.5B lora | 2.00 | 4,096 | 8.0 GiB | 50 % | - | - | - | - |",
        "| published whole | 1.50 |",
        "| synchronous | 20 | 4.00 | - | - | - | - | - |",
        "- `cuda_graphs` true: **change**; 1.20 ×, 1.20 ×, 1.20 × with [16, 64, 256] sequences",
        "- `candidates` 8192: **keep**; 1.00 ×, 1.00 ×, 1.00 × with [16, 64, 256] sequences",
        "- `prefill_batch` 8: **keep**; 0.90 ×, 0.90 ×, 0.90 × with [16, 64, 256] sequences",
        "- `bf16` true: **keep**; 1.5B and 0.5B: 1.00 ×, 1.00 × the speed, memory divided by 1.00 ×, 1.00 ×",
        "- `max_staleness` 1: **keep**; 2.00 × the speed, but only synchronous runs are reproducible",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert!(!page.contains("Not measured in full"), "{page}");

    // A feature that gains but is not known to be right stays off.
    let path = tempfile::NamedTempFile::new().unwrap();
    let mut add = |name: &str, figures: Value| {
        results.add(path.path(), json!({"name": name, "outcome": "done", "figures": figures})).unwrap();
        table::render(&results)
    };
    let page = add("log-probs cuda-graphs", json!({"max_abs_difference": 0.5}));
    assert!(
        page.contains("`cuda_graphs` true: **keep**") && page.contains("log-probs were not shown to agree"),
        "{page}"
    );
    let page = add("engine tests", json!({"passed": 3, "failed": 1, "skipped": 0}));
    assert!(page.contains("but the engine tests have not all passed"), "{page}");
    results.add(path.path(), without_figures("rollout", "rollout 64 candidates", Outcome::LeftOut, "no time")).unwrap();
    let page = table::render(&results);
    assert!(
        page.contains("- `candidates` 8192: **open**") && page.contains("- rollout 64 candidates: left out, no time\n"),
        "{page}"
    );
}
