//! The tensors of a file under Hugging Face's names.

use std::collections::BTreeMap;

use super::{
    blocks,
    names::Stored,
    parse::{Gguf, Place},
};
use crate::{Rounding, Tensor, VerifyError, Weights};

/// What the logarithm of a rounded exponential may be off by.
const OF_LOGARITHM: f32 = 2.0 * f32::EPSILON;

/// The tensors of a file.
pub(super) struct File {
    pub gguf: Gguf,
    /// Names in the file by Hugging Face's.
    pub names: BTreeMap<String, Stored>,
}

impl File {
    fn tensor(&self, name: &str, part: Option<(usize, usize)>) -> Result<Tensor, VerifyError> {
        let place: &Place = &self.gguf.places()[name];
        let Some((part, parts)) = part else { return blocks::read(&self.gguf, name, place) };
        let place = blocks::part(place, part, parts)
            .ok_or_else(|| VerifyError::Differs(format!("{name} has not the shape of {parts} experts")))?;
        blocks::read(&self.gguf, name, &place)
    }
}

impl Weights for File {
    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        let missing = || VerifyError::Differs(format!("it has no tensor {name}"));
        let stored = self.names.get(name).ok_or_else(missing)?;
        let mut tensors = stored.names.iter().map(|name| self.tensor(name, stored.part));
        let mut tensor = tensors.next().ok_or_else(missing)??;
        for further in tensors {
            tensor = joined(tensor, further?).ok_or_else(|| {
                VerifyError::Differs(format!("{} have rows of several lengths or types", stored.names.join(" and ")))
            })?;
        }
        Ok(as_of_hugging_face(&stored.names[0], tensor))
    }
}

/// The rows of two tensors, one behind the other.
fn joined(mut first: Tensor, second: Tensor) -> Option<Tensor> {
    let ([rows, columns], [further, others]) = (&first.shape[..], &second.shape[..]) else { return None };
    if columns != others {
        return None;
    }
    let rounding = match (first.rounding, second.rounding) {
        (Rounding::Blocks(mut blocks), Rounding::Blocks(others)) => {
            let is_same = (blocks.lowest, blocks.highest) == (others.lowest, others.highest);
            blocks.scales.extend(others.scales);
            is_same.then_some(Rounding::Blocks(blocks))?
        }
        (rounding, other) => (rounding == other).then_some(rounding)?,
    };
    let shape = vec![rows + further, *columns];
    first.values.extend(second.values);
    Some(Tensor { shape, values: first.values, rounding })
}

/// Shapes and values that llama.cpp has of its own.
fn as_of_hugging_face(name: &str, mut tensor: Tensor) -> Tensor {
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    // A convolution of each channel by itself is a matrix.
    if ends(&[".shortconv.conv.weight", ".ssm_conv1d.weight"]) && tensor.shape.len() == 2 {
        tensor.shape.insert(1, 1);
    }
    // Numbers of heads are matrices of one column, and the norm has a row for each group.
    if ends(&[".ssm_a", ".ssm_d", ".ssm_norm.weight"]) {
        tensor.shape = vec![tensor.values.len()];
    }
    // The factor of a decay is stored itself, and not its logarithm.
    if ends(&[".ssm_a"]) {
        tensor.values.iter_mut().for_each(|value| *value = (-f64::from(*value)).ln() as f32);
        tensor.rounding = Rounding::Nearest { relative: OF_LOGARITHM, smallest: OF_LOGARITHM };
    }
    tensor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
        Tensor { shape: shape.to_vec(), values: values.to_vec(), rounding: Rounding::None }
    }

    #[test]
    fn rows_follow_each_other_if_they_are_alike() {
        let (gate, up) = (tensor(&[1, 2], &[1.0, 2.0]), tensor(&[2, 2], &[3.0, 4.0, 5.0, 6.0]));
        let both = joined(gate.clone(), up.clone()).unwrap();
        assert_eq!((both.shape, both.values), (vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!(joined(gate.clone(), tensor(&[2, 1], &[1.0, 2.0])), None, "rows of other lengths");
        let half = Rounding::Nearest { relative: 1.0, smallest: 1.0 };
        assert_eq!(joined(gate, Tensor { rounding: half, ..up }), None, "rows of another type");
    }

    #[test]
    fn a_decay_is_stored_as_its_factor() {
        let found = as_of_hugging_face("blk.0.ssm_a", tensor(&[2, 1], &[-(0.5_f32.exp()), 1.0]));
        assert_eq!(found.shape, [2]);
        assert!(found.rounding.allows(0.5, found.values[0], 0, 0.0) && found.values[1].is_nan());
        assert!(!found.rounding.allows(0.500_01, found.values[0], 0, 0.0));
    }
}
