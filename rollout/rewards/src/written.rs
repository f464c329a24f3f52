//! Lists and mappings that a dataset has as texts, as Python and JSON write them: `['4', '5']`, `{"target": 4}`.

/// The elements of a text that is a list of texts and numbers, at least one of them in quotation marks: `[4, 5]` may be
/// an interval, or an answer of its own. `None` for every other text.
pub fn list(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    // NumPy's, with or without the name of the type.
    let text = text.strip_prefix("array(").map_or(text, |inner| {
        let inner = inner.strip_suffix(')').unwrap_or(inner);
        inner.rsplit_once("], dtype=").map_or(inner, |(list, _)| &inner[..=list.len()])
    });
    let mut rest = text.strip_prefix('[')?.strip_suffix(']')?.trim();
    let (mut found, mut quoted) = (Vec::new(), false);
    while let Some(first) = rest.chars().next() {
        let (element, behind) = if let '"' | '\'' = first {
            quoted = true;
            quotation(&rest[1..], first)?
        } else {
            let end = rest.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(end);
            number.parse::<f64>().ok()?;
            (number.to_owned(), behind)
        };
        found.push(element);
        // NumPy writes no commas.
        let next = behind.trim_start();
        if next.len() == behind.len() && !next.is_empty() && !next.starts_with(',') {
            return None;
        }
        rest = next.strip_prefix(',').unwrap_or(next).trim_start();
    }
    quoted.then_some(found)
}

/// The text up to a closing quotation mark, and what follows that.
fn quotation(text: &str, mark: char) -> Option<(String, &str)> {
    let mut content = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            c if c == mark => return Some((content, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => content.push('\n'),
                't' => content.push('\t'),
                c if "\\'\"/".contains(c) => content.push(c),
                c => content.extend(['\\', c]),
            },
            c => content.push(c),
        }
    }
    None
}

/// The first key of a text that is a mapping. `None` where the key is no text in quotation marks, and for every other
/// text.
pub fn first_key(text: &str) -> Option<String> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
    let mark = inner.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (key, behind) = quotation(&inner[1..], mark)?;
    behind.trim_start().starts_with(':').then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_texts_are_read_however_they_are_written() {
        for (text, expected) in [
            ("['4']", Some(vec!["4"])),
            (r#"["4", "5"]"#, Some(vec!["4", "5"])),
            ("['4' '5']", Some(vec!["4", "5"])),
            ("['4', 5, -0.5]", Some(vec!["4", "5", "-0.5"])),
            (" array(['4', '5'], dtype=object) ", Some(vec!["4", "5"])),
            ("array(['4'])", Some(vec!["4"])),
            (r#"["it's", 'a "b"', 'c\'d', "\\frac{1}{2}"]"#, Some(vec!["it's", "a \"b\"", "c'd", r"\frac{1}{2}"])),
            ("['a, b']", Some(vec!["a, b"])),
            ("[4, 5]", None),
            ("[0, 1)", None),
            ("['4", None),
            ("['4'5]", None),
            ("[]", None),
            ("[x]", None),
            ("'4'", None),
        ] {
            assert_eq!(list(text), expected.map(|of| of.into_iter().map(str::to_owned).collect()), "{text}");
        }
    }

    #[test]
    fn mappings_are_told_from_sets() {
        for (text, key) in [
            ("{'target': 4}", Some("target")),
            (r#" {"a b" : [1]} "#, Some("a b")),
            ("{1, 2}", None),
            ("{'a', 'b'}", None),
            (r"\{1\}", None),
            ("{x: 1}", None),
        ] {
            assert_eq!(first_key(text).as_deref(), key, "{text}");
        }
    }
}
