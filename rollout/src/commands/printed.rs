//! Completions on stdout: as text while they are made, or as rows.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Write},
    mem,
};

use shared::{PromptId, Scored};
use shared_bounds::Shown;

use super::{complete::Watch, rows};
use crate::data::{Detokenizer, PromptRow, Tokenizer};

/// Whoever read stdout does not any more (`tandem generate … | head`). Nothing is left to do, and nothing is wrong.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads stdout any more")]
pub struct ReaderGone;

/// Writes to stdout, so that it is there at once.
pub struct Out<W> {
    to: W,
    /// Whether `to` is a terminal, which would obey control characters.
    is_terminal: bool,
}

impl<W: Write> Out<W> {
    /// An output that may be a terminal.
    pub fn new(to: W, is_terminal: bool) -> Self {
        Self { to, is_terminal }
    }

    /// Writes a piece of text of unknown origin.
    ///
    /// # Errors
    /// [`ReaderGone`], or that of the output.
    pub fn text(&mut self, text: &str) -> anyhow::Result<()> {
        let written =
            if self.is_terminal { write!(self.to, "{}", Shown(text)) } else { self.to.write_all(text.as_bytes()) };
        of_stdout(written.and_then(|()| self.to.flush()))
    }
}

/// A result of writing to stdout.
fn of_stdout(written: io::Result<()>) -> anyhow::Result<()> {
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow::Error::new(error).context("stdout"),
    })
}

/// Prints completions as text, in the order of prompts and samples. The first one that is not done is printed as its
/// tokens come; those behind it wait.
pub struct Texts<W> {
    out: Out<W>,
    num_generations: usize,
    stop: Vec<String>,
    completions: Vec<Text>,
    /// The completion that is printed.
    current: usize,
    /// Whether its heading is printed.
    is_headed: bool,
}

/// One completion.
struct Text {
    prompt: PromptId,
    sample: usize,
    /// Absent once it has ended.
    text: Option<Detokenizer>,
    /// What is not printed yet.
    waiting: String,
    /// Whether its last line has ended.
    ends_line: bool,
}

impl<W: Write> Texts<W> {
    /// For so many completions of each prompt, which end at these stop strings.
    pub fn new(out: Out<W>, num_generations: u32, stop: &[String]) -> Self {
        let num_generations = num_generations as usize;
        Self { out, num_generations, stop: stop.to_owned(), completions: Vec::new(), current: 0, is_headed: false }
    }

    /// Adds to a completion, and prints what may be printed. `add` returns the text that is certain.
    fn add(
        &mut self,
        position: u64,
        sample: u32,
        add: impl FnOnce(&mut Option<Detokenizer>) -> String,
    ) -> anyhow::Result<()> {
        let index = position as usize * self.num_generations + sample as usize;
        let completion = &mut self.completions[index];
        completion.waiting += &add(&mut completion.text);
        if index == self.current { self.print() } else { Ok(()) }
    }

    fn print(&mut self) -> anyhow::Result<()> {
        let several = self.completions.len() > 1;
        while let Some(completion) = self.completions.get_mut(self.current) {
            let mut text = mem::take(&mut completion.waiting);
            completion.ends_line = if text.is_empty() { completion.ends_line } else { text.ends_with('\n') };
            if several && !mem::replace(&mut self.is_headed, true) {
                text.insert_str(0, &format!("--- prompt {}, sample {} ---\n", completion.prompt, completion.sample));
            }
            let has_ended = completion.text.is_none();
            if has_ended && !completion.ends_line {
                text.push('\n');
            }
            if !text.is_empty() {
                self.out.text(&text)?;
            }
            if !has_ended {
                break;
            }
            self.current += 1;
            self.is_headed = false;
        }
        Ok(())
    }
}

impl<W: Write> Watch for Texts<W> {
    fn begin(&mut self, rows: &[PromptRow], tokenizer: &Tokenizer) {
        let of_row = |row: &PromptRow| {
            let prompt = row.prompt_id;
            (0..self.num_generations).map(move |sample| (prompt, sample))
        };
        let text = |(prompt, sample)| {
            let text = Some(Detokenizer::new(tokenizer, &self.stop));
            Text { prompt, sample, text, waiting: String::new(), ends_line: false }
        };
        self.completions = rows.iter().flat_map(of_row).map(text).collect();
    }

    fn streams(&self) -> bool {
        true
    }

    fn leaves_room(&self) -> bool {
        !self.out.is_terminal
    }

    fn token(&mut self, position: u64, sample: u32, id: u32) -> anyhow::Result<()> {
        self.add(position, sample, |text| text.as_mut().map(|text| text.push(id)).unwrap_or_default())
    }

    fn ended(&mut self, position: u64, sample: u32) -> anyhow::Result<()> {
        self.add(position, sample, |text| text.take().map(Detokenizer::end).unwrap_or_default())
    }

    fn group(&mut self, _: &Scored) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Prints the rows of completions, in the order of prompts.
pub struct Rows<W> {
    to: W,
    /// Whether `to` is a terminal, where progress would stand between the rows.
    is_terminal: bool,
    /// The position of the prompt whose rows come next.
    next: u64,
    /// Rows behind those, by the position of their prompt.
    waiting: BTreeMap<u64, Vec<u8>>,
}

impl<W: Write> Rows<W> {
    /// Into `to`, which may be a terminal.
    pub fn new(to: W, is_terminal: bool) -> Self {
        Self { to, is_terminal, next: 0, waiting: BTreeMap::new() }
    }
}

impl<W: Write> Watch for Rows<W> {
    fn begin(&mut self, _: &[PromptRow], _: &Tokenizer) {}

    fn streams(&self) -> bool {
        false
    }

    fn leaves_room(&self) -> bool {
        !self.is_terminal
    }

    fn token(&mut self, _: u64, _: u32, _: u32) -> anyhow::Result<()> {
        Ok(())
    }

    fn ended(&mut self, _: u64, _: u32) -> anyhow::Result<()> {
        Ok(())
    }

    fn group(&mut self, group: &Scored) -> anyhow::Result<()> {
        let mut lines = Vec::new();
        rows::write_group(&mut lines, group)?;
        self.waiting.insert(group.position, lines);
        while let Some(lines) = self.waiting.remove(&self.next) {
            of_stdout(self.to.write_all(&lines).and_then(|()| self.to.flush()))?;
            self.next += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use shared::generation::testing;

    use super::*;
    use crate::data::{Dataset, PromptOptions, testing::byte_tokenizer};

    /// Texts of so many prompts, which are printed to memory.
    fn texts(prompts: usize, num_generations: u32, stop: &[String], is_terminal: bool) -> Texts<Vec<u8>> {
        let tokenizer = byte_tokenizer(None);
        let rows = shared_data::json_lines("rows", "{\"prompt\": \"ab\"}\n".repeat(prompts).into()).unwrap();
        let dataset = Dataset::of_table("rows", rows, &tokenizer, &PromptOptions::default()).unwrap();
        let mut texts = Texts::new(Out::new(Vec::new(), is_terminal), num_generations, stop);
        texts.begin(dataset.rows(), &tokenizer);
        texts
    }

    fn give(texts: &mut Texts<Vec<u8>>, position: u64, sample: u32, text: &str) {
        for id in byte_tokenizer(None).encode(text, false).unwrap() {
            texts.token(position, sample, id).unwrap();
        }
    }

    fn said(texts: &Texts<Vec<u8>>) -> &str {
        std::str::from_utf8(&texts.out.to).unwrap()
    }

    #[test]
    fn one_completion_is_its_text_and_the_end_of_its_line() {
        for (text, printed) in [("aé", "aé\n"), ("a\n", "a\n"), ("", "\n"), ("a END b", "a \n")] {
            let mut texts = texts(1, 1, &["END".to_owned()], false);
            give(&mut texts, 0, 0, text);
            texts.ended(0, 0).unwrap();
            assert_eq!(said(&texts), printed, "{text:?}");
        }
        let mut texts = texts(1, 1, &[], false);
        give(&mut texts, 0, 0, "ab");
        assert_eq!(said(&texts), "ab", "before its end");
    }

    #[test]
    fn several_are_headed_and_in_order_whichever_is_done_first() {
        let mut texts = texts(2, 2, &[], false);
        give(&mut texts, 1, 0, "three");
        give(&mut texts, 0, 1, "two");
        texts.ended(0, 1).unwrap();
        assert_eq!(said(&texts), "");
        give(&mut texts, 0, 0, "on");
        assert_eq!(said(&texts), "--- prompt 0, sample 0 ---\non");
        give(&mut texts, 0, 0, "e\n");
        texts.ended(0, 0).unwrap();
        let three =
            "--- prompt 0, sample 0 ---\none\n--- prompt 0, sample 1 ---\ntwo\n--- prompt 1, sample 0 ---\nthree";
        assert_eq!(said(&texts), three);
        texts.ended(1, 1).unwrap();
        texts.ended(1, 0).unwrap();
        assert_eq!(said(&texts), format!("{three}\n--- prompt 1, sample 1 ---\n\n"));
    }

    #[test]
    fn a_terminal_obeys_no_completion_and_a_file_has_every_byte() {
        for (is_terminal, printed) in [(true, "a\\u{1b}[2J\n"), (false, "a\u{1b}[2J\n")] {
            let mut texts = texts(1, 1, &[], is_terminal);
            give(&mut texts, 0, 0, "a\u{1b}[2J");
            texts.ended(0, 0).unwrap();
            assert_eq!(said(&texts), printed);
        }
    }

    #[test]
    fn rows_are_in_the_order_of_their_prompts() {
        let mut printed = Rows::new(Vec::new(), false);
        for position in [1, 2, 0] {
            let completions = vec![testing::completion(0, vec![position as u32])];
            printed.group(&testing::group(position, completions).into()).unwrap();
            assert_eq!(printed.to.is_empty(), position > 0);
        }
        let rows = printed.to.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let rows: Vec<Value> = rows.map(|row| serde_json::from_slice(row).unwrap()).collect();
        assert_eq!(rows.iter().map(|row| row["token_ids"][0].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_reader_who_has_gone_is_told_from_a_full_disk() {
        let of = |kind: ErrorKind| of_stdout(Err(kind.into())).unwrap_err();
        assert!(of(ErrorKind::BrokenPipe).is::<ReaderGone>() && !of(ErrorKind::StorageFull).is::<ReaderGone>());
    }
}
