//! A mixture of experts in the place of an MLP (Shazeer et al. 2017).
//!
//! A router gives every token probabilities of the experts, in float32 at least, and the token goes through the experts
//! with the largest ones. Tokens are put into the order of their experts, so an expert is a few matrix products over its
//! own tokens. A token's results are added in the order of the experts' numbers.

use shared::ModelConfig;
use tch::{Device, Kind, Tensor};

use super::{kinds::wide, linear::Linear, mlp::Gate, parameters::Gradients, weights::Weights};

/// `Σ w_e(x) · down_e(act(gate_e(x)) · up_e(x))` over the chosen experts.
#[derive(Debug)]
pub(super) struct Experts {
    router: Linear,
    experts: Vec<Expert>,
    gate: Gate,
    per_token: i64,
    normalised: bool,
}

#[derive(Debug)]
struct Expert {
    gate_up: Linear,
    down: Linear,
}

/// Which experts compute which tokens, and with what weights.
#[derive(Debug)]
struct Routing {
    /// Probabilities of all experts, `[T, E]`.
    probabilities_TE: Tensor,
    /// The chosen experts of each token, largest probability first, `[T, K]`.
    chosen_TK: Tensor,
    /// Weights of their results, `[T, K]`.
    weights_TK: Tensor,
    /// The places of `[T · K]`, expert by expert, and within an expert by token.
    order_P: Tensor,
    /// The token of each place.
    tokens_P: Tensor,
    /// How many places each expert has.
    counts: Vec<i64>,
}

/// What is kept of a forward pass.
#[derive(Debug)]
pub(super) struct ExpertsTape {
    routing: Routing,
    /// Gate and up of every place, `[T · K, 2 · inner]`.
    gate_up: Tensor,
}

/// The tokens of one expert.
struct Share<'a> {
    expert: &'a Expert,
    begin: i64,
    count: i64,
    /// `[count]`.
    tokens: Tensor,
}

impl Share<'_> {
    /// The rows of the share in a tensor with a row for each place.
    fn of(&self, places: &Tensor) -> Tensor {
        places.narrow(0, self.begin, self.count)
    }
}

impl Experts {
    /// The leaves of a layer's router and experts.
    pub(super) fn new(config: &ModelConfig, experts: &shared::Experts, weights: &Weights, layer: &str) -> Self {
        let names = config.mlp_names();
        let expert = |number| {
            let block = format!("{layer}.{}", shared::Experts::block(number));
            Expert {
                gate_up: Linear::stacked(weights, &block, "gate_up_proj", names.members),
                down: Linear::new(weights, &block, names.last),
            }
        };
        let (block, name) = shared::Experts::ROUTER.split_once('.').expect("the router stands in a block");
        Self {
            router: Linear::new(weights, &format!("{layer}.{block}"), name),
            experts: (0..experts.count).map(expert).collect(),
            gate: Gate(config.activation()),
            per_token: experts.per_token as i64,
            normalised: experts.normalised,
        }
    }

    pub(super) fn record(&self, x_TH: &Tensor) -> ExpertsTape {
        let routing = self.route(x_TH);
        let rows = |share: &Share<'_>| share.expert.gate_up.forward(&x_TH.index_select(0, &share.tokens));
        let parts: Vec<Tensor> = self.shares(&routing).map(|share| rows(&share)).collect();
        ExpertsTape { gate_up: Tensor::cat(&parts, 0), routing }
    }

    /// Adds the weighted results to `onto`, `[T, hidden]`.
    pub(super) fn output_onto(&self, onto: &Tensor, tape: &ExpertsTape) -> Tensor {
        let mut sum_TH = wide(onto).copy();
        let weights_P1 = tape.routing.weights();
        for share in self.shares(&tape.routing) {
            let result = wide(&share.expert.down.forward(&self.gate.forward(&share.of(&tape.gate_up))));
            let _ = sum_TH.index_add_(0, &share.tokens, &(result * share.of(&weights_P1)));
        }
        sum_TH.to_kind(onto.kind())
    }

    /// As [`super::mlp::Mlp::backward`]. With `g = dy Wᵈ` of a place, the gradient of its weight is `g · inner`, and
    /// that of `inner` is `w g`: no result of an expert is computed again.
    pub(super) fn backward(
        &self,
        x_TH: &Tensor,
        tape: &ExpertsTape,
        dy_TH: &Tensor,
        gradients: &mut Gradients,
    ) -> Tensor {
        let routing = &tape.routing;
        let weights_P1 = routing.weights();
        let mut dx_TH = wide(x_TH).zeros_like();
        let mut d_weights = Vec::new();
        for share in self.shares(routing) {
            let (gate_up, weights) = (share.of(&tape.gate_up), share.of(&weights_P1));
            let (x, dy) = (x_TH.index_select(0, &share.tokens), dy_TH.index_select(0, &share.tokens));
            let [active, inner] = self.gate.parts(&gate_up);
            let inner = wide(&inner);
            let weighted = (&inner * &weights).to_kind(x.kind());
            let d_result = wide(&share.expert.down.backward(&weighted, &dy, gradients));
            d_weights.push((&d_result * inner).sum_dim_intlist([-1i64].as_slice(), false, None));
            let d_inner = (d_result * weights).to_kind(x.kind());
            let d_gate_up = self.gate.backward(&gate_up, &active, d_inner);
            let dx = wide(&share.expert.gate_up.backward(&x, &d_gate_up, gradients));
            let _ = dx_TH.index_add_(0, &share.tokens, &dx);
        }
        let d_weights_TK = routing.by_token(&Tensor::cat(&d_weights, 0));
        let d_logits_TE = routing.backward(&d_weights_TK, self.normalised).to_kind(x_TH.kind());
        dx_TH.to_kind(x_TH.kind()) + self.router.backward(x_TH, &d_logits_TE, gradients)
    }

    fn route(&self, x_TH: &Tensor) -> Routing {
        let probabilities_TE = wide(&self.router.forward(x_TH)).softmax(-1, None::<Kind>);
        let (mut weights_TK, chosen_TK) = probabilities_TE.topk(self.per_token, -1, true, true);
        if self.normalised {
            weights_TK = &weights_TK / weights_TK.sum_dim_intlist([-1i64].as_slice(), true, None);
        }
        let places = chosen_TK.reshape([-1]);
        let order_P = places.argsort_stable(true, 0, false);
        let counts = places.bincount(None::<&Tensor>, self.experts.len() as i64).to_device(Device::Cpu);
        Routing {
            tokens_P: order_P.divide_scalar_mode(self.per_token, "floor"),
            counts: Vec::<i64>::try_from(&counts).expect("counts are whole numbers in one dimension"),
            probabilities_TE,
            chosen_TK,
            weights_TK,
            order_P,
        }
    }

    /// The experts that have tokens, in order.
    fn shares<'a>(&'a self, routing: &'a Routing) -> impl Iterator<Item = Share<'a>> {
        let mut begin = 0;
        let share = move |(expert, &count): (&'a Expert, &'a i64)| {
            let tokens = routing.tokens_P.narrow(0, begin, count);
            let share = Share { expert, begin, count, tokens };
            begin += count;
            share
        };
        self.experts.iter().zip(&routing.counts).map(share).filter(|share| share.count > 0)
    }
}

impl Routing {
    /// The weight of every place, `[T · K, 1]`.
    fn weights(&self) -> Tensor {
        self.weights_TK.reshape([-1]).index_select(0, &self.order_P).unsqueeze(1)
    }

    /// Numbers of places as `[T, K]`.
    fn by_token(&self, places_P: &Tensor) -> Tensor {
        let mut by_token = places_P.empty_like();
        let _ = by_token.index_copy_(0, &self.order_P, places_P);
        by_token.view_as(&self.weights_TK)
    }

    /// The gradient of the router's logits, given that of the weights. With chosen probabilities q, their sum s and
    /// weights `w = q / s`: `dq = (dw − Σ w dw) / s`; then softmax: `dz = p (dp − Σ p dp)`.
    fn backward(&self, d_weights_TK: &Tensor, normalised: bool) -> Tensor {
        let total = |x: &Tensor| x.sum_dim_intlist([-1i64].as_slice(), true, None);
        let d_chosen_TK = if normalised {
            let sum_T1 = total(&self.probabilities_TE.gather(-1, &self.chosen_TK, false));
            (d_weights_TK - total(&(d_weights_TK * &self.weights_TK))) / sum_T1
        } else {
            d_weights_TK.shallow_clone()
        };
        let mut dp_TE = self.probabilities_TE.zeros_like();
        let _ = dp_TE.scatter_(-1, &self.chosen_TK, &d_chosen_TK);
        let mean_T1 = total(&(&dp_TE * &self.probabilities_TE));
        (dp_TE - mean_T1) * &self.probabilities_TE
    }
}
