//! Licences of the crates that the programs consist of, from cargo's metadata and the sources in its registry.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

/// Beginnings of the names of files with licences.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT"];
/// Largest file that is taken for a licence.
const LARGEST: u64 = 1 << 20;

/// A crate of others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    licence: String,
    repository: String,
    folder: PathBuf,
}

/// The page about all crates that these programs consist of: a list of them, then each text once, with the crates that
/// have it. `metadata` is what `cargo metadata` says.
///
/// # Errors
/// When the metadata lacks something, or the source of a crate cannot be read.
pub fn page(metadata: &Value, programs: &[String]) -> Result<String> {
    let crates = crates(metadata, programs)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut page = "Crates in the programs of Tandem, with the licences that they declare. Texts of these licences \
                    follow, each once.\nWhere \"no text\" stands, the package of the crate has no such file: see its \
                    repository.\n\n"
        .to_owned();
    for Crate { name, version, licence, repository, folder } in &crates {
        let files = files(folder, folder).with_context(|| folder.display().to_string())?;
        let none = if files.is_empty() { " (no text)" } else { "" };
        let line = format!("{name} {version}: {licence}{none} {repository}");
        page += line.trim_end();
        page.push('\n');
        for (path, text) in files {
            texts.entry(text).or_default().push(format!("{name} {version} ({path})"));
        }
    }
    // In the order of the first crate that has a text.
    let mut texts: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    for (of, text) in texts {
        page += &format!("\n{}\n{}\n\n{}\n", "=".repeat(80), of.join("\n"), text.trim_end());
    }
    Ok(page)
}

/// The crates of others that the programs are linked with, and those that wrote parts of them as macros.
fn crates(metadata: &Value, programs: &[String]) -> Result<BTreeSet<Crate>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: HashMap<String, &Value> =
        metadata["packages"].as_array().into_iter().flatten().map(|package| (text(&package["id"]), package)).collect();
    let nodes: HashMap<String, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .context("cargo's metadata has no dependencies")?
        .iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let is_program = |target: &Value| {
        target["kind"][0] == "bin" && programs.iter().any(|program| target["name"] == program.as_str())
    };
    let mut next: Vec<String> = packages
        .iter()
        .filter(|(_, package)| list(&package["targets"]).iter().any(is_program))
        .map(|(id, _)| id.clone())
        .collect();
    let mut seen: BTreeSet<String> = next.iter().cloned().collect();
    let mut found = BTreeSet::new();
    while let Some(id) = next.pop() {
        let package = packages.get(&id).with_context(|| format!("cargo's metadata lacks {id}"))?;
        if !package["source"].is_null() {
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            found.insert(Crate {
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: package["license"].as_str().map_or_else(|| text(&package["license_file"]), str::to_owned),
                repository: text(&package["repository"]),
                folder: manifest.parent().context("a manifest lies in a folder")?.to_path_buf(),
            });
        }
        let node = nodes.get(&id).with_context(|| format!("cargo's metadata lacks the dependencies of {id}"))?;
        for dependency in list(&node["deps"]) {
            let is_linked = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let id = text(&dependency["pkg"]);
            if is_linked && seen.insert(id.clone()) {
                next.push(id);
            }
        }
    }
    Ok(found)
}

/// The files with licences in the source of a crate, libraries in C that it contains included: path and text, by path.
fn files(folder: &Path, root: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            found.extend(files(&path, root)?);
        }
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_text = [".RS", ".C", ".H", ".PY", ".TOML", ".JSON"].iter().all(|ending| !name.ends_with(ending));
        let is_licence = kind.is_file() && is_text && NAMES.iter().any(|begin| name.starts_with(begin));
        if is_licence && entry.metadata()?.len() <= LARGEST {
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            found.push((path.strip_prefix(root)?.display().to_string(), text));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn crates_of_the_programs_are_listed_and_each_text_stands_once() {
        let dir = tempfile::tempdir().unwrap();
        let package = |name: &str, source: Option<&str>, bin: Option<&str>| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            let targets = json!([{"kind": [if bin.is_some() { "bin" } else { "lib" }], "name": bin.unwrap_or(name)}]);
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                "manifest_path": folder.join("Cargo.toml"), "targets": targets})
        };
        let registry = Some("registry");
        let packages = [
            package("ours", None, Some("tandem")),
            package("other", None, Some("xtask")),
            package("linked", registry, None),
            package("in-c", registry, None),
            package("only-tests", registry, None),
            package("of-xtask", registry, None),
            package("bare", registry, None),
        ];
        let needs = |of: &str, kind: Option<&str>| json!({"pkg": of, "dep_kinds": [{"kind": kind}]});
        let nodes = json!([
            {"id": "ours", "deps": [needs("linked", None), needs("only-tests", Some("dev"))]},
            {"id": "other", "deps": [needs("of-xtask", None)]},
            {"id": "linked", "deps": [needs("in-c", None), needs("bare", None)]},
            {"id": "in-c", "deps": []},
            {"id": "bare", "deps": [needs("linked", None)]},
        ]);
        fs::write(dir.path().join("linked/LICENSE-MIT"), "the text\r\nof MIT\n").unwrap();
        fs::write(dir.path().join("linked/license.rs"), "code").unwrap();
        fs::create_dir(dir.path().join("in-c/library")).unwrap();
        fs::write(dir.path().join("in-c/library/COPYING"), "the text\nof MIT\n").unwrap();

        let page = page(&json!({"packages": packages, "resolve": {"nodes": nodes}}), &["tandem".to_owned()]).unwrap();
        for line in ["linked 1.0.0: MIT", "in-c 1.0.0: MIT", "bare 1.0.0: MIT (no text)"] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        assert!(!page.contains("only-tests") && !page.contains("xtask") && !page.contains("code"), "{page}");
        let both = "in-c 1.0.0 (library/COPYING)\nlinked 1.0.0 (LICENSE-MIT)\n\nthe text\nof MIT\n";
        assert_eq!(page.matches("of MIT").count(), 1);
        assert!(page.contains(both), "{page}");
    }
}
