//! The constraint of one completion.

use std::sync::Arc;

use llguidance::{Matcher, toktrie::SimpleVob};
use rollout::engine::Constraint;

use crate::vocabulary::{Spaced, Vocabulary};

/// Characters of a long line at its beginning and at its end; between them is the grammar that it is about.
const SHOWN: usize = 100;
/// The reason of a matcher that allows no token.
const NO_TOKEN: &str = "no token of the model goes on with a text of the grammar";

/// Where a completion is in its grammar.
pub struct Completion {
    matcher: Matcher,
    /// At the beginning of a text that drops a space: over the tokens that begin with one, without it.
    first: Option<Matcher>,
    mask: SimpleVob,
    vocabulary: Arc<Vocabulary>,
}

impl Completion {
    /// At its beginning; `first` belongs to [`Vocabulary::spaced`].
    pub fn new(matcher: Matcher, first: Option<Matcher>, vocabulary: Arc<Vocabulary>) -> Self {
        Self { matcher, first, mask: SimpleVob::new(), vocabulary }
    }

    /// The same place in the grammar, with a lexer of its own: what others do with theirs changes nothing here.
    pub fn copy(&self) -> Self {
        let (matcher, first) = (self.matcher.deep_clone(), self.first.as_ref().map(Matcher::deep_clone));
        Self { matcher, first, mask: SimpleVob::new(), vocabulary: Arc::clone(&self.vocabulary) }
    }

    fn spaced(&self) -> &Spaced {
        self.vocabulary.spaced.as_ref().expect("it has a matcher for such tokens")
    }

    /// Adds the tokens with a space before them that a text may begin with, in place of those whose space counts.
    fn add_spaced(&mut self) -> Result<(), String> {
        let Some(mut first) = self.first.take() else { return Ok(()) };
        let found = mask(&mut first);
        let Spaced { tokens, blank, .. } = self.spaced();
        let (tokens, blank) = (tokens.clone(), blank.clone());
        self.mask.sub(&tokens);
        match found {
            Ok(found) => self.mask.or(&found),
            // None of them may come.
            Err(reason) if reason == NO_TOKEN => (),
            Err(reason) => return Err(reason),
        }
        // A space alone adds nothing to the text.
        self.mask.or(&blank);
        self.first = Some(first);
        Ok(())
    }

    /// Tells the matcher of a token, or of the bytes of one that stand in the text.
    fn consume(&mut self, token: u32, is_first: bool) -> Result<(), String> {
        let tell = |matcher: &mut Matcher, tokens: &[u32]| {
            matcher.consume_tokens(tokens).map_err(|error| reason(&error.to_string()))
        };
        if !is_first || !self.spaced().tokens.is_allowed(token) {
            return tell(&mut self.matcher, &[token]);
        }
        let rest = &self.vocabulary.bytes(token)[1..];
        let tokens = self.vocabulary.trie().greedy_tokenize(rest);
        if self.vocabulary.trie().decode_raw(&tokens) != rest {
            return Err("the tokenizer has no token for some bytes".into());
        }
        if tokens.is_empty() { Ok(()) } else { tell(&mut self.matcher, &tokens) }
    }
}

impl Constraint for Completion {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.mask = mask(&mut self.matcher)?;
        self.add_spaced()?;
        Ok(self.mask.as_slice())
    }

    fn push(&mut self, token: u32) -> Result<bool, String> {
        let is_first = self.first.take().is_some();
        self.consume(token, is_first)?;
        Ok(self.matcher.is_stopped())
    }
}

fn mask(matcher: &mut Matcher) -> Result<SimpleVob, String> {
    matcher.compute_mask().map_err(|error| reason(&error.to_string()))
}

/// Why a matcher has given up, on one line.
fn reason(message: &str) -> String {
    if message.starts_with("NoExtension") { NO_TOKEN.into() } else { one_line(message) }
}

/// A message of the library on one line, without the states and the excerpts of the grammar that it shows.
pub fn one_line(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_excerpt = |line: &str| line.split_once(" |").is_some_and(|(number, _)| is_number(number));
    let is_mark = |line: &str| line.bytes().all(|byte| byte == b'^' || byte == b' ');
    let lines = message.lines().map(str::trim).filter(|line| !is_excerpt(line) && !is_mark(line));
    lines.map(shortened).collect::<Vec<_>>().join(" ")
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
            "at 1(8): invalid regex \"{grammar}\": parse error:\n    {grammar}\n    ^^\nerror: too deep\n   1 | {grammar}\n\n\
             <state>\nx"
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
