//! Reward models: networks with a classification head, run by ONNX Runtime on the CPU.
//!
//! `model:path=DIR` takes a Hugging Face directory of a `…ForSequenceClassification` (Llama, Qwen2, Qwen3), exports it
//! once into the cache and scores with its first label, as TRL does with a reward model (`logits[:, 0]`): at the last
//! token of the sequence (`scope=outcome`) or at the last token of each step (`scope=steps`).

mod network;
mod sequence;

use std::{path::PathBuf, str::FromStr, sync::Arc};

use shared::{ModelDir, RewardOutcome, StepScore};

use crate::data::Tokenizer;

use rollout_rewards::{
    PolicyTokenizer, Reward, RewardCompletion, RewardInput, Scope,
    registry::{Entry, Parameter, Parameters},
    rules::{SEPARATOR, separator},
    steps,
};

use network::Network;
pub use network::NetworkOptions;
use sequence::Sequence;

/// What a reward model scores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelScope {
    /// The whole completion, at its last token.
    Outcome,
    /// Every step, at its last token; the text closes each step.
    Steps(String),
}

/// A reward model with its tokenizer.
pub struct ModelReward {
    network: Network,
    tokenizer: Tokenizer,
    scope: ModelScope,
    max_length: usize,
    batch: usize,
}

impl ModelReward {
    /// Loads a model directory; the first time, that exports it.
    ///
    /// `max_length` 0 is what the model allows; `batch` is the number of completions of a forward pass.
    ///
    /// # Errors
    /// A directory without a usable model, head or tokenizer, a length beyond the model's, or what ONNX Runtime reports;
    /// all in one line with the path.
    pub fn open(
        path: PathBuf,
        scope: ModelScope,
        max_length: usize,
        batch: usize,
        options: NetworkOptions,
    ) -> Result<Self, String> {
        let model = ModelDir::open(path).map_err(|e| e.to_string())?;
        let tokenizer = Tokenizer::open(&model).map_err(|e| e.to_string())?;
        let network = Network::open(&model, options)?;
        let limit = network.positions();
        if max_length > limit {
            return Err(format!("parameter `max_length` is {max_length}, but the model is for {limit} tokens"));
        }
        let max_length = if max_length == 0 { limit } else { max_length };
        Ok(Self { network, tokenizer, scope, max_length, batch })
    }

    /// The tokens of a completion with the places to be scored.
    ///
    /// With the policy's own tokenizer these are the very tokens that the policy saw and sampled; with another one, the
    /// texts are tokenised.
    fn sequence(&self, input: &RewardInput, completion: &RewardCompletion) -> Result<Sequence, String> {
        let steps = match &self.scope {
            ModelScope::Outcome => None,
            ModelScope::Steps(separator) => Some(steps::of_completion(input, completion, separator)?),
        };
        let sequence =
            if input.tokenizer.as_ref().is_some_and(|of_policy| of_policy.content() == self.tokenizer.content()) {
                Sequence::of_tokens(input, completion, steps)
            } else {
                Sequence::of_text(&self.tokenizer, input, completion, steps)?
            };
        let length = sequence.ids.len();
        if length > self.max_length {
            return Err(format!("{length} tokens of prompt and completion are more than {}", self.max_length));
        }
        match sequence.ids.iter().find(|&&id| id as usize >= self.network.vocab_size()) {
            Some(id) => Err(format!("the reward model has no token {id}")),
            None => Ok(sequence),
        }
    }

    fn outcome(&self, sequence: &Sequence, scores: &[f32]) -> RewardOutcome {
        let score = |index: usize| f64::from(scores[index]);
        match &sequence.steps {
            None => scores.first().map_or(RewardOutcome::NotApplicable, |_| RewardOutcome::Score(score(0))),
            Some(ends) if ends.is_empty() => RewardOutcome::NotApplicable,
            Some(ends) => RewardOutcome::Steps(
                ends.iter().enumerate().map(|(i, &end)| StepScore { end, score: score(i) }).collect(),
            ),
        }
    }
}

impl Reward for ModelReward {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        let mut outcomes = vec![RewardOutcome::NotApplicable; input.completions.len()];
        let mut sequences = Vec::new();
        for (index, completion) in input.completions.iter().enumerate() {
            match self.sequence(input, completion) {
                Ok(sequence) if sequence.places.is_empty() => {}
                Ok(sequence) => sequences.push((index, sequence)),
                Err(reason) => outcomes[index] = RewardOutcome::Failed(reason),
            }
        }
        for batch in sequences.chunks(self.batch) {
            let rows: Vec<&Sequence> = batch.iter().map(|(_, sequence)| sequence).collect();
            match self.network.scores(&rows, input.deadline) {
                Ok(scores) => {
                    for ((index, sequence), scores) in batch.iter().zip(scores) {
                        outcomes[*index] = self.outcome(sequence, &scores);
                    }
                }
                Err(reason) => {
                    batch.iter().for_each(|(index, _)| outcomes[*index] = RewardOutcome::Failed(reason.clone()));
                }
            }
        }
        outcomes
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    /// The network takes one batch at a time and uses its threads for it.
    fn concurrency(&self) -> usize {
        1
    }

    fn correct_at(&self) -> f64 {
        0.0
    }
}

/// The function in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "model",
    about: "a reward model (…ForSequenceClassification): its first label for the whole completion or for each step",
    judges: false,
    columns: &[],
    parameters: &[
        Parameter { name: "path", default: None, about: "Hugging Face directory of the model" },
        Parameter { name: "scope", default: Some("outcome"), about: "outcome or steps" },
        SEPARATOR,
        Parameter { name: "max_length", default: Some("0"), about: "longest prompt and completion, 0 = the model's" },
        Parameter { name: "batch", default: Some("8"), about: "completions of a forward pass" },
        Parameter { name: "threads", default: Some("0"), about: "threads of the model, 0 = one per core" },
    ],
    build,
};

fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
    let scope = match parameters.get::<String>("scope")?.as_str() {
        "outcome" => ModelScope::Outcome,
        "steps" => ModelScope::Steps(separator(parameters)?),
        other => return Err(format!("parameter `scope` must be outcome or steps, got `{other}`")),
    };
    let batch: usize = parameters.get("batch")?;
    if batch == 0 {
        return Err("parameter `batch` must be at least 1".into());
    }
    let path = PathBuf::from_str(&parameters.get::<String>("path")?).expect("every text is a path");
    let options = NetworkOptions { threads: parameters.get("threads")? };
    Ok(Arc::new(ModelReward::open(path, scope, parameters.get("max_length")?, batch, options)?))
}
