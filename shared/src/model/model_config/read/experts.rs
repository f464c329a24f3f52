//! Mixtures of experts.

use serde_json::Value;

use super::{
    super::{Architecture, ConfigJsonError, Experts},
    Reader,
};

/// Keys of the number of experts: the Hub's and transformers 5's.
const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];
/// Most experts of a layer; published models have some hundred.
const MOST_EXPERTS: usize = 1024;

/// Most experts of all layers together.
const MOST_IN_ALL: usize = 1 << 17;

/// Defaults of transformers' Qwen3MoeConfig.
const COUNT: usize = 128;
const PER_TOKEN: usize = 8;
const WIDTH: usize = 768;

impl Reader<'_> {
    /// The experts of a model of `layers` layers; `None` for a dense model.
    pub(super) fn experts(
        &self,
        architecture: Architecture,
        layers: usize,
    ) -> Result<Option<Experts>, ConfigJsonError> {
        if architecture != Architecture::Qwen3Moe {
            return Ok(None);
        }
        let count = self.expert_count()?;
        if layers * count > MOST_IN_ALL {
            let problem = format!(
                "makes {} experts in {layers} layers, and more than {MOST_IN_ALL} are no model",
                layers * count
            );
            return Err(self.bad(COUNTS[0], problem));
        }
        let per_token = self.size("num_experts_per_tok")?.unwrap_or(PER_TOKEN);
        if per_token > count {
            let problem = format!("({per_token}) must be at most the {count} experts of a layer");
            return Err(self.bad("num_experts_per_tok", problem));
        }
        let experts = Experts {
            count,
            per_token,
            width: self.size("moe_intermediate_size")?.unwrap_or(WIDTH),
            normalised: self.flag("norm_topk_prob", false)?,
            dense_layers: self.dense_layers(layers)?,
        };
        Ok((experts.dense_layers.len() < layers).then_some(experts))
    }

    fn expert_count(&self) -> Result<usize, ConfigJsonError> {
        let [hub, newer] = COUNTS;
        let count = match (self.size(hub)?, self.size(newer)?) {
            (Some(one), Some(other)) if one != other => {
                return Err(self.bad(hub, format!("is {one}, and `{newer}` is {other}: they must be the same")));
            }
            (one, other) => one.or(other).unwrap_or(COUNT),
        };
        if count > MOST_EXPERTS {
            let key = if self.get(hub).is_some() { hub } else { newer };
            return Err(self.bad(key, format!("must be at most {MOST_EXPERTS}, found {count}")));
        }
        Ok(count)
    }

    /// As transformers: every `decoder_sparse_step`-th layer has experts, but for those of `mlp_only_layers`.
    fn dense_layers(&self, layers: usize) -> Result<Vec<usize>, ConfigJsonError> {
        const ONLY: &str = "mlp_only_layers";
        let step = self.size("decoder_sparse_step")?.unwrap_or(1);
        let listed = match self.get(ONLY) {
            None => Vec::new(),
            Some(list) => {
                let layer = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n < layers);
                let read: Option<Vec<usize>> = list.as_array().and_then(|list| list.iter().map(layer).collect());
                read.ok_or_else(|| self.unsupported(ONLY, list, &format!("expected numbers of the {layers} layers")))?
            }
        };
        Ok((0..layers).filter(|layer| listed.contains(layer) || !(layer + 1).is_multiple_of(step)).collect())
    }
}
