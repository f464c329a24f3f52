//! What mixes the tokens of a layer beside its products: norms, convolutions, rates.

use rollout_kernels::{
    linear::Norm,
    recurrent::{Taps, delta_rule, mamba, short_conv},
};
use shared::{AttentionKind, DeltaRule, LayerKind, Mamba, ModelConfig, ShortConv};

use super::cache::place_of;

/// A layer's mixer, and where it has its memory: the pool of pages, and the number in the pool or among the states.
pub(super) struct Mixer {
    kind: Kind,
    pool: usize,
    place: usize,
}

/// A layer's attention.
pub(super) struct AttentionPart {
    pub kind: AttentionKind,
    /// Factors of the norms of queries and, where the layer has its own, of keys.
    norms: Vec<Vec<f32>>,
    /// Factors of the norm of values, all of them 1.
    value_norm: Option<Vec<f32>>,
    /// Whether an earlier layer has stored the keys and values.
    pub is_reader: bool,
}

impl AttentionPart {
    fn new(config: &ModelConfig, layer: usize, kind: AttentionKind, norm: impl Fn(&str) -> Vec<f32>) -> Self {
        let is_reader = config.shares_keys_of(layer).is_some();
        let normed = match config.query_and_key_norms(layer) {
            Some(_) if is_reader => 1,
            Some(_) => 2,
            None => 0,
        };
        Self {
            kind,
            norms: config.query_and_key_norm_names()[..normed].iter().map(|name| norm(name)).collect(),
            value_norm: (config.value_norms() && !is_reader).then(|| vec![1.0; config.head_dim_of(layer)]),
            is_reader,
        }
    }

    /// Factors of the norm of queries, or of keys, where there is one.
    pub fn norm(&self, which: usize) -> Option<&[f32]> {
        self.norms.get(which).map(Vec::as_slice)
    }

    /// Factors of the norm of values, where there is one.
    pub fn value_norm(&self) -> Option<&[f32]> {
        self.value_norm.as_deref()
    }
}

enum Kind {
    Attention(AttentionPart),
    ShortConv(Taps),
    DeltaRule(DeltaRule, Taps, Rates),
    /// With the `D` of each head.
    Mamba(Mamba, Taps, Rates, Vec<f32>),
}

/// What a rule has for each head, and the norm of its results.
struct Rates {
    rates: Vec<f32>,
    dt_bias: Vec<f32>,
    gamma: Vec<f32>,
}

/// The mixers of all layers. `floats` has the values of a parameter, and `gamma` the factors of a norm.
pub(super) fn mixers<'a>(
    config: &ModelConfig,
    floats: impl Fn(&str) -> &'a [f32],
    gamma: impl Fn(&str) -> Vec<f32>,
) -> Vec<Mixer> {
    let mut states = 0;
    let mixer = |layer: usize| {
        let block = format!("model.layers.{layer}.{}", config.mixer_names(layer).block);
        let of = |name: &str| floats(&format!("{block}.{name}"));
        let rates = || Rates {
            // In double precision: the last bit is then not up to the machine's library.
            rates: of("A_log").iter().map(|&log| f64::from(log).exp() as f32).collect(),
            dt_bias: of("dt_bias").to_vec(),
            // This norm is stored as it is in every family.
            gamma: of("norm.weight").to_vec(),
        };
        let (pool, place) = if config.attention(layer).is_some() {
            place_of(config, layer)
        } else {
            states += 1;
            (0, states - 1)
        };
        let kind = match config.layers[layer] {
            LayerKind::Attention(kind) => {
                let norm = |name: &str| gamma(&format!("{block}.{name}.weight"));
                Kind::Attention(AttentionPart::new(config, layer, kind, norm))
            }
            LayerKind::ShortConv(ShortConv { kernel, bias }) => {
                Kind::ShortConv(Taps::of(of("conv.weight"), bias.then(|| of("conv.bias")), kernel))
            }
            LayerKind::DeltaRule(rule) => {
                Kind::DeltaRule(rule, Taps::of(of("conv1d.weight"), None, rule.kernel), rates())
            }
            LayerKind::Mamba(mamba) => {
                let bias = mamba.conv_bias.then(|| of("conv1d.bias"));
                Kind::Mamba(mamba, Taps::of(of("conv1d.weight"), bias, mamba.kernel), rates(), of("D").to_vec())
            }
        };
        Mixer { kind, pool, place }
    };
    (0..config.num_hidden_layers).map(mixer).collect()
}

impl Mixer {
    /// The pool with the keys and values that the layer reads, and the number of the layer in it that stores them.
    pub fn place(&self) -> (usize, usize) {
        (self.pool, self.place)
    }

    /// The layer's attention.
    pub fn attention(&self) -> &AttentionPart {
        match &self.kind {
            Kind::Attention(part) => part,
            Kind::ShortConv(..) | Kind::DeltaRule(..) | Kind::Mamba(..) => {
                unreachable!("a layer with a state has no such node")
            }
        }
    }

    /// The layer's short convolution.
    pub fn short_conv(&self) -> short_conv::ShortConv<'_> {
        match &self.kind {
            Kind::ShortConv(taps) => short_conv::ShortConv { convolution: taps.convolution(), layer: self.place },
            Kind::Attention(..) | Kind::DeltaRule(..) | Kind::Mamba(..) => {
                unreachable!("another layer has no such node")
            }
        }
    }

    /// The layer's delta rule.
    pub fn delta_rule(&self, epsilon: f32) -> delta_rule::DeltaRule<'_> {
        let Kind::DeltaRule(rule, taps, Rates { rates, dt_bias, gamma }) = &self.kind else {
            unreachable!("another layer has no such node")
        };
        delta_rule::DeltaRule {
            convolution: taps.convolution(),
            key_heads: rule.key_heads,
            value_heads: rule.value_heads,
            key_dim: rule.key_dim,
            value_dim: rule.value_dim,
            rates,
            dt_bias,
            norm: Norm { gamma, epsilon },
            layer: self.place,
        }
    }

    /// The layer's state space.
    pub fn mamba(&self, epsilon: f32) -> mamba::Mamba<'_> {
        let Kind::Mamba(sizes, taps, Rates { rates, dt_bias, gamma }, skips) = &self.kind else {
            unreachable!("another layer has no such node")
        };
        mamba::Mamba {
            convolution: taps.convolution(),
            heads: sizes.heads,
            head_dim: sizes.head_dim,
            groups: sizes.groups,
            state_dim: sizes.state_dim,
            rates,
            dt_bias,
            skips,
            norm: Norm { gamma, epsilon },
            layer: self.place,
        }
    }
}
