//! Files have a readable length and begin with their subject.

use super::sources::Sources;

/// Longest source file, in lines.
const MAX_LINES: usize = 800;

pub fn check(sources: &Sources) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.rust() {
        if !source.text.starts_with("//!") {
            findings.push(format!("{}:1: a source file begins with module documentation (`//!`)", source.path));
        }
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            findings.push(format!("{}: {lines} lines, more than {MAX_LINES}: split it by subject", source.path));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn rust_needs_documentation_and_an_end() {
        assert!(check(&one("a.rs", "fn a() {}\n"))[0].contains("module documentation"));
        assert!(check(&one("a.rs", &"//!\n".repeat(MAX_LINES + 1)))[0].contains("801 lines"));
        assert_eq!(check(&one("a.rs", &"//!\n".repeat(MAX_LINES))), Vec::<String>::new());
        assert_eq!(check(&one("a.md", "none\n")), Vec::<String>::new());
    }
}
