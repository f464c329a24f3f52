//! Lines of readable width, in code and in prose.

use super::sources::{Source, Sources};

/// Longest line, in characters: rustfmt's `max_width`, which does not hold for comments and texts.
const MAX_WIDTH: usize = 120;

/// Head of a page that a program writes: nobody breaks its lines.
const GENERATED: &str = "Do not edit. -->";

pub fn check(sources: &Sources) -> Vec<String> {
    let of_people = sources.texts.iter().filter(|source| !source.text.contains(GENERATED));
    let lines_to_read = of_people.filter_map(|source| {
        let is_code = source.path.ends_with(".rs");
        (is_code || source.path.ends_with(".md")).then(|| wide_lines(source, if is_code { raw_text } else { block }))
    });
    lines_to_read.flatten().collect()
}

/// Lines that are too wide, but for tables, links and data. `data` says by which characters data ends that a line
/// begins.
fn wide_lines(source: &Source, data: fn(&str) -> Option<&'static str>) -> Vec<String> {
    let mut until: Option<&str> = None;
    let mut found = Vec::new();
    for (line, number) in source.text.lines().zip(1..) {
        let was_data = until.is_some();
        until = match until {
            Some(end) => (!line.contains(end)).then_some(end),
            None => data(line),
        };
        let is_data = was_data || until.is_some() || line.contains("r#\"") || line.contains(" r\"");
        if line.chars().count() > MAX_WIDTH && !is_data && !is_table_or_link(line) {
            let path = &source.path;
            found.push(format!("{path}:{number}: a line of more than {MAX_WIDTH} characters"));
        }
    }
    found
}

/// Raw texts are data, often a line of JSON, and stay as they are. The end of one that goes on after a line of Rust.
fn raw_text(line: &str) -> Option<&'static str> {
    let open = |(begin, end): (&str, &'static str)| {
        let (_, rest) = line.split_once(begin)?;
        (!rest.contains(end)).then_some(end)
    };
    [("r#\"", "\"#"), (" r\"", "\"")].into_iter().find_map(open)
}

/// The end of a block of code in Markdown.
fn block(line: &str) -> Option<&'static str> {
    line.trim_start().starts_with("```").then_some("```")
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
            ("a.md", format!("```python\n{wide}\n```\n")),
            ("a.rs", format!("let a = r\"(\n{wide}\n)\";\n")),
            ("a.md", format!("<!-- Written by a program. Do not edit. -->\n{wide}")),
            ("a.toml", wide.clone()),
        ] {
            assert_eq!(check(&one(path, &text)), Vec::<String>::new(), "{path}: {text}");
        }
        let after = format!("let a = r#\"\nx\n\"#;\n// {wide}\n");
        assert_eq!(check(&one("a.rs", &after)), ["a.rs:4: a line of more than 120 characters"]);
    }
}
