//! No file that nobody compiles: rustc says nothing of a file that no `mod` names, and its tests would never run.

use std::{collections::HashMap, path::Path};

use super::sources::Sources;

/// Folders whose files cargo compiles by themselves.
const ROOTS: &[&str] = &["tests", "examples", "bin"];

pub fn check(sources: &Sources) -> Vec<String> {
    let texts: HashMap<&str, &str> = sources.rust().map(|source| (&*source.path, &*source.text)).collect();
    let findings = texts.keys().filter_map(|path| {
        let parents = parents(path)?;
        let name = module(path)?;
        let names = |parent: &String| texts.get(parent.as_str()).is_some_and(|text| has_module(text, path, name));
        let finding = || format!("{path}: no `mod {name}` in {}, so nobody compiles this file", parents.join(" or "));
        (!parents.iter().any(names)).then(finding)
    });
    findings.collect()
}

/// The name that a file has as a module.
fn module(path: &str) -> Option<&str> {
    let path = Path::new(path);
    let named = if path.ends_with("mod.rs") { path.parent()? } else { path };
    named.file_stem()?.to_str()
}

/// Files that may name a file as their module; `None` for the root of a crate.
fn parents(path: &str) -> Option<Vec<String>> {
    let file = Path::new(path);
    let folder = file.parent()?;
    let holder = folder.file_name()?.to_str()?;
    if ["main.rs", "lib.rs", "build.rs"].iter().any(|root| file.ends_with(root)) || ROOTS.contains(&holder) {
        return None;
    }
    let folder = if file.ends_with("mod.rs") { folder.parent()? } else { folder };
    let inside = ["mod.rs", "lib.rs", "main.rs"].map(|name| folder.join(name));
    // A test file may also stand beside the file that it tests, which then names its path.
    let beside =
        file.file_name()?.to_str()?.strip_suffix("_tests.rs").map(|tested| folder.join(format!("{tested}.rs")));
    let all = inside.into_iter().chain([folder.with_extension("rs")]).chain(beside);
    Some(all.map(|parent| parent.display().to_string()).collect())
}

/// Whether a text declares that module, by its name or by the path of its file.
fn has_module(text: &str, path: &str, name: &str) -> bool {
    let file = Path::new(path).file_name().and_then(|file| file.to_str()).unwrap_or_default();
    let by_name = |line: &str| {
        let line = line.trim().trim_end_matches(';');
        line.strip_suffix(name).is_some_and(|begin| begin == "mod " || begin.ends_with(" mod "))
    };
    text.lines().any(|line| by_name(line) || line.trim() == format!("#[path = \"{file}\"]"))
}

#[cfg(test)]
mod tests {
    use super::{super::sources::Source, *};

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source = |&(path, text): &(&str, &str)| Source { path: path.to_owned(), text: text.to_owned() };
        check(&Sources { paths: Vec::new(), texts: files.iter().map(source).collect() })
    }

    #[test]
    fn a_file_that_no_module_names_is_found() {
        let files = [
            ("a/src/lib.rs", "pub mod kept;\nmod folder;\n"),
            ("a/src/kept.rs", "#[cfg(test)]\n#[path = \"kept_tests.rs\"]\nmod tests;\n"),
            ("a/src/kept_tests.rs", ""),
            ("a/src/folder/mod.rs", "pub(crate) mod within;\n"),
            ("a/src/folder/within.rs", ""),
            ("a/tests/it/main.rs", "mod one;\n"),
            ("a/tests/it/one.rs", ""),
            ("a/tests/alone.rs", ""),
            ("a/build.rs", ""),
        ];
        assert_eq!(found(&files), Vec::<String>::new());

        let mut lost = files.to_vec();
        lost.extend([("a/tests/it/two.rs", ""), ("a/src/folder/lost/mod.rs", "")]);
        let mut findings = found(&lost);
        findings.sort();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("a/src/folder/lost/mod.rs: no `mod lost` in a/src/folder/mod.rs"),
            "{findings:?}"
        );
        assert!(findings[1].starts_with("a/tests/it/two.rs: no `mod two` in a/tests/it/mod.rs"), "{findings:?}");
        // The name at the end of a longer one is not the name.
        assert_eq!(found(&[("a/src/lib.rs", "mod unkept;\n"), ("a/src/kept.rs", "")]).len(), 1);
    }
}
