//! Lines of stdin, read by a thread of their own: an answer can be interrupted while nobody types.

use std::{
    io::{self, BufRead, BufReader, Read},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// Most bytes of a line.
const MOST_BYTES: u64 = 1 << 20;

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(String),
    /// A line that cannot be used, with the reason.
    Bad(String),
    /// Nothing can be read any more, with the reason.
    Failed(String),
    /// There are no more.
    End,
}

/// The lines, in their order.
pub struct Lines(Receiver<Line>);

impl Lines {
    /// Begins to read.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn of(input: impl Read + Send + 'static) -> io::Result<Self> {
        // What was not asked for is left to whoever reads the input afterwards, as far as possible.
        let (send, receive) = sync_channel(0);
        thread::Builder::new().name("stdin".into()).spawn(move || read(BufReader::new(input), &send))?;
        Ok(Self(receive))
    }

    /// The next line, if it comes in time.
    pub fn next_within(&self, time: Duration) -> Option<Line> {
        match self.0.recv_timeout(time) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Line::End),
        }
    }
}

fn read(mut input: impl BufRead, to: &SyncSender<Line>) {
    for number in 1.. {
        let line = next(&mut input, number).unwrap_or_else(|error| Line::Failed(error.to_string()));
        let is_last = matches!(line, Line::Failed(_) | Line::End);
        if to.send(line).is_err() || is_last {
            return;
        }
    }
}

fn next(input: &mut impl BufRead, number: u64) -> io::Result<Line> {
    let mut bytes = Vec::new();
    if input.by_ref().take(MOST_BYTES).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(Line::End);
    }
    if bytes.len() as u64 == MOST_BYTES && bytes.last() != Some(&b'\n') {
        input.skip_until(b'\n')?;
        return Ok(Line::Bad(format!("line {number} of stdin has more than {MOST_BYTES} bytes and is passed over")));
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return Ok(Line::Bad(format!("line {number} of stdin is not UTF-8 and is passed over")));
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Line::Text(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn lines_that_cannot_be_used_are_named_and_those_behind_them_are_read() {
        let long = "a".repeat(MOST_BYTES as usize + 1);
        let text = [b"one\r\n\xff\n", long.as_bytes(), b"\nlast"].concat();
        let lines = Lines::of(Cursor::new(text)).unwrap();
        let next = || lines.next_within(Duration::from_secs(60)).unwrap();
        assert_eq!(next(), Line::Text("one".into()));
        assert_eq!(next(), Line::Bad("line 2 of stdin is not UTF-8 and is passed over".into()));
        assert_eq!(next(), Line::Bad("line 3 of stdin has more than 1048576 bytes and is passed over".into()));
        assert_eq!(next(), Line::Text("last".into()));
        assert_eq!((next(), next()), (Line::End, Line::End));
    }

    /// A reader that breaks after its text.
    struct Breaks(Cursor<Vec<u8>>);

    impl Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("the disk is gone")),
                length => Ok(length),
            }
        }
    }

    #[test]
    fn an_input_that_breaks_is_no_end() {
        for (text, first) in [
            ("one\n".to_owned(), Some(Line::Text("one".into()))),
            // In the rest of a line that is passed over.
            ("a".repeat(MOST_BYTES as usize + 1), None),
        ] {
            let lines = Lines::of(Breaks(Cursor::new(text.into_bytes()))).unwrap();
            let next = || lines.next_within(Duration::from_secs(60)).unwrap();
            first.into_iter().for_each(|line| assert_eq!(next(), line));
            assert_eq!(next(), Line::Failed("the disk is gone".into()));
        }
    }
}
