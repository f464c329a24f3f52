//! What a package holds: programs, libraries in the folders where programs look for them, licences and documents.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    PROFILE,
    archive::{Content, Entry},
    elf::Elf,
    licences, needs,
};
use crate::{host::Host, setup, steps};

/// The folder of the programs. Libraries lie in folders beside them, where programs look first.
const BIN: &str = "bin";
/// Folders that the learner looks into (`learner/build.rs`), the first of which is the one of a package.
const BESIDE: &str = "$ORIGIN/libtorch/lib";
/// Which version it is, for `tandem doctor`.
const TORCH_VERSION: &str = "include/torch/headeronly/version.h";
/// The largest library, whose symbols for debuggers take a fifth of it.
const LARGEST_LIBRARY: &str = "libtorch_cpu.so";

/// The files of all packages.
#[derive(Debug)]
pub struct Files {
    /// Programs and libraries, below `bin`.
    pub bin: Vec<Entry>,
    /// Licences of this project and of all that is packed with it.
    pub licences: Vec<Entry>,
    /// Pages for users.
    pub documents: Vec<Entry>,
    /// The oldest release of glibc that all programs and libraries run with.
    pub glibc: (u32, u32),
}

/// What `cargo metadata` says about the workspace and all its dependencies.
///
/// # Errors
/// When cargo fails.
pub fn metadata(host: &Host) -> Result<Value> {
    let mut cargo = host.cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.output().context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`cargo metadata` failed: {}", said.trim());
    serde_json::from_slice(&output.stdout).context("what `cargo metadata` says")
}

/// The programs of the workspace that are for users: all but those that only developers start.
pub fn programs(metadata: &Value) -> Vec<String> {
    const OF_DEVELOPERS: [&str; 2] = ["fuzz", "xtask"];
    let packages = metadata["packages"].as_array().into_iter().flatten().filter(|package| package["source"].is_null());
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let bins = targets.filter(|target| target["kind"][0] == "bin").filter_map(|target| target["name"].as_str());
    let mut programs: Vec<String> = bins.filter(|name| !OF_DEVELOPERS.contains(name)).map(str::to_owned).collect();
    programs.sort();
    programs
}

/// Collects the files. Programs and the largest library are stripped into the folder `scratch`.
///
/// # Errors
/// When something is missing, or when a file needs what the oldest system lacks.
pub fn collect(host: &Host, metadata: &Value, programs: &[String], scratch: &Path) -> Result<Files> {
    let native = host.native();
    let texts = setup::licences(host)?;
    let mut bin = Vec::new();
    for program in programs {
        let stripped = scratch.join(program);
        strip(host, "--strip-all", &host.binary_of(PROFILE, program), &stripped)?;
        cut_run_path(&stripped)?;
        bin.push(Entry { is_program: true, ..Entry::file(format!("{BIN}/{program}"), stripped) });
    }
    let torch = native.join("libtorch");
    for library in needs::closure(&host.binary_of(PROFILE, "learner"), &torch.join("lib"))? {
        let mut from = torch.join("lib").join(&library);
        if library == LARGEST_LIBRARY {
            let stripped = scratch.join(&library);
            strip(host, "--strip-unneeded", &from, &stripped)?;
            from = stripped;
        }
        bin.push(Entry::file(format!("{BIN}/libtorch/lib/{library}"), from));
    }
    let onnxruntime = onnxruntime(&native.join("onnxruntime"))?;
    let name = onnxruntime.file_name().context("a library has a name")?.to_string_lossy().into_owned();
    bin.push(Entry::file(format!("{BIN}/onnxruntime/{name}"), onnxruntime));
    let files: Vec<PathBuf> = bin.iter().filter_map(|entry| path(entry).map(Path::to_owned)).collect();
    let glibc = needs::check(&files)?;
    bin.push(Entry::file(format!("{BIN}/libtorch/{TORCH_VERSION}"), torch.join(TORCH_VERSION)));
    let documents = documents(&host.root)?;
    Ok(Files { bin, licences: all_licences(host, metadata, programs, &texts)?, documents, glibc })
}

fn path(entry: &Entry) -> Option<&Path> {
    match &entry.content {
        Content::File(path) => Some(path),
        Content::Bytes(_) => None,
    }
}

fn strip(host: &Host, how: &str, from: &Path, to: &Path) -> Result<()> {
    let mut strip = host.command("strip");
    strip.arg(how).arg("-o").arg(to).arg(from);
    steps::run(strip).context("binutils and gcc belong together: install both")
}

/// Leaves a program only the folder beside itself to look for libraries in: a path of the machine that built it may be
/// anybody's on another one.
fn cut_run_path(program: &Path) -> Result<()> {
    let mut bytes = fs::read(program).with_context(|| program.display().to_string())?;
    let place = Elf::new(&bytes).and_then(Elf::run_path).with_context(|| program.display().to_string())?;
    let Some(place) = place else { return Ok(()) };
    let text = &mut bytes[place];
    ensure!(
        text.starts_with(BESIDE.as_bytes()),
        "{} looks for libraries in {}, and {BESIDE} is not the first of these folders",
        program.display(),
        String::from_utf8_lossy(text)
    );
    text[BESIDE.len()..].fill(0);
    fs::write(program, bytes).with_context(|| program.display().to_string())
}

/// The library itself, of which the other names are links.
fn onnxruntime(folder: &Path) -> Result<PathBuf> {
    let plain = folder.join("libonnxruntime.so");
    plain.canonicalize().with_context(|| format!("{}: run `cargo xtask setup`", plain.display()))
}

fn all_licences(host: &Host, metadata: &Value, programs: &[String], texts: &Path) -> Result<Vec<Entry>> {
    let mut licences = vec![Entry::text("licences/crates.txt", licences::page(metadata, programs)?)];
    licences.push(Entry::text("licences/README.txt", include_str!("licences.txt")));
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        licences.push(Entry::file(name, host.root.join(name)));
    }
    for (path, file) in below(texts)? {
        // The stamp of the set-up.
        if path.contains('/') {
            licences.push(Entry::file(format!("licences/{path}"), file));
        }
    }
    Ok(licences)
}

/// README, the pages in `docs/`, and the pages at the root, which these name.
fn documents(root: &Path) -> Result<Vec<Entry>> {
    let mut documents = Vec::new();
    for name in ["ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"] {
        documents.push(Entry::file(name, root.join(name)));
    }
    documents
        .extend(below(&root.join("docs"))?.into_iter().map(|(path, file)| Entry::file(format!("docs/{path}"), file)));
    documents.push(Entry::text("INSTALL.txt", include_str!("INSTALL.txt")));
    Ok(documents)
}

/// All files below a folder, with their paths from there on.
fn below(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            bail!("{} is no name for a package", path.display());
        };
        if path.is_dir() {
            found.extend(below(&path)?.into_iter().map(|(rest, file)| (format!("{name}/{rest}"), file)));
        } else {
            found.push((name.to_owned(), path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    /// A new program of the workspace is packed by itself; one for developers is named here.
    #[test]
    fn every_program_for_users_is_packed() {
        let programs = programs(&metadata(&Host::current().unwrap()).unwrap());
        for name in ["learner", "rollout", "rollout-bridge", "rollout-fleet", "rollout-serve", "tandem"] {
            assert!(programs.iter().any(|program| program == name), "{programs:?}");
        }
        assert!(!programs.iter().any(|program| ["fuzz", "xtask"].contains(&program.as_str())), "{programs:?}");
    }

    #[test]
    fn a_program_that_looks_nowhere_for_libraries_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (own, copy) = (std::env::current_exe().unwrap(), dir.path().join("copy"));
        fs::copy(&own, &copy).unwrap();
        cut_run_path(&copy).unwrap();
        assert_eq!(fs::read(&own).unwrap(), fs::read(&copy).unwrap());
    }

    #[test]
    fn documents_and_licences_lie_where_links_and_readers_expect_them() {
        let dir = tempfile::tempdir().unwrap();
        for name in
            ["ARCHITECTURE.md", "README.md", "docs/extending/loss.md", "licences/libtorch/LICENSE", "licences/SETUP"]
        {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let paths = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>();
        let documents = paths(documents(dir.path()).unwrap());
        assert!(
            documents.contains(&"docs/extending/loss.md".to_owned()) && documents.contains(&"INSTALL.txt".to_owned())
        );
        let host = fake::host(dir.path(), &[]);
        let metadata = serde_json::json!({"packages": [], "resolve": {"nodes": []}});
        let licences = paths(all_licences(&host, &metadata, &[], &dir.path().join("licences")).unwrap());
        let expected = [
            "licences/crates.txt",
            "licences/README.txt",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "licences/libtorch/LICENSE",
        ];
        assert_eq!(licences, expected);
    }
}
