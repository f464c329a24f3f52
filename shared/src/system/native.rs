//! Paths of the project's native libraries.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Keeps ONNX Runtime from sending usage data: if it is set when the library is loaded, nothing is recorded below the
/// home directory and no host is looked up. The switch in its interface comes too late, after the first event.
const DISABLE_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Turns ONNX Runtime's telemetry off, in this process and in those that it starts.
///
/// # Safety
/// No other thread may run, since C libraries read the environment without a lock: call this before anything else.
pub unsafe fn disable_telemetry() {
    // SAFETY: the caller is the only thread.
    unsafe { env::set_var(DISABLE_TELEMETRY, "1") };
}

/// Whether ONNX Runtime's telemetry is off in this process.
#[must_use]
pub fn telemetry_is_disabled() -> bool {
    env::var_os(DISABLE_TELEMETRY).is_some_and(|value| value == "1")
}

/// The path of an ONNX Runtime library.
pub const ONNXRUNTIME_VARIABLE: &str = "ORT_DYLIB_PATH";

/// Folder of ONNX Runtime beside the programs.
const FOLDER_BESIDE: &str = "onnxruntime";
/// Where `cargo xtask setup` unpacks ONNX Runtime, below the root of the repository.
const SETUP_FOLDER: &str = ".native/onnxruntime";
const LIBRARY: &str = "libonnxruntime.so";

/// The ONNX Runtime library: `ORT_DYLIB_PATH`, else beside this program or in the folder `onnxruntime` there, else in
/// `.native/onnxruntime` of one of the folders above it.
///
/// # Errors
/// When there is none, with the way out.
pub fn onnxruntime() -> io::Result<PathBuf> {
    let missing = |message: String| io::Error::new(io::ErrorKind::NotFound, message);
    if let Some(path) = env::var_os(ONNXRUNTIME_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from) {
        return if path.is_file() {
            Ok(path)
        } else {
            Err(missing(format!("{ONNXRUNTIME_VARIABLE} names {}, which is no file", path.display())))
        };
    }
    let program = env::current_exe()?.canonicalize()?;
    search(&program).ok_or_else(|| {
        missing(format!(
            "{LIBRARY} is neither beside {}, nor in the folder {FOLDER_BESIDE} there, nor in {SETUP_FOLDER} above it; \
             run `cargo xtask setup`, or let {ONNXRUNTIME_VARIABLE} name the library",
            program.display()
        ))
    })
}

fn search(program: &Path) -> Option<PathBuf> {
    let beside = program.parent()?;
    library_in(beside)
        .or_else(|| library_in(&beside.join(FOLDER_BESIDE)))
        .or_else(|| beside.ancestors().find_map(|dir| library_in(&dir.join(SETUP_FOLDER))))
}

/// `libonnxruntime.so`, or the versioned name in Python wheels.
fn library_in(dir: &Path) -> Option<PathBuf> {
    let plain = dir.join(LIBRARY);
    if plain.is_file() {
        return Some(plain);
    }
    let versioned = format!("{LIBRARY}.");
    fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file() && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&versioned)))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_beside_the_program_wins_over_the_set_up_folder() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("target/release/rollout");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        assert_eq!(search(&program), None);
        let set_up = root.path().join(SETUP_FOLDER);
        fs::create_dir_all(&set_up).unwrap();
        fs::write(set_up.join("libonnxruntime.so.1.31.1"), "").unwrap();
        assert_eq!(search(&program), Some(set_up.join("libonnxruntime.so.1.31.1")));
        let folder = program.with_file_name(FOLDER_BESIDE);
        fs::create_dir(&folder).unwrap();
        assert_eq!(search(&program), Some(set_up.join("libonnxruntime.so.1.31.1")), "the folder beside it is empty");
        fs::write(folder.join("libonnxruntime.so.1.31.1"), "").unwrap();
        assert_eq!(search(&program), Some(folder.join("libonnxruntime.so.1.31.1")));
        let beside = program.with_file_name(LIBRARY);
        fs::write(&beside, "").unwrap();
        assert_eq!(search(&program), Some(beside));
    }
}
