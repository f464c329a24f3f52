//! `cargo xtask setup`: installs libtorch and ONNX Runtime in `.native/`, from wheels of the Python package index.
//!
//! A component's folder is prepared beside its place, then stamped, then renamed. So a folder with the right stamp is
//! whole. Downloading and unpacking hold a lock, so two set-ups at the same time do no harm.
//!
//! The wheel of torch on the package index is the CUDA build. On the CPU, its `libtorch_cpu.so` needs two small
//! libraries of CUDA, and nothing opens `libtorch_cuda.so`. Without the other libraries the folder has 0.5 GB instead
//! of 4 GB.

mod pins;
mod pip;
mod unpack;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

pub use self::pins::CUDA_PROVIDER;
use self::pins::{CPU, Component, LICENCES, Pins, Set};
use crate::{host::Host, prerequisites};

/// Brings `.native/` up to date; if everything is in place, it only reads two small files.
///
/// # Errors
/// One line that says what is wrong and what to do; `.native/` then holds no half-finished folder under its final name.
pub fn run(host: &Host, cuda: bool) -> Result<()> {
    check_own_libraries(host)?;
    if missing(host, cuda)?.is_empty() {
        return Ok(());
    }
    prerequisites::check_pip(host)?;
    let native = host.native();
    fs::create_dir_all(&native).with_context(|| format!("cannot create {}", native.display()))?;
    let _lock = lock(&native)?;
    unpack::remove_litter(&native)?;
    // Another set-up may have done the work during the wait for the lock.
    for component in missing(host, cuda)? {
        fetch(host, &component, &native).with_context(|| format!("set-up of {} failed", component.name))?;
        eprintln!("{} is set up in {}", component.name, native.join(component.name).display());
    }
    Ok(())
}

/// Whether nothing is missing in `.native/` for the CPU.
///
/// # Errors
/// Where nothing can be fetched for this platform.
pub fn is_complete(host: &Host) -> Result<bool> {
    Ok(missing(host, false)?.is_empty())
}

/// Components that are neither the user's own nor in place. Without `cuda`, the CUDA build is acceptable as well.
fn missing(host: &Host, cuda: bool) -> Result<Vec<Component>> {
    if host.own_libtorch.is_some() && host.own_onnxruntime.is_some() {
        return Ok(Vec::new());
    }
    let Some(pins) = Pins::of(host.platform) else { bail!(own_libraries(host, "native libraries")) };
    let wanted = match (cuda, pins.cuda) {
        (false, _) => pins.cpu,
        (true, Some(cuda)) => cuda,
        (true, None) => bail!(own_libraries(host, "libraries for CUDA")),
    };
    let is_there = |component: fn(Set) -> Component| {
        [Some(wanted), pins.cuda].into_iter().flatten().any(|set| is_in_place(host, &component(set)))
    };
    let mut missing = Vec::new();
    if host.own_libtorch.is_none() && !is_there(|set| set.libtorch) {
        missing.push(wanted.libtorch);
    }
    if host.own_onnxruntime.is_none() && !is_there(|set| set.onnxruntime) {
        missing.push(wanted.onnxruntime);
    }
    Ok(missing)
}

fn is_in_place(host: &Host, component: &Component) -> bool {
    let path = host.native().join(component.name).join(unpack::STAMP);
    fs::read_to_string(path).is_ok_and(|found| found == stamp(component))
}

/// The sources of a component; a change of any pin, rule or link makes another stamp.
fn stamp(component: &Component) -> String {
    let mut stamp = pip::requirements(component.wheels);
    for rule in component.wheels.iter().flat_map(|wheel| wheel.take) {
        stamp += &format!("{rule}\n");
    }
    for (link, target) in component.links {
        stamp += &format!("{link} -> {target}\n");
    }
    stamp + "end\n"
}

/// Downloads the wheels of a component and unpacks it in the folder `native`.
///
/// # Errors
/// When a wheel cannot be downloaded or lacks a file, or when the disk is full.
pub fn fetch(host: &Host, component: &Component, native: &Path) -> Result<()> {
    let downloads = unpack::temporary(native, "downloads");
    fs::create_dir_all(&downloads).with_context(|| format!("cannot create {}", downloads.display()))?;
    let result = pip::download(host, component.wheels, &downloads)
        .and_then(|wheels| unpack::install(component, &wheels, &stamp(component), native));
    // After a failure as after a success: the temporary files are large. The first error matters more than one in this
    // clean-up.
    let removed = unpack::remove_litter(native);
    result.and(removed)
}

/// Makes sure that `.native/` holds the CPU builds for x86-64, which may be passed on, and fetches their licences if
/// they are not there. Returns the folder of the licences: `libtorch`, `onnxruntime` and others in it.
///
/// # Errors
/// When `.native/` holds other builds, or the licences cannot be downloaded.
pub fn licences(host: &Host) -> Result<PathBuf> {
    let native = host.native();
    for component in [CPU.libtorch, CPU.onnxruntime] {
        ensure!(
            is_in_place(host, &component),
            "{} does not hold the CPU build that set-up fetches: move the folder away, unset LIBTORCH and \
             ORT_DYLIB_PATH, and run `cargo xtask setup`",
            native.join(component.name).display()
        );
    }
    if !is_in_place(host, &LICENCES) {
        prerequisites::check_pip(host)?;
        let _lock = lock(&native)?;
        fetch(host, &LICENCES, &native).context("the licences of the libraries cannot be fetched")?;
    }
    Ok(native.join(LICENCES.name))
}

fn lock(native: &Path) -> Result<File> {
    let path = native.join(".lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

fn check_own_libraries(host: &Host) -> Result<()> {
    if let Some(path) = &host.own_libtorch {
        ensure!(
            path.join("lib/libtorch_cpu.so").is_file() && path.join("include/torch").is_dir(),
            "LIBTORCH={} is no libtorch (it has no lib/libtorch_cpu.so or no include/torch): \
             correct it, or unset it and run `cargo xtask setup`",
            path.display()
        );
    }
    if let Some(path) = &host.own_onnxruntime {
        ensure!(
            path.is_file(),
            "ORT_DYLIB_PATH={} is no file: name libonnxruntime.so itself, or unset it and run `cargo xtask setup`",
            path.display()
        );
    }
    Ok(())
}

/// What to do on a platform for which `what` is not pinned.
fn own_libraries(host: &Host, what: &str) -> String {
    let (os, arch) = host.platform;
    format!(
        "{what} cannot be fetched for {arch} {os}: set LIBTORCH to a libtorch {} \
         and ORT_DYLIB_PATH to a libonnxruntime {}",
        CPU.libtorch.wheels[0].version, CPU.onnxruntime.wheels[0].version
    )
}

#[cfg(test)]
mod tests;
