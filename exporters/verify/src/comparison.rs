//! The comparison of two models value by value.

use crate::{Architecture, Layer, Mixer, Model, Rounding, VerifyError};

/// Compares every value of every tensor: each must lie within the rounding of the export's type. The layouts that a
/// format has of its own (the order of the rows of queries and keys, the weights of norms) are undone.
///
/// # Errors
/// The first tensor that is missing, too many, of another shape or of other values, by name and place.
pub fn compare_tensors(source: &Model, export: &Model) -> Result<(), VerifyError> {
    let (mut expected, mut found) = (source.weights().names(), export.weights().names());
    expected.sort();
    found.sort();
    if let Some(name) = expected.iter().find(|name| !found.contains(name)) {
        return Err(VerifyError::Differs(format!("it has no tensor {name}")));
    }
    if let Some(name) = found.iter().find(|name| !expected.contains(name)) {
        return Err(VerifyError::Differs(format!("it has a tensor {name}, which the model does not have")));
    }
    expected.iter().try_for_each(|name| compare_tensor(name, source, export))
}

fn compare_tensor(name: &str, source: &Model, export: &Model) -> Result<(), VerifyError> {
    let (meant, stored) = (source.weights().read(name)?, export.weights().read(name)?);
    if meant.shape != stored.shape {
        let message = format!("tensor {name} has the shape {:?}, the model's has {:?}", stored.shape, meant.shape);
        return Err(VerifyError::Differs(message));
    }
    let layout = Layout::of(name, source.architecture(), export.architecture(), &meant.shape);
    let [offset, of_export] = layout.offsets;
    // What was rounded is the value as the export has it. The difference comes first: it is 0, or the sum is rounded.
    let shift = offset - of_export;
    let error = if let Rounding::Computed { error } = meant.rounding { error } else { 0.0 };
    for (index, &value) in meant.values.iter().enumerate() {
        let place = layout.place(index);
        let (value, other) = (value + shift, stored.values[place]);
        if !stored.rounding.allows(value, other, place, error) {
            let message = format!(
                "value {index} of tensor {name} is {other}, the model's is {value}: more than the rounding of its type"
            );
            return Err(VerifyError::Differs(message));
        }
    }
    Ok(())
}

/// The values of a tensor of an export as the model has them: in its order of rows, and with its weights of norms.
///
/// # Errors
/// A tensor that cannot be read.
pub fn values_as_of(model: &Architecture, export: &Model, name: &str) -> Result<Vec<f32>, VerifyError> {
    let stored = export.weights().read(name)?;
    let layout = Layout::of(name, model, export.architecture(), &stored.shape);
    let [offset, of_export] = layout.offsets;
    let value = |index: usize| stored.values[layout.place(index)] + of_export - offset;
    Ok((0..stored.values.len()).map(value).collect())
}

/// How an export's layout of a tensor differs from the model's.
struct Layout {
    /// Values of a row.
    columns: usize,
    order: Order,
    /// What the model and the export add to a value.
    offsets: [f32; 2],
}

/// Where an export has the rows or columns of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Where the model has them.
    Same,
    /// Rows of queries and keys in the other layout of rotary pairs, and whether this is that of pairs.
    Pairs { head_dim: usize, to_interleaved: bool },
    /// Rows of value heads in another order, behind so many rows of queries and keys.
    Rows { begin: usize, heads: Heads },
    /// Columns of value heads likewise.
    Columns(Heads),
}

/// Heads in groups, of which the first ones of all groups come first in the other order, then the second ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heads {
    groups: usize,
    of_group: usize,
    /// Rows or columns of a head.
    width: usize,
}

impl Heads {
    /// Where the other order has a row or column.
    fn place(self, index: usize) -> usize {
        let (head, within) = (index / self.width, index % self.width);
        let (group, member) = (head / self.of_group, head % self.of_group);
        (member * self.groups + group) * self.width + within
    }
}

impl Layout {
    fn of(name: &str, from: &Architecture, to: &Architecture, shape: &[usize]) -> Self {
        let is_norm = name.ends_with("norm.weight") && !name.ends_with(".linear_attn.norm.weight");
        Self {
            columns: shape.iter().skip(1).product(),
            order: Order::of(name, from, to),
            offsets: if is_norm { [from.norm_offset, to.norm_offset] } else { [0.0; 2] },
        }
    }

    /// Where the export has the model's value with this index.
    fn place(&self, index: usize) -> usize {
        let (row, column) = (index / self.columns, index % self.columns);
        let at = |row: usize, column: usize| row * self.columns + column;
        match self.order {
            Order::Same => index,
            Order::Pairs { head_dim, to_interleaved } => place(index, self.columns, head_dim, to_interleaved),
            Order::Rows { begin, .. } if row < begin => index,
            Order::Rows { begin, heads } => at(begin + heads.place(row - begin), column),
            Order::Columns(heads) => at(row, heads.place(column)),
        }
    }
}

impl Order {
    fn of(name: &str, from: &Architecture, to: &Architecture) -> Self {
        let rotated = [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part));
        if rotated && from.interleaved != to.interleaved {
            return Self::Pairs { head_dim: to.head_dim, to_interleaved: to.interleaved };
        }
        let rule = to.layers.iter().find(|layer| matches!(layer.mixer, Mixer::DeltaRule { .. }));
        let part = name.split_once(".linear_attn.").map(|(_, part)| part);
        let (Some(Layer { mixer, .. }), Some(part)) = (rule.filter(|_| from.tiled != to.tiled), part) else {
            return Self::Same;
        };
        let Mixer::DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = *mixer else { return Self::Same };
        let shared = value_heads / key_heads;
        let (groups, of_group) = if to.tiled { (key_heads, shared) } else { (shared, key_heads) };
        let heads = |width| Heads { groups, of_group, width };
        match part {
            "in_proj_qkv.weight" | "conv1d.weight" => {
                Self::Rows { begin: 2 * key_heads * key_dim, heads: heads(value_dim) }
            }
            "in_proj_z.weight" => Self::Rows { begin: 0, heads: heads(value_dim) },
            "in_proj_a.weight" | "in_proj_b.weight" | "dt_bias" | "A_log" => Self::Rows { begin: 0, heads: heads(1) },
            "out_proj.weight" => Self::Columns(heads(value_dim)),
            _ => Self::Same,
        }
    }
}

/// Where the other layout of rotary pairs has the value with this index of the layout in halves, or the reverse:
/// row `half * d/2 + pair` of a head is row `2 pair + half` with interleaved pairs.
fn place(index: usize, columns: usize, head_dim: usize, to_interleaved: bool) -> usize {
    let (row, column) = (index / columns, index % columns);
    let (head, within) = (row / head_dim, row % head_dim);
    let within = if to_interleaved {
        2 * (within % (head_dim / 2)) + within / (head_dim / 2)
    } else {
        within % 2 * (head_dim / 2) + within / 2
    };
    (head * head_dim + within) * columns + column
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_layouts_of_rows_are_each_others_reverse() {
        let there: Vec<usize> = (0..24).map(|index| place(index, 3, 4, true)).collect();
        assert_eq!(there[..12], [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11], "rows 0 1 2 3 of a head go to 0 2 1 3");
        for (index, &moved) in there.iter().enumerate() {
            assert_eq!(place(moved, 3, 4, false), index);
        }
    }

    #[test]
    fn heads_that_follow_each_other_go_round_and_back() {
        // Two key heads with three value heads each, of two rows: 0 1 2, 3 4 5 go to 0 3, 1 4, 2 5.
        let there = Heads { groups: 2, of_group: 3, width: 2 };
        let back = Heads { groups: 3, of_group: 2, width: 2 };
        let places: Vec<usize> = (0..12).map(|row| there.place(row)).collect();
        assert_eq!(places, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        assert!(places.iter().enumerate().all(|(row, &place)| back.place(place) == row));
        let layout = |order| Layout { columns: 12, order, offsets: [0.0; 2] };
        let rows = layout(Order::Rows { begin: 4, heads: there });
        assert_eq!([rows.place(3 * 12 + 7), rows.place(6 * 12 + 7)], [3 * 12 + 7, 8 * 12 + 7]);
        assert_eq!(layout(Order::Columns(there)).place(5 * 12 + 2), 5 * 12 + 4);
    }
}
