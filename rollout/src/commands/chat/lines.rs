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
        let mut bytes = Vec::new();
        let line = match input.by_ref().take(MOST_BYTES).read_until(b'\n', &mut bytes) {
            Ok(0) => return,
            Ok(_) if bytes.len() as u64 == MOST_BYTES && bytes.last() != Some(&b'\n') => {
                if input.skip_until(b'\n').is_err() {
                    return;
                }
                Line::Bad(format!("line {number} of stdin has more than {MOST_BYTES} bytes and is passed over"))
            }
            Ok(_) => match String::from_utf8(bytes) {
                Ok(text) => {
                    let text = text.strip_suffix('\n').unwrap_or(&text);
                    Line::Text(text.strip_suffix('\r').unwrap_or(text).to_owned())
                }
                Err(_) => Line::Bad(format!("line {number} of stdin is not UTF-8 and is passed over")),
            },
            Err(error) => {
                let _ = to.send(Line::Bad(format!("stdin cannot be read any more: {error}")));
                return;
            }
        };
        if to.send(line).is_err() {
            return;
        }
    }
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
}
