//! Processors with fewer instructions, by emulation (`qemu-x86_64`, Debian's package `qemu-user-static`).

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use harness::{binary, cli, skipped, tiny_model, without_hardware};

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
    for dtype in ["auto", "int8", "bf16", "bf16dot"] {
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
