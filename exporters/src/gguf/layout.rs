//! What is done to the values of a tensor: another order of rows or columns, and other numbers for the same thing.

use std::borrow::Cow;

use shared::{Architecture, LayerKind, ModelConfig};

/// What is done to the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub order: Order,
    pub change: Change,
}

/// An order of rows or columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// That of Hugging Face.
    Same,
    /// The rows of each head are reordered, for positions that turn neighbouring values: row `half * d/2 + pair`
    /// becomes row `2 pair + half`.
    Paired { head_dim: usize },
    /// Behind so many rows, those of value heads are reordered.
    Rows { begin: usize, heads: Heads },
    /// The columns of value heads are reordered.
    Columns(Heads),
}

/// Value heads, of which several may share a key head. llama.cpp takes key head `h mod key_heads` for value head `h`,
/// so the first value heads of all key heads come first, then the second ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heads {
    pub key_heads: usize,
    /// Value heads of a key head.
    pub sharing: usize,
    /// Rows or columns of a value head.
    pub width: usize,
}

impl Heads {
    /// Reorders as many elements.
    fn reordered<T: Copy>(self, from: &[T]) -> Vec<T> {
        let heads: Vec<&[T]> = from.chunks_exact(self.width).collect();
        let member = |member: usize| (0..self.key_heads).map(move |group| group * self.sharing + member);
        (0..self.sharing).flat_map(member).flat_map(|head| heads[head]).copied().collect()
    }
}

/// Other numbers for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// 1 is added: llama.cpp's norms multiply with what is stored.
    PlusOne,
    /// `-e^x`: llama.cpp has the factor of a decay, and not its logarithm.
    MinusExponential,
}

impl Layout {
    /// That of a parameter.
    pub fn of(source: &str, config: &ModelConfig) -> Self {
        Self { order: Order::of(source, config), change: Change::of(source, config) }
    }

    /// The values of a tensor with rows of this length.
    pub fn applied<'v>(self, values: &'v [f32], columns: usize) -> Cow<'v, [f32]> {
        let changed: Cow<'v, [f32]> = match self.change {
            Change::None => values.into(),
            Change::PlusOne => values.iter().map(|value| value + 1.0).collect(),
            Change::MinusExponential => values.iter().map(|value| -value.exp()).collect(),
        };
        if self.order == Order::Same {
            return changed;
        }
        let rows: Vec<&[f32]> = changed.chunks_exact(columns).collect();
        match self.order {
            Order::Same => unreachable!("these values are left where they are"),
            Order::Paired { head_dim } => {
                let of_head = |head: &[&[f32]]| -> Vec<f32> {
                    let (first, second) = head.split_at(head_dim / 2);
                    first.iter().zip(second).flat_map(|(a, b)| [*a, *b]).flatten().copied().collect()
                };
                rows.chunks_exact(head_dim).flat_map(of_head).collect()
            }
            Order::Rows { begin, heads } => {
                let (first, others) = rows.split_at(begin);
                first.iter().copied().chain(heads.reordered(others)).flatten().copied().collect()
            }
            Order::Columns(heads) => rows.into_iter().flat_map(|row| heads.reordered(row)).collect(),
        }
    }
}

impl Order {
    fn of(source: &str, config: &ModelConfig) -> Self {
        use Architecture::{GraniteMoeHybrid, Llama, Ministral3, SmolLm3};
        let pairs = matches!(config.architecture, Llama | SmolLm3 | Ministral3 | GraniteMoeHybrid);
        if pairs && [".q_proj.", ".k_proj."].iter().any(|part| source.contains(part)) {
            return Self::Paired { head_dim: config.head_dim };
        }
        let rule = config.layers.iter().find_map(|layer| match layer {
            LayerKind::DeltaRule(rule) => Some(*rule),
            LayerKind::Attention(_) | LayerKind::ShortConv(_) | LayerKind::Mamba(_) => None,
        });
        let (Some(rule), Some((_, part))) = (rule, source.split_once(".linear_attn.")) else { return Self::Same };
        let (key_heads, sharing) = (rule.key_heads, rule.value_heads / rule.key_heads);
        let heads = |width| Heads { key_heads, sharing, width };
        match part {
            _ if sharing == 1 => Self::Same,
            "in_proj_qkv.weight" | "conv1d.weight" => {
                Self::Rows { begin: 2 * rule.keys(), heads: heads(rule.value_dim) }
            }
            "in_proj_z.weight" => Self::Rows { begin: 0, heads: heads(rule.value_dim) },
            "in_proj_a.weight" | "in_proj_b.weight" | "dt_bias" | "A_log" => Self::Rows { begin: 0, heads: heads(1) },
            "out_proj.weight" => Self::Columns(heads(rule.value_dim)),
            _ => Self::Same,
        }
    }
}

impl Change {
    fn of(source: &str, config: &ModelConfig) -> Self {
        // The norm within a delta rule is stored as it is.
        let is_norm = source.ends_with("norm.weight") && !source.ends_with(".linear_attn.norm.weight");
        if source.ends_with(".A_log") {
            Self::MinusExponential
        } else if config.norm_offset() != 0.0 && is_norm {
            Self::PlusOne
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(order: Order, change: Change, values: &[f32], columns: usize) -> Vec<f32> {
        Layout { order, change }.applied(values, columns).into_owned()
    }

    #[test]
    fn the_halves_of_a_head_become_pairs_and_norms_count_from_one() {
        let rows: Vec<f32> = (0..16).map(|n| n as f32).collect();
        let paired = Order::Paired { head_dim: 4 };
        let expected = [0., 1., 4., 5., 2., 3., 6., 7., 8., 9., 12., 13., 10., 11., 14., 15.];
        assert_eq!(applied(paired, Change::None, &rows, 2), expected);
        assert_eq!(applied(paired, Change::None, &[0., 1., 2., 3.], 1), [0., 2., 1., 3.], "a bias");
        assert_eq!(applied(Order::Same, Change::PlusOne, &[0.25, -1.0], 1), [1.25, 0.0]);
    }

    #[test]
    fn value_heads_go_round_the_key_heads_and_decays_are_factors() {
        // Two key heads with two value heads each: 0 1, 2 3 become 0 2, 1 3.
        let heads = |width| Heads { key_heads: 2, sharing: 2, width };
        let numbers: Vec<f32> = (0..12).map(|n| n as f32).collect();
        let behind = Order::Rows { begin: 2, heads: heads(1) };
        assert_eq!(applied(behind, Change::None, &numbers, 2), [0., 1., 2., 3., 4., 5., 8., 9., 6., 7., 10., 11.]);
        let columns = Order::Columns(heads(2));
        assert_eq!(applied(columns, Change::None, &numbers[..8], 8), [0., 1., 4., 5., 2., 3., 6., 7.]);
        let first = Order::Rows { begin: 0, heads: heads(1) };
        let decays = applied(first, Change::MinusExponential, &[0.0, 1.0, -1.0, 0.5], 1);
        assert_eq!(decays, [0.0_f32, -1.0, 1.0, 0.5].map(|x| -x.exp()));
    }
}
