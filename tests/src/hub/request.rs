//! A request as a Hub reads it.

use std::io::BufRead;

/// The parts of a request that matter here.
#[derive(Debug)]
pub(super) struct Request {
    pub method: String,
    pub path: String,
    pub range: Option<usize>,
    pub single: bool,
    pub token: Option<String>,
    length: usize,
    chunked: bool,
}

/// Reads the head of a request.
pub(super) fn head(incoming: &mut impl BufRead) -> Option<Request> {
    let mut lines = incoming.by_ref().lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut request = Request { method, path, range: None, single: false, token: None, length: 0, chunked: false };
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        match key.to_ascii_lowercase().as_str() {
            "range" => {
                let range = value.trim_start_matches("bytes=");
                request.single = range == "0-0";
                request.range = range.split('-').next().and_then(|from| from.parse().ok());
            }
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_owned),
            "content-length" => request.length = value.parse().ok()?,
            "transfer-encoding" => request.chunked = value.eq_ignore_ascii_case("chunked"),
            _ => {}
        }
    }
    Some(request)
}

impl Request {
    /// Whether its content has a known length, as stores of objects want it.
    pub fn has_length(&self) -> bool {
        !self.chunked
    }

    /// The content behind the head; none if the connection ends before.
    pub fn content(&self, incoming: &mut impl BufRead) -> Option<Vec<u8>> {
        if !self.chunked {
            return part(incoming, self.length);
        }
        let mut content = Vec::new();
        loop {
            let mut size = String::new();
            incoming.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            content.extend(part(incoming, size)?);
            let mut end = String::new();
            incoming.read_line(&mut end).ok()?;
            if size == 0 {
                return Some(content);
            }
        }
    }
}

/// So many bytes; none if the connection ends before.
pub(super) fn part(incoming: &mut impl BufRead, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    incoming.read_exact(&mut bytes).ok().map(|()| bytes)
}
