//! Streams of events (server-sent events), as far as MCP uses them.

/// The events of a stream, put together from pieces.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    /// Whether an event has begun.
    has_data: bool,
}

impl Events {
    /// Takes a piece, and returns the data of the events that end in it.
    pub fn push(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut ended = Vec::new();
        for &byte in piece {
            if byte == b'\n' {
                ended.extend(self.end_line());
            } else {
                self.line.push(byte);
            }
        }
        ended
    }

    /// Bytes that wait for the end of their event.
    pub fn held(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            let (data, has_data) = (std::mem::take(&mut self.data), std::mem::take(&mut self.has_data));
            return has_data.then_some(data);
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            self.has_data = true;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b": hello\r\nevent: message\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nid: 5\n\ndata:x\n\ndata: cut";

    #[test]
    fn events_are_the_same_in_whatever_pieces_they_come() {
        let whole: Vec<Vec<u8>> = vec![b"{\"a\":\n1}".to_vec(), b"x".to_vec()];
        for size in 1..STREAM.len() {
            let mut events = Events::default();
            let found: Vec<_> = STREAM.chunks(size).flat_map(|piece| events.push(piece)).collect();
            assert_eq!((found, events.held()), (whole.clone(), 9), "pieces of {size}");
        }
    }

    #[test]
    fn any_stream_is_survived_and_no_longer_than_what_came() {
        harness::fuzz::explore("bridge_events", &[STREAM.to_vec()], |bytes| {
            let mut events = Events::default();
            let found: usize = events.push(bytes).iter().map(Vec::len).sum();
            assert!(found + events.held() <= bytes.len());
        });
    }
}
