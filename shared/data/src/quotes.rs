//! Quotation marks around the cells of CSV and TSV.
//!
//! The parser takes all that follows a mark at the beginning of a cell for that cell, up to the next mark or the end of
//! the file. A mark that is never closed would swallow rows without a word, so [`Quotes`] looks at all bytes before the
//! parser does.

use crate::json::MOST_LINE;

/// The way out.
const WAY: &str = "close it, or write a cell that begins with a quotation mark as \"\"\"like this\"\" one\", in quotes \
                   and with each of its own marks twice";

/// A mark that is not closed where its cell ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misquoted {
    /// The line where it opens.
    pub line: usize,
    end: End,
}

/// The mark that closes a quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Nowhere,
    /// Not within the bytes that a row may have.
    Far,
    /// In this later line, amid other text.
    Amid(usize),
}

impl Misquoted {
    /// The fault of the line, and the way out.
    pub fn reason(self) -> String {
        let end = match self.end {
            End::Nowhere => "never closes".to_owned(),
            End::Far => format!("does not close within {MOST_LINE} bytes, the most that a row may have"),
            End::Amid(line) => format!("closes amid the text of line {line} only, so that several rows would be one"),
        };
        format!("opens a quote at the beginning of a cell that {end}; {WAY}")
    }
}

/// Where in a cell a byte stands, with the states of the parser (`csv_core`).
#[derive(Debug, Clone, Copy)]
enum Place {
    Begin,
    Plain,
    Quoted,
    /// Behind a mark within quotes: it closes them, unless another one follows.
    Closed,
}

/// The quotes of a table, byte by byte.
#[derive(Debug)]
pub struct Quotes {
    delimiter: u8,
    place: Place,
    line: usize,
    /// The line where the last quote opened.
    opened: usize,
}

impl Quotes {
    /// Quotes of a table whose cells are separated by `delimiter`.
    pub fn new(delimiter: u8) -> Self {
        Self { delimiter, place: Place::Begin, line: 1, opened: 1 }
    }

    /// Goes on with the next bytes.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<(), Misquoted> {
        for &byte in bytes {
            self.place = match (self.place, byte) {
                (Place::Quoted, b'"') => Place::Closed,
                (Place::Quoted, _) | (Place::Closed, b'"') => Place::Quoted,
                (Place::Begin, b'"') => {
                    self.opened = self.line;
                    Place::Quoted
                }
                (_, b'\n' | b'\r') => Place::Begin,
                (_, byte) if byte == self.delimiter => Place::Begin,
                // Blanks behind quotes are common, and the parser takes them.
                (Place::Closed, byte) if byte != b' ' && self.line > self.opened => {
                    return Err(Misquoted { line: self.opened, end: End::Amid(self.line) });
                }
                _ => Place::Plain,
            };
            self.line += usize::from(byte == b'\n');
        }
        Ok(())
    }

    /// The quote that is open after all bytes of the file.
    pub fn at_end(&self) -> Option<Misquoted> {
        self.open(End::Nowhere)
    }

    /// The quote that is open where a row has become too long.
    pub fn in_long_row(&self) -> Option<Misquoted> {
        self.open(End::Far)
    }

    fn open(&self, end: End) -> Option<Misquoted> {
        matches!(self.place, Place::Quoted).then_some(Misquoted { line: self.opened, end })
    }
}
