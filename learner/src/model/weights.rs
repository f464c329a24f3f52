//! What a model computes with, and what of it training moves.

use tch::Kind;

use super::{
    low_rank::LowRank,
    parameters::{Leaf, Parameters},
};

/// The parameters of a model. Training moves all of them, or an adapter beside them. Where passes compute in bfloat16, it
/// moves a float32 copy of what it trains, which is rounded after each update.
#[derive(Debug)]
pub struct Weights {
    base: Parameters,
    adapter: Option<Adapter>,
    masters: Option<Parameters>,
}

/// Low-rank additions to a model's projections (LoRA, Hu et al. 2021).
#[derive(Debug)]
struct Adapter {
    parameters: Parameters,
    /// What the products are multiplied by.
    scaling: f64,
}

impl Weights {
    /// A model of which everything is trained, if anything is.
    #[must_use]
    pub fn new(base: Parameters) -> Self {
        Self { base, adapter: None, masters: None }
    }

    /// A model that computes with `masters` rounded to `kind`.
    #[must_use]
    pub fn rounded(masters: Parameters, kind: Kind) -> Self {
        Self { base: masters.rounded(kind), adapter: None, masters: Some(masters) }
    }

    /// A frozen model with an adapter, whose parameters have the names of PEFT, from `model.` on.
    #[must_use]
    pub fn adapted(base: Parameters, adapter: Parameters, scaling: f64) -> Self {
        let (own, kind) = (adapter.flat().kind(), base.flat().kind());
        let (parameters, masters) = if own == kind { (adapter, None) } else { (adapter.rounded(kind), Some(adapter)) };
        Self { base, adapter: Some(Adapter { parameters, scaling }), masters }
    }

    /// What passes read of the model itself.
    pub fn base(&self) -> &Parameters {
        &self.base
    }

    /// What passes read of the adapter.
    #[must_use]
    pub fn adapter(&self) -> Option<&Parameters> {
        self.adapter.as_ref().map(|adapter| &adapter.parameters)
    }

    /// What an optimiser moves.
    pub fn trained(&self) -> &Parameters {
        self.masters.as_ref().unwrap_or(self.read())
    }

    /// What passes read of what is trained.
    fn read(&self) -> &Parameters {
        self.adapter().unwrap_or(&self.base)
    }

    /// To be called after [`Self::trained`] has changed.
    pub(super) fn moved(&self) {
        if let Some(masters) = &self.masters {
            tch::no_grad(|| self.read().flat().shallow_clone().copy_(masters.flat()));
        }
    }

    /// As [`Parameters::leaf`]; frozen under an adapter.
    pub(super) fn leaf(&self, name: &str) -> Leaf {
        self.freeze(self.base.leaf(name))
    }

    /// As [`Parameters::find`]; frozen under an adapter.
    pub(super) fn find(&self, name: &str) -> Option<Leaf> {
        self.base.find(name).map(|leaf| self.freeze(leaf))
    }

    fn freeze(&self, leaf: Leaf) -> Leaf {
        if self.adapter.is_some() { leaf.frozen() } else { leaf }
    }

    /// What the adapter adds to a projection `{block}.{stacked}` that consists of `{block}.{member}` for each member.
    pub(super) fn low_rank(&self, block: &str, stacked: &str, members: &[&str]) -> Option<LowRank> {
        let Adapter { parameters, scaling } = self.adapter.as_ref()?;
        let first = parameters.find(&format!("{block}.{stacked}.lora_A.weight"))?;
        let (mut second, mut start) = (Vec::new(), 0);
        for member in members {
            let outputs = self.base.rows(&format!("{block}.{member}.weight"));
            let leaf = parameters.find(&format!("{block}.{member}.lora_B.weight"));
            second.extend(leaf.map(|leaf| (start..start + outputs, leaf)));
            start += outputs;
        }
        Some(LowRank::new(first, second, *scaling))
    }
}
