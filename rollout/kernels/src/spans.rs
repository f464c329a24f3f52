//! The sequences of a call, and which of them are computed together.

use std::ops::Range;

use super::{pages::PAGE, tile::Tiling};

/// Rows (sequences times query heads) that one task multiplies with a prefix.
const BLOCK_ROWS: usize = 24;

/// A sequence's share of a call: some tokens at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its tokens in the call.
    pub tokens: Range<usize>,
    /// Pages of the prefix, in the call's list of pages.
    pub prefix_pages: Range<usize>,
    /// Positions of the prefix.
    pub prefix_len: usize,
    /// Pages of its own, with room for the new tokens. Full pages may be shared with others.
    pub own_pages: Range<usize>,
    /// Positions of its own that are in the cache already.
    pub own_len: usize,
    /// Row of the rotary tables with the sequence's first position.
    pub rotary_begin: usize,
    /// Block of its state, in models with layers that keep one.
    pub state: Option<u32>,
}

/// All sequences of a call. Neighbours with the same prefix pages are computed together.
#[derive(Debug, Default)]
pub struct Spans {
    /// In the order of their tokens.
    pub(super) all: Vec<Span>,
    /// Page ids of all spans.
    pub(super) pages: Vec<u32>,
    /// For each token its span.
    pub(super) span_of: Vec<usize>,
    /// Runs of tokens that one task computes for one key/value head.
    pub(super) blocks: Vec<Range<usize>>,
    /// For each page whether a span writes to it.
    written: Vec<bool>,
}

impl Spans {
    /// Forgets the last call; the buffers are kept.
    pub fn clear(&mut self) {
        self.all.clear();
        self.pages.clear();
        self.span_of.clear();
        self.blocks.clear();
    }

    /// Number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.span_of.len()
    }

    /// Adds a sequence with `tokens` new tokens.
    pub fn push(&mut self, prefix: &[u32], prefix_len: usize, own: &[u32], own_len: usize, tokens: usize) {
        let first = self.tokens();
        let shared = self.all.last().map(|last| last.prefix_pages.clone());
        let shared = shared.filter(|last| !prefix.is_empty() && self.pages[last.clone()] == *prefix);
        let prefix_pages = shared.unwrap_or_else(|| self.extend(prefix));
        let own_pages = self.extend(own);
        self.span_of.resize(first + tokens, self.all.len());
        self.all.push(Span {
            tokens: first..first + tokens,
            prefix_pages,
            prefix_len,
            own_pages,
            own_len,
            rotary_begin: 0,
            state: None,
        });
    }

    /// Lets the positions of the last sequence begin at another row of the rotary tables than the first.
    ///
    /// # Panics
    /// Before the first [`Spans::push`].
    pub fn rotary_from(&mut self, row: usize) {
        self.all.last_mut().expect("a sequence was added").rotary_begin = row;
    }

    /// The page, and the place in it, where a token's keys and values lie.
    ///
    /// # Panics
    /// Outside the call's tokens.
    #[must_use]
    pub fn place(&self, token: usize) -> (u32, usize) {
        let span = &self.all[self.span_of[token]];
        let own = span.own_len + token - span.tokens.start;
        (self.pages[span.own_pages.start + own / PAGE], own % PAGE)
    }

    /// Gives the last sequence the block of its state.
    ///
    /// # Panics
    /// Before the first [`Spans::push`].
    pub fn state_in(&mut self, block: u32) {
        self.all.last_mut().expect("a sequence was added").state = Some(block);
    }

    /// Blocks of states that the call reads and writes.
    #[must_use]
    pub fn states(&self) -> usize {
        self.all.iter().filter(|span| span.state.is_some()).count()
    }

    /// # Panics
    /// When a sequence has no state, or one outside a pool of so many blocks.
    pub(super) fn check_states(&self, blocks: usize) {
        let has_state = |span: &Span| span.state.is_some_and(|block| (block as usize) < blocks);
        assert!(self.all.iter().all(has_state), "a sequence without a state in the pool");
    }

    fn extend(&mut self, pages: &[u32]) -> Range<usize> {
        let first = self.pages.len();
        self.pages.extend_from_slice(pages);
        first..self.pages.len()
    }

    /// Ids of the pages that the call reads. Neighbours with the same prefix list its pages once.
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Whether a block holds a piece of a sequence.
    pub(super) fn cuts_sequences(&self) -> bool {
        let starts = |block: &Range<usize>| self.all[self.span_of[block.start]].tokens.start == block.start;
        !self.blocks.iter().all(starts)
    }

    /// Cuts the tokens into blocks for heads in groups of `group`; to be called after the last [`Spans::push`].
    ///
    /// # Panics
    /// When a sequence writes to a page, or has a state, that another one has too: both are computed at the same time.
    pub fn cut(&mut self, group: usize) {
        self.require_pages_of_their_own();
        self.require_states_of_their_own();
        let most = (BLOCK_ROWS / group).max(1);
        let mut first = 0;
        while first < self.all.len() {
            let same = |s: &Span| {
                let head = &self.all[first];
                s.prefix_pages == head.prefix_pages && s.prefix_len == head.prefix_len && head.prefix_len > 0
            };
            let run = 1 + self.all[first + 1..].iter().take_while(|s| same(s)).count();
            let tokens = self.all[first].tokens.start..self.all[first + run - 1].tokens.end;
            let tiling = Tiling::new(tokens.len(), most);
            for i in 0..tiling.count() {
                let (start, length) = tiling.tile(i);
                self.blocks.push(tokens.start + start..tokens.start + start + length);
            }
            first += run;
        }
    }

    fn require_pages_of_their_own(&mut self) {
        let Self { all, pages, written, .. } = self;
        written.clear();
        written.resize(pages.iter().max().map_or(0, |&page| page as usize + 1), false);
        let own = |span: &Span| pages[span.own_pages.clone()].split_at(span.own_len / PAGE);
        for &page in all.iter().flat_map(|span| own(span).1) {
            assert!(!std::mem::replace(&mut written[page as usize], true), "two sequences write to page {page}");
        }
        let read = |span: &Span| pages[span.prefix_pages.clone()].iter().chain(own(span).0);
        for &page in all.iter().flat_map(read) {
            assert!(!written[page as usize], "page {page} of a prefix is written to");
        }
    }

    fn require_states_of_their_own(&self) {
        let mut blocks: Vec<u32> = self.all.iter().filter_map(|span| span.state).collect();
        blocks.sort_unstable();
        let twice = blocks.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "two sequences have one state");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "two sequences write to page 7")]
    fn a_page_has_one_writer() {
        let mut spans = Spans::default();
        spans.push(&[], 0, &[7], 0, 1);
        spans.push(&[], 0, &[6, 7], 17, 1);
        spans.cut(1);
    }

    #[test]
    #[should_panic(expected = "two sequences have one state")]
    fn a_state_has_one_sequence() {
        let mut spans = Spans::default();
        for (page, block) in [(1, 4), (2, 3), (3, 4)] {
            spans.push(&[], 0, &[page], 0, 1);
            spans.state_in(block);
        }
        spans.cut(1);
    }

    #[test]
    fn full_pages_have_several_readers() {
        let mut spans = Spans::default();
        spans.push(&[1], 9, &[6, 7], 16, 1);
        spans.push(&[1], 9, &[6, 8], 20, 2);
        spans.cut(1);
    }

    #[test]
    #[should_panic(expected = "page 6 of a prefix is written to")]
    fn a_full_page_of_one_has_no_other_writer() {
        let mut spans = Spans::default();
        spans.push(&[1], 9, &[6, 7], 16, 1);
        spans.push(&[1], 9, &[6], 15, 1);
        spans.cut(1);
    }

    #[test]
    #[should_panic(expected = "page 2 of a prefix is written to")]
    fn a_shared_page_has_no_writer() {
        let mut spans = Spans::default();
        spans.push(&[1, 2], 20, &[3], 0, 1);
        spans.push(&[], 0, &[2], 0, 1);
        spans.cut(1);
    }

    #[test]
    fn sequences_of_a_prompt_are_computed_together_and_others_are_not() {
        let mut spans = Spans::default();
        for own in 0..7 {
            spans.push(&[1, 2], 20, &[10 + own], 3, 1);
        }
        spans.push(&[3], 5, &[20], 0, 1);
        spans.push(&[], 0, &[30, 31], 0, 20);
        spans.cut(4);
        assert_eq!(spans.tokens(), 28);
        // Six sequences of four heads fill a block; twenty tokens of a prompt take four blocks of at most six.
        assert_eq!(spans.blocks, [0..4, 4..7, 7..8, 8..13, 13..18, 18..23, 23..28]);
        assert_eq!(spans.pages.iter().filter(|&&page| page == 1).count(), 1, "a shared prefix is listed once");
        assert_eq!((spans.span_of[6], spans.span_of[7], spans.span_of[27]), (6, 7, 8));
        spans.clear();
        assert_eq!(spans.tokens() + spans.blocks.len() + spans.pages.len(), 0);
    }
}
