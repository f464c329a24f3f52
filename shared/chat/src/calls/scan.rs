//! Text, thoughts and calls of a turn, as its text comes.
//!
//! Marks are looked for where they count alone: thoughts and calls end at the first mark of their end, whatever is
//! within them. What cannot be decided yet, the beginning of a mark at the end of the text, is looked at again when
//! more has come; a mark has no more than [`LONGEST_MARK`] bytes. So the time is that of one pass.

use std::ops::Range;

use super::format::{Format, Marks};

/// Most bytes of a mark that opens a call, the name in it included.
const LONGEST_MARK: usize = 1024;

/// A part of a turn, in bytes of [`Scanner::text`].
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// Text beside thoughts and calls.
    Text(Range<usize>),
    /// Thoughts, without their marks.
    Thinking(Range<usize>),
    /// A call, or a block of several.
    Call {
        /// With its marks.
        span: Range<usize>,
        /// Its name, where that is part of the opening mark.
        name: Option<Range<usize>>,
        /// What is within the marks.
        body: Range<usize>,
        /// Whether its end has come.
        closed: bool,
    },
}

impl Piece {
    /// Where it begins, if it is a call.
    fn call(&self) -> Option<usize> {
        if let Self::Call { span, .. } = self { Some(span.start) } else { None }
    }
}

/// Where the scanner is.
#[derive(Debug, Clone)]
enum Region {
    /// Beside thoughts and calls.
    Text,
    Thinking,
    /// In an answer between marks of its own.
    Answer,
    Call {
        begin: usize,
        name: Option<Range<usize>>,
    },
}

/// Reads a turn from its beginning.
#[derive(Debug)]
pub(super) struct Scanner {
    format: Format,
    marks: &'static Marks,
    /// What the prompt holds of the turn, and all text since.
    text: String,
    /// Where the text since begins.
    begin: usize,
    region: Region,
    /// Begin of the region's text. All pieces end here.
    at: usize,
    /// No mark that is looked for begins before this place.
    searched: usize,
    /// The spaces behind a mark are part of it; whether more of them may come.
    behind_mark: bool,
    pieces: Vec<Piece>,
    /// Pieces that the end of thoughts turns into thoughts, and where their text begins.
    undecided: (usize, usize),
    /// Where the first call among the pieces begins.
    first_call: Option<usize>,
    /// Bytes that [`Scanner::beside`] has looked at, and the end of the last of them that is no space.
    seen: usize,
    solid: usize,
}

impl Scanner {
    /// At the end of a prompt.
    pub fn new(format: Format, prompt: &str) -> Self {
        let begun = format.begun(prompt);
        let mut scanner = Self {
            format,
            marks: format.marks(),
            text: begun.to_owned(),
            begin: begun.len(),
            region: Region::Text,
            at: 0,
            searched: 0,
            behind_mark: false,
            pieces: Vec::new(),
            undecided: (0, 0),
            first_call: None,
            seen: 0,
            solid: 0,
        };
        scanner.advance(true);
        scanner
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The turn so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes of the text since the prompt.
    pub fn in_turn(&self, range: &Range<usize>) -> Range<usize> {
        range.start.saturating_sub(self.begin)..range.end.saturating_sub(self.begin)
    }

    /// What was found so far, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of the text since the prompt that are certainly beside calls, whatever comes. Spaces at the end may go
    /// with a call, and are left out.
    pub fn beside(&mut self) -> usize {
        let open = match &self.region {
            Region::Call { begin, .. } => *begin,
            Region::Text => self.searched,
            Region::Thinking | Region::Answer => self.text.len(),
        };
        let end = self.first_call.map_or(open, |first| first.min(open));
        // Only what is new is looked at: a text may end with many spaces.
        if end > self.seen {
            let new = self.text[self.seen..end].trim_end().len();
            if new > 0 {
                self.solid = self.seen + new;
            }
            self.seen = end;
        }
        self.solid.saturating_sub(self.begin)
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.advance(true);
    }

    /// No more text comes. A turn that `ended` by itself ends a call with it, in some families.
    pub fn finish(&mut self, ended: bool) {
        self.advance(false);
        let rest = self.at..self.text.len();
        match self.region.clone() {
            Region::Thinking => self.pieces.push(Piece::Thinking(rest)),
            Region::Text if self.marks.answer.is_some() => {}
            Region::Text | Region::Answer => self.pieces.push(Piece::Text(rest)),
            Region::Call { begin, name } => {
                let span = begin..rest.end;
                let (body, closed) = match self.format {
                    Format::Llama31 if ended => self.text[rest.clone()]
                        .trim_end()
                        .strip_suffix('}')
                        .map_or((rest.clone(), false), |body| (rest.start..rest.start + body.len(), true)),
                    _ => (rest, ended && self.marks.turn_ends_call),
                };
                self.pieces.push(Piece::Call { span, name, body, closed });
            }
        }
        self.at = self.text.len();
    }

    /// Goes on as far as the text decides; `more` may come.
    fn advance(&mut self, more: bool) {
        while self.step(more) {}
    }

    /// Goes on to the next mark; false without one.
    fn step(&mut self, more: bool) -> bool {
        match self.region.clone() {
            Region::Text => self.step_in_text(more),
            Region::Thinking => {
                let end = self.marks.thinking.map_or("", |(_, end)| end);
                let Some((at, length)) = self.end_of_region(&[end]) else { return false };
                self.pieces.push(Piece::Thinking(self.at..at));
                self.go_on(at + length)
            }
            Region::Answer => {
                let end = self.marks.answer.map_or("", |(_, end)| end);
                let Some((at, length)) = self.end_of_region(&[end]) else { return false };
                self.pieces.push(Piece::Text(self.at..at));
                self.go_on(at + length)
            }
            Region::Call { begin, name } => {
                let Some((at, length)) = self.end_of_region(self.marks.call_ends) else { return false };
                self.first_call = self.first_call.or(Some(begin));
                self.pieces.push(Piece::Call { span: begin..at + length, name, body: self.at..at, closed: true });
                self.go_on(at + length)
            }
        }
    }

    /// Behind a mark that ends a region.
    fn go_on(&mut self, at: usize) -> bool {
        (self.region, self.at, self.searched, self.behind_mark) = (Region::Text, at, at, true);
        true
    }

    /// The first of these ends, and its length.
    fn end_of_region(&mut self, ends: &[&str]) -> Option<(usize, usize)> {
        let bytes = self.text.as_bytes();
        let from = self.searched.max(self.at);
        let first = (from..bytes.len()).find_map(|at| {
            let end = ends.iter().find(|end| bytes[at..].starts_with(end.as_bytes()))?;
            Some((at, end.len()))
        });
        if first.is_none() {
            let longest = ends.iter().map(|end| end.len()).max().unwrap_or(0);
            self.searched = (bytes.len() + 1).saturating_sub(longest).max(from);
        }
        first
    }

    fn step_in_text(&mut self, more: bool) -> bool {
        if self.behind_mark {
            let spaces = self.text[self.at..].len() - self.text[self.at..].trim_start().len();
            self.at += spaces;
            self.searched = self.searched.max(self.at);
            self.behind_mark = self.at == self.text.len();
        }
        let mut at = self.searched;
        while at < self.text.len() {
            match self.mark_at(at, more) {
                Ok(mark) => return self.take(mark, at),
                Err(Not::Yet) => break,
                Err(Not::Here) => at += 1,
            }
        }
        self.searched = at;
        false
    }

    /// Goes into the region of a mark that begins at `begin`.
    fn take(&mut self, mark: Mark, begin: usize) -> bool {
        if self.marks.answer.is_none() && begin > self.at {
            self.pieces.push(Piece::Text(self.at..begin));
        }
        let Mark { kind, end } = mark;
        match kind {
            Kind::EndOfTurn => return self.go_on(end),
            Kind::EndOfThoughts => {
                let (pieces, from) = self.undecided;
                // Calls among them were thoughts, and there is none before them.
                self.pieces.truncate(pieces);
                self.first_call = self.pieces.iter().find_map(Piece::call);
                self.pieces.push(Piece::Thinking(from..begin));
                self.undecided = (self.pieces.len(), end);
                return self.go_on(end);
            }
            Kind::Thinking => self.region = Region::Thinking,
            Kind::Answer => self.region = Region::Answer,
            Kind::Call { name } => self.region = Region::Call { begin, name },
        }
        (self.at, self.searched) = (end, end);
        true
    }

    /// The mark at a place.
    fn mark_at(&self, at: usize, more: bool) -> Result<Mark, Not> {
        let bytes = self.text.as_bytes();
        // Most places are none of a mark.
        if !matches!(bytes[at], b'<' | b'{' | b't') {
            return Err(Not::Here);
        }
        let mut undecided = Err(Not::Here);
        let mut simple = |word: &str, kind: Kind| match Words::new(bytes, at, more).word(word) {
            Ok(words) => Some(Mark { kind, end: words.at }),
            Err(Not::Yet) => {
                undecided = Err(Not::Yet);
                None
            }
            Err(Not::Here) => None,
        };
        let Marks { thinking, thinks_first, answer, turn_ends, .. } = self.marks;
        let mark = thinking
            .and_then(
                |(begin, end)| {
                    if *thinks_first { simple(end, Kind::EndOfThoughts) } else { simple(begin, Kind::Thinking) }
                },
            )
            .or_else(|| answer.and_then(|(begin, _)| simple(begin, Kind::Answer)))
            .or_else(|| turn_ends.iter().find_map(|end| simple(end, Kind::EndOfTurn)));
        if let Some(mark) = mark {
            return Ok(mark);
        }
        match self.call_at(at, more) {
            Err(Not::Here) => undecided,
            found => found,
        }
    }

    /// The opening of a call at a place.
    fn call_at(&self, at: usize, more: bool) -> Result<Mark, Not> {
        let words = Words::new(self.text.as_bytes(), at, more);
        let (name, words) = match self.format {
            Format::Qwen => (None, words.word("<tool_call>")?),
            Format::Lfm25 => {
                let begun = words.word("<|tool_call_start|>")?;
                // A block begins with a call.
                let (_, name) = begun.spaces()?.word("[")?.spaces()?.name(is_part_of_name)?;
                name.word("(")?;
                (None, begun)
            }
            Format::Qwen35 | Format::Nemotron3 => {
                let words = words.word("<tool_call>")?.spaces()?.word("<function=")?;
                let (name, words) = words.name(|byte| byte != b'>' && byte != b'\n')?;
                (Some(name), words.word(">")?)
            }
            Format::Glm4Moe => {
                let (name, words) = words.word("<tool_call>")?.name(is_no_space_or_mark)?;
                (Some(name), words)
            }
            Format::Llama31 => {
                let words = words.word("{")?;
                // Llama 3.1 may write the type of the call before its name.
                let typed = || words.word("\"type\":")?.spaces()?.word("\"function\"")?.spaces()?.word(",")?.spaces();
                let begun = match typed() {
                    Err(Not::Here) => words,
                    found => found?,
                };
                let (name, words) = begun.word("\"name\":")?.spaces()?.word("\"")?.name(|byte| byte != b'"')?;
                (Some(name), words.word("\",")?.spaces()?.word("\"parameters\":")?)
            }
            Format::GptOss => {
                let (name, words) = header(words)?;
                (Some(name), words)
            }
            Format::Gemma4 => {
                let (name, words) = words.word("<|tool_call>call:")?.name(is_part_of_name)?;
                (Some(name), words)
            }
        };
        Ok(Mark { kind: Kind::Call { name }, end: words.at })
    }
}

fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || !byte.is_ascii()
}

fn is_no_space_or_mark(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && byte != b'<'
}

/// The header of a call of gpt-oss. Its template writes `to=functions.NAME<|channel|>commentary json<|message|>`, and
/// the model `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>` too.
fn header(words: Words<'_>) -> Result<(Range<usize>, Words<'_>), Not> {
    let words = words.optional("<|start|>assistant")?.spaces()?;
    let of_template = || words.word("to=functions.")?.name(is_no_space_or_mark);
    let (name, words) = match of_template() {
        Ok((name, words)) => (name, words.word("<|channel|>commentary")?),
        Err(Not::Here) => {
            let words = words.word("<|channel|>commentary")?.spaces()?.word("to=functions.")?;
            words.name(is_no_space_or_mark)?
        }
        Err(Not::Yet) => return Err(Not::Yet),
    };
    Ok((name, words.spaces()?.optional("<|constrain|>")?.optional("json")?.word("<|message|>")?))
}

/// A mark, and the place behind it.
#[derive(Debug)]
struct Mark {
    kind: Kind,
    end: usize,
}

#[derive(Debug)]
enum Kind {
    Thinking,
    /// Of thoughts that had no beginning.
    EndOfThoughts,
    Answer,
    EndOfTurn,
    Call {
        name: Option<Range<usize>>,
    },
}

/// Why there is no mark.
#[derive(Debug, PartialEq, Eq)]
enum Not {
    Here,
    /// The text ends within what may become one.
    Yet,
}

/// The words of a mark, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether more text may come.
    more: bool,
    /// Whether the text goes on behind the bytes that a mark may have.
    cut: bool,
}

impl<'a> Words<'a> {
    /// From a place on, no further than a mark may reach.
    fn new(bytes: &'a [u8], at: usize, more: bool) -> Self {
        let most = at + LONGEST_MARK;
        let cut = bytes.len() > most;
        Self { bytes: &bytes[..bytes.len().min(most)], at, more: more && !cut, cut }
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Whether more text could change what was found up to a place.
    fn unless_open(self, at: usize) -> Result<Self, Not> {
        if at == self.bytes.len() && self.more { Err(Not::Yet) } else { Ok(Self { at, ..self }) }
    }

    fn word(self, word: &str) -> Result<Self, Not> {
        let (rest, word) = (self.rest(), word.as_bytes());
        match () {
            () if rest.starts_with(word) => Ok(Self { at: self.at + word.len(), ..self }),
            () if self.more && word.starts_with(rest) => Err(Not::Yet),
            () => Err(Not::Here),
        }
    }

    fn optional(self, word: &str) -> Result<Self, Not> {
        match self.word(word) {
            Err(Not::Here) => Ok(self),
            found => found,
        }
    }

    fn spaces(self) -> Result<Self, Not> {
        let spaces = self.rest().iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.unless_open(self.at + spaces)
    }

    /// A name of such bytes, at least one.
    fn name(self, is_part: impl Fn(u8) -> bool) -> Result<(Range<usize>, Self), Not> {
        let length = self.rest().iter().take_while(|&&byte| is_part(byte)).count();
        let end = self.unless_open(self.at + length)?;
        let is_cut = self.cut && end.at == self.bytes.len();
        if length == 0 || is_cut { Err(Not::Here) } else { Ok((self.at..end.at, end)) }
    }
}
