//! Matrices of a base that is not trained, held in few bits and widened when they are used (QLoRA, Dettmers et al.
//! 2023, arXiv:2305.14314).

use exporters::{Codes, NF4};
use shared::{BaseFormat, model::base_format::BLOCK};
use tch::{Device, Kind, Tensor};

use super::parameters::Leaf;

/// A quantised matrix, `[out, in]`, or several of them below each other.
#[derive(Debug)]
pub(super) struct Coded {
    format: BaseFormat,
    /// `[out, bytes]`, as [`Codes::codes`] has them: int8, or uint8 for two numbers.
    codes: Tensor,
    /// `[out, blocks]`, float32.
    scales: Tensor,
    columns: i64,
    /// The two numbers of each byte, `[256, 2]`, where a byte has two.
    pairs: Option<Tensor>,
    /// The type of the widened numbers.
    kind: Kind,
}

impl Coded {
    /// A matrix of `columns` columns in this process's memory or on a device, to be widened to `kind`.
    pub(super) fn new(codes: &Codes, columns: usize, kind: Kind, device: Device) -> Self {
        let format = codes.format();
        let (bytes, blocks) = (format.row_bytes(columns), columns.div_ceil(format.block(columns)));
        let rows = codes.scales().len() / blocks.max(1);
        let stored = match format {
            BaseFormat::Int8 => Kind::Int8,
            BaseFormat::Nf4 => Kind::Uint8,
        };
        let of_codes = Tensor::from_data_size(codes.codes(), &[rows as i64, bytes as i64], stored);
        let scales = Tensor::from_slice(codes.scales()).view([rows as i64, blocks as i64]);
        Self {
            format,
            codes: of_codes.to_device(device),
            scales: scales.to_device(device),
            columns: columns as i64,
            pairs: (format == BaseFormat::Nf4).then(|| pairs().to_device(device)),
            kind,
        }
    }

    /// Matrices of one width and format, one below the other.
    pub(super) fn stacked(members: Vec<Self>) -> Option<Self> {
        let cat = |part: fn(&Self) -> &Tensor| Tensor::cat(&members.iter().map(part).collect::<Vec<_>>(), 0);
        let (codes, scales) = (cat(|member| &member.codes), cat(|member| &member.scales));
        let first = members.into_iter().next()?;
        Some(Self { codes, scales, ..first })
    }

    /// Rows of the matrix.
    pub(super) fn rows(&self) -> i64 {
        self.codes.size()[0]
    }

    /// The same memory under another handle.
    pub(super) fn shared(&self) -> Self {
        let pairs = self.pairs.as_ref().map(Tensor::shallow_clone);
        Self { codes: self.codes.shallow_clone(), scales: self.scales.shallow_clone(), pairs, ..*self }
    }

    /// The numbers that the codes stand for, `[out, in]`: those of [`Codes::values`], rounded to the type of the
    /// passes.
    pub(super) fn widened(&self) -> Tensor {
        let wide = match self.format {
            BaseFormat::Int8 => self.codes.to_kind(Kind::Float).g_mul_(&self.scales),
            BaseFormat::Nf4 => {
                let rows = self.codes.size()[0];
                let pairs = self.pairs.as_ref().expect("bytes of two numbers have a table");
                let numbers = pairs.index_select(0, &self.codes.view([-1]).to_kind(Kind::Int));
                let blocks = numbers.view([rows, -1, BLOCK as i64]).g_mul_(&self.scales.unsqueeze(-1));
                blocks.view([rows, -1]).narrow(1, 0, self.columns)
            }
        };
        wide.to_kind(self.kind)
    }
}

/// The two numbers of each byte, `[256, 2]`.
fn pairs() -> Tensor {
    let of_byte = |byte: usize| [NF4[byte >> 4], NF4[byte & 15]];
    Tensor::from_slice(&(0..=255).flat_map(of_byte).collect::<Vec<f32>>()).view([256, 2])
}

/// The weight of a linear map.
#[derive(Debug)]
pub(super) enum Matrix {
    /// With all digits.
    Whole(Leaf),
    /// Of a quantised base; frozen.
    Coded(Coded),
}

impl Matrix {
    /// `[out, in]`.
    pub(super) fn values(&self) -> Tensor {
        match self {
            Self::Whole(leaf) => leaf.values.shallow_clone(),
            Self::Coded(coded) => coded.widened(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widened_numbers_are_those_of_the_export() {
        for (format, columns) in [(BaseFormat::Int8, 40), (BaseFormat::Nf4, 40), (BaseFormat::Nf4, 192)] {
            let values: Vec<f32> = (0..6 * columns).map(|i| ((i * 7919) % 1013) as f32 / 311.0 - 1.5).collect();
            let [above, below] = [0..2, 2..6].map(|rows: std::ops::Range<usize>| {
                let values = &values[rows.start * columns..rows.end * columns];
                let codes = Codes::of(format, values, [rows.len(), columns]);
                (Coded::new(&codes, columns, Kind::Float, Device::Cpu), codes.values())
            });
            let expected = [above.1, below.1].concat();
            let stacked = Coded::stacked(vec![above.0, below.0]).unwrap();
            let found = Vec::<f32>::try_from(stacked.shared().widened().contiguous().view([-1])).unwrap();
            assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{format}");
            assert_eq!(found.len(), expected.len());
        }
    }
}
