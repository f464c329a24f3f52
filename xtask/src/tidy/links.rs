//! No link that leads nowhere, and no page that the guide's table of contents leaves out.

use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
};

use super::sources::Sources;
use crate::markdown::{anchors, links};

/// The table of contents of the guide; every page of its folder is in it.
const CONTENTS: &str = "docs/SUMMARY.md";

pub fn check(sources: &Sources) -> Vec<String> {
    let pages: HashMap<&str, &str> = sources
        .texts
        .iter()
        .filter(|source| source.path.ends_with(".md"))
        .map(|source| (&*source.path, &*source.text))
        .collect();
    let places: HashSet<&Path> = sources.paths.iter().flat_map(|path| Path::new(path).ancestors()).collect();
    let mut findings = Vec::new();
    for (path, text) in &pages {
        for (line, target) in links(text).filter(|(_, target)| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let leads_to = if file.is_empty() { PathBuf::from(path) } else { resolved(path, file) };
            if !places.contains(&*leads_to) {
                findings.push(format!("{path}:{line}: the link {target} leads nowhere"));
                continue;
            }
            let page = leads_to.to_str().and_then(|name| pages.get(name));
            if page.is_some_and(|page| !anchor.is_empty() && !anchors(page).iter().any(|other| other == anchor)) {
                findings.push(format!("{path}:{line}: {} has no heading #{anchor}", leads_to.display()));
            }
        }
    }
    if let Some(contents) = pages.get(CONTENTS) {
        let listed: HashSet<PathBuf> = links(contents).map(|(_, target)| resolved(CONTENTS, target)).collect();
        let guide = pages.keys().filter(|path| Path::new(path).parent() == Path::new(CONTENTS).parent());
        let missing = guide.filter(|path| **path != CONTENTS && !listed.contains(Path::new(path)));
        findings.extend(missing.map(|path| format!("{path}: the page is not in {CONTENTS}")));
    }
    findings
}

/// The path from the root that a link of a page leads to.
fn resolved(page: &str, target: &str) -> PathBuf {
    let mut path = Path::new(page).parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::Normal(name) => path.push(name),
            _ => (),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::{super::sources::Source, *};

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }).collect();
        let mut findings = check(&Sources { paths: files.iter().map(|(path, _)| (*path).into()).collect(), texts });
        findings.sort();
        findings
    }

    #[test]
    fn links_to_files_folders_and_headings_are_followed() {
        let page =
            "[a](../a.md#title) [b](c/) [d](c/d.rs) [e](#own-words) [f](https://example.org/f.md)\n## Own words\n";
        assert_eq!(found(&[("docs/page.md", page), ("a.md", "# Title\n"), ("docs/c/d.rs", "")]), Vec::<String>::new());
        let page = "\n[a](../a.md#words) [b](c.md) [d](#title)\n";
        assert_eq!(
            found(&[("docs/page.md", page), ("a.md", "# Title\n")]),
            [
                "docs/page.md:2: a.md has no heading #words",
                "docs/page.md:2: docs/page.md has no heading #title",
                "docs/page.md:2: the link c.md leads nowhere",
            ]
        );
    }

    #[test]
    fn a_page_that_the_contents_leave_out_is_named() {
        let files = [("docs/SUMMARY.md", "- [A](a.md)\n"), ("docs/a.md", ""), ("docs/b.md", ""), ("README.md", "")];
        assert_eq!(found(&files), ["docs/b.md: the page is not in docs/SUMMARY.md"]);
    }
}
