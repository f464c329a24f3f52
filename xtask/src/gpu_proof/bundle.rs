//! `cargo xtask gpu-proof`: packs programs, golden figures and, with `--libraries`, ONNX Runtime for CUDA.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    host::Host,
    setup::{self, CUDA_PROVIDER},
    steps::{build, run},
};

/// Largest bundle, in bytes.
const LARGEST: u64 = 60_000_000;

/// Flags of `cargo xtask gpu-proof`.
#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    /// Folder for what is packed [default: `gpu-proof` in the folder of the build outputs]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Fetch ONNX Runtime for CUDA (onnxruntime-gpu of the Python package index, about 280 MB) and pack it in pieces,
    /// instead of the programs
    #[arg(long)]
    libraries: bool,
    /// Size of such a piece in MiB: what can be carried to the machine at once, less the bundle
    #[arg(long, default_value_t = 52, value_parser = clap::value_parser!(u64).range(1..))]
    piece: u64,
}

/// Builds and packs, and prints the next steps.
///
/// # Errors
/// When a build fails, a program is missing, or the bundle is too large.
pub fn pack(host: &Host, args: &BundleArgs) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| host.target.join("gpu-proof"));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    if args.libraries {
        pack_libraries(host, &out, args.piece)?;
        println!("{}/onnxruntime.tar.gz.* (pieces of {} MiB at most)", out.display(), args.piece);
        return Ok(());
    }
    build(host)?;
    let programs = ["xtask", "rollout", "learner", "tandem"].map(|name| (name, host.binary(name)));
    let tests = engine_tests(host)?;
    let bundle = pack_bundle(host, &programs, &tests, &out)?;
    let size = fs::metadata(&bundle).with_context(|| bundle.display().to_string())?.len();
    ensure!(size < LARGEST, "{} takes {size} bytes, more than {LARGEST}", bundle.display());
    println!("{} ({:.1} MB)", bundle.display(), size as f64 / 1e6);
    println!("BENCHMARKS.md says what to do with them on the machine with the GPU");
    Ok(())
}

/// The test program of `rollout`'s public interface.
fn engine_tests(host: &Host) -> Result<PathBuf> {
    let mut test = host.cargo();
    test.args(["test", "--release", "--workspace", "--locked", "--test", "it", "--no-run", "--message-format=json"]);
    let output = test.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the engine tests do not build");
    let manifest = host.root.join("rollout/Cargo.toml");
    built(&String::from_utf8_lossy(&output.stdout), &manifest)
        .context("cargo did not say where the engine tests of `rollout` are")
}

/// The program of the target `it` of a package, from cargo's messages about a build.
fn built(messages: &str, manifest: &Path) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["manifest_path"] == *manifest.to_string_lossy() && message["target"]["name"] == "it";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    })
}

/// Strips the programs and packs them with the golden figures.
fn pack_bundle(host: &Host, programs: &[(&str, PathBuf)], tests: &Path, out: &Path) -> Result<PathBuf> {
    let folder = out.join("bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (name, program) in programs.iter().map(|(name, path)| (*name, path.as_path())).chain([("engine-tests", tests)])
    {
        let mut strip = host.command("strip");
        strip.arg("--strip-all").arg("-o").arg(folder.join(name)).arg(program);
        run(strip).context("binutils and gcc belong together: install both")?;
    }
    let bundle = out.join("bundle.tar.gz");
    let mut tar = tar(host, &folder);
    tar.arg("--file").arg(out.join("bundle.tmp")).arg(".");
    tar.arg("--directory").arg(host.root.join("tests")).arg("golden");
    run(tar)?;
    fs::rename(out.join("bundle.tmp"), &bundle).with_context(|| bundle.display().to_string())?;
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(bundle)
}

/// A tar command that compresses the content of a folder.
fn tar(host: &Host, folder: &Path) -> Command {
    let mut tar = host.command("tar");
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--directory"]).arg(folder);
    tar
}

/// Fetches the provider and packs it in pieces of `piece` MiB.
fn pack_libraries(host: &Host, out: &Path, piece: u64) -> Result<()> {
    host.check_x86_64("ONNX Runtime for CUDA is pinned")?;
    setup::fetch(host, &CUDA_PROVIDER, out)?;
    for entry in fs::read_dir(out).with_context(|| out.display().to_string())? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("onnxruntime.tar.gz.")) {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    let mut tar = tar(host, out).arg(CUDA_PROVIDER.name).stdout(Stdio::piped()).spawn().context("cannot start tar")?;
    let mut split = host.command("split");
    split.args(["--numeric-suffixes", &format!("--bytes={piece}M"), "-"]).arg(out.join("onnxruntime.tar.gz."));
    let packed = tar.stdout.take().context("the output of tar is piped")?;
    run({
        split.stdin(packed);
        split
    })?;
    ensure!(tar.wait().context("cannot wait for tar")?.success(), "tar failed");
    let folder = out.join(CUDA_PROVIDER.name);
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    #[test]
    fn the_bundle_holds_programs_and_figures_under_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { path: "/usr/bin:/bin".into(), ..fake::host(dir.path(), &[]) };
        fs::create_dir_all(dir.path().join("tests/golden")).unwrap();
        fs::write(dir.path().join("tests/golden/figures.json"), "{}").unwrap();
        let (program, out) = (Path::new("/bin/true"), dir.path().join("out"));
        fs::create_dir(&out).unwrap();
        let bundle = pack_bundle(&host, &[("rollout", program.into())], program, &out).unwrap();
        let listed = Command::new("tar").arg("--list").arg("--file").arg(bundle).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        for name in ["./rollout", "./engine-tests", "golden/figures.json"] {
            assert!(listed.lines().any(|line| line == name), "{name}: {listed}");
        }
        assert_eq!(fs::read_dir(out).unwrap().count(), 1, "the bundle alone is left");
    }

    #[test]
    fn libraries_of_another_processor_are_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { platform: ("linux", "aarch64"), ..fake::host(dir.path(), &[]) };
        let args = BundleArgs { out: Some(dir.path().join("out")), libraries: true, piece: 1 };
        let expected = "ONNX Runtime for CUDA is pinned for x86_64 Linux only, and this is aarch64 linux";
        assert_eq!(pack(&host, &args).unwrap_err().to_string(), expected);
    }

    #[test]
    fn the_tests_of_the_sampler_are_found_among_those_of_others() {
        let message = |package: &str, target: &str, executable: Value| {
            let target = serde_json::json!({"name": target});
            serde_json::json!({"manifest_path": format!("/w/{package}/Cargo.toml"), "target": target,
                "executable": executable})
        };
        let messages = [
            message("learner", "it", "/t/learner-it".into()),
            message("rollout", "rollout", "/t/rollout".into()),
            message("rollout", "it", Value::Null),
            message("rollout", "it", "/t/rollout-it".into()),
        ];
        let messages = messages.map(|message| format!("{message}\n")).concat() + "not JSON\n";
        let find = |manifest: &str| built(&messages, Path::new(manifest));
        assert_eq!(find("/w/rollout/Cargo.toml"), Some("/t/rollout-it".into()));
        assert_eq!(find("/w/shared/Cargo.toml"), None);
    }
}
