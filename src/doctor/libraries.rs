//! The programs of the workspace and the native libraries they load.

use std::{
    ffi::{CStr, c_char, c_void},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{Finding, Level};
use crate::programs::binaries::{self, FLEET};

/// The first ONNX Runtime release with the interface that the sampler is built for.
const ONNXRUNTIME_AT_LEAST: (u32, u32) = (1, 31);
/// The release that tch is built for, exactly.
const TORCH: &str = "2.11";

pub fn examine() -> Vec<Finding> {
    vec![programs(), fleet(), onnxruntime(), libtorch()]
}

fn programs() -> Finding {
    let missing: Vec<&str> = ["rollout", "learner"].into_iter().filter(|name| binaries::find(name).is_err()).collect();
    if missing.is_empty() {
        Finding::ok("programs", "rollout and learner are beside tandem")
    } else {
        Finding::fail("programs", format!("not beside tandem: {}", missing.join(", ")), binaries::build_of(&missing))
    }
}

/// A build without the fleet's program is complete: runs on one host do not need it.
fn fleet() -> Finding {
    let subject = "workers";
    match binaries::find(FLEET) {
        Ok(_) => Finding::ok(subject, format!("{FLEET} is beside tandem")),
        Err(_) => Finding {
            level: Level::Ok,
            subject,
            detail: format!("`{FLEET}` is not built, which only `listen` and `tandem worker` need"),
            remedy: Some(binaries::build_of(&[FLEET])),
        },
    }
}

fn onnxruntime() -> Finding {
    let subject = "onnxruntime";
    let path = match shared::system::native::onnxruntime() {
        Ok(path) => path,
        Err(error) => return Finding::fail(subject, error.to_string(), "cargo xtask setup"),
    };
    match onnxruntime_version(&path) {
        Ok(version) if is_at_least(&version, ONNXRUNTIME_AT_LEAST) => {
            Finding::ok(subject, format!("{version} ({})", path.display()))
        }
        Ok(version) => Finding::fail(
            subject,
            format!("{version} is too old ({})", path.display()),
            format!("install {}.{} or newer, or run cargo xtask setup", ONNXRUNTIME_AT_LEAST.0, ONNXRUNTIME_AT_LEAST.1),
        ),
        Err(error) => Finding::fail(subject, format!("{error:#}"), "cargo xtask setup"),
    }
}

fn is_at_least(version: &str, wanted: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
}

/// `OrtApiBase` of onnxruntime_c_api.h.
#[repr(C)]
struct OrtApiBase {
    get_api: unsafe extern "C" fn(u32) -> *const c_void,
    get_version_string: unsafe extern "C" fn() -> *const c_char,
}

fn onnxruntime_version(path: &Path) -> Result<String> {
    // SAFETY: the library's initialisers are those of ONNX Runtime, which the sampler runs as well; the function and
    // the structure have the layout of its C interface, which has not changed since its first release, and what they
    // return lives as long as the library, which stays open to the end of this block.
    unsafe {
        let library = libloading::Library::new(path).with_context(|| format!("{} does not load", path.display()))?;
        let base: libloading::Symbol<unsafe extern "C" fn() -> *const OrtApiBase> =
            library.get(b"OrtGetApiBase").with_context(|| format!("{} is no ONNX Runtime library", path.display()))?;
        let Some(base) = base().as_ref() else {
            bail!("{} gives no interface", path.display());
        };
        Ok(CStr::from_ptr((base.get_version_string)()).to_string_lossy().into_owned())
    }
}

fn libtorch() -> Finding {
    let subject = "libtorch";
    let remedy = "cargo xtask setup, or let LIBTORCH name a libtorch and build again";
    let Ok(learner) = binaries::find("learner") else {
        return Finding::fail(subject, "cannot be looked for without the learner", binaries::build_of(&["learner"]));
    };
    let path = match loaded_library(&learner, "libtorch_cpu.so") {
        Ok(Some(path)) => path,
        Ok(None) => return Finding::fail(subject, "the learner does not find libtorch_cpu.so", remedy),
        Err(error) => return Finding::fail(subject, format!("{error:#}"), remedy),
    };
    match torch_version(&path) {
        Some(version) if version.starts_with(TORCH) => Finding::ok(subject, format!("{version} ({})", path.display())),
        Some(version) => Finding::fail(subject, format!("{version} is not {TORCH} ({})", path.display()), remedy),
        None => Finding::ok(subject, path.display().to_string()),
    }
}

/// Where the dynamic linker finds a library for a program; none if it does not find it.
fn loaded_library(program: &Path, library: &str) -> Result<Option<PathBuf>> {
    let output = Command::new(program)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    Ok(resolved(&String::from_utf8_lossy(&output.stdout), library))
}

/// Reads `libx.so => /path/libx.so (0x…)`.
fn resolved(trace: &str, library: &str) -> Option<PathBuf> {
    let (_, target) = trace.lines().filter_map(|l| l.trim().split_once(" => ")).find(|(name, _)| *name == library)?;
    let path = target.rsplit_once(" (").map_or(target, |(path, _)| path);
    Path::new(path).is_absolute().then(|| PathBuf::from(path))
}

/// From the headers that libtorch has beside its libraries.
fn torch_version(library: &Path) -> Option<String> {
    let header = library.parent()?.parent()?.join("include/torch/headeronly/version.h");
    let text = fs::read_to_string(header).ok()?;
    let part = |name: &str| {
        let define = format!("#define TORCH_VERSION_{name} ");
        text.lines().find_map(|l| Some(l.strip_prefix(&define)?.trim().to_owned()))
    };
    Some(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_at_least("1.31.1", (1, 31)) && is_at_least("2.0", (1, 31)) && is_at_least("1.100.0", (1, 31)));
        assert!(!is_at_least("1.9.0", (1, 31)) && !is_at_least("rubbish", (1, 31)));
    }

    #[test]
    fn the_linker_trace_is_read() {
        let trace = "\tlinux-vdso.so.1 (0x7ff)\n\tlibtorch_cpu.so => /opt/a b/libtorch_cpu.so (0x7f0)\n\tlibc10.so => \
            not found\n";
        assert_eq!(resolved(trace, "libtorch_cpu.so"), Some("/opt/a b/libtorch_cpu.so".into()));
        assert_eq!(resolved(trace, "libc10.so"), None);
        assert_eq!(resolved(trace, "libm.so.6"), None);
    }

    #[test]
    fn the_version_is_read_from_the_headers() {
        let root = tempfile::tempdir().unwrap();
        let headers = root.path().join("include/torch/headeronly");
        fs::create_dir_all(&headers).unwrap();
        fs::write(
            headers.join("version.h"),
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n",
        )
        .unwrap();
        assert_eq!(torch_version(&root.path().join("lib/libtorch_cpu.so")).as_deref(), Some("2.11.0"));
        assert_eq!(torch_version(Path::new("/nowhere/lib/libtorch_cpu.so")), None);
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("libonnxruntime.so");
        fs::write(&path, "not a library").unwrap();
        let error = format!("{:#}", onnxruntime_version(&path).unwrap_err());
        assert!(error.contains("libonnxruntime.so does not load"), "{error}");
    }
}
