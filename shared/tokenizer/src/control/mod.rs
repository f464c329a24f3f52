//! Control tokens come from templates alone: in texts of users, tools and columns they stay text.
//!
//! A **control token** is a special token, or another added token that the template itself writes. Before messages and
//! tools are rendered, [`ControlTokens::mark`] puts marks around every control token that stands in one of their texts.
//! [`TextTokenizer::encode_marked`] then reads such a token as text, and everything else as ever. So a prompt without
//! such tokens has the ids that it would have without marks. transformers' `sanitize_control_tokens` has the same
//! rules, but for what the policy said and the author's system message ([`ControlTokens::mark_special`]).
//!
//! A template may also complete a token that a text only began: `<tool_call` and then `>`. A text that ends as a
//! control token begins, or begins as one ends, therefore has a mark at that end, a **seam**. No control token crosses
//! a seam.

mod marks;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use serde_json::Value;
use tokenizers::{
    AddedToken, Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Split, Tokenizer,
    normalizer::Range as Slice,
};

pub use marks::Marks;

use crate::TextTokenizer;

/// The control tokens of a tokenizer and a template.
#[derive(Debug, Clone, Default)]
pub struct ControlTokens {
    /// Their texts by the first character, longest first.
    by_first: HashMap<char, Vec<String>>,
    /// Texts by id.
    by_id: HashMap<u32, String>,
    /// The texts of special tokens.
    special: HashSet<String>,
    /// The beginnings of the texts, without the whole texts.
    heads: HashSet<String>,
    /// The ends of the texts, without the whole texts.
    tails: HashSet<String>,
    /// Bytes of the longest text.
    longest: usize,
    /// Ids that stand for characters which the tokenizer does not know.
    unknown: HashSet<u32>,
    /// A token that the text behind it does not change, and whose id stands for it alone.
    ahead: Option<(u32, String)>,
}

/// A part of a marked text.
enum Piece<'a> {
    /// What the template wrote, and texts without control tokens. Seams are byte offsets.
    Text { text: String, seams: Vec<usize> },
    /// A control token that is text.
    Spelled(&'a str),
}

impl TextTokenizer {
    /// The control tokens under a template that `writes` some texts itself. Added tokens of spaces alone are none:
    /// templates write these as ordinary text.
    #[must_use]
    pub fn control_tokens(&self, writes: impl Fn(&str) -> bool) -> ControlTokens {
        let mut control = ControlTokens::default();
        for (&id, token) in self.inner.get_added_vocabulary().get_added_tokens_decoder() {
            let text = token.content.as_str();
            let is_special = token.special || self.special.contains(&id);
            if !text.is_empty() && (is_special || !text.trim().is_empty() && writes(text)) {
                control.add(id, token);
                control.special.extend(is_special.then(|| text.to_owned()));
            }
        }
        // A character that no vocabulary has.
        let unknown = self.guarded(|| spelled(&self.inner, "\u{10fffd}", false));
        control.unknown = unknown.unwrap_or_default().into_iter().filter(|id| control.by_id.contains_key(id)).collect();
        control.by_first.values_mut().for_each(|texts| texts.sort_by_key(|text| std::cmp::Reverse(text.len())));
        control
    }

    /// Token ids of a rendered text with [`Marks`]. `begins` says whether the text begins a prompt: some tokenizers put
    /// a space there.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text, or has no way to write a control token as text.
    pub fn encode_marked(
        &self,
        text: &str,
        marks: &Marks,
        control: &ControlTokens,
        begins: bool,
    ) -> Result<Vec<u32>, String> {
        let (mut ids, mut begins) = (Vec::new(), begins);
        for piece in control.pieces(text, marks) {
            match piece {
                Piece::Spelled(text) => ids.extend(self.spell(text, control, begins)?),
                Piece::Text { text, seams } => {
                    for part in control.parts(&text, &seams) {
                        ids.extend(self.encode_part(&text[part], control, begins)?);
                        begins = false;
                    }
                }
            }
            begins = false;
        }
        Ok(ids)
    }

    /// Token ids of a part of a text. A normaliser can make a control token of other characters, such as wide ones.
    /// Such a token is spelled too.
    fn encode_part(&self, text: &str, control: &ControlTokens, begins: bool) -> Result<Vec<u32>, String> {
        let ids = self.encode_behind(text, control, begins)?;
        let found = ids.iter().filter(|id| control.has(**id)).count();
        if found == control.occurrences(text) {
            return Ok(ids);
        }
        let Some(place) = self.made_by_normaliser(text, control)? else { return Ok(ids) };
        let mut ids = Vec::new();
        if place.start > 0 {
            ids = self.encode_part(&text[..place.start], control, begins)?;
        }
        ids.extend(self.spell(&text[place.clone()], control, begins && place.start == 0)?);
        if place.end < text.len() {
            ids.extend(self.encode_part(&text[place.end..], control, false)?);
        }
        Ok(ids)
    }

    /// Token ids of a part of a text with its control tokens. Behind the beginning, they are those that the part has
    /// behind a control token.
    fn encode_behind(&self, text: &str, control: &ControlTokens, begins: bool) -> Result<Vec<u32>, String> {
        if let Some((id, ahead)) = control.ahead.as_ref().filter(|_| !begins) {
            let mut ids = self.encode(&format!("{ahead}{text}"), false)?;
            if ids.first() == Some(id) {
                ids.remove(0);
                return Ok(ids);
            }
        }
        self.encode(text, false)
    }

    /// The first place whose characters are not those of the control token that it became.
    fn made_by_normaliser(&self, text: &str, control: &ControlTokens) -> Result<Option<Range<usize>>, String> {
        let encoding = self.encode_with_offsets(text)?;
        let mut tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        let is_other = |&(id, &(start, end)): &(&u32, &(usize, usize))| {
            let written = text.get(start..end).map(str::trim);
            control.has(*id) && start < end && written.is_some_and(|written| control.text(*id) != Some(written))
        };
        Ok(tokens.find(is_other).map(|(_, &(start, end))| start..end))
    }

    /// Token ids of the text of a control token, without that token. Where the model's own vocabulary has it as a
    /// whole, its first character stands alone.
    fn spell(&self, text: &str, control: &ControlTokens, begins: bool) -> Result<Vec<u32>, String> {
        let ids = self.guarded(|| spelled(&self.inner, text, begins))?;
        if !ids.iter().any(|id| control.has(*id)) {
            return Ok(ids);
        }
        let first = text.chars().next().map_or(0, char::len_utf8);
        if first == text.len() {
            return Err(format!("`{text}` stands in a text, and the tokenizer can write it only as a control token"));
        }
        let mut ids = self.spell(&text[..first], control, begins)?;
        ids.extend(self.spell(&text[first..], control, false)?);
        Ok(ids)
    }
}

impl ControlTokens {
    fn add(&mut self, id: u32, token: &AddedToken) {
        let text = token.content.as_str();
        let first = text.chars().next().expect("the text is not empty");
        let within = || text.char_indices().map(|(at, _)| at).skip(1);
        self.heads.extend(within().map(|at| text[..at].to_owned()));
        self.tails.extend(within().map(|at| text[at..].to_owned()));
        self.longest = self.longest.max(text.len());
        self.by_first.entry(first).or_default().push(text.to_owned());
        self.by_id.insert(id, text.to_owned());
        let is_plain = token.special && !(token.lstrip || token.rstrip || token.single_word || token.normalized);
        // The smallest id, so that the choice does not depend on the order of a table.
        if is_plain && self.ahead.as_ref().is_none_or(|(other, _)| id < *other) {
            self.ahead = Some((id, text.to_owned()));
        }
    }

    /// Whether an id is that of a control token, and not that of an unknown character.
    fn has(&self, id: u32) -> bool {
        self.by_id.contains_key(&id) && !self.unknown.contains(&id)
    }

    /// How often control tokens stand in a text.
    fn occurrences(&self, text: &str) -> usize {
        let (mut count, mut rest) = (0, text);
        while let Some(first) = rest.chars().next() {
            let token = self.at_start(rest);
            count += usize::from(token.is_some());
            rest = &rest[token.map_or(first.len_utf8(), str::len)..];
        }
        count
    }

    /// The text of a control token.
    #[must_use]
    pub fn text(&self, id: u32) -> Option<&str> {
        self.by_id.get(&id).map(String::as_str)
    }

    /// Whether a text is that of a control token.
    #[must_use]
    pub fn contains(&self, text: &str) -> bool {
        self.at_start(text) == Some(text)
    }

    /// A value with marks in all of its texts, keys included.
    #[must_use]
    pub fn mark(&self, value: &Value, marks: &Marks) -> Value {
        in_texts(value, &|text| self.mark_text(text, marks, |_| true))
    }

    /// As [`mark`](Self::mark) for special tokens alone. In what the policy said, `<think>` and its like stay the
    /// tokens that it drew, and templates look for them to leave thoughts out.
    #[must_use]
    pub fn mark_special(&self, value: &Value, marks: &Marks) -> Value {
        in_texts(value, &|text| self.mark_text(text, marks, |token| self.special.contains(token)))
    }

    fn mark_text(&self, text: &str, marks: &Marks, is_marked: impl Fn(&str) -> bool) -> String {
        let seam_at_start = self.could_end_at_start(text);
        let seam_at_end = self.could_begin_at_end(text);
        let mut marked = String::with_capacity(text.len());
        marked.extend(seam_at_start.then_some(marks.seam));
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match self.at_start(rest) {
                Some(token) if !is_marked(token) => {
                    marked.push_str(token);
                    token.len()
                }
                Some(token) => {
                    marked.push(marks.open);
                    marked.push_str(token);
                    marked.push(marks.close);
                    token.len()
                }
                None => {
                    marked.push(first);
                    first.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        marked.extend(seam_at_end.then_some(marks.seam));
        marked
    }

    /// The longest control token that a text begins with.
    fn at_start(&self, text: &str) -> Option<&str> {
        let first = text.chars().next()?;
        self.by_first.get(&first)?.iter().map(String::as_str).find(|token| text.starts_with(token))
    }

    /// Whether something before a text could make its beginning the end of a control token.
    fn could_end_at_start(&self, text: &str) -> bool {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        ends.take_while(|end| *end < self.longest).any(|end| self.tails.contains(&text[..end]))
    }

    /// Whether something behind a text could make its end the beginning of a control token.
    fn could_begin_at_end(&self, text: &str) -> bool {
        let begins = text.char_indices().rev().map(|(at, _)| at);
        begins.take_while(|at| text.len() - at < self.longest).any(|at| self.heads.contains(&text[at..]))
    }

    /// The parts of a rendered text. A mark that is left alone, because the template cut the text there, is a seam.
    fn pieces<'a>(&self, marked: &'a str, marks: &Marks) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let (mut text, mut seams) = (String::new(), Vec::new());
        let mut rest = marked;
        while let Some(first) = rest.chars().next() {
            let behind = &rest[first.len_utf8()..];
            let token = (first == marks.open).then(|| self.at_start(behind)).flatten();
            let spelled = token.filter(|token| behind[token.len()..].starts_with(marks.close));
            if let Some(token) = spelled {
                pieces.push(Piece::Text { text: std::mem::take(&mut text), seams: std::mem::take(&mut seams) });
                pieces.push(Piece::Spelled(&behind[..token.len()]));
                rest = &behind[token.len() + marks.close.len_utf8()..];
                continue;
            }
            if marks.is_mark(first) {
                seams.push(text.len());
            } else {
                text.push(first);
            }
            rest = behind;
        }
        pieces.push(Piece::Text { text, seams });
        pieces
    }

    /// The parts of a text between the seams that a control token would cross.
    fn parts(&self, text: &str, seams: &[usize]) -> Vec<Range<usize>> {
        let is_crossed = |seam: usize| {
            let begins = text[..seam].char_indices().rev().map(|(at, _)| at);
            begins.take_while(|at| seam - at < self.longest).any(|at| {
                let tokens = text[at..].chars().next().and_then(|first| self.by_first.get(&first));
                let crosses = |token: &String| at + token.len() > seam && text[at..].starts_with(token.as_str());
                tokens.is_some_and(|tokens| tokens.iter().any(crosses))
            })
        };
        let cuts = seams.iter().copied().filter(|&seam| is_crossed(seam));
        let ends: Vec<usize> = cuts.chain([text.len()]).collect();
        let begins = [0].into_iter().chain(ends.iter().copied());
        begins.zip(ends.iter().copied()).map(|(begin, end)| begin..end).filter(|part| !part.is_empty()).collect()
    }
}

/// A value with another text in the place of each of its texts, keys included.
fn in_texts(value: &Value, text: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(written) => text(written).into(),
        Value::Array(items) => items.iter().map(|item| in_texts(item, text)).collect(),
        Value::Object(keys) => keys.iter().map(|(key, value)| (text(key), in_texts(value, text))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A text as the model of a tokenizer cuts it: no added token is looked for.
fn spelled(tokenizer: &Tokenizer, text: &str, begins: bool) -> tokenizers::Result<Vec<u32>> {
    // Tokenizers tell the beginning of a text by its offset.
    let ahead = if begins { "" } else { "x" };
    let mut pieces = PreTokenizedString::from(format!("{ahead}{text}"));
    pieces.split(|_, whole| {
        let before = whole.slice(Slice::Original(..ahead.len()));
        let text = whole.slice(Slice::Original(ahead.len()..));
        // What stands ahead has its tokens already, none.
        let before = before.map(|part| Split::from((part, Some(Vec::new()))));
        Ok(before.into_iter().chain(text.map(Split::from)).collect::<Vec<_>>())
    })?;
    if let Some(normalizer) = tokenizer.get_normalizer() {
        pieces.normalize(|piece| normalizer.normalize(piece))?;
    }
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut pieces)?;
    }
    pieces.tokenize(|piece| tokenizer.get_model().tokenize(piece.get()))?;
    Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
}
