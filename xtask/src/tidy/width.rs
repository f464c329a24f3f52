//! Lines of readable width, in code and in prose.

use super::sources::{Source, Sources};

/// Longest line, in characters: rustfmt's `max_width`, which does not hold for comments and texts.
const MAX_WIDTH: usize = 120;

/// Pages that programs write: nobody breaks their lines.
const GENERATED: &[&str] = &["docs/configuration.md", "docs/metrics.md", "docs/conformity.md"];

pub fn check(sources: &Sources) -> Vec<String> {
    let is_read = |source: &&Source| {
        is_code(source) || source.path.ends_with(".md") && !GENERATED.contains(&source.path.as_str())
    };
    sources.texts.iter().filter(is_read).flat_map(wide_lines).collect()
}

fn is_code(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

fn wide_lines(source: &Source) -> Vec<String> {
    let mut is_raw = false;
    let mut found = Vec::new();
    for (line, number) in source.text.lines().zip(1..) {
        let was_raw = is_raw;
        if is_code(source) {
            is_raw = is_raw_after(line, is_raw);
        }
        // Raw texts are data, often a line of JSON, and stay as they are.
        let is_data = was_raw || is_code(source) && line.contains("r#\"") || line.contains("r\"");
        if line.chars().count() > MAX_WIDTH && !is_data && !is_table_or_link(line) {
            let path = &source.path;
            found.push(format!("{path}:{number}: a line of more than {MAX_WIDTH} characters"));
        }
    }
    found
}

/// Whether a raw text goes on after a line.
fn is_raw_after(line: &str, before: bool) -> bool {
    let rest = if before { Some(line) } else { line.split_once("r#\"").map(|(_, rest)| rest) };
    rest.is_some_and(|rest| !rest.contains("\"#"))
}

/// Rows of tables cannot be broken, nor can the address of a link.
fn is_table_or_link(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    text.starts_with('|') || text.contains("](") || text.contains("://")
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn wide_lines_are_found_but_for_tables_links_and_data() {
        let wide = "word ".repeat(25);
        let found = check(&one("a.rs", &format!("//! Docs.\n// {wide}\nfn a() {{}}\n")));
        assert_eq!(found, ["a.rs:2: a line of more than 120 characters"]);
        assert_eq!(check(&one("a.md", &wide)).len(), 1);
        let fitting = "é".repeat(MAX_WIDTH);
        for (path, text) in [
            ("a.rs", format!("//! | {wide} |\n")),
            ("a.rs", format!("let a = r#\"\n{wide}\n\"#;\n")),
            ("a.rs", format!("// {}\n", &fitting[..2 * (MAX_WIDTH - 3)])),
            ("a.md", format!("| {wide} |\n")),
            ("a.md", format!("[{wide}](b.md)\n")),
            ("docs/metrics.md", wide.clone()),
            ("a.toml", wide.clone()),
        ] {
            assert_eq!(check(&one(path, &text)), Vec::<String>::new(), "{path}: {text}");
        }
        let after = format!("let a = r#\"\nx\n\"#;\n// {wide}\n");
        assert_eq!(check(&one("a.rs", &after)), ["a.rs:4: a line of more than 120 characters"]);
    }
}
