//! Links and headings of Markdown, as forges and mdBook read them.

/// The targets of the links and images of a text, each with the number of its line. Code is left out.
pub fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.match_indices("](").filter(move |(at, _)| !in_code(line, *at));
        targets.filter_map(move |(at, mark)| Some((number, line[at + mark.len()..].split_once(')')?.0)))
    })
}

/// The anchors of the headings of a text. A title that was there before gets a number.
pub fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let titles: Vec<String> = headings
        .filter_map(|(_, line)| line.trim_start_matches('#').strip_prefix(' '))
        .map(|title| anchor(title.trim()))
        .collect();
    let numbered = |(place, title): (usize, &String)| match titles[..place].iter().filter(|t| *t == title).count() {
        0 => title.clone(),
        before => format!("{title}-{before}"),
    };
    titles.iter().enumerate().map(numbered).collect()
}

/// The anchor of a heading: in small letters, without punctuation, blanks as hyphens.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// The lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Whether a place of a line is between backticks.
fn in_code(line: &str, at: usize) -> bool {
    line[..at].matches('`').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code_alone() {
        let text = "a [b](c.md) and [`d`](e.md#f), ![g](h.svg)\n```text\n[i](j.md)\n```\n`[k](l.md)` [m\nn](o/)\n";
        assert_eq!(links(text).collect::<Vec<_>>(), [(1, "c.md"), (1, "e.md#f"), (1, "h.svg"), (6, "o/")]);
    }

    #[test]
    fn anchors_are_those_of_forges() {
        let text =
            "# The page\n\n## What is `a/b_c`?\n#no heading\n```console\n# a comment\n```\n### Twice\n### Twice\n";
        assert_eq!(anchors(text), ["the-page", "what-is-ab_c", "twice", "twice-1"]);
    }
}
