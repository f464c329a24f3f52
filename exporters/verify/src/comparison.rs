//! The comparison of two models value by value.

use crate::{Architecture, Model, Rounding, VerifyError};

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
    let error = if let Rounding::Computed { error } = meant.rounding { error } else { 0.0 };
    for (index, &value) in meant.values.iter().enumerate() {
        let place = layout.place(index);
        let (value, other) = (value + offset, stored.values[place] + of_export);
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
    columns: usize,
    head_dim: usize,
    /// Whether rows of queries and keys are in another order, and if so, whether the export's is that of pairs.
    interleaved: Option<bool>,
    /// What the model and the export add to a value.
    offsets: [f32; 2],
}

impl Layout {
    fn of(name: &str, from: &Architecture, to: &Architecture, shape: &[usize]) -> Self {
        let rotated = [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part));
        let is_norm = name.ends_with("norm.weight");
        Self {
            columns: shape.get(1).copied().unwrap_or(1),
            head_dim: to.head_dim,
            interleaved: (rotated && from.interleaved != to.interleaved).then_some(to.interleaved),
            offsets: if is_norm { [from.norm_offset, to.norm_offset] } else { [0.0; 2] },
        }
    }

    /// Where the export has the model's value with this index.
    fn place(&self, index: usize) -> usize {
        self.interleaved.map_or(index, |to_interleaved| place(index, self.columns, self.head_dim, to_interleaved))
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
}
