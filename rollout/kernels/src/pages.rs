//! Where keys and values lie: pages of [`PAGE`] positions, handed out from one pool.
//!
//! A page id stands for the same place in every layer and head. The keys of all pages of a layer and head lie together,
//! and so do the values: neighbouring pages are one stretch of memory, which the processor follows by itself.
//!
//! The keys of a page are transposed, `[head_dim][position]`, so that one query is multiplied with sixteen positions at
//! once. The values are `[position][width]`, with the width of a head rounded up to whole blocks. Bytes lie in quads of
//! the dimension that is summed over: keys as `[head_dim / 4][position][4]` and values as `[position / 4][width][4]`.
//! Likewise, bf16 lie in pairs. Each position of bytes has one scale for its key and one for its value.

use super::{buffer::LargeBuffer, element::KvFormat, simd::LANES};

/// Positions of a page.
pub const PAGE: usize = LANES;

/// Sizes of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageShape {
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of pages.
    pub pages: usize,
    /// The format of keys and values.
    pub format: KvFormat,
}

impl PageShape {
    /// Width of a head in whole blocks.
    pub(super) fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Words of four bytes of one page in one layer and head.
    fn page_len(&self) -> usize {
        Piece::ALL.iter().map(|&piece| self.piece_len(piece)).sum()
    }

    /// Words of a piece of a page.
    pub(super) fn piece_len(&self, piece: Piece) -> usize {
        let per_word = self.format.per_word();
        match piece {
            Piece::Keys => PAGE * self.head_dim.div_ceil(per_word),
            Piece::Values => PAGE / per_word * self.value_width(),
            Piece::KeyScales | Piece::ValueScales if self.format == KvFormat::Int8 => PAGE,
            Piece::KeyScales | Piece::ValueScales => 0,
        }
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers * self.kv_heads * self.pages * self.page_len() * size_of::<f32>()
    }

    /// Pages that hold `positions` positions.
    #[must_use]
    pub fn pages_for(positions: usize) -> usize {
        positions.div_ceil(PAGE)
    }

    /// First word of a piece of page 0; that of the next page lies [`PageShape::piece_len`] further.
    pub(super) fn offset(&self, layer: usize, head: usize, piece: Piece) -> usize {
        let before: usize = Piece::ALL.iter().take_while(|&&p| p != piece).map(|&p| self.piece_len(p)).sum();
        ((layer * self.kv_heads + head) * self.page_len() + before) * self.pages
    }
}

/// The pieces of a page, for each layer and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Keys,
    Values,
    /// Scales of the keys; with bytes only.
    KeyScales,
    /// Scales of the values; with bytes only.
    ValueScales,
}

impl Piece {
    pub const ALL: [Self; 4] = [Self::Keys, Self::Values, Self::KeyScales, Self::ValueScales];
}

/// The memory of the pages.
pub struct Pages {
    shape: PageShape,
    data: LargeBuffer,
}

impl Pages {
    /// A pool of zeros.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn new(shape: PageShape) -> std::io::Result<Self> {
        Ok(Self { shape, data: LargeBuffer::new(shape.bytes() / size_of::<f32>())? })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    pub(super) fn data(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Copies one page over another one, in every layer and head.
    ///
    /// # Panics
    /// When there is no such page.
    pub fn copy(&mut self, from: u32, to: u32) {
        let PageShape { layers, kv_heads, pages, .. } = self.shape;
        let (from, to) = (from as usize, to as usize);
        assert!(from < pages && to < pages, "a page outside the pool");
        for (layer, head) in (0..layers).flat_map(|layer| (0..kv_heads).map(move |head| (layer, head))) {
            for piece in Piece::ALL {
                let (first, len) = (self.shape.offset(layer, head, piece), self.shape.piece_len(piece));
                self.data.copy_within(first + from * len..first + (from + 1) * len, first + to * len);
            }
        }
    }
}

/// Neighbouring pages that a sequence is given, as long as there are enough of them. Memory is faster in long
/// stretches.
const RUN: usize = 4;

/// Which pages are free.
#[derive(Debug)]
pub struct FreePages {
    /// Number of holders of each page; 0 = it is free.
    holders: Vec<u32>,
    count: usize,
    /// First pages of the runs that are free. The last of them was given back last, so it is most likely in a cache.
    runs: Vec<u32>,
}

impl FreePages {
    /// All of `pages` pages.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self { holders: vec![0; pages], count: pages, runs: (0..pages as u32).step_by(RUN).rev().collect() }
    }

    /// Gives a sequence pages until it has `count`, or `None` when they run out.
    #[must_use]
    pub fn extend(&mut self, pages: &mut Vec<u32>, count: usize) -> Option<()> {
        while pages.len() < count {
            pages.push(self.take(pages.last().copied())?);
        }
        Some(())
    }

    /// A page for a sequence whose last one is `last`: its neighbour if that is free.
    fn take(&mut self, last: Option<u32>) -> Option<u32> {
        let page = self.neighbour(last).or_else(|| self.runs.pop()).or_else(|| self.any())?;
        self.holders[page as usize] = 1;
        self.count -= 1;
        Some(page)
    }

    fn neighbour(&self, last: Option<u32>) -> Option<u32> {
        let next = last? as usize + 1;
        (!next.is_multiple_of(RUN) && *self.holders.get(next)? == 0).then_some(next as u32)
    }

    /// Any free page, for when no run is left: such pages lie beside those of other sequences.
    fn any(&self) -> Option<u32> {
        self.holders.iter().position(|&holders| holders == 0).map(|page| page as u32)
    }

    /// Gives pages that are held to one more holder. Each holder gives them back.
    ///
    /// # Panics
    /// When one of them is free.
    pub fn share(&mut self, pages: &[u32]) {
        for &page in pages {
            assert!(self.holders[page as usize] > 0, "page {page} is free: another sequence would write over it");
            self.holders[page as usize] += 1;
        }
    }

    /// Gives pages back; those that nobody else holds are free.
    ///
    /// # Panics
    /// When one of them is free already.
    pub fn give_back(&mut self, pages: &[u32]) {
        for &page in pages {
            let page = page as usize;
            assert!(self.holders[page] > 0, "page {page} is given back twice: two sequences would be given it");
            self.holders[page] -= 1;
            if self.holders[page] > 0 {
                continue;
            }
            self.count += 1;
            let first = page / RUN * RUN;
            let last = self.holders.len().min(first + RUN);
            if self.holders[first..last].iter().all(|&holders| holders == 0) {
                self.runs.push(first as u32);
            }
        }
    }

    /// How many are free.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Sequences that grow, end and share, in any order: no page has two owners, none is lost, and what is free is
        /// counted.
        #[test]
        fn no_page_is_lost_or_given_twice(
            pages in 1_usize..40,
            events in prop::collection::vec((0_usize..6, 0_usize..9, any::<bool>()), 1..200),
        ) {
            let mut free = FreePages::new(pages);
            let mut sequences = vec![Vec::new(); 6];
            for (sequence, count, ends) in events {
                if ends {
                    free.give_back(&std::mem::take(&mut sequences[sequence]));
                } else {
                    let (left, had) = (free.count(), sequences[sequence].len());
                    let given = free.extend(&mut sequences[sequence], count);
                    prop_assert_eq!(given.is_some(), count.saturating_sub(had) <= left);
                    let grown = if given.is_some() { count.max(had) } else { had + left };
                    prop_assert_eq!(sequences[sequence].len(), grown, "what is left is given");
                }
                let owned: Vec<u32> = sequences.iter().flatten().copied().collect();
                let distinct: BTreeSet<u32> = owned.iter().copied().collect();
                prop_assert_eq!(distinct.len(), owned.len(), "a page has two owners");
                prop_assert_eq!(owned.len() + free.count(), pages);
                prop_assert!(owned.iter().all(|&page| (page as usize) < pages));
            }
            sequences.iter().for_each(|own| free.give_back(own));
            let mut all = Vec::new();
            prop_assert_eq!(free.extend(&mut all, pages), Some(()));
            let after_neighbour =
                |(i, &page): (usize, &u32)| (page as usize).is_multiple_of(RUN) || all[i - 1] + 1 == page;
            prop_assert!(all.iter().enumerate().all(after_neighbour), "runs are whole again");
        }
    }

    #[test]
    fn a_page_is_free_when_all_who_hold_it_have_given_it_back() {
        let mut free = FreePages::new(8);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        free.extend(&mut first, 3).unwrap();
        free.share(&first[..2]);
        second.extend(&first[..2]);
        free.extend(&mut second, 3).unwrap();
        assert_eq!((first.as_slice(), second.as_slice(), free.count()), (&[0, 1, 2][..], &[0, 1, 4][..], 4));
        free.give_back(&first);
        assert_eq!(free.count(), 5, "the other one still has two of them");
        free.give_back(&second);
        assert_eq!((free.count(), free.take(None)), (8, Some(4)), "the run that was given back last");
    }

    #[test]
    fn a_copy_of_a_page_is_that_page_in_every_layer_and_head() {
        for format in [KvFormat::Fp32, KvFormat::Int8] {
            let mut pages = Pages::new(PageShape { layers: 2, kv_heads: 3, head_dim: 8, pages: 5, format }).unwrap();
            (0..).zip(pages.data().iter_mut()).for_each(|(i, word)| *word = i as f32);
            let before = pages.data().to_vec();
            pages.copy(1, 4);
            let shape = pages.shape();
            let mut expected = before.clone();
            for piece in Piece::ALL {
                for (layer, head) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
                    let (first, len) = (shape.offset(layer, head, piece), shape.piece_len(piece));
                    expected[first + 4 * len..first + 5 * len].copy_from_slice(&before[first + len..first + 2 * len]);
                }
            }
            assert!(pages.data() == expected && expected != before);
        }
    }

    #[test]
    fn neighbours_are_given_to_one_sequence_until_pages_run_out() {
        let mut free = FreePages::new(10);
        let mut sequences = [const { Vec::new() }; 2];
        for count in 1..=4 {
            sequences.iter_mut().for_each(|own| free.extend(own, count).unwrap());
        }
        assert_eq!(sequences, [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(free.extend(&mut sequences[0], 6), Some(()));
        assert_eq!(
            (sequences[0][4..].to_vec(), free.extend(&mut sequences[1], 5), free.count()),
            (vec![8, 9], None, 0)
        );

        free.give_back(&[1, 6]);
        assert_eq!(
            (free.take(Some(5)), free.take(None), free.count()),
            (Some(6), Some(1), 0),
            "no run is free, but pages are"
        );
        free.give_back(&[3, 8, 1, 9, 0, 2]);
        let mut own = Vec::new();
        assert_eq!((free.extend(&mut own, 5), own), (Some(()), vec![0, 1, 2, 3, 8]), "the run that came back last");
    }
}
