//! The rooms of a crate form no circle: a reader of one room continues with the rooms below it, and never comes back.
//!
//! A room is a file or a folder directly under `src/`. A room uses another one if its production code has a path that
//! starts with `crate::`, or a name that `lib.rs` re-exports from there.

use std::collections::{BTreeMap, VecDeque};

use super::sources::{Source, Sources, code};

/// For each room, the rooms that it uses, with a place of each use.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<&'a str, String>>;

pub fn check(sources: &Sources) -> Vec<String> {
    let heads = sources.rust().filter_map(|source| {
        let folder = source.path.strip_suffix("lib.rs").or_else(|| source.path.strip_suffix("main.rs"))?;
        (folder == "src/" || folder.ends_with("/src/")).then_some(folder)
    });
    let mut crates: Vec<&str> = heads.collect();
    crates.sort_unstable();
    crates.dedup();
    crates.into_iter().flat_map(|folder| circles(&uses(sources, folder))).collect()
}

/// The uses between rooms of the crate whose sources are in `folder`.
fn uses<'a>(sources: &'a Sources, folder: &str) -> Uses<'a> {
    let inside = |source: &'a Source| Some((room(source.path.strip_prefix(folder)?)?, source));
    let files: Vec<(&str, &Source)> = sources.rust().filter_map(inside).collect();
    let mut uses: Uses = files.iter().map(|(room, _)| (*room, BTreeMap::new())).collect();
    let handed_on = sources.rust().find(|source| source.path.strip_prefix(folder) == Some("lib.rs"));
    let handed_on = handed_on.map_or_else(BTreeMap::new, |lib| handed_on_by(&code(&lib.text)));
    for (room, source) in files {
        if is_test(&source.path) {
            continue;
        }
        let code = code(&source.text);
        for (at, _) in code.match_indices("crate::") {
            for name in first_names(&code[at + "crate::".len()..]) {
                let name = handed_on.get(&name).unwrap_or(&name);
                let Some((&used, _)) = uses.get_key_value(name.as_str()).filter(|(used, _)| **used != room) else {
                    continue;
                };
                let place = || format!("{}:{}", source.path, code[..at].matches('\n').count() + 1);
                uses.get_mut(room).expect("every room is there").entry(used).or_insert_with(place);
            }
        }
    }
    uses
}

/// The room of a file, by its path below `src/`; none for the crate's root file.
fn room(path: &str) -> Option<&str> {
    match path.split_once('/') {
        Some((folder, _)) => Some(folder),
        None => Some(path.strip_suffix(".rs")?).filter(|file| !["lib", "main"].contains(file)),
    }
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

/// Names that the root file of a library re-exports, each with its room.
fn handed_on_by(code: &str) -> BTreeMap<String, String> {
    let mut rooms = BTreeMap::new();
    for statement in code.split("pub use ").skip(1) {
        let tree = statement.split(';').next().unwrap_or_default();
        let mut names = tree.split(|c: char| !is_name(c)).filter(|name| !name.is_empty() && *name != "self");
        if let Some(room) = names.next() {
            rooms.extend(names.map(|name| (name.to_owned(), room.to_owned())));
        }
    }
    rooms
}

/// The next names in a path: one name, or those of a `use` tree.
fn first_names(path: &str) -> Vec<String> {
    let Some(tree) = path.strip_prefix('{') else {
        return path.split(|c: char| !is_name(c)).take(1).map(str::to_owned).collect();
    };
    let (mut names, mut depth, mut begins) = (Vec::new(), 0, true);
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && is_name(c) => {
                names.extend(tree[at..].split(|c: char| !is_name(c)).take(1).map(str::to_owned));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The shortest circle through each room, each circle once.
fn circles(uses: &Uses) -> Vec<String> {
    let (mut findings, mut told): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    for room in uses.keys().copied() {
        if told.contains(&room) {
            continue;
        }
        let Some(circle) = circle(uses, room) else { continue };
        let arrow = |pair: &[&str]| format!("{} uses `{}` ({})", pair[0], pair[1], uses[pair[0]][pair[1]]);
        let arrows: Vec<String> = circle.windows(2).map(arrow).collect();
        findings.push(format!("{}: rooms form a circle: {}", uses[circle[0]][circle[1]], arrows.join(", ")));
        told.extend(circle);
    }
    findings
}

/// The shortest way from a room back to it.
fn circle<'a>(uses: &Uses<'a>, room: &'a str) -> Option<Vec<&'a str>> {
    let mut before: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = VecDeque::from([room]);
    while let Some(from) = waiting.pop_front() {
        for to in uses[from].keys().copied() {
            if to == room {
                let mut way = vec![room, from];
                while *way.last()? != room {
                    way.push(before[way.last()?]);
                }
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(to) {
                before.insert(to, from);
                waiting.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
        check(&Sources { paths: Vec::new(), texts: files.iter().map(source).collect() })
    }

    #[test]
    fn rooms_that_use_only_rooms_below_form_no_circle() {
        let files = [
            ("a/src/lib.rs", "mod high;\nmod low;\npub use low::Thing;\n"),
            ("a/src/high.rs", "use crate::{Thing, low::{self, high}};\n"),
            ("a/src/low/mod.rs", "//! See [`crate::high`].\n#[cfg(test)]\nmod tests;\nuse crate::low::more;\n"),
            ("a/src/low/tests.rs", "use crate::high;\n"),
            ("a/src/low/more.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n"),
            ("b/src/main.rs", "use crate::low;\n"),
            ("b/src/low.rs", "use crate::other::high;\n"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn circles_are_found_through_folders_trees_and_names_handed_on() {
        let two = [
            ("src/main.rs", ""),
            ("src/high.rs", "\nuse crate::{\n    other::{a, b},\n    low::Thing,\n};\n"),
            ("src/low/more.rs", "#[cfg(test)]\nmod tests;\nfn f() { crate::high::g() }\n"),
            ("src/other.rs", ""),
        ];
        let expected =
            "src/high.rs:2: rooms form a circle: high uses `low` (src/high.rs:2), low uses `high` (src/low/more.rs:3)";
        assert_eq!(findings(&two), [expected]);
        let handed_on = [
            ("a/src/lib.rs", "pub use high::{inner::Deep, Other};\n"),
            ("a/src/high.rs", "use crate::middle;\n"),
            ("a/src/middle.rs", "use crate::low;\n"),
            ("a/src/low.rs", "use crate::Deep;\n"),
        ];
        let found = findings(&handed_on);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("high uses `middle`") && found[0].contains("low uses `high` (a/src/low.rs:1)"));
    }
}
