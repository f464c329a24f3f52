//! `cargo xtask dist`: programs with their libraries, as an archive and as a Python wheel, for machines without Rust.
//!
//! Two calls in the same work tree, with the same compiler, make the same bytes: entries are sorted, owners and times
//! are fixed. Programs and libraries may need what Ubuntu 22.04 has and nothing newer, which their symbol versions
//! show. There are packages for x86-64 Linux alone: for another processor, libtorch brings libraries whose licences are
//! not collected.

mod archive;
mod check;
mod content;
mod elf;
mod licences;
mod needs;
mod wheel;

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{host::Host, setup, steps};
use archive::Entry;
use content::Files;

/// The release, of which all programs have the number.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Hashes of the packages, as `sha256sum --check` reads them.
const SUMS: &str = "SHA256SUMS";
/// Time of everything in the archive, in seconds since 1970; by default that of the commit.
const TIME: &str = "SOURCE_DATE_EPOCH";
/// The profile of packages, in the workspace's Cargo.toml.
const PROFILE: &str = "dist";
/// Lets the linker keep functions with the same code once. rustc links with LLD on this platform, which has the flag.
const RUSTFLAGS: (&str, &str) = ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Clink-arg=-Wl,--icf=all");
/// Largest package, in bytes.
const LARGEST: u64 = 200_000_000;

/// Flags of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for archive, wheel, Dockerfile and their hashes [default: `dist` in the folder of the build outputs]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Try what lies in that folder instead: the archive on a bare Debian 12 without network (as root, with
    /// debootstrap), and the wheel in an empty virtual environment
    #[arg(long)]
    check: bool,
}

/// Builds and packs, or tries what is packed.
///
/// # Errors
/// When a build fails, something is missing, a package is too large, or a check finds that a package does not work.
pub fn run(host: &Host, args: &Args) -> Result<()> {
    host.check_x86_64("packages are made")?;
    let output = args.output.clone().unwrap_or_else(|| host.target.join("dist"));
    if args.check {
        return check::run(host, &output);
    }
    let time = time(host)?;
    setup::run(host, false)?;
    let metadata = content::metadata(host)?;
    let programs = content::programs(&metadata);
    let mut build = host.cargo();
    build.args(["build", "--profile", PROFILE, "--locked", "--workspace"]).env(RUSTFLAGS.0, RUSTFLAGS.1);
    build.args(programs.iter().flat_map(|program| ["--bin", program]));
    steps::run(build)?;
    fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let scratch = output.join(".stripped");
    fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let files = content::collect(host, &metadata, &programs, &scratch)?;
    let made = pack(&files, time, &output)?;
    fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    for path in &made {
        let size = fs::metadata(path).with_context(|| path.display().to_string())?.len();
        ensure!(size <= LARGEST, "{} has {size} bytes, more than {LARGEST}", path.display());
        println!("{} ({:.1} MB)", path.display(), size as f64 / 1e6);
    }
    println!("as root, `cargo xtask dist --check` tries them on a bare Debian 12");
    Ok(())
}

/// Name of the archive without its ending, and of the folder in it.
fn archive_name() -> String {
    format!("tandem-{VERSION}-x86_64-linux")
}

/// Writes all packages into a folder. Returns their paths. Each is written beside its place first, and the hashes are
/// there only while they are those of the packages, whenever the call is interrupted.
fn pack(files: &Files, time: u64, output: &Path) -> Result<Vec<PathBuf>> {
    let name = archive_name();
    let in_archive: Vec<Entry> =
        [&files.bin, &files.licences, &files.documents].into_iter().flatten().cloned().collect();
    let in_wheel = wheel::entries(&files.bin, &files.licences, VERSION, files.glibc);
    let archive = output.join(format!("{name}.tar.gz"));
    let wheel = output.join(wheel::file_name(VERSION, files.glibc));
    let sums_file = output.join(SUMS);
    if sums_file.exists() {
        fs::remove_file(&sums_file).with_context(|| sums_file.display().to_string())?;
    }
    // Compression takes most of the time.
    thread::scope(|scope| {
        let other = scope.spawn(|| wheel::write(&in_wheel, VERSION, &beside(&wheel)));
        let result = archive::write(&in_archive, &name, time, &beside(&archive));
        other.join().expect("packing does not panic").and(result)
    })?;
    for package in [&archive, &wheel] {
        fs::rename(beside(package), package).with_context(|| package.display().to_string())?;
    }
    let dockerfile = output.join("Dockerfile");
    let text = include_str!("Dockerfile").replace("@ARCHIVE@", &name);
    fs::write(&dockerfile, text).with_context(|| dockerfile.display().to_string())?;
    let made = vec![archive, wheel, dockerfile];
    let sums = made.iter().map(|path| sum(path)).collect::<Result<String>>()?;
    let partial = beside(&sums_file);
    fs::write(&partial, sums)
        .and_then(|()| fs::rename(&partial, &sums_file))
        .with_context(|| sums_file.display().to_string())?;
    Ok(made)
}

/// Where a file is written before it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// The line about a file in [`SUMS`].
fn sum(path: &Path) -> Result<String> {
    let mut hash = wheel::Hash::default();
    File::open(path).and_then(|mut file| io::copy(&mut file, &mut hash)).with_context(|| path.display().to_string())?;
    let name = path.file_name().context("a package has a name")?.to_string_lossy();
    Ok(format!("{}  {name}\n", hex(hash.0)))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// [`TIME`], else the time of the commit.
fn time(host: &Host) -> Result<u64> {
    if let Some(text) = env::var(TIME).ok().filter(|text| !text.is_empty()) {
        return text.parse().with_context(|| format!("{TIME}={text} is no number of seconds since 1970"));
    }
    let mut git = host.command("git");
    let output = git.args(["log", "-1", "--format=%ct"]).output();
    let said = output.ok().filter(|output| output.status.success());
    match said.and_then(|output| String::from_utf8_lossy(&output.stdout).trim().parse().ok()) {
        Some(time) => Ok(time),
        None => bail!("git does not say when this commit was made: let {TIME} be the seconds since 1970"),
    }
}

#[cfg(test)]
mod tests;
