//! Every file of golden figures is read by a test whose name says so.

use super::sources::Sources;

pub fn check(sources: &Sources) -> Vec<String> {
    let tests: Vec<&str> =
        sources.rust().map(|source| source.text.as_str()).filter(|text| text.contains("fn golden_")).collect();
    let files = sources.paths.iter().filter_map(|path| path.strip_prefix("tests/golden/"));
    let figures = files.filter(|file| file.ends_with(".json") && !file.contains('/'));
    let unread = figures.filter(|file| !tests.iter().any(|test| test.contains(&format!("\"{file}\""))));
    unread.map(|file| format!("tests/golden/{file}: no test named golden_… reads these figures")).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn figures_without_a_test_are_found() {
        let test = concat!("//! Docs.\n#[test]\nfn gold", "en_one() { golden(\"one.json\") }\n");
        let mut sources = one("a.rs", test);
        for file in ["one.json", "two.json", "README.md", "models/llama/config.json"] {
            sources.paths.push(format!("tests/golden/{file}"));
        }
        let findings = check(&sources);
        assert!(findings.len() == 1 && findings[0].starts_with("tests/golden/two.json: "), "{findings:?}");
    }
}
