//! Mixtures of experts: several MLPs in the place of one, of which a router chooses some for each token.

use serde::{Deserialize, Serialize};

use super::ModelConfig;

/// The block of experts within a layer; the number of an expert follows.
const EXPERTS: &str = "mlp.experts";

/// The experts of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of a layer (`num_experts`).
    pub count: usize,
    /// Experts that compute a token (`num_experts_per_tok`): those with the largest router probabilities.
    pub per_token: usize,
    /// Width of the gated MLP that an expert is (`moe_intermediate_size`).
    pub width: usize,
    /// Whether the probabilities of the chosen experts are divided by their sum (`norm_topk_prob`).
    pub normalised: bool,
    /// Layers with a dense MLP in place of experts.
    pub dense_layers: Vec<usize>,
}

impl Experts {
    /// The router's linear layer, within a layer of the model. It has a logit for each expert.
    pub const ROUTER: &str = "mlp.gate";

    /// The block of an expert within a layer: `mlp.experts.3`.
    #[must_use]
    pub fn block(expert: usize) -> String {
        format!("{EXPERTS}.{expert}")
    }

    /// The number of the expert that a parameter of a layer or of a model belongs to.
    #[must_use]
    pub fn number_in(name: &str) -> Option<usize> {
        let (_, rest) = name.split_once(".mlp.experts.")?;
        rest.split('.').next()?.parse().ok()
    }

    /// Whether a parameter or a linear layer is that of a router.
    #[must_use]
    pub fn is_router(name: &str) -> bool {
        name.strip_suffix(".weight").unwrap_or(name).ends_with(Self::ROUTER)
    }

    /// Whether a parameter or a linear layer belongs to experts or to their router.
    #[must_use]
    pub fn own(name: &str) -> bool {
        Self::number_in(name).is_some() || Self::is_router(name)
    }
}

impl ModelConfig {
    /// The experts of a layer; `None` for a layer with a dense MLP.
    #[must_use]
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| !experts.dense_layers.contains(&layer))
    }

    /// Parameters that a token does not go through: those of experts that it does not choose, and the table of inputs
    /// of each layer's own, of which it reads one row.
    #[must_use]
    pub fn idle_parameters(&self) -> u64 {
        let table = self.per_layer_input.map_or(0, |input| input.vocab_size * self.num_hidden_layers * input.width);
        let idle = |experts: &Experts| {
            let layers = self.num_hidden_layers - experts.dense_layers.len();
            layers * (experts.count - experts.per_token) * 3 * experts.width * self.hidden_size
        };
        (self.experts.as_ref().map_or(0, idle) + table) as u64
    }

    /// Width of the gates that a token of a layer goes through: of the dense MLP, or of all chosen experts together.
    /// The widest layer counts.
    #[must_use]
    pub fn inner_width(&self) -> usize {
        let widths = (0..self.num_hidden_layers).map(|layer| match self.experts_of(layer) {
            Some(experts) => experts.per_token * experts.width,
            None => self.mlp_width(layer),
        });
        widths.max().unwrap_or(self.intermediate_size)
    }
}
