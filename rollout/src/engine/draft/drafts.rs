//! The drafts of a step.

/// For each row of a decode batch, the tokens that may follow its own.
#[derive(Debug, Default)]
pub(in crate::engine) struct Drafts {
    tokens: Vec<u32>,
    /// For each row the end of its tokens.
    ends: Vec<usize>,
}

impl Drafts {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.ends.clear();
    }

    /// Adds the next row.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.ends.push(self.tokens.len());
    }

    /// The drafts of a row; none of a row that was not added.
    pub fn of(&self, row: usize) -> &[u32] {
        self.ends.get(row).map_or(&[], |&end| &self.tokens[self.start(row)..end])
    }

    /// All of them.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Where the logits of a row begin when each row is followed by its drafts.
    pub fn first_row(&self, row: usize) -> usize {
        row + self.start(row)
    }

    fn start(&self, row: usize) -> usize {
        match row.min(self.ends.len()) {
            0 => 0,
            rows => self.ends[rows - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_lie_between_the_rows() {
        let mut drafts = Drafts::default();
        assert_eq!((drafts.of(2), drafts.first_row(2), drafts.len()), (&[][..], 2, 0));
        [&[5, 6][..], &[], &[7]].into_iter().for_each(|tokens| drafts.push(tokens));
        assert_eq!((drafts.of(0), drafts.of(1), drafts.of(2), drafts.of(3)), (&[5, 6][..], &[][..], &[7][..], &[][..]));
        assert_eq!([0, 1, 2, 3].map(|row| drafts.first_row(row)), [0, 3, 4, 6]);
    }
}
