//! Texts that are no markup.

use shared::metrics::Figure;

/// A text within a line, without line breaks and without what Markdown or HTML would read as more than text.
pub fn inline(text: &str) -> String {
    let mut plain = String::new();
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        match c {
            '<' => plain.push_str("&lt;"),
            '&' => plain.push_str("&amp;"),
            '\\' | '`' | '*' | '[' | ']' | '|' => plain.extend(['\\', c]),
            c if c.is_control() => (),
            c => plain.push(c),
        }
    }
    plain
}

/// As [`inline`], for a cell of a table; a cell without text would end some tables.
pub fn cell(text: &str) -> String {
    let text = inline(text);
    if text.is_empty() { " ".to_owned() } else { text }
}

/// A text as code in a cell of a table.
pub fn code_cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    // Backticks in the text need more of them around it.
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// A block of code whose fence no line of the code ends.
pub fn block(language: &str, code: &str) -> String {
    let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", code.trim_end())
}

/// A number with four digits behind the point, without zeros at its end.
pub fn number(value: f64) -> String {
    let text = format!("{:.4}", Figure(value));
    let (digits, power) = text.split_at(text.find('e').unwrap_or(text.len()));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    if digits == "-0" { "0".to_owned() } else { format!("{digits}{power}") }
}

/// A table. Rows have as many cells as the head, and cells are Markdown already.
pub fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("{}{rule}{rows}", line(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(inline("a|b <img src=x>\n`c` [d](e) & \u{7}f"), "a\\|b &lt;img src=x> \\`c\\` \\[d\\](e) &amp; f");
        assert_eq!(cell(" \n"), " ");
        assert_eq!(code_cell("a|b"), "`a\\|b`");
        assert_eq!(code_cell("a`b"), "`` a`b ``");
        assert_eq!(block("toml", "a = '''\n```\n````'''\n"), "`````toml\na = '''\n```\n````'''\n`````\n");
        assert_eq!(block("", "x"), "```\nx\n```\n");
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [(0.5, "0.5"), (1.0, "1"), (0.123_456, "0.1235"), (-0.000_001, "0"), (123.0, "123")] {
            assert_eq!(number(value), text);
        }
        assert_eq!([1e300, -2.5e10].map(number), ["1e300", "-2.5e10"], "and have no hundreds of digits");
    }

    #[test]
    fn a_table_has_a_rule_for_each_column() {
        let text = table(&["a".into(), "b".into()], &[vec!["1".into(), "2".into()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
