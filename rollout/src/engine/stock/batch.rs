//! The small inputs of one call of the graph. The buffers are kept from call to call.

use std::ffi::c_void;

use crate::engine::sequence::DecodeRow;

/// Where the graph finds the integers of a call, `B` rows of `S` tokens; as [`Batch`] has them.
pub(in crate::engine) struct Inputs<'a> {
    pub rows: usize,
    pub width: usize,
    pub input_ids: *mut c_void,
    pub position_ids: *mut c_void,
    pub seqlens_k: *mut c_void,
    pub last_index: *mut c_void,
    /// Whether those are in the memory of the device.
    pub on_device: bool,
    /// In main memory.
    pub total_sequence_length: &'a i32,
}

/// Inputs of the graph, `B` rows of `S` tokens.
#[derive(Debug, Default)]
pub(in crate::engine) struct Batch {
    /// `B`.
    pub rows: usize,
    /// `S`.
    pub width: usize,
    /// `[B, S]`, padded on the right with 0.
    pub input_ids: Vec<i64>,
    /// `[B, S]`.
    pub position_ids: Vec<i64>,
    /// `[B]`: length of the row, this call included, minus 1.
    pub seqlens_k: Vec<i32>,
    /// `[B]`: where in `S` the row's last token is.
    pub last_index: Vec<i64>,
    /// Longest row, this call included.
    pub total_sequence_length: i32,
    /// Lengths of the rows, this call included, but for padding.
    pub positions: u64,
}

impl Batch {
    /// Prompts from their first tokens on.
    pub fn set_prefill<'a>(&mut self, prompts: impl Iterator<Item = &'a [u32]> + Clone) {
        let width = prompts.clone().map(<[u32]>::len).max().unwrap_or(0);
        self.clear(width);
        for prompt in prompts {
            self.input_ids.extend(prompt.iter().map(|&t| i64::from(t)));
            // Attention is causal: what the padding computes is seen by nobody, and its keys are written over.
            self.input_ids.resize((self.rows + 1) * width, 0);
            self.position_ids.extend(0..width as i64);
            self.positions += prompt.len() as u64;
            self.push_row(prompt.len(), prompt.len() - 1);
        }
    }

    /// One token for each row.
    pub fn set_decode(&mut self, rows: impl Iterator<Item = DecodeRow>) {
        self.clear(1);
        for DecodeRow { token, position } in rows {
            self.input_ids.push(i64::from(token));
            self.position_ids.push(position as i64);
            self.positions += position as u64 + 1;
            self.push_row(position + 1, 0);
        }
    }

    /// Lets the positions of each row begin at a row of the rotary tables.
    pub fn turn_from(&mut self, begins: impl Iterator<Item = usize>) {
        for (positions, begin) in self.position_ids.chunks_mut(self.width).zip(begins) {
            positions.iter_mut().for_each(|position| *position += begin as i64);
        }
    }

    /// Adds decode rows that nobody wants until there are `rows`: a token at the first position of slots after those in
    /// use.
    pub fn pad(&mut self, rows: usize) {
        assert_eq!(self.width, 1, "decode rows are padded");
        while self.rows < rows {
            self.input_ids.push(0);
            self.position_ids.push(0);
            self.push_row(1, 0);
        }
    }

    /// The batch for the graph.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            rows: self.rows,
            width: self.width,
            input_ids: self.input_ids.as_ptr().cast_mut().cast(),
            position_ids: self.position_ids.as_ptr().cast_mut().cast(),
            seqlens_k: self.seqlens_k.as_ptr().cast_mut().cast(),
            last_index: self.last_index.as_ptr().cast_mut().cast(),
            on_device: false,
            total_sequence_length: &self.total_sequence_length,
        }
    }

    fn clear(&mut self, width: usize) {
        self.rows = 0;
        self.width = width;
        self.total_sequence_length = 0;
        self.positions = 0;
        self.input_ids.clear();
        self.position_ids.clear();
        self.seqlens_k.clear();
        self.last_index.clear();
    }

    fn push_row(&mut self, length: usize, last: usize) {
        self.last_index.push(last as i64);
        self.rows += 1;
        self.seqlens_k.push(length as i32 - 1);
        self.total_sequence_length = self.total_sequence_length.max(length as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_carry_their_own_lengths() {
        let mut batch = Batch::default();
        batch.set_prefill([&[7, 8, 9][..], &[4]].into_iter());
        assert_eq!((batch.rows, batch.width, batch.total_sequence_length), (2, 3, 3));
        assert_eq!((&batch.input_ids[..], &batch.position_ids[..]), (&[7, 8, 9, 4, 0, 0][..], &[0, 1, 2, 0, 1, 2][..]));
        assert_eq!((&batch.seqlens_k[..], &batch.last_index[..]), (&[2, 0][..], &[2, 0][..]));
        batch.set_decode([DecodeRow { token: 5, position: 3 }, DecodeRow { token: 6, position: 10 }].into_iter());
        assert_eq!((batch.rows, batch.width, batch.total_sequence_length), (2, 1, 11));
        assert_eq!((&batch.input_ids[..], &batch.position_ids[..]), (&[5, 6][..], &[3, 10][..]));
        assert_eq!((&batch.seqlens_k[..], &batch.last_index[..]), (&[3, 10][..], &[0, 0][..]));
        batch.pad(4);
        assert_eq!((batch.rows, batch.width, batch.total_sequence_length, batch.positions), (4, 1, 11, 15));
        assert_eq!((&batch.input_ids[..], &batch.position_ids[..]), (&[5, 6, 0, 0][..], &[3, 10, 0, 0][..]));
        assert_eq!((&batch.seqlens_k[..], &batch.last_index[..]), (&[3, 10, 0, 0][..], &[0; 4][..]));
    }
}
