//! Processors with fewer instructions, by emulation (`qemu-x86_64`, Debian's package `qemu-user-static`), and number
//! formats that are chosen for a processor.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use harness::{bench::Bench, binary, cli, skipped, tiny_model, without_hardware};
use serde_json::{Value, json};

const EMULATORS: [&str; 2] = ["qemu-x86_64-static", "qemu-x86_64"];

/// With AVX2, and before it.
const WITH_AVX2: &str = "Haswell";
const WITHOUT_AVX2: &str = "Nehalem";

fn emulator() -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        without_hardware("other processors", "the programs are not for x86-64");
        return None;
    }
    let starts = |name: &&str| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok();
    let found = EMULATORS.into_iter().find(starts);
    if found.is_none() {
        skipped("other processors", "there is no qemu-x86_64 (qemu-user-static)");
    }
    found
}

/// A program on a processor: on that of this machine, or on an emulated one.
fn on(processor: Option<(&str, &str)>, program: &str, words: &[&str]) -> cli::Finished {
    let program = binary(program);
    let mut command = match processor {
        None => Command::new(program),
        Some((emulator, processor)) => {
            let mut command = Command::new(emulator);
            command.args(["-cpu", processor]).arg(program);
            command
        }
    };
    command.args(words);
    cli::finish(command).success()
}

fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    tiny_model::SMALL.write(&path, 1);
    tiny_model::write_tokenizer(&path);
    (folder, path)
}

#[test]
fn each_processor_draws_the_same_tokens_with_the_same_bits_of_log_probs() {
    let Some(emulator) = emulator() else { return };
    let (_folder, model) = model();
    for dtype in ["auto", "int8", "int4", "bf16", "bf16dot"] {
        let words = ["generate", "--model", model.to_str().unwrap(), "--prompt", "12+34=", "--json", "--seed", "3"];
        let words = [&words[..], &["--max-completion-length", "24", "--rollout-dtype", dtype]].concat();
        let here = on(None, "rollout", &words);
        assert!(here.stdout.contains("logprob"), "{}", here.stdout);
        for processor in [WITH_AVX2, WITHOUT_AVX2] {
            let there = on(Some((emulator, processor)), "rollout", &words);
            assert_eq!(there.stdout, here.stdout, "{processor}, {dtype}");
            let warned = there.stderr.contains("none of the instruction sets of the packed kernels");
            assert_eq!(warned, processor == WITHOUT_AVX2, "{}", there.stderr);
        }
    }
}

#[test]
fn a_bound_on_instructions_changes_no_bit_and_an_unknown_one_is_refused() {
    let (_folder, model) = model();
    let bounded = |capability: &str| {
        let mut command = Command::new(binary("rollout"));
        command.args(["generate", "--model", model.to_str().unwrap(), "--prompt", "12+34=", "--json", "--seed", "3"]);
        command.args(["--max-completion-length", "24"]).env("TANDEM_CPU_CAPABILITY", capability);
        cli::finish(command)
    };
    let here = bounded("").success();
    let remark = "TANDEM_CPU_CAPABILITY bounds the instructions of the sampler";
    assert!(!here.stderr.contains(remark), "{}", here.stderr);
    for capability in ["plain", "avx2", "amx"] {
        let there = bounded(capability).success();
        assert_eq!(there.stdout, here.stdout, "{capability}");
        assert!(there.stderr.contains(remark), "{}", there.stderr);
        // Every machine has this one.
        let computes = there.stderr.contains("it computes with plain");
        assert!(computes || capability != "plain", "{}", there.stderr);
    }
    let said = bounded("avx").refusal().to_owned();
    assert!(said.contains("TANDEM_CPU_CAPABILITY=avx names no instruction set: it may be plain, avx2,"), "{said}");
}

#[test]
fn the_doctor_names_the_instructions_of_the_processor_that_it_runs_on() {
    let Some(emulator) = emulator() else { return };
    for (processor, instructions, warned) in [(WITH_AVX2, "usable threads, avx2 fma", false), (WITHOUT_AVX2, "-", true)]
    {
        let said = on(Some((emulator, processor)), "tandem", &["doctor"]).stdout;
        let line = said.lines().find(|line| line.contains(" processor ")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.ends_with(instructions), "{line}");
        assert_eq!(said.contains("without avx2 everything works, but several times slower"), warned, "{said}");
    }
}

/// The table of this machine is made by the first run. Changing it stands for another machine.
#[test]
fn the_measured_format_is_chosen_and_a_resumed_run_keeps_it() {
    let bench = Bench::new(
        "dataset = \"prompts.jsonl\"\nprecision = \"auto\"\nmax_steps = 4\nsave_steps = 2\nnum_generations = 4\n\
         generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n",
    );
    let train = |run: &str, more: &[&str]| cli::finish(bench.command(run, more)).success().stderr;
    let formats = |run: &str| {
        let text = fs::read_to_string(bench.path(run).join("config.toml")).unwrap();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        ["rollout_dtype = ", "importance_sampling_mode = "].map(value)
    };
    let kept = bench.path("cache/precision.json");
    let measure_as = |rates: Value| {
        let mut table: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
        table["rows"].as_array_mut().unwrap().iter_mut().for_each(|row| row["rates"] = rates.clone());
        fs::write(&kept, table.to_string()).unwrap();
    };
    let _ = cli::finish(bench.command("tried", &["--dry-run"])).success();
    measure_as(json!({"int8": 9.0, "bf16dot": 3.0}));
    let said = train("run", &["--max_steps=2"]);
    assert!(
        said.contains("precision auto: `rollout_dtype` int8,") && said.contains("times the rate of fp32"),
        "{said}"
    );
    let int8 = ["\"int8\"", "\"token_truncate\""].map(str::to_owned);
    assert_eq!(formats("run"), int8);
    measure_as(json!({"int8": 0.5, "bf16dot": 3.0}));
    let said = train("run", &["--resume_from_checkpoint=latest"]);
    assert!(said.contains("precision auto, as the run began: `rollout_dtype` int8,"), "{said}");
    assert_eq!(formats("run"), int8);
    let _ = train("other", &[]);
    assert_eq!(formats("other")[0], "\"bf16dot\"");
    measure_as(json!({"int8": 1.01, "bf16dot": 0.9}));
    let said = train("slow", &[]);
    assert!(said.contains("precision auto: `rollout_dtype` auto, `kv_dtype` auto, `bf16` false,"), "{said}");
    assert_eq!(formats("slow"), ["\"auto\"", "\"sequence_mask\""].map(str::to_owned));
}
