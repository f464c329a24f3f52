//! Lines of readable width, in code and in prose.

use super::sources::{Source, Sources};

/// Longest line, in characters: rustfmt's `max_width`, which rustfmt does not apply to comments and strings.
const MAX_WIDTH: usize = 120;

/// Head of a page that a program writes: its lines need no breaks.
const GENERATED: &str = "Do not edit. -->";
/// First lines of a page that count as its head: a page may mention these words further below.
const HEAD: usize = 5;

pub fn check(sources: &Sources) -> Vec<String> {
    let read = sources.texts.iter().filter(|source| source.path.ends_with(".rs") || is_prose(source));
    read.filter(|source| !is_generated(source)).flat_map(wide_lines).collect()
}

fn is_prose(source: &Source) -> bool {
    source.path.ends_with(".md")
}

fn is_generated(source: &Source) -> bool {
    is_prose(source) && source.text.lines().take(HEAD).any(|line| line.contains(GENERATED))
}

/// Lines that are too wide, except tables, links and data.
fn wide_lines(source: &Source) -> Vec<String> {
    // Which characters end the data that a line begins.
    let data: fn(&str) -> Option<&'static str> = if is_prose(source) { block } else { raw_text };
    let mut until: Option<&str> = None;
    let mut found = Vec::new();
    for (line, number) in source.text.lines().zip(1..) {
        let was_data = until.is_some();
        until = match until {
            Some(end) => (!line.contains(end)).then_some(end),
            None => data(line),
        };
        let is_data = was_data || until.is_some() || line.contains("r#\"") || line.contains(" r\"");
        if line.chars().count() > MAX_WIDTH && !is_data && !is_table_or_link(line, is_prose(source)) {
            let path = &source.path;
            found.push(format!("{path}:{number}: a line of more than {MAX_WIDTH} characters"));
        }
    }
    found
}

/// Raw strings are data, often a line of JSON, and stay as they are. Returns the end of a raw string that goes on after
/// a line of Rust.
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

/// Rows of tables cannot be broken, in Markdown and in comments. Neither can a link that fits on no line of this
/// indentation.
fn is_table_or_link(line: &str, is_prose: bool) -> bool {
    let indented = line.trim_start();
    let is_comment = !is_prose && indented.starts_with("//");
    let text = if is_comment { indented.trim_start_matches(['/', '!']).trim_start() } else { indented };
    let begin = line.chars().count() - text.chars().count();
    let is_link = |word: &str| word.contains("](") || word.contains("://");
    let fits = |word: &str| begin + word.chars().count() <= MAX_WIDTH;
    ((is_prose || is_comment) && text.starts_with('|'))
        || text.split_whitespace().any(|word| is_link(word) && !fits(word))
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
        let address = format!("https://example.org/{}", "a".repeat(MAX_WIDTH - 20));
        for (path, text) in [
            ("a.rs", format!("//! | {wide} |\n")),
            ("a.rs", format!("let a = r#\"\n{wide}\n\"#;\n")),
            ("a.rs", format!("// {}\n", &fitting[..2 * (MAX_WIDTH - 3)])),
            ("a.rs", format!("    // {address}\n")),
            ("a.md", format!("| {wide} |\n")),
            ("a.md", format!("  [name]({address})\n")),
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

    #[test]
    fn what_only_looks_like_a_table_a_link_or_a_page_of_a_program_is_found() {
        let wide = "word ".repeat(25);
        // Such an address fits on a line of its own, in a comment with its marker before it.
        let address = |width: usize| format!("https://example.org/{}", "a".repeat(width - 20));
        for (path, text) in [
            ("a.md", format!("{wide}[prose with a short link](b.md)")),
            ("a.md", format!("[{wide}](b.md)")),
            ("a.md", format!("see {}", address(MAX_WIDTH))),
            ("a.rs", format!("//! {wide}(https://example.org)")),
            ("a.rs", format!("// see {}", address(MAX_WIDTH - 3))),
            ("a.rs", format!("    | {wide}")),
            ("a.rs", format!("// Do not edit. -->\n// {wide}")),
            ("a.md", format!("1\n2\n3\n4\n5\n<!-- Do not edit. -->\n{wide}")),
        ] {
            let last = text.lines().count();
            let expected = format!("{path}:{last}: a line of more than 120 characters");
            assert_eq!(check(&one(path, &text)), [expected], "{text}");
        }
        let text = format!("// see {}", address(MAX_WIDTH - 2));
        assert_eq!(check(&one("a.rs", &text)), Vec::<String>::new(), "it does not fit after the marker either");
    }
}
