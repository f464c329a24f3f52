//! Lists of different lengths in one flat buffer, such as a value for each token of a batch of completions.

use std::ops::{Index, IndexMut, Range};

/// Rows of different lengths, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged<T> {
    /// Where each row begins, and where the last one ends.
    offsets: Vec<usize>,
    values: Vec<T>,
}

impl<T> Ragged<T> {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows in order.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &[T]> + Clone {
        self.offsets.windows(2).map(|ends| &self.values[ends[0]..ends[1]])
    }

    /// The length of each row.
    pub fn lengths(&self) -> impl Iterator<Item = usize> {
        self.offsets.windows(2).map(|ends| ends[1] - ends[0])
    }

    /// The values of all rows.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values of all rows, to be changed.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Rows of the same lengths, with `of` applied to each value.
    #[must_use]
    pub fn map<U>(&self, of: impl FnMut(&T) -> U) -> Ragged<U> {
        Ragged { offsets: self.offsets.clone(), values: self.values.iter().map(of).collect() }
    }

    fn span(&self, row: usize) -> Range<usize> {
        self.offsets[row]..self.offsets[row + 1]
    }
}

impl<T: Clone> Ragged<T> {
    /// Rows of the given lengths with the same value everywhere.
    #[must_use]
    pub fn filled(value: T, lengths: impl IntoIterator<Item = usize>) -> Self {
        lengths.into_iter().map(|length| std::iter::repeat_n(value.clone(), length)).collect()
    }

    /// The given rows, back to back.
    #[must_use]
    pub fn gather(&self, rows: &[usize]) -> Vec<T> {
        rows.iter().flat_map(|&row| self[row].iter().cloned()).collect()
    }

    /// The reverse of [`Self::gather`]: sets the given rows to `values`, which are back to back.
    ///
    /// # Panics
    /// When `values` has another length than the rows together.
    pub fn scatter(&mut self, rows: &[usize], values: &[T]) {
        let mut rest = values;
        for &row in rows {
            let (own, others) = rest.split_at(self.span(row).len());
            self[row].clone_from_slice(own);
            rest = others;
        }
        assert!(rest.is_empty(), "{} values are left over", rest.len());
    }
}

impl<T> Default for Ragged<T> {
    /// No rows.
    fn default() -> Self {
        Self { offsets: vec![0], values: Vec::new() }
    }
}

impl<T, Row: IntoIterator<Item = T>> FromIterator<Row> for Ragged<T> {
    fn from_iter<Rows: IntoIterator<Item = Row>>(rows: Rows) -> Self {
        let mut found = Self::default();
        for row in rows {
            found.values.extend(row);
            found.offsets.push(found.values.len());
        }
        found
    }
}

impl<T> Index<usize> for Ragged<T> {
    type Output = [T];

    fn index(&self, row: usize) -> &[T] {
        &self.values[self.span(row)]
    }
}

impl<T> IndexMut<usize> for Ragged<T> {
    fn index_mut(&mut self, row: usize) -> &mut [T] {
        let span = self.span(row);
        &mut self.values[span]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_can_be_scattered_in_any_order() {
        let rows: Ragged<u32> = [vec![1, 2], vec![], vec![3], vec![4, 5, 6]].into_iter().collect();
        assert_eq!(rows.lengths().collect::<Vec<_>>(), [2, 0, 1, 3]);
        let order = [3, 1, 0];
        let gathered = rows.gather(&order);
        assert_eq!(gathered, [4, 5, 6, 1, 2]);
        let mut copy = Ragged::filled(0, rows.lengths());
        copy.scatter(&order, &gathered);
        assert_eq!(copy.rows().collect::<Vec<_>>(), [&[1, 2][..], &[], &[0], &[4, 5, 6]]);
        copy.scatter(&[2], &[3]);
        assert_eq!(copy, rows);
    }
}
