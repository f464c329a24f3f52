//! What the packed files need from the system: at most what Ubuntu 22.04 has.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::elf::{Elf, Version};

/// Newest symbol versions of Ubuntu 22.04, the oldest system that the packages are for. Debian 12 has newer ones.
const NEWEST: [(&str, &[u32]); 4] =
    [("GLIBC", &[2, 35]), ("GLIBCXX", &[3, 4, 30]), ("CXXABI", &[1, 3, 13]), ("GCC", &[12, 0, 0])];

/// Libraries that every such system has.
const OF_SYSTEM: [&str; 10] = [
    LOADER,
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "libutil.so.1",
    "linux-vdso.so.1",
];

/// That of this machine: packages are for x86-64 only, but the tests read their own program.
const LOADER: &str = if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };

/// The files of a folder that a program needs, directly or through one another, by name.
///
/// # Errors
/// When a file cannot be read.
pub fn closure(program: &Path, folder: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut next = vec![program.to_path_buf()];
    while let Some(path) = next.pop() {
        for name in of_file(&path, |elf| elf.needed())? {
            let library = folder.join(&name);
            if library.is_file() && found.insert(name) {
                next.push(library);
            }
        }
    }
    Ok(found)
}

/// Checks that these files find all libraries among themselves or in the system, and need no newer symbols than
/// [`NEWEST`]. Returns the oldest glibc that has all their symbols: major and minor number.
///
/// # Errors
/// Names the file, and what it needs.
pub fn check(files: &[PathBuf]) -> Result<(u32, u32)> {
    let names: BTreeSet<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let mut glibc = (0, 0);
    for path in files {
        for library in of_file(path, |elf| elf.needed())? {
            let is_there = names.contains(&*library) || OF_SYSTEM.contains(&&*library);
            ensure!(is_there, "{} needs {library}, which is neither packed nor part of every system", path.display());
        }
        for version in of_file(path, |elf| elf.versions())?.iter().filter(|version| !names.contains(&*version.library))
        {
            let number = accepted(version).with_context(|| path.display().to_string())?;
            if let ("GLIBC", [major, minor, ..]) = (family(version), &number[..]) {
                glibc = glibc.max((*major, *minor));
            }
        }
    }
    Ok(glibc)
}

fn of_file<T>(path: &Path, read: impl Fn(Elf) -> Result<T>) -> Result<T> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Elf::new(&bytes).and_then(read).with_context(|| path.display().to_string())
}

/// `GLIBC` of `GLIBC_2.34`.
fn family(version: &Version) -> &str {
    version.name.split_once('_').map_or(&version.name, |(family, _)| family)
}

/// The number of a version that old enough systems have.
fn accepted(version: &Version) -> Result<Vec<u32>> {
    let Version { library, name } = version;
    let number = name.split_once('_').map_or("", |(_, number)| number);
    let number = number.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>();
    let newest = NEWEST.iter().find(|(of, _)| *of == family(version));
    let (Ok(number), Some((_, newest))) = (number, newest) else {
        bail!("it needs {name} of {library}, which is not known to be part of every system");
    };
    ensure!(
        number.as_slice() <= *newest,
        "it needs {name} of {library}, and Ubuntu 22.04 has none newer than {}: build on an older system",
        newest.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
    );
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(library: &str, name: &str) -> Version {
        Version { library: library.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn symbols_newer_than_the_oldest_system_are_refused_by_name() {
        let fits = |name: &str| accepted(&version("libc.so.6", name));
        assert_eq!(fits("GLIBC_2.35").unwrap(), [2, 35]);
        assert_eq!(fits("GLIBC_2.2.5").unwrap(), [2, 2, 5]);
        assert_eq!(fits("GLIBCXX_3.4").unwrap(), [3, 4]);
        let newer = fits("GLIBC_2.36").unwrap_err().to_string();
        assert!(newer.starts_with("it needs GLIBC_2.36 of libc.so.6, and Ubuntu 22.04 has none newer than 2.35"));
        assert!(fits("GLIBCXX_3.4.31").is_err() && fits("GLIBC_3.0").is_err());
        for unknown in ["GLIBC_PRIVATE", "OPENSSL_3.0.0", "plain"] {
            assert!(fits(unknown).unwrap_err().to_string().contains("not known to be part of every system"));
        }
    }

    #[test]
    fn a_program_of_this_system_is_read_with_all_that_it_needs() {
        let program = std::env::current_exe().unwrap();
        let (major, minor) = check(std::slice::from_ref(&program)).unwrap();
        assert!(major == 2 && (17..=35).contains(&minor), "{major}.{minor}");
        // No library of the system lies in an empty folder.
        let empty = tempfile::tempdir().unwrap();
        assert!(closure(&program, empty.path()).unwrap().is_empty());
        fs::copy(&program, empty.path().join("libc.so.6")).unwrap();
        assert_eq!(closure(&program, empty.path()).unwrap(), ["libc.so.6".to_owned()].into());
    }
}
