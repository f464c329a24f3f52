//! The sizes and frequencies of a decoder-only transformer, as any format states them.

use std::fmt::Debug;

/// Activation of the MLP's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// Tanh approximation of GELU.
    GeluTanh,
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Attention over keys and values.
    Attention,
    /// A convolution of so many inputs of each channel, between two gates.
    ShortConv(usize),
    /// A gated delta rule behind a convolution.
    DeltaRule {
        /// Heads of queries and keys.
        key_heads: usize,
        /// Heads of values.
        value_heads: usize,
        /// Width of a query or key.
        key_dim: usize,
        /// Width of a value.
        value_dim: usize,
        /// Inputs of the convolution.
        kernel: usize,
    },
    /// A state space of Mamba-2 behind a convolution.
    Mamba {
        /// Heads.
        heads: usize,
        /// Width of a head.
        head_dim: usize,
        /// Groups of heads, which share `B` and `C`.
        groups: usize,
        /// Width of a `B` or a `C`.
        state_dim: usize,
        /// Inputs of the convolution.
        kernel: usize,
    },
}

/// A layer, and its attention if it has some.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// What it has.
    pub mixer: Mixer,
    /// Radians per position of each pair of a head, `head_dim / 2` of them or, where only the beginning of a head is
    /// turned, fewer; `None` for a layer without positions.
    pub frequencies: Option<Vec<f64>>,
    /// Positions that a query sees, its own and those right before it; `None` for all.
    pub window: Option<usize>,
    /// Width of a head, where it is not that of the other layers.
    pub head_dim: Option<usize>,
    /// The earlier layer whose keys and values it attends to, where it has none of its own.
    pub reads: Option<usize>,
}

impl Layer {
    /// A layer with attention.
    #[must_use]
    pub fn attention(frequencies: Option<Vec<f64>>, window: Option<usize>) -> Self {
        Self { mixer: Mixer::Attention, frequencies, window, head_dim: None, reads: None }
    }

    /// A layer with something else.
    #[must_use]
    pub fn of(mixer: Mixer) -> Self {
        Self { mixer, frequencies: None, window: None, head_dim: None, reads: None }
    }
}

/// Experts in the place of MLPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixture {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that compute a token.
    pub per_token: usize,
    /// Width of an expert.
    pub width: usize,
    /// Whether the probabilities of a token's experts are divided by their sum.
    pub normalised: bool,
}

/// A decoder with RMS norms, grouped-query attention or something in its place, and a gated MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Experts of the layers that have a router.
    pub mixture: Option<Mixture>,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Longest sequence.
    pub positions: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Its layers.
    pub layers: Vec<Layer>,
    /// Factor on attention scores.
    pub attention_scale: f64,
    /// Epsilon of the norms.
    pub epsilon: f64,
    /// Factor on embeddings.
    pub embedding_scale: f64,
    /// Factor on the outputs of attention and MLP.
    pub residual_scale: f64,
    /// Divisor of logits.
    pub logit_divisor: f64,
    /// Factor on cosines and sines.
    pub turn_scale: f64,
    /// A length, and the frequencies of all layers in sequences that are longer.
    pub beyond: Option<(usize, Vec<f64>)>,
    /// A length `n` and a factor `b`: the query at position `t` is multiplied with `1 + b ln(1 + floor(t / n))`.
    pub growth: Option<(usize, f64)>,
    /// Whether each head of queries and keys is normed.
    pub head_norms: bool,
    /// Whether each head of values is normed, without a weight.
    pub value_norms: bool,
    /// A bound `c` of logits, which become `c · tanh(logit / c)`.
    pub logit_cap: Option<f64>,
    /// Whether all queries, and all keys, of a token are normed together.
    pub width_norms: bool,
    /// Whether the result of attention has a gate for each entry, whose rows stand behind those of each query.
    pub gated: bool,
    /// Whether the inputs of attention and MLP are normed.
    pub input_norms: bool,
    /// Whether the outputs of attention and MLP are normed.
    pub output_norms: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// A matter of the format: what is added to the stored weights of norms.
    pub norm_offset: f32,
    /// A matter of the format: whether positions turn neighbouring values of a head (llama.cpp's order of rows), or
    /// values of its two halves (transformers').
    pub interleaved: bool,
    /// A matter of the format: whether value head `h` of a delta rule has key head `h mod key_heads` (llama.cpp's order
    /// of heads), or the value heads of a key head follow each other (transformers').
    pub tiled: bool,
}

/// Relative difference that two ways to write a number in fp32 or as text may have.
const SAME: f64 = 1e-6;

impl Architecture {
    /// The first size or frequency that another architecture has otherwise, in words. The matters of formats may
    /// differ.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let sizes = [
            ("hidden size", self.hidden_size, other.hidden_size),
            ("width of the MLP", self.intermediate_size, other.intermediate_size),
            ("vocabulary", self.vocab_size, other.vocab_size),
            ("longest sequence", self.positions, other.positions),
            ("number of heads", self.heads, other.heads),
            ("number of key and value heads", self.kv_heads, other.kv_heads),
            ("width of a head", self.head_dim, other.head_dim),
            ("number of layers", self.layers.len(), other.layers.len()),
        ];
        let numbers = [
            ("factor on attention scores", self.attention_scale, other.attention_scale),
            ("epsilon of norms", self.epsilon, other.epsilon),
            ("factor on embeddings", self.embedding_scale, other.embedding_scale),
            ("factor on outputs of blocks", self.residual_scale, other.residual_scale),
            ("divisor of logits", self.logit_divisor, other.logit_divisor),
            ("factor on cosines and sines", self.turn_scale, other.turn_scale),
        ];
        let flags = [
            ("norm of heads", self.head_norms, other.head_norms),
            ("norm of values", self.value_norms, other.value_norms),
            ("norm of all queries and keys", self.width_norms, other.width_norms),
            ("gate of attention", self.gated, other.gated),
            ("norm of inputs", self.input_norms, other.input_norms),
            ("norm of outputs", self.output_norms, other.output_norms),
            ("output layer that is the embedding", self.tied, other.tied),
        ];
        sizes
            .iter()
            .find_map(|(what, a, b)| (a != b).then(|| said(what, a, b)))
            .or_else(|| numbers.iter().find_map(|(what, a, b)| (!same(*a, *b)).then(|| said(what, a, b))))
            .or_else(|| flags.iter().find_map(|(what, a, b)| (a != b).then(|| said(what, a, b))))
            .or_else(|| {
                (self.activation != other.activation).then(|| said("activation", self.activation, other.activation))
            })
            .or_else(|| (self.mixture != other.mixture).then(|| said("experts", self.mixture, other.mixture)))
            .or_else(|| {
                let is_same = same_if(self.logit_cap, other.logit_cap, |a, b| same(*a, *b));
                (!is_same).then(|| said("bound of logits", self.logit_cap, other.logit_cap))
            })
            .or_else(|| {
                let is_same = same_if(self.growth, other.growth, |a, b| a.0 == b.0 && same(a.1, b.1));
                (!is_same).then(|| said("growth of queries", self.growth, other.growth))
            })
            .or_else(|| {
                let is_same =
                    same_if(self.beyond.as_ref(), other.beyond.as_ref(), |a, b| a.0 == b.0 && all_same(&a.1, &b.1));
                (!is_same).then(|| "its rotary positions in long sequences are others".to_owned())
            })
            .or_else(|| self.layers.iter().zip(&other.layers).enumerate().find_map(of_layers))
    }
}

fn of_layers((index, (a, b)): (usize, (&Layer, &Layer))) -> Option<String> {
    if a.mixer != b.mixer {
        return Some(said(&format!("layer {index}"), a.mixer, b.mixer));
    }
    if a.window != b.window {
        return Some(said(&format!("window of layer {index}"), a.window, b.window));
    }
    if a.head_dim != b.head_dim {
        return Some(said(&format!("width of a head in layer {index}"), a.head_dim, b.head_dim));
    }
    if a.reads != b.reads {
        return Some(said(&format!("layer with the keys of layer {index}"), a.reads, b.reads));
    }
    let what = |detail: &str| Some(format!("the rotary positions of layer {index} are others{detail}"));
    match (&a.frequencies, &b.frequencies) {
        (None, None) => None,
        (Some(a), Some(b)) if a.len() == b.len() => {
            let other = a.iter().zip(b).position(|(a, b)| !same(*a, *b))?;
            what(&format!(" (pair {other} turns by {:e} a position, the model's by {:e})", b[other], a[other]))
        }
        (a, b) => what(if a.is_some() == b.is_some() { "" } else { " (one of the two has none)" }),
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

fn all_same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(*a, *b))
}

/// Whether both are absent, or both are there and the same.
fn same_if<T>(a: Option<T>, b: Option<T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => is_same(&a, &b),
        _ => false,
    }
}

fn said(what: &str, model: impl Debug, export: impl Debug) -> String {
    format!("its {what} is {export:?}, the model's is {model:?}")
}

/// `theta^(-2i/d)`, the frequencies of unscaled rotary positions.
pub(crate) fn frequencies(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / head_dim as f64)).collect()
}

#[cfg(test)]
pub(crate) fn small() -> Architecture {
    Architecture {
        hidden_size: 4,
        intermediate_size: 8,
        mixture: None,
        vocab_size: 16,
        positions: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        layers: vec![Layer::attention(Some(frequencies(1e4, 4)), Some(5)); 2],
        attention_scale: 0.5,
        epsilon: 1e-5,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_divisor: 1.0,
        turn_scale: 1.0,
        beyond: None,
        growth: None,
        head_norms: false,
        value_norms: false,
        logit_cap: None,
        width_norms: false,
        gated: false,
        input_norms: true,
        output_norms: false,
        activation: Activation::Silu,
        tied: true,
        norm_offset: 0.0,
        interleaved: false,
        tiled: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Architecture);

    #[test]
    fn every_difference_is_named_but_those_of_formats() {
        let model = small();
        let changes: [(&str, Change); 21] = [
            ("hidden size is 5, the model's is 4", |a| a.hidden_size = 5),
            ("longest sequence", |a| a.positions = 64),
            ("number of layers", |a| drop(a.layers.pop())),
            ("factor on attention scores", |a| a.attention_scale = 0.500_01),
            ("epsilon of norms", |a| a.epsilon = 1e-6),
            ("norm of heads", |a| a.head_norms = true),
            ("divisor of logits is 2.0", |a| a.logit_divisor = 2.0),
            ("growth of queries", |a| a.growth = Some((16, 0.1))),
            ("rotary positions in long sequences", |a| a.beyond = Some((16, vec![1.0, 0.5]))),
            ("output layer that is the embedding", |a| a.tied = false),
            ("activation is GeluTanh", |a| a.activation = Activation::GeluTanh),
            ("window of layer 1", |a| a.layers[1].window = None),
            ("rotary positions of layer 0 are others (pair 1 turns by 5e-3", |a| {
                a.layers[0].frequencies.as_mut().unwrap()[1] = 5e-3;
            }),
            ("rotary positions of layer 1 are others (one", |a| a.layers[1].frequencies = None),
            ("width of a head", |a| a.head_dim = 2),
            ("gate of attention is true", |a| a.gated = true),
            ("norm of values is true", |a| a.value_norms = true),
            ("bound of logits is Some(30.0)", |a| a.logit_cap = Some(30.0)),
            ("width of a head in layer 1 is Some(8)", |a| a.layers[1].head_dim = Some(8)),
            ("layer with the keys of layer 1 is Some(0)", |a| a.layers[1].reads = Some(0)),
            ("layer 1 is ShortConv(3), the model's is Attention", |a| a.layers[1] = Layer::of(Mixer::ShortConv(3))),
        ];
        for (words, change) in changes {
            let mut other = model.clone();
            change(&mut other);
            let found = model.difference(&other).unwrap_or_default();
            assert!(found.contains(words), "{words}: {found}");
        }
        let rounded = |number: f64| f64::from(number as f32);
        let long = |of: fn(f64) -> f64| Some((16, vec![1.0, of(0.3)]));
        let model = Architecture { growth: Some((16, 0.1)), beyond: long(|n| n), logit_cap: Some(0.3), ..model };
        let other = Architecture {
            norm_offset: 1.0,
            interleaved: true,
            tiled: true,
            epsilon: rounded(1e-5),
            growth: Some((16, rounded(0.1))),
            beyond: long(|n| f64::from(n as f32)),
            logit_cap: Some(rounded(0.3)),
            ..model.clone()
        };
        assert_eq!(model.difference(&other), None);
        for wrong in [
            Architecture { growth: Some((16, 0.11)), ..model.clone() },
            Architecture { beyond: long(|n| n / 2.0), ..model.clone() },
            Architecture { logit_cap: Some(0.31), ..model.clone() },
        ] {
            assert!(model.difference(&wrong).is_some(), "{wrong:?}");
        }
    }
}
