//! Weights in blocks of a few bits, and the two operators of ONNX Runtime that read them: `MatMulNBits` multiplies with
//! such a weight, `GatherBlockQuantized` looks up its rows.
//!
//! Both compute `(code - 2^(bits - 1)) * scale`, a scale for every block of a row. They want the codes in shapes of
//! their own, so a weight that both read (a tied embedding) is declared twice over the same bytes.

use std::collections::BTreeMap;

use super::builder::{GraphBuilder, MICROSOFT, int};

/// Consecutive values of a row that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Activations are rounded to 8 bits in products, in blocks as the weights are. ONNX Runtime has fast kernels for the
/// CPU at this level alone, and its own builder of GenAI models chooses it too.
const ACCURACY_LEVEL: i64 = 4;

/// Bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    Four = 4,
    Eight = 8,
}

impl Bits {
    /// The code of 0.
    pub fn middle(self) -> u8 {
        1 << (self as u8 - 1)
    }

    /// Bytes of a block's codes.
    pub fn block_bytes(self) -> usize {
        BLOCK * self as usize / 8
    }
}

/// Form of a weight `[rows, columns]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockedWeight {
    pub bits: Bits,
    pub rows: usize,
    pub columns: usize,
}

impl BlockedWeight {
    /// Blocks of a row; the last one may be padded.
    pub fn blocks(&self) -> usize {
        self.columns.div_ceil(BLOCK)
    }
}

/// The weights of a graph that are in blocks, by the names of their parameters.
#[derive(Debug, Default)]
pub(crate) struct Blocked(pub BTreeMap<String, BlockedWeight>);

impl Blocked {
    /// Name of the codes `[rows, blocks, bytes]`, for products.
    pub fn codes_name(weight: &str) -> String {
        format!("{weight}.codes")
    }

    /// Name of the codes `[rows, blocks * bytes]`, for the look-up of rows.
    pub fn rows_name(weight: &str) -> String {
        format!("{weight}.rows")
    }

    /// Name of the scales `[rows, blocks]`.
    pub fn scales_name(weight: &str) -> String {
        format!("{weight}.scales")
    }

    /// `input @ weight.T (+ bias)`, if the weight is in blocks.
    pub fn product(
        &self,
        weight: &str,
        input: &str,
        bias: Option<&str>,
        name: &str,
        graph: &mut GraphBuilder,
    ) -> Option<String> {
        let form = self.0.get(weight)?;
        let attributes = [
            int("K", form.columns as i64),
            int("N", form.rows as i64),
            int("bits", form.bits as i64),
            int("block_size", BLOCK as i64),
            int("accuracy_level", ACCURACY_LEVEL),
        ];
        let (codes, scales) = (Self::codes_name(weight), Self::scales_name(weight));
        let mut inputs = vec![input, &codes, &scales];
        // Zero points and an order of the columns, which symmetric codes do not have, come before the bias.
        inputs.extend(bias.iter().flat_map(|bias| ["", "", *bias]));
        graph.operator(MICROSOFT, "MatMulNBits", name, &inputs, &[name], &attributes);
        Some(name.into())
    }

    /// The rows `ids` of a weight, if it is in blocks: `[ids, columns]`.
    pub fn rows(&self, weight: &str, ids: &str, name: &str, graph: &mut GraphBuilder) -> Option<String> {
        let form = self.0.get(weight)?;
        let is_padded = !form.columns.is_multiple_of(BLOCK);
        let whole = if is_padded { format!("{name}.padded") } else { name.into() };
        let inputs = [Self::rows_name(weight), ids.into(), Self::scales_name(weight)];
        let attributes = [
            int("bits", form.bits as i64),
            int("block_size", BLOCK as i64),
            int("gather_axis", 0),
            int("quantize_axis", 1),
        ];
        let inputs = inputs.each_ref().map(String::as_str);
        graph.operator(MICROSOFT, "GatherBlockQuantized", &whole, &inputs, &[&whole], &attributes);
        if is_padded {
            let begin = graph.integers("columns.begin", &[0]);
            let end = graph.integers("columns.end", &[form.columns as i64]);
            let axis = graph.integers("columns.axis", &[1]);
            graph.node("Slice", name, &[&whole, &begin, &end, &axis], &[]);
        }
        Some(name.into())
    }
}
