//! No paths of one particular machine.
//!
//! Two kinds are found: paths below a home directory, and paths that exist on the machine that runs the check but are
//! not part of the usual layout of Linux. Examples such as `/nowhere/run` lead nowhere and pass.

use std::path::Path;

use super::sources::Sources;

/// Top-level folders that programs may name.
const SHARED_BY_ALL: &[&str] =
    &["bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "srv", "sys", "tmp", "usr", "var"];

/// Top-level folders of home directories. They are put together here so that this file passes its own check.
const HOMES: &[&str] = &[concat!("ho", "me"), concat!("ro", "ot")];

pub fn check(sources: &Sources) -> Vec<String> {
    let mut findings = Vec::new();
    for source in &sources.texts {
        for (index, line) in source.text.lines().enumerate() {
            let found = absolute(line).filter(|path| is_of_one_machine(path, Path::exists));
            findings
                .extend(found.map(|path| format!("{}:{}: `{path}` is a path of one machine", source.path, index + 1)));
        }
    }
    findings
}

fn is_of_one_machine(path: &str, exists: impl Fn(&Path) -> bool) -> bool {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let (Some(top), Some(next)) = (parts.next(), parts.next()) else {
        return false;
    };
    HOMES.contains(&top) || !SHARED_BY_ALL.contains(&top) && exists(Path::new(&format!("/{top}/{next}")))
}

/// The absolute paths in a line: a slash that continues neither a word nor another path, and the text behind it. Two
/// slashes begin the host of an address.
fn absolute(line: &str) -> impl Iterator<Item = &str> {
    let part_of_path = |c: char| c.is_alphanumeric() || "_.-+/".contains(c);
    let goes_on = move |c: char| part_of_path(c) || "$}])*><".contains(c);
    line.match_indices('/').filter_map(move |(at, _)| {
        let rest = &line[at..];
        let begins = !line[..at].chars().next_back().is_some_and(goes_on) && !rest.starts_with("//");
        begins.then(|| &rest[..rest.find(|c| !part_of_path(c)).unwrap_or(rest.len())])
    })
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn home_directories_are_found_wherever_they_stand() {
        for (line, path) in [
            (concat!("cd \"/ho", "me/somebody/tandem\""), concat!("/ho", "me/somebody/tandem")),
            (concat!("(/ro", "ot/.cache)"), concat!("/ro", "ot/.cache")),
            (concat!("--model=/ho", "me/a/m, then"), concat!("/ho", "me/a/m")),
            (concat!("PATH=/bin:/ho", "me/a/bin"), concat!("/ho", "me/a/bin")),
        ] {
            let expected = format!("a.md:2: `{path}` is a path of one machine");
            assert_eq!(check(&one("a.md", &format!("text\n{line}\n"))), [expected]);
        }
    }

    #[test]
    fn so_are_paths_that_lead_somewhere_on_this_machine_only() {
        let exists = |path: &Path| path == Path::new("/scratch/tandem");
        assert!(is_of_one_machine("/scratch/tandem/runs", exists));
        assert!(!is_of_one_machine("/scratch/other", exists) && !is_of_one_machine("/scratch", exists));
        assert!(!is_of_one_machine("/usr/bin/env", |_| true));
        assert!(is_of_one_machine("/scratch/tandem", |_| true));
    }

    #[test]
    fn what_is_no_absolute_path_passes() {
        for line in
            ["$HOME/work/x", "a/home/b", "https://home/root/x", "</div>", "../home/x", "{dir}/root/x", "and / or"]
        {
            assert_eq!(check(&one("a.md", line)), Vec::<String>::new(), "{line}");
        }
    }
}
