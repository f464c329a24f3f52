//! The parameters that a model computes with, and those that training moves.

use exporters::AdapterConfig;
use shared::ModelConfig;
use tch::Kind;

use super::{
    coded::Matrix,
    low_rank::LowRank,
    parameters::{HostParameters, Leaf, Parameters},
};

/// The parameters of a model. Training moves all of them, or an adapter beside them. Where passes compute in bfloat16,
/// training moves a float32 copy, which is rounded after each update.
#[derive(Debug)]
pub struct Weights {
    base: Parameters,
    adapter: Option<Adapter>,
    masters: Option<Parameters>,
}

/// Low-rank additions to a model's projections (LoRA, Hu et al. 2021).
#[derive(Debug)]
struct Adapter {
    config: AdapterConfig,
    parameters: Parameters,
}

impl Weights {
    /// A model that is trained as a whole, if it is trained.
    #[must_use]
    pub fn new(base: Parameters) -> Self {
        Self { base, adapter: None, masters: None }
    }

    /// A model that computes with `masters` rounded to `kind`.
    #[must_use]
    pub fn rounded(masters: Parameters, kind: Kind) -> Self {
        Self { base: masters.rounded(kind), adapter: None, masters: Some(masters) }
    }

    /// A frozen model with an adapter, whose parameters are those that its configuration names.
    #[must_use]
    pub fn adapted(base: Parameters, config: AdapterConfig, adapter: Parameters) -> Self {
        let (own, kind) = (adapter.flat().kind(), base.flat().kind());
        let (parameters, masters) = if own == kind { (adapter, None) } else { (adapter.rounded(kind), Some(adapter)) };
        Self { base, adapter: Some(Adapter { config, parameters }), masters }
    }

    /// The model's own parameters, as passes read them.
    pub fn base(&self) -> &Parameters {
        &self.base
    }

    /// The adapter's configuration, and its parameters as passes read them.
    #[must_use]
    pub fn adapter(&self) -> Option<(&AdapterConfig, &Parameters)> {
        self.adapter.as_ref().map(|adapter| (&adapter.config, &adapter.parameters))
    }

    /// The parameters that an optimiser moves.
    pub fn trained(&self) -> &Parameters {
        self.masters.as_ref().unwrap_or(self.read())
    }

    /// The trained parameters, as passes read them.
    pub fn read(&self) -> &Parameters {
        self.adapter.as_ref().map_or(&self.base, |adapter| &adapter.parameters)
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

    /// What passes compute with, in this process's memory, as samplers get it: [`Self::read`], and in float32 what is
    /// not rounded for passes.
    #[must_use]
    pub fn host(&self) -> HostParameters<'_> {
        let host = self.read().host();
        if let Some(masters) = self.exact_masters() {
            host.take_over(masters, ModelConfig::is_exact);
        }
        host
    }

    /// What training moves beside a rounded copy of the whole model.
    fn exact_masters(&self) -> Option<&Parameters> {
        self.masters.as_ref().filter(|_| self.adapter.is_none())
    }

    /// As [`Self::leaf`], not rounded ([`ModelConfig::is_exact`]).
    pub(super) fn exact(&self, name: &str) -> Leaf {
        match self.exact_masters() {
            Some(masters) => masters.leaf(name),
            None => self.base.exact(name).unwrap_or_else(|| self.leaf(name).widened()),
        }
    }

    /// The weight of a linear map, as passes read it; frozen under an adapter.
    pub(super) fn matrix(&self, name: &str) -> Matrix {
        self.base.coded(name).map_or_else(|| Matrix::Whole(self.leaf(name)), Matrix::Coded)
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
        let Adapter { config, parameters } = self.adapter.as_ref()?;
        let factors = |name: &str| AdapterConfig::tensor_names(&format!("{block}.{name}")).map(|n| parameters.find(&n));
        let [first, _] = factors(stacked);
        let (mut second, mut start) = (Vec::new(), 0);
        for member in members {
            let outputs = self.base.rows(&format!("{block}.{member}.weight"));
            let [_, leaf] = factors(member);
            second.extend(leaf.map(|leaf| (start..start + outputs, leaf)));
            start += outputs;
        }
        Some(LowRank::new(first?, second, config.scaling()))
    }
}
