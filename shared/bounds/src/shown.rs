//! Text of unknown origin, on its way to a terminal or a log.

use std::fmt::{self, Display, Write};

/// Writes its content with control characters escaped, other than line breaks and tabs.
#[derive(Debug, Clone, Copy)]
pub struct Shown<T>(pub T);

/// As [`Shown`], with line breaks escaped as well: the output is one line, whatever the content.
#[derive(Debug, Clone, Copy)]
pub struct OneLine<T>(pub T);

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, is_left: |c| matches!(c, '\n' | '\t') }, "{}", self.0)
    }
}

impl<T: Display> Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `{:#}` of an error is its whole chain.
        let mut to = Escaping { to: f, is_left: |c| c == '\t' };
        if to.to.alternate() { write!(to, "{:#}", self.0) } else { write!(to, "{}", self.0) }
    }
}

struct Escaping<'a, 'b> {
    to: &'a mut fmt::Formatter<'b>,
    is_left: fn(char) -> bool,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| is_control(c) && !(self.is_left)(c)) {
            self.to.write_str(&rest[..at])?;
            write!(self.to, "{}", c.escape_default())?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.to.write_str(rest)
    }
}

/// Control characters, the separators that some terminals and viewers break lines at, and those that turn the direction
/// of writing: a name with these characters reads as another name.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_words_are_not() {
        let evil = "a\x1b[2Jb\r\nc\td\u{9b}e\u{202e}f ü 語";
        assert_eq!(Shown(evil).to_string(), "a\\u{1b}[2Jb\\r\nc\td\\u{9b}e\\u{202e}f ü 語");
        assert_eq!(OneLine(evil).to_string(), "a\\u{1b}[2Jb\\r\\nc\td\\u{9b}e\\u{202e}f ü 語");
    }
}
