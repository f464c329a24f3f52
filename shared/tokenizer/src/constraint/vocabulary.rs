//! Tokens in the order of their bytes. A walk over them looks at bytes that neighbours share only once.

use super::automaton::{Automaton, State};

/// A token.
#[derive(Debug)]
struct Token {
    id: u32,
    /// Leading bytes that it has in common with the token before it.
    shared: usize,
    /// Where its bytes end.
    end: usize,
}

/// Tokens with the bytes that they add to a text.
#[derive(Debug)]
pub struct Vocabulary {
    tokens: Vec<Token>,
    /// The bytes of all, one token after the other.
    bytes: Vec<u8>,
}

impl Vocabulary {
    /// Of the bytes of tokens, by id; a token without bytes is left out.
    pub fn new<'a>(bytes: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = bytes.zip(0..).filter(|(bytes, _)| !bytes.is_empty()).collect();
        sorted.sort_unstable();
        let mut found = Self { tokens: Vec::with_capacity(sorted.len()), bytes: Vec::new() };
        let mut before: &[u8] = &[];
        for (bytes, id) in sorted {
            let shared = before.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            found.bytes.extend_from_slice(bytes);
            found.tokens.push(Token { id, shared, end: found.bytes.len() });
            before = bytes;
        }
        found
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Calls `found` with each token after which a match can come, and the state after it.
    pub fn walk(&self, automaton: &Automaton, from: State, mut found: impl FnMut(u32, State)) {
        // The states after the bytes of a token, as far as a match can come.
        let mut path = vec![from];
        let mut begin = 0;
        for &Token { id, shared, end } in &self.tokens {
            let bytes = &self.bytes[begin..end];
            begin = end;
            // It has the byte at which the token before it failed.
            if shared >= path.len() {
                continue;
            }
            path.truncate(shared + 1);
            for &byte in &bytes[shared..] {
                let Some(next) = automaton.after(path[path.len() - 1], byte) else { break };
                path.push(next);
            }
            if path.len() > bytes.len() {
                found(id, path[path.len() - 1]);
            }
        }
    }
}
