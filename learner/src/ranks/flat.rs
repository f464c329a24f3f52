//! Collective operations on flat buffers: a bucket at a time, in place.
//!
//! Buckets bound the memory that a sum needs besides the buffer (a copy on the host, if the buffer is on a GPU). Each
//! bucket is progress that the launcher sees. Buckets follow from length and number of ranks alone, so sums repeat byte
//! for byte.

use std::ops::Range;

use shared::process::heartbeat;
use tch::Tensor;

use super::Ranks;
use crate::error::LearnerError;

/// Bytes of a bucket, as in torch's data parallelism.
pub const BUCKET_BYTES: i64 = 25 << 20;
/// Shards begin at multiples of this many elements, as the leaves of a flat buffer do.
const ALIGNMENT: i64 = 16;

/// The part of a flat buffer of that length that belongs to `rank` of `count`.
#[must_use]
pub fn shard(length: i64, rank: usize, count: usize) -> Range<i64> {
    let size = (length as u64).div_ceil(count as u64).next_multiple_of(ALIGNMENT as u64) as i64;
    let start = |rank: usize| (rank as i64 * size).min(length);
    start(rank)..start(rank + 1)
}

/// Replaces a flat buffer by its sum over all ranks.
///
/// # Errors
/// A rank that is gone or silent.
pub fn sum(ranks: &dyn Ranks, flat: &Tensor) -> Result<(), LearnerError> {
    in_buckets(ranks, flat, 0..flat.numel() as i64, |bucket| ranks.sum_tensor(bucket))
}

/// Gives each rank the sum over all ranks of its own shard; the values of the other shards are then of no use.
///
/// # Errors
/// A rank that is gone or silent.
pub fn sum_shards(ranks: &dyn Ranks, flat: &Tensor) -> Result<(), LearnerError> {
    by_owner(ranks, flat, |bucket, owner| ranks.sum_at(bucket, owner))
}

/// Gives every rank the shards of all ranks.
///
/// # Errors
/// A rank that is gone or silent.
pub fn gather(ranks: &dyn Ranks, flat: &Tensor) -> Result<(), LearnerError> {
    by_owner(ranks, flat, |bucket, owner| ranks.copy_of(bucket, owner))
}

/// Gives all ranks the flat buffer of the first.
///
/// # Errors
/// A rank that is gone or silent.
pub fn copy(ranks: &dyn Ranks, flat: &Tensor) -> Result<(), LearnerError> {
    in_buckets(ranks, flat, 0..flat.numel() as i64, |bucket| ranks.copy_of(bucket, 0))
}

fn by_owner(
    ranks: &dyn Ranks,
    flat: &Tensor,
    deed: impl Fn(&Tensor, usize) -> Result<(), LearnerError>,
) -> Result<(), LearnerError> {
    (0..ranks.count()).try_for_each(|owner| {
        let shard = shard(flat.numel() as i64, owner, ranks.count());
        in_buckets(ranks, flat, shard, |bucket| deed(bucket, owner))
    })
}

fn in_buckets(
    ranks: &dyn Ranks,
    flat: &Tensor,
    range: Range<i64>,
    deed: impl Fn(&Tensor) -> Result<(), LearnerError>,
) -> Result<(), LearnerError> {
    if ranks.count() == 1 {
        return Ok(());
    }
    let most = BUCKET_BYTES / flat.kind().elt_size_in_bytes() as i64;
    pieces(range, most).try_for_each(|bucket| {
        heartbeat::go_on();
        deed(&flat.narrow(0, bucket.start, bucket.end - bucket.start))
    })
}

/// A range in pieces of at most `most`.
pub(crate) fn pieces(range: Range<i64>, most: i64) -> impl Iterator<Item = Range<i64>> {
    let end = range.end;
    range.step_by(most as usize).map(move |start| start..(start + most).min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_pieces_are_the_whole_without_gaps() {
        for length in [0, 1, 16, 17, 1000, 12_345] {
            for count in 1..6 {
                let ends: Vec<i64> = (0..count).map(|rank| shard(length, rank, count).end).collect();
                let starts: Vec<i64> = (0..count).map(|rank| shard(length, rank, count).start).collect();
                assert_eq!((starts[0], ends[count - 1]), (0, length));
                assert_eq!(starts[1..], ends[..count - 1]);
                assert!(starts.iter().all(|start| start % ALIGNMENT == 0 || *start == length));
            }
        }
        assert_eq!(pieces(5..16, 4).collect::<Vec<_>>(), [5..9, 9..13, 13..16]);
        assert_eq!(pieces(5..5, 4).count(), 0);
    }
}
