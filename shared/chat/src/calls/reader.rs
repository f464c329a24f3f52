//! A turn as it is drawn.

use std::ops::Range;

use super::{Call, Format, Tools, Turn, read, scan::Scanner};

/// Reads a turn as its tokens come, and gives the text beside calls.
///
/// Special tokens are no part of that text, though they may be marks of calls: so they are given as what they are. What
/// may be the beginning of a call is held back, and so is all that follows a call: the end of the turn says whether it
/// was one. Thoughts are text, with their marks. All pieces of text together, and the calls, do not depend on how the
/// turn was cut into pieces.
#[derive(Debug)]
pub struct Reader {
    scanner: Scanner,
    tools: Tools,
    /// All text since the prompt.
    text: String,
    /// Where special tokens are in it.
    special: Vec<Range<usize>>,
    /// Bytes of it that were given.
    given: usize,
    /// Whether they had any text.
    wrote: bool,
}

/// The end of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// Text that was held back, and that belongs to no call.
    pub text: String,
    /// The calls, whose arguments are objects; none if any of them cannot be read.
    pub calls: Vec<Call>,
}

impl Reader {
    /// For a turn that goes on after a prompt, special tokens of the prompt included.
    #[must_use]
    pub fn new(format: Format, prompt: &str, tools: Tools) -> Self {
        let scanner = Scanner::new(format, prompt);
        Self { scanner, tools, text: String::new(), special: Vec::new(), given: 0, wrote: false }
    }

    /// Takes text that was drawn. Returns text that is certainly beside calls.
    pub fn push(&mut self, text: &str) -> String {
        self.text.push_str(text);
        self.scanner.push(text);
        let until = self.scanner.beside();
        let more = self.without_special(self.given..until);
        self.given = self.given.max(until);
        self.wrote |= !more.is_empty();
        more
    }

    /// As [`push`](Self::push), for the text of a special token.
    pub fn push_special(&mut self, text: &str) -> String {
        let begin = self.text.len();
        self.special.push(begin..begin + text.len());
        self.push(text)
    }

    /// No more text comes. Only a turn that `ended` by itself calls tools.
    #[must_use]
    pub fn end(mut self, ended: bool) -> End {
        self.scanner.finish(ended);
        let called = |turn: &Turn| ended && turn.whole && !turn.calls.is_empty();
        let calls = |turn: &Turn| -> Option<Vec<Call>> {
            let call = |call: &Call| Some(Call { arguments: call.object()?.into(), ..call.clone() });
            turn.calls.iter().map(call).collect()
        };
        let turn = read(&self.scanner, &self.tools).filter(called);
        match turn.and_then(|turn| Some((calls(&turn)?, turn))) {
            Some((calls, turn)) => End { text: self.beside(&turn), calls },
            None => End { text: self.without_special(self.given..self.text.len()), calls: Vec::new() },
        }
    }

    /// The rest of the text beside calls: pieces without the spaces towards a call, a line break between two of them.
    fn beside(&self, turn: &Turn) -> String {
        let ends = turn.spans.iter().map(|span| span.start).chain([self.text.len()]);
        let begins = [0].into_iter().chain(turn.spans.iter().map(|span| span.end));
        let mut text = String::new();
        for (count, (begin, end)) in begins.zip(ends).enumerate() {
            let piece = self.without_special(begin.max(self.given)..end);
            // The first piece goes on with what was given. What was given ends before the first call.
            let piece = if count == 0 { piece.as_str() } else { piece.trim_start() };
            let is_last = count == turn.spans.len();
            let piece = if is_last { piece } else { piece.trim_end() };
            let goes_on = !text.is_empty() || self.wrote;
            let between = if count > 0 && goes_on && !piece.trim().is_empty() { "\n" } else { "" };
            text.extend([between, piece]);
        }
        text
    }

    /// Text without its special tokens.
    fn without_special(&self, range: Range<usize>) -> String {
        let mut text = String::new();
        let mut at = range.start;
        let first = self.special.partition_point(|special| special.end <= range.start);
        for special in &self.special[first..] {
            if special.start >= range.end {
                break;
            }
            text.push_str(&self.text[at..special.start.max(at)]);
            at = special.end.clamp(at, range.end);
        }
        text.push_str(&self.text[at..range.end.max(at)]);
        text
    }
}
