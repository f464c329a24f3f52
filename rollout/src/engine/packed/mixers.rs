//! What mixes the tokens of a layer beside its products: norms, convolutions, rates.

use rollout_kernels::{
    linear::Norm,
    recurrent::{Taps, delta_rule, mamba, short_conv},
};
use shared::{AttentionKind, DeltaRule, LayerKind, Mamba, ModelConfig, ShortConv};

/// A layer's mixer, and its number among those of its kind of memory.
pub(super) struct Mixer {
    kind: Kind,
    place: usize,
}

enum Kind {
    /// With the norms of queries and of keys, in the families that have them.
    Attention(AttentionKind, Option<[Vec<f32>; 2]>),
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
    let (mut attentions, mut states) = (0, 0);
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
        let count = if config.attention(layer).is_some() { &mut attentions } else { &mut states };
        let place = *count;
        *count += 1;
        let kind = match config.layers[layer] {
            LayerKind::Attention(kind) => {
                let names = config.query_and_key_norm_names().map(|name| format!("{block}.{name}.weight"));
                Kind::Attention(kind, config.query_and_key_norms().map(|_| names.map(|name| gamma(&name))))
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
        Mixer { kind, place }
    };
    (0..config.num_hidden_layers).map(mixer).collect()
}

impl Mixer {
    /// Number of the layer among those with attention, or among those with a state.
    pub fn place(&self) -> usize {
        self.place
    }

    /// What the layer's attention is like.
    pub fn attention(&self) -> AttentionKind {
        match self.kind {
            Kind::Attention(kind, _) => kind,
            Kind::ShortConv(..) | Kind::DeltaRule(..) | Kind::Mamba(..) => {
                unreachable!("a layer with a state has no such node")
            }
        }
    }

    /// Factors of the norms of queries and of keys, in the families that have them.
    pub fn query_and_key_norms(&self) -> Option<&[Vec<f32>; 2]> {
        match &self.kind {
            Kind::Attention(_, norms) => norms.as_ref(),
            Kind::ShortConv(..) | Kind::DeltaRule(..) | Kind::Mamba(..) => None,
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
