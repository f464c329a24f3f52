//! Compression of the bytes of a block.
//!
//! Words are taken apart into planes: their first bytes, their second bytes, and so on. So signs and exponents, of
//! which a tensor has few different ones, lie together. The last bits, in which there is nothing to gain, do not stand
//! between them.
//!
//! A difference is that of the words as whole numbers. Floats of one sign are in the order of their bits, so a small
//! change is a small number; an exclusive or would have every bit of a carry. The sign of the difference goes to the
//! last bit, so the higher planes of a small one are zeros either way.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

/// Level of zstd. Higher ones take more time and gain next to nothing, since planes have few repetitions.
const LEVEL: i32 = 1;

thread_local! {
    // Making them takes longer than a block does.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// A block as it is stored: the lengths of its planes, and the planes one after the other. A plane of length 0 is all
/// zeros, one of its full length is stored as it is, and any other is compressed.
#[derive(Debug, PartialEq)]
pub(crate) struct Stored {
    pub lengths: Vec<u32>,
    pub data: Vec<u8>,
}

/// Compresses the words of a block, given their runs (widths and numbers).
pub(crate) fn encode(words: &[u8], runs: impl Iterator<Item = (usize, usize)>) -> std::io::Result<Stored> {
    let mut stored = Stored { lengths: Vec::new(), data: Vec::new() };
    let mut rest = words;
    for (width, count) in runs {
        let (run, after) = rest.split_at(width * count);
        rest = after;
        for which in 0..width {
            let plane: Vec<u8> = run[which..].iter().step_by(width).copied().collect();
            let before = stored.data.len();
            if plane.iter().any(|&byte| byte != 0) {
                let compressed = compress(&plane)?;
                let fewer = if compressed.len() < plane.len() { compressed } else { plane };
                stored.data.extend_from_slice(&fewer);
            }
            stored.lengths.push((stored.data.len() - before) as u32);
        }
    }
    Ok(stored)
}

/// The words of a stored block. `None` where the data is no such block, whatever its length.
pub(crate) fn decode(lengths: &[u32], data: &[u8], runs: impl Iterator<Item = (usize, usize)>) -> Option<Vec<u8>> {
    let (mut words, mut rest, mut lengths) = (Vec::new(), data, lengths.iter());
    for (width, count) in runs {
        let start = words.len();
        words.resize(start + width * count, 0);
        for which in 0..width {
            let (stored, after) = rest.split_at_checked(*lengths.next()? as usize)?;
            rest = after;
            let plane = match stored.len() {
                0 => continue,
                length if length == count => stored.into(),
                _ => std::borrow::Cow::from(decompress(stored, count)?),
            };
            words[start + which..].iter_mut().step_by(width).zip(plane.iter()).for_each(|(to, &byte)| *to = byte);
        }
    }
    (rest.is_empty() && lengths.next().is_none()).then_some(words)
}

fn compress(plane: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = Some(Compressor::new(LEVEL)?);
        }
        compressor.as_mut().expect("it was made above").compress(plane)
    })
}

/// Decompresses a plane; `None` unless it has that length.
fn decompress(plane: &[u8], length: usize) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        if decompressor.is_none() {
            *decompressor = Decompressor::new().ok();
        }
        let plane = decompressor.as_mut()?.decompress(plane, length).ok()?;
        (plane.len() == length).then_some(plane)
    })
}

/// Defines, for words of one width, a function that subtracts older words and one that adds them again.
macro_rules! differences {
    ($subtract:ident, $add:ident, $unsigned:ty, $signed:ty) => {
        fn $subtract(words: &mut [u8], older: &[u8]) {
            each::<{ size_of::<$unsigned>() }>(words, older, |new, old| {
                let change = <$signed>::from_le_bytes(new).wrapping_sub(<$signed>::from_le_bytes(old));
                (change.wrapping_shl(1) ^ (change >> (<$signed>::BITS - 1))).to_le_bytes()
            });
        }

        fn $add(words: &mut [u8], older: &[u8]) {
            each::<{ size_of::<$unsigned>() }>(words, older, |difference, old| {
                let folded = <$unsigned>::from_le_bytes(difference);
                let change = (folded >> 1) ^ (folded & 1).wrapping_neg();
                change.wrapping_add(<$unsigned>::from_le_bytes(old)).to_le_bytes()
            });
        }
    };
}

differences!(subtract_bytes, add_bytes, u8, i8);
differences!(subtract_halves, add_halves, u16, i16);
differences!(subtract_words, add_words, u32, i32);

#[inline(always)]
fn each<const N: usize>(words: &mut [u8], older: &[u8], with: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let older = older.as_chunks::<N>().0;
    words.as_chunks_mut::<N>().0.iter_mut().zip(older).for_each(|(word, &old)| *word = with(*word, old));
}

/// Replaces words by their difference to older ones, run by run.
pub(crate) fn subtract(words: &mut [u8], older: &[u8], runs: impl Iterator<Item = (usize, usize)>) {
    by_runs(words, older, runs, [subtract_bytes, subtract_halves, subtract_words]);
}

/// Replaces a difference by the words again.
pub(crate) fn add(words: &mut [u8], older: &[u8], runs: impl Iterator<Item = (usize, usize)>) {
    by_runs(words, older, runs, [add_bytes, add_halves, add_words]);
}

type OnRun = fn(&mut [u8], &[u8]);

fn by_runs(
    mut words: &mut [u8],
    mut older: &[u8],
    runs: impl Iterator<Item = (usize, usize)>,
    [bytes, halves, whole]: [OnRun; 3],
) {
    assert_eq!(words.len(), older.len(), "both are of one tensor");
    for (width, count) in runs {
        let (run, after) = words.split_at_mut(width * count);
        let (old, old_after) = older.split_at(width * count);
        let on_run = match width {
            1 => bytes,
            2 => halves,
            _ => whole,
        };
        on_run(run, old);
        (words, older) = (after, old_after);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Three words of four bytes, and five of the others.
    const RUNS: [(usize, usize); 3] = [(4, 3), (2, 5), (1, 5)];
    const BYTES: usize = 12 + 10 + 5;

    proptest! {
        #[test]
        fn words_and_differences_come_back(
            new in proptest::collection::vec(any::<u8>(), BYTES),
            old in proptest::collection::vec(prop_oneof![Just(0), Just(0x80), Just(0xff), any::<u8>()], BYTES),
        ) {
            let stored = encode(&new, RUNS.into_iter()).unwrap();
            let decoded = decode(&stored.lengths, &stored.data, RUNS.into_iter());
            prop_assert_eq!(decoded.as_deref(), Some(&new[..]));
            let mut words = new.clone();
            subtract(&mut words, &old, RUNS.into_iter());
            add(&mut words, &old, RUNS.into_iter());
            prop_assert_eq!(words, new);
        }

        #[test]
        fn what_was_not_stored_is_refused_or_has_the_right_length(
            lengths in proptest::collection::vec(0_u32..6, 0..9),
            data in proptest::collection::vec(any::<u8>(), 0..30),
        ) {
            if let Some(words) = decode(&lengths, &data, RUNS.into_iter()) {
                prop_assert_eq!(words.len(), BYTES);
            }
        }
    }

    #[test]
    fn a_small_change_is_a_small_number_whatever_its_sign() {
        let words = |values: [f32; 2]| values.map(f32::to_le_bytes).concat();
        let old = words([0.5, -0.5]);
        let next = |x: f32, by: i32| f32::from_bits((x.to_bits() as i32 + by) as u32);
        let mut new = words([next(0.5, -3), next(-0.5, 2)]);
        subtract(&mut new, &old, [(4, 2)].into_iter());
        assert_eq!(new, [5, 0, 0, 0, 4, 0, 0, 0]);
    }

    #[test]
    fn planes_are_nothing_where_they_are_zeros_and_as_they_are_where_nothing_is_gained() {
        let mut stream = shared::generation::rng::Stream::new(&[1]);
        // Each word has one random byte, two zeros and one byte of a few values.
        let words: Vec<u8> =
            (0..1000_u32).flat_map(|i| [stream.next_u64() as u8, 0, 0, 0x3d + (i % 7 == 0) as u8]).collect();
        let stored = encode(&words, [(4, 1000)].into_iter()).unwrap();
        assert_eq!(stored.lengths[..3], [1000, 0, 0]);
        assert!((1..100).contains(&stored.lengths[3]), "{:?}", stored.lengths);
        let again = encode(&words, [(4, 1000)].into_iter()).unwrap();
        assert_eq!(stored, again);
        let mut longer = stored.data.clone();
        longer.push(0);
        assert!(decode(&stored.lengths, &longer, [(4, 1000)].into_iter()).is_none());
        let spoilt = [&[1000, 0, 0, 999][..], &[1000, 0, 0]];
        assert!(spoilt.iter().all(|lengths| decode(lengths, &stored.data, [(4, 1000)].into_iter()).is_none()));
    }
}
