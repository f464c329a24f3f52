//! `cargo xtask fuzz`: libFuzzer with coverage, on stable Rust.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};

use crate::{host::Host, steps::run};

/// Arguments of rustc for LLVM: counters for every branch and the operands of comparisons, in the form that libFuzzer
/// reads; overflows are panics.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=4 --cfg fuzzing";
/// Words of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A target of `tests/fuzz/src/lib.rs`; all in turn when not given.
    target: Option<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Builds the targets in a folder of their own and runs them.
///
/// # Errors
/// When the build fails or a target finds an input; libFuzzer names the file of that input.
pub fn fuzz(host: &Host, args: &Args) -> Result<()> {
    let folder = host.root.join("target/fuzz");
    // If the target is given, build scripts and macros are built without these flags.
    let triple = format!("{}-unknown-linux-gnu", host.platform.1);
    let mut build = host.cargo();
    build.args(["build", "--release", "--locked", "--package", "fuzz", "--features", "libfuzzer", "--target", &triple]);
    build.arg("--target-dir").arg(&folder).env("RUSTFLAGS", FLAGS);
    run(build)?;
    let program = folder.join(triple).join("release/fuzz");
    let listed = Command::new(&program).output().with_context(|| program.display().to_string())?.stdout;
    let listed = String::from_utf8(listed).context("the names of the targets")?;
    let chosen: Vec<&str> =
        listed.lines().filter(|name| args.target.as_ref().is_none_or(|target| target == name)).collect();
    if chosen.is_empty() {
        bail!("no such target; there are {}", listed.lines().collect::<Vec<_>>().join(", "));
    }
    for name in chosen {
        eprintln!("==> {name}, {} s", args.seconds);
        let corpus = folder.join("corpus").join(name);
        fs::create_dir_all(&corpus).with_context(|| corpus.display().to_string())?;
        let mut target = Command::new(&program);
        target.env("TANDEM_FUZZ_TARGET", name).env("TANDEM_FUZZ_CORPUS", &corpus).arg(&corpus);
        target.arg(format!("-max_total_time={}", args.seconds));
        // An input that takes 20 s with counters in every branch is too slow without them; a busy machine is rarely the
        // cause.
        target.args([
            "-timeout=20",
            "-rss_limit_mb=6144",
            "-malloc_limit_mb=4096",
            "-max_len=65536",
            "-print_final_stats=1",
        ]);
        target.arg(format!("-artifact_prefix={}/{name}-", folder.display()));
        run(target).with_context(|| format!("put what was found into tests/fuzz/found/{name}"))?;
    }
    Ok(())
}
