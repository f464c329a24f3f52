//! The parameters of a graph: tensors of floats, and tensors of codes with a scale for each block.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::graph::Graph;
use crate::{Blocks, Rounding, Tensor, VerifyError, Weights, file::Pieces};

/// Where the values of a parameter are.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// A tensor of its own name.
    Floats,
    /// Codes of some bits, of which `length` consecutive ones of a row share a scale.
    ///
    /// Operators want the codes in shapes of their own, so a tensor that several of them read may be there under
    /// several names.
    Blocks { codes: Vec<String>, scales: String, columns: usize, bits: usize, length: usize },
}

impl Form {
    /// Takes in what a second operator says of the same weight.
    fn merge(&mut self, other: Self) -> Result<(), VerifyError> {
        let unlike = format!("two operators read the same weight otherwise: {self:?} and {other:?}");
        match (self, other) {
            (
                Self::Blocks { codes, scales, columns, bits, length },
                Self::Blocks { codes: more, scales: s, columns: c, bits: b, length: l },
            ) if (&*scales, *columns, *bits, *length) == (&s, c, b, l) => codes.extend(more),
            _ => return Err(VerifyError::Differs(unlike)),
        }
        Ok(())
    }
}

/// All parameters, by Hugging Face's names.
pub(super) struct Parameters {
    graph: Graph,
    data: Pieces,
    forms: BTreeMap<String, Form>,
}

impl Parameters {
    /// Finds the blocks by the operators that read them. Every other tensor beside the graph is a parameter, or one of
    /// the rotary tables. Rows that are looked up have `width` values; their blocks may be padded.
    pub fn of(graph: Graph, data: Pieces, width: usize) -> Result<Self, VerifyError> {
        let mut forms: BTreeMap<String, Form> = BTreeMap::new();
        let mut used: BTreeSet<String> = graph.attentions().into_iter().filter_map(|a| a.tables).flatten().collect();
        for node in &graph.nodes {
            let number = |name: &str| node.integer(name).and_then(|number| usize::try_from(number).ok());
            let (place, columns) = match node.operator.as_str() {
                "MatMulNBits" => (1, number("K")),
                "GatherBlockQuantized" => (0, Some(width)),
                _ => continue,
            };
            let (Some(codes), Some(scales)) = (node.inputs.get(place), node.inputs.get(2)) else { continue };
            used.extend([codes.clone(), scales.clone()]);
            let (bits, length) = (number("bits"), number("block_size"));
            let (Some(columns), Some(bits @ (4 | 8)), Some(length @ 2..)) = (columns, bits, length) else {
                return Err(VerifyError::Differs(format!("the blocks of its tensor {codes} are not read here")));
            };
            let name = codes.trim_end_matches(".codes").trim_end_matches(".rows").to_owned();
            let (codes, scales) = (vec![codes.clone()], scales.clone());
            let form = Form::Blocks { codes, scales, columns, bits, length };
            match forms.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(form)),
                Entry::Occupied(mut entry) => entry.get_mut().merge(form)?,
            }
        }
        let floats = graph.outside().filter(|name| !used.contains(*name));
        forms.extend(floats.map(|name| (name.to_owned(), Form::Floats)).collect::<Vec<_>>());
        Ok(Self { graph, data, forms })
    }

    fn blocks(&self, form: &Form) -> Result<Tensor, VerifyError> {
        let Form::Blocks { codes, scales, columns, bits, length } = form else { unreachable!("of blocks alone") };
        let (columns, bits, length) = (*columns, *bits, *length);
        let first = &codes[0];
        let (shape, bytes) = self.graph.codes(first, &self.data)?;
        for other in &codes[1..] {
            if self.graph.codes(other, &self.data)?.1 != bytes {
                return Err(VerifyError::Differs(format!("its tensors {first} and {other} have other codes")));
            }
        }
        let scales = self.graph.floats(scales, &self.data)?.values;
        let (rows, blocks) = (shape.first().copied().unwrap_or(0), columns.div_ceil(length));
        let stride = blocks * length * bits / 8;
        if stride == 0 || bytes.len() != rows * stride || scales.len() != rows * blocks {
            return Err(VerifyError::Differs(format!(
                "tensor {first} has {} bytes and {} scales for {rows} rows of {columns} values",
                bytes.len(),
                scales.len()
            )));
        }
        let middle = 1_i16 << (bits - 1);
        let code = |row: &[u8], column: usize| {
            let byte = row[column * bits / 8];
            // Of two codes in a byte, the first is the low half.
            let code = if bits == 8 { byte } else { byte >> (column % 2 * 4) & 15 };
            f32::from(i16::from(code) - middle)
        };
        let mut values = Vec::with_capacity(rows * columns);
        for (row, scales) in bytes.chunks_exact(stride).zip(scales.chunks_exact(blocks)) {
            values.extend((0..columns).map(|column| code(row, column) * scales[column / length]));
        }
        let (lowest, highest) = ((-middle) as i8, (middle - 1) as i8);
        let rounding = Blocks { scales, length, columns, lowest, highest, rounded_scales: false };
        Ok(Tensor { shape: vec![rows, columns], values, rounding: Rounding::Blocks(rounding) })
    }
}

impl Weights for Parameters {
    fn names(&self) -> Vec<String> {
        self.forms.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        match self.forms.get(name) {
            Some(Form::Floats) => self.graph.floats(name, &self.data),
            Some(blocks) => self.blocks(blocks),
            None => Err(VerifyError::Differs(format!("it has no tensor {name}"))),
        }
    }
}
