//! `unsafe` is allowed only in the files listed here, each with the reason.

use super::sources::{Source, Sources};

/// Files, or folders that end with `/`, and why their task needs `unsafe`.
const ALLOWED: &[(&str, &str)] = &[
    ("exporters/src/peft/low_rank.rs", "compiles a loop for the vectors that the processor has"),
    ("exporters/src/tensor_file.rs", "maps weights: nobody may change the file meanwhile"),
    ("learner/src/device.rs", "opens the CUDA half of libtorch before libtorch looks for it"),
    ("learner/src/exit.rs", "asks glibc to end the process before libtorch's destructors run"),
    ("learner/src/model/attention/tiles.rs", "lends tensors to the kernels, of which tch makes copies only"),
    ("learner/src/model/halves.rs", "lends tensors to the kernels, of which tch makes copies only"),
    ("learner/src/model/head/", "lends tensors to the kernels, of which tch makes copies only"),
    ("learner/src/model/kernels.rs", "lends the values of a tensor, of which tch makes copies only"),
    ("learner/src/model/parameters.rs", "lends the values of a tensor, of which tch makes copies only"),
    ("learner/src/optimizer/saved.rs", "maps the state of a checkpoint, which is read a block at a time"),
    ("learner/src/ranks/gloo.rs", "calls torch's process group, of which tch has nothing"),
    ("learner/src/ranks/shim.rs", "frees what the functions of gloo.cpp give"),
    ("learner/src/ranks/store.rs", "calls torch's stores, of which tch has nothing"),
    ("rollout/fleet/src/main.rs", "changes the environment before there are threads"),
    ("rollout/kernels/src/attention/", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/cap.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/flash/", "runs on vectors and tiles whose instructions the processor must have"),
    ("rollout/kernels/src/halves.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/linear/", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/logits.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/packed.rs", "writes panels from several threads, each its own"),
    ("rollout/kernels/src/parallel.rs", "hands threads parts of one buffer that do not overlap"),
    ("rollout/kernels/src/per_layer.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/recurrent/", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/residual.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/simd/", "is the vector instructions themselves"),
    ("rollout/kernels/src/tests/", "calls kernels for each instruction set"),
    ("rollout/kernels/src/tile.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/kernels/src/thread_pool.rs", "lends a borrowed job to threads that outlive it"),
    ("rollout/kernels/src/width_norm.rs", "runs on vectors whose instructions the processor must have"),
    ("rollout/rewards/src/contain/system.rs", "closes inherited descriptors, of which Rust knows the numbers only"),
    ("rollout/serve/src/main.rs", "changes the environment before there are threads"),
    ("rollout/src/engine/binding.rs", "binds memory of the engine by pointer, which ort does not offer"),
    ("rollout/src/engine/device/candidates/mod.rs", "binds logits of the device by pointer"),
    ("rollout/src/engine/device/cuda.rs", "calls the CUDA runtime"),
    ("rollout/src/engine/packed/session.rs", "binds logits of the engine by pointer"),
    ("rollout/src/engine/packed/weights.rs", "maps weights, and lets go of the pages of what was packed"),
    ("rollout/src/engine/stock/graph.rs", "binds the cache to both ends of the graph by pointer"),
    ("rollout/src/main.rs", "changes the environment before there are threads"),
    ("rollout/src/sampling/stats.rs", "compiles a pass for each instruction set"),
    ("shared/bounds/src/memory.rs", "is an allocator"),
    ("shared/src/system/native.rs", "changes the environment, which C libraries read without a lock"),
    ("src/programs/binaries.rs", "makes a child end with its parent, between fork and exec"),
    ("src/doctor/libraries.rs", "asks ONNX Runtime for its version through its C interface"),
    ("src/doctor/machine.rs", "asks the system what it has"),
    ("src/main.rs", "changes the environment before there are threads"),
    ("tests/tests/", "sends signals and sets limits"),
    ("rollout/tests/it/pair/", "sends signals and passes a lock on"),
];

/// The keyword. It is assembled here so that this file passes its own check.
const WORD: &str = concat!("uns", "afe");

pub fn check(sources: &Sources) -> Vec<String> {
    let uses: Vec<(&Source, usize)> =
        sources.rust().filter_map(|source| Some((source, first_use(&source.text)?))).collect();
    let covers = |entry: &str, path: &str| entry == path || (entry.ends_with('/') && path.starts_with(entry));
    let unlisted = uses.iter().filter(|(source, _)| !ALLOWED.iter().any(|(entry, _)| covers(entry, &source.path)));
    let mut findings: Vec<String> = unlisted
        .map(|(source, line)| {
            format!("{}:{line}: `{WORD}` in a file that xtask/src/tidy/unsafe_code.rs does not list", source.path)
        })
        .collect();
    // An entry must be used only if its file exists: the tests of the other rules have sources of their own.
    let stale = ALLOWED.iter().filter(|(entry, _)| {
        sources.rust().any(|source| covers(entry, &source.path))
            && !uses.iter().any(|(source, _)| covers(entry, &source.path))
    });
    findings.extend(stale.map(|(entry, _)| format!("{entry}: listed for `{WORD}` and has none")));
    findings
}

/// The first line of code, from 1, that has the keyword.
fn first_use(text: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let has_word = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        code.match_indices(WORD)
            .any(|(at, _)| !code[..at].ends_with(is_part) && !code[at + WORD.len()..].starts_with(is_part))
    };
    text.lines().position(has_word).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    fn block(path: &str) -> Vec<String> {
        check(&one(path, &format!("//! Docs.\n{WORD} {{ f() }}\n")))
    }

    #[test]
    fn only_listed_files_may() {
        assert_eq!(block("rollout/src/engine/binding.rs"), Vec::<String>::new());
        assert_eq!(block("rollout/kernels/src/simd/x86.rs"), Vec::<String>::new());
        assert!(block("rollout/src/engine/step.rs")[0].starts_with("rollout/src/engine/step.rs:2: "));
    }

    #[test]
    fn comments_and_longer_words_are_no_use_and_a_listed_file_has_one() {
        let harmless = format!("//! {WORD} is explained.\n#![forbid({WORD}_code)]\nlet not_{WORD} = 1;\n");
        assert_eq!(check(&one("src/a.rs", &harmless)), Vec::<String>::new());
        assert!(check(&one("src/programs/binaries.rs", &harmless))[0].contains("has none"));
    }

    #[test]
    fn every_entry_has_a_reason() {
        assert!(ALLOWED.iter().all(|(entry, reason)| !entry.is_empty() && reason.len() > 10));
    }
}
