//! The rows that each rank passes over.

use std::cmp::Reverse;

use super::{Sequence, by_prompt};

/// The rows that `rank` of `ranks` passes over, in the order of `rows`: whole groups, so that a prompt goes through
/// once.
///
/// Groups are given out from the longest to the shortest, each to the rank with the fewest tokens; ties go to the
/// first. So the first rank has rows whenever any rank has.
#[must_use]
pub fn share(sequences: &[Sequence<'_>], rows: &[usize], rank: usize, ranks: usize) -> Vec<usize> {
    if ranks == 1 {
        return rows.to_vec();
    }
    let positions = |group: &Vec<usize>| {
        sequences[group[0]].prompt.len() + group.iter().map(|&row| sequences[row].fed()).sum::<usize>()
    };
    let mut groups = by_prompt(sequences, rows);
    groups.sort_by_key(|group| Reverse(positions(group)));
    let (mut loads, mut own) = (vec![0; ranks], vec![false; sequences.len()]);
    for group in &groups {
        let least = (0..ranks).min_by_key(|&rank| loads[rank]).unwrap_or(0);
        loads[least] += positions(group);
        group.iter().for_each(|&row| own[row] = least == rank);
    }
    rows.iter().copied().filter(|&row| own[row]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_whole_and_ranks_are_balanced() {
        let prompts = [[1_u32; 4], [2; 4], [3; 4], [4; 4]];
        let completions: [&[u32]; 4] = [&[7; 40], &[7; 11], &[7; 21], &[7; 8]];
        // Two completions of each prompt, and not side by side.
        let sequences: Vec<Sequence<'_>> = (0..8).map(|i| Sequence::new(&prompts[i % 4], completions[i % 4])).collect();
        let rows = [6, 0, 1, 5, 2, 3, 7, 4];
        assert_eq!(share(&sequences, &rows, 0, 1), rows);
        assert_eq!(share(&sequences, &rows, 0, 2), [0, 4], "the longest group is as long as the others together");
        assert_eq!(share(&sequences, &rows, 1, 2), [6, 1, 5, 2, 3, 7]);
        let mut all: Vec<usize> = (0..3).flat_map(|rank| share(&sequences, &rows, rank, 3)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
        assert!(share(&sequences, &rows[..1], 2, 3).is_empty(), "fewer groups than ranks");
    }
}
