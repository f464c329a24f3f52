//! Messages of the library as reasons on one line.

/// Characters of a long line at its beginning and at its end; between them is the grammar that it is about.
const SHOWN: usize = 100;
/// The reason of a matcher that allows no token.
pub const NO_TOKEN: &str = "no token of the model goes on with a text of the grammar";

/// What the library says of a `oneOf` in the words of a program, and the same in those of a schema.
const ONE_OF: [&str; 2] = [
    "Enable 'coerce_one_of' option to approximate oneOf with anyOf",
    "Use anyOf, or let the schema say \"x-guidance\": {\"coerce_one_of\": true}, which takes oneOf for anyOf",
];

/// Why a matcher has given up, on one line.
pub fn reason(message: &str) -> String {
    if message.starts_with("NoExtension") { NO_TOKEN.into() } else { one_line(message) }
}

/// A message of the library on one line, without the states and the excerpts of the grammar that it shows.
pub fn one_line(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_excerpt = |line: &str| line.split_once(" |").is_some_and(|(number, _)| is_number(number));
    let is_mark = |line: &str| line.bytes().all(|byte| byte == b'^' || byte == b' ');
    let lines = message.lines().map(str::trim).filter(|line| !is_excerpt(line) && !is_mark(line));
    lines.map(shortened).collect::<Vec<_>>().join(" ").replace(ONE_OF[0], ONE_OF[1])
}

/// A line in which the middle of a long grammar is left out.
fn shortened(line: &str) -> String {
    let count = line.chars().count();
    if count <= 2 * SHOWN {
        return line.to_owned();
    }
    let (begin, end): (String, String) =
        (line.chars().take(SHOWN).collect(), line.chars().skip(count - SHOWN).collect());
    format!("{begin} … {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_and_the_grammar_in_it_is_not_shown_as_a_whole() {
        let grammar = "(".repeat(5000);
        let message = format!(
            "at 1(8): invalid regex \"{grammar}\": parse error:\n    {grammar}\n    ^^\nerror: too deep\n   1 | \
             {grammar}\n\n<state>\nx"
        );
        let reason = one_line(&message);
        assert!(
            reason.starts_with("at 1(8): invalid regex \"((") && reason.ends_with("(( error: too deep"),
            "{reason}"
        );
        assert!(reason.contains('…') && reason.len() < 1000 && !reason.contains('^'), "{reason}");
        assert_eq!(one_line("a {\"b\": 1}\n\n c"), "a {\"b\": 1} c");
    }
}
