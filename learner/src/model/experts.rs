//! A mixture of experts in the place of an MLP (Shazeer et al. 2017).
//!
//! A router gives every token probabilities of the experts, in float32 at least, and the token goes through the experts
//! with the largest ones. Tokens are put into the order of their experts, so an expert is a few matrix products over
//! its own tokens. A token's results are added in the order of the experts' numbers.

use std::ops::AddAssign;

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
    /// How many choices of the sampler were made here too, and how many it made; read where a load is asked for.
    agreed: Option<[Tensor; 2]>,
}

/// The experts that the sampler chose in a layer, `[T, K]`, and whether they are computed with.
pub(super) type Chosen = (Tensor, bool);

/// What is kept of a forward pass.
#[derive(Debug)]
pub(super) struct ExpertsTape {
    routing: Routing,
    /// Gate and up of every place, `[T · K, 2 · inner]`.
    gate_up: Tensor,
}

/// How evenly tokens are spread over experts: means over layers, and over the tokens of passes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExpertLoad {
    balance: f64,
    violation: f64,
    weight: f64,
    agreed: [f64; 2],
}

impl AddAssign for ExpertLoad {
    fn add_assign(&mut self, other: Self) {
        self.balance += other.balance;
        self.violation += other.violation;
        self.weight += other.weight;
        self.agreed.iter_mut().zip(other.agreed).for_each(|(sum, value)| *sum += value);
    }
}

impl ExpertLoad {
    /// `load_balancing_loss`: for each layer, `E Σ_e f_e P_e` with E experts, the share f of places that an expert has,
    /// and its mean probability P. Absent without experts.
    #[must_use]
    pub fn balance(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.balance / self.weight)
    }

    /// `router_agreement`: the share of the sampler's choices that were made here too. Absent where none are known.
    #[must_use]
    pub fn agreement(&self) -> Option<f64> {
        let [agreed, compared] = self.agreed;
        (compared > 0.0).then(|| agreed / compared)
    }

    /// `max_vio`: for each layer, by how much the busiest expert is above the mean, as a share of the mean. Absent
    /// without experts.
    #[must_use]
    pub fn violation(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.violation / self.weight)
    }
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

    pub(super) fn record(&self, x_TH: &Tensor, chosen: Option<&Chosen>) -> ExpertsTape {
        let routing = self.route(x_TH, chosen);
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

    fn route(&self, x_TH: &Tensor, chosen: Option<&Chosen>) -> Routing {
        // In float32, as in the sampler: rounded logits would often be equal.
        let probabilities_TE = self.router.forward_wide(x_TH).softmax(-1, None::<Kind>);
        let (mut weights_TK, mut chosen_TK) = probabilities_TE.topk(self.per_token, -1, true, true);
        let mut agreed = None;
        if let Some((of_sampler_TK, is_replayed)) = chosen {
            let known_TK = of_sampler_TK.ge(0);
            let same_TK = of_sampler_TK.unsqueeze(2).eq_tensor(&chosen_TK.unsqueeze(1)).any_dim(2, false);
            agreed = Some([same_TK, known_TK.shallow_clone()].map(|x| x.sum(Kind::Double)));
            if *is_replayed {
                chosen_TK = of_sampler_TK.where_self(&known_TK, &chosen_TK);
                weights_TK = probabilities_TE.gather(-1, &chosen_TK, false);
            }
        }
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
            agreed,
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

impl ExpertsTape {
    pub(super) fn load(&self) -> ExpertLoad {
        let Routing { probabilities_TE, counts, .. } = &self.routing;
        let tokens = probabilities_TE.size()[0] as f64;
        let (experts, places) = (counts.len() as f64, counts.iter().sum::<i64>() as f64);
        let means = probabilities_TE.mean_dim([0i64].as_slice(), false, None).to_kind(Kind::Double);
        let means = Vec::<f64>::try_from(means.to_device(Device::Cpu)).expect("means in one dimension");
        let shares = counts.iter().map(|&count| count as f64 / places);
        let balance: f64 = shares.clone().zip(means).map(|(share, mean)| share * mean).sum();
        let busiest = shares.fold(0.0, f64::max);
        ExpertLoad {
            balance: tokens * experts * balance,
            violation: tokens * (experts * busiest - 1.0),
            weight: tokens,
            agreed: self
                .routing
                .agreed
                .as_ref()
                .map_or([0.0; 2], |agreed| agreed.each_ref().map(|x| x.double_value(&[]))),
        }
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

#[cfg(test)]
mod tests {
    use super::{super::parameters::Parameters, *};

    fn config(normalised: bool) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "qwen3_moe", "hidden_size": 6, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 5, "num_experts": 4,
            "max_position_embeddings": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 3,
            "norm_topk_prob": {normalised}}}"#
        ))
        .unwrap()
    }

    /// Random parameters in double precision.
    fn random(config: &ModelConfig) -> Parameters {
        let mut values = |name: &str| {
            let shapes = config.parameters();
            let (_, shape) = shapes.iter().find(|(known, _)| known == name).unwrap();
            let values = Tensor::randn([shape.iter().product::<usize>() as i64], (Kind::Float, Device::Cpu));
            Ok(Vec::<f32>::try_from(&values).unwrap())
        };
        Parameters::load(config.parameters(), Kind::Double, Device::Cpu, &mut values).unwrap()
    }

    #[test]
    fn a_load_is_1_where_all_experts_are_alike_and_more_where_one_has_all_tokens() {
        let load = |counts: Vec<i64>, probabilities: &[f64]| {
            let tokens = counts.iter().sum::<i64>();
            let empty = Tensor::zeros([0], (Kind::Int64, Device::Cpu));
            let routing = Routing {
                probabilities_TE: Tensor::from_slice(probabilities).repeat([tokens, 1]),
                chosen_TK: empty.shallow_clone(),
                weights_TK: empty.shallow_clone(),
                order_P: empty.shallow_clone(),
                tokens_P: empty.shallow_clone(),
                counts,
                agreed: None,
            };
            ExpertsTape { routing, gate_up: empty }.load()
        };
        let even = load(vec![2; 4], &[0.25; 4]);
        assert_eq!((even.balance(), even.violation()), (Some(1.0), Some(0.0)));
        let mut all = load(vec![8, 0, 0, 0], &[1.0, 0.0, 0.0, 0.0]);
        assert_eq!((all.balance(), all.violation()), (Some(4.0), Some(3.0)));
        all += even;
        assert_eq!((all.balance(), all.violation()), (Some(2.5), Some(1.5)));
        assert_eq!(ExpertLoad::default().balance(), None);
    }

    #[test]
    fn choices_of_the_sampler_are_compared_and_replayed_where_they_are_known() {
        tch::manual_seed(5);
        let (config, wide) = (config(true), (Kind::Double, Device::Cpu));
        let weights = Weights::new(random(&config));
        let block = Experts::new(&config, config.experts_of(0).unwrap(), &weights, "model.layers.0");
        let (x_TH, none_TH) = (Tensor::randn([3, 6], wide), Tensor::zeros([3, 6], wide));
        let own = block.record(&x_TH, None);
        let result = |tape: &ExpertsTape| block.output_onto(&none_TH, tape);
        let chosen_TK = own.routing.chosen_TK.copy();
        let (same, replayed) = (
            block.record(&x_TH, Some(&(chosen_TK.flip([1]), false))),
            block.record(&x_TH, Some(&(chosen_TK.copy(), true))),
        );
        assert_eq!((same.load().agreement(), own.load().agreement()), (Some(1.0), None));
        assert!(result(&same) == result(&own) && result(&replayed) == result(&own));
        // Another expert for the first token, and none for the last one.
        let other = (0..4).find(|expert| !Vec::<i64>::try_from(chosen_TK.get(0)).unwrap().contains(expert)).unwrap();
        let _ = chosen_TK.narrow(0, 0, 1).narrow(1, 0, 1).fill_(other);
        let _ = chosen_TK.narrow(0, 2, 1).fill_(-1);
        let compared = block.record(&x_TH, Some(&(chosen_TK.copy(), false)));
        assert_eq!(compared.load().agreement(), Some(0.75));
        assert!(result(&compared) == result(&own), "they are only compared");
        let replayed = result(&block.record(&x_TH, Some(&(chosen_TK, true))));
        // Another number of rows in a product may change its last bits.
        let distance = (replayed - result(&own)).abs().amax([1i64].as_slice(), false);
        let changed: Vec<bool> = Vec::<f64>::try_from(distance).unwrap().iter().map(|&most| most > 1e-12).collect();
        assert_eq!(changed, [true, false, false]);
    }

    fn sum(x: &Tensor) -> f64 {
        x.sum(None::<Kind>).double_value(&[])
    }

    #[test]
    fn gradients_are_derivatives_with_and_without_normalised_weights() {
        const STEP: f64 = 1e-6;
        tch::manual_seed(3);
        let wide = (Kind::Double, Device::Cpu);
        for normalised in [true, false] {
            let config = config(normalised);
            let weights = Weights::new(random(&config));
            let block = Experts::new(&config, config.experts_of(0).unwrap(), &weights, "model.layers.0");
            let (x_TH, dy_TH) = (Tensor::randn([7, 6], wide), Tensor::randn([7, 6], wide));
            let none_TH = Tensor::zeros([7, 6], wide);
            let value = |x_TH: &Tensor| sum(&(block.output_onto(&none_TH, &block.record(x_TH, None)) * &dy_TH));
            let mut gradients = weights.base().gradients();
            let dx_TH = block.backward(&x_TH, &block.record(&x_TH, None), &dy_TH, &mut gradients);
            let derivative = |place: &Tensor| {
                let mut place = place.shallow_clone();
                let moved = |place: &mut Tensor, step: f64| {
                    let _ = place.g_add_scalar_(step);
                    value(&x_TH)
                };
                let difference = moved(&mut place, STEP) - moved(&mut place, -2.0 * STEP);
                let _ = moved(&mut place, STEP);
                difference / (2.0 * STEP)
            };
            let near = |found: f64, expected: f64, what: &str| {
                assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{what}: {found}, {expected}");
            };
            for (place, found) in (0..42).map(|n| (x_TH.view([-1]).narrow(0, n, 1), dx_TH.view([-1]).get(n))) {
                near(found.double_value(&[]), derivative(&place), "input");
            }
            let mut moving = 0;
            for (name, _, range) in weights.base().places().filter(|(name, ..)| name.contains(".mlp.")) {
                for place in range {
                    let expected = derivative(&weights.base().flat().narrow(0, place, 1));
                    near(gradients.flat().double_value(&[place]), expected, name);
                    moving += i32::from(expected.abs() > 1e-3);
                }
            }
            assert!(moving > 100, "normalised {normalised}: {moving}");
        }
    }
}
