//! The products of a model: which parameters they are made of, in the order of the graph.

use exporters::Adapter;
use rollout_kernels::{
    element::Format,
    packed::{Columns, PackedShape},
};
use shared::{Experts, LayerKind, ModelConfig, PerLayerInput};

/// Where a product comes from: names without `.weight` and `.bias`.
pub(super) struct Product {
    pub names: Vec<String>,
    /// The norm of the input.
    pub norm: Option<String>,
    pub shape: PackedShape,
    pub bias: bool,
    /// Factor on the outputs.
    pub factor: f32,
}

impl Product {
    pub fn is_changed_by(&self, adapter: &Adapter) -> bool {
        self.names.iter().any(|name| adapter.update(&format!("{name}.weight")).is_some())
    }
}

/// The products in the order of the graph. The head, whose outputs are the logits, and others outside the layers have
/// bytes at least.
pub(super) fn products(config: &ModelConfig, format: Format) -> impl Iterator<Item = Product> {
    let outside = if format == Format::Int4 { Format::Int8 } else { format };
    let joined = |depth, outputs| PackedShape { depth, outputs, columns: Columns::Joined, format: outside };
    let head = Product {
        names: vec![if config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" }.into()],
        norm: Some(format!("{}.weight", config.final_norm())),
        shape: joined(config.hidden_size, config.vocab_size),
        bias: false,
        factor: (1.0 / config.logits_scaling) as f32,
    };
    let inputs = config.per_layer_input.map(|input| Product {
        names: vec![PerLayerInput::PROJECTION.into()],
        norm: None,
        shape: joined(config.hidden_size, config.num_hidden_layers * input.width),
        bias: false,
        factor: (config.hidden_size as f64).sqrt().recip() as f32,
    });
    let of_layers = (0..config.num_hidden_layers).flat_map(move |layer| layer_products(config, format, layer));
    of_layers.chain(inputs).chain([head])
}

/// Those of a layer.
pub(super) fn layer_products(config: &ModelConfig, format: Format, layer: usize) -> Vec<Product> {
    let name = |what: String| format!("model.layers.{layer}.{what}");
    let product = |names: Vec<String>, norm: Option<&str>, columns, [depth, outputs]: [usize; 2], bias| Product {
        names: names.into_iter().map(name).collect(),
        norm: norm.map(|norm| name(format!("{norm}.weight"))),
        shape: PackedShape { depth, outputs, columns, format },
        bias,
        factor: 1.0,
    };
    let (hidden, inner) = (config.hidden_size, config.mlp_width(layer));
    let (mixer, mlp) = (config.mixer_names(layer), config.mlp_names());
    // Width of what the mixer gives, and the biases of its projections.
    let (mixed, biases) = match config.layers[layer] {
        LayerKind::Attention(_) => {
            (config.query_and_key_widths(layer)[0], [config.qkv_bias, config.attention_output_bias])
        }
        LayerKind::ShortConv(conv) => (hidden, [conv.bias; 2]),
        LayerKind::DeltaRule(rule) => (rule.values(), [false; 2]),
        LayerKind::Mamba(mamba) => (mamba.inner(), [mamba.proj_bias; 2]),
    };
    let back = |name: String, depth: usize, bias| Product {
        factor: config.residual_multiplier as f32,
        ..product(vec![name], None, Columns::Joined, [depth, hidden], bias)
    };
    let mut list = vec![
        product(
            mixer.inputs().collect(),
            config.input_norm(),
            Columns::Joined,
            [hidden, config.mixer_widths(layer).iter().sum()],
            biases[0],
        ),
        back(mixer.output(), mixed, biases[1]),
    ];
    let Some(experts) = config.experts_of(layer) else {
        list.push(product(mlp.inputs().collect(), config.mlp_norm(), Columns::Gated, [hidden, inner], config.mlp_bias));
        list.push(back(mlp.output(), inner, config.mlp_bias));
        if let Some(PerLayerInput { width, .. }) = config.per_layer_input {
            let of = |name: &str, shape| product(vec![name.into()], None, Columns::Joined, shape, false);
            list.extend([of(PerLayerInput::GATE, [hidden, width]), of(PerLayerInput::BACK, [width, hidden])]);
        }
        return list;
    };
    // Experts are chosen in fp32, whatever they compute in.
    let router =
        product(vec![Experts::ROUTER.into()], config.mlp_norm(), Columns::Joined, [hidden, experts.count], false);
    list.push(Product { shape: PackedShape { format: Format::Fp32, ..router.shape }, ..router });
    for expert in 0..experts.count {
        let name = |part: &str| format!("{}.{part}", Experts::block(expert));
        let inputs = mlp.members.iter().map(|part| name(part)).collect();
        list.push(product(inputs, config.mlp_norm(), Columns::Gated, [hidden, experts.width], false));
        list.push(back(name(mlp.last), experts.width, false));
    }
    list
}
