//! Reward models: networks with a classification head, run by ONNX Runtime on the CPU.
//!
//! `model:path=DIR` takes a Hugging Face directory of a `…ForSequenceClassification` of any supported family, exports
//! it once into the cache and scores with its first label, as TRL does with a reward model (`logits[:, 0]`): at the
//! last token of the sequence (`scope=outcome`) or at the last token of each step (`scope=steps`).

mod network;
mod sequence;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use shared::{ModelDir, RewardOutcome, StepScore, config::on_hub};

use crate::data::Tokenizer;

use rollout_rewards::{
    PolicyTokenizer, Reward, RewardCompletion, RewardInput, Scope,
    entry::{Entry, Parameter, Parameters},
    rules::{SEPARATOR, separator},
    steps,
};

use network::Network;
use sequence::Sequence;

/// A reward model with its tokenizer.
struct ModelReward {
    network: Network,
    tokenizer: Tokenizer,
    /// The text that closes a step, where every step is scored at its last token. `None` where the whole completion is
    /// scored.
    separator: Option<String>,
    max_length: usize,
    /// Completions of a forward pass.
    batch: usize,
}

impl ModelReward {
    /// The tokens of a completion with the places to be scored.
    ///
    /// With the policy's own tokenizer, these are exactly the tokens that the policy saw and sampled. With another one,
    /// the texts are tokenised.
    fn sequence(&self, input: &RewardInput, completion: &RewardCompletion) -> Result<Sequence, String> {
        let of_completion = |separator: &String| steps::of_completion(input, completion, separator);
        let steps = self.separator.as_ref().map(of_completion).transpose()?;
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
        match sequence.ids.iter().find(|&&id| id as usize >= self.network.vocab_size) {
            Some(id) => Err(format!("the reward model has no token {id}")),
            None => Ok(sequence),
        }
    }
}

/// The outcome for a sequence with at least one place.
fn outcome(sequence: &Sequence, scores: &[f32]) -> RewardOutcome {
    let step = |(&end, &score): (&u32, &f32)| StepScore { end, score: score.into() };
    match &sequence.steps {
        None => RewardOutcome::Score(scores[0].into()),
        Some(ends) => RewardOutcome::Steps(ends.iter().zip(scores).map(step).collect()),
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
                        outcomes[*index] = outcome(sequence, &scores);
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

    fn stated_correct_at(&self) -> Option<f64> {
        Some(0.0)
    }
}

/// The function's name.
pub const NAME: &str = "model";

/// The function in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: NAME,
    about: "a reward model (…ForSequenceClassification): its first label for the whole completion or for each step",
    columns: &[],
    parameters: &[
        Parameter { name: "path", default: None, about: "Hugging Face directory of the model, or its name on the Hub" },
        Parameter { name: "scope", default: Some("outcome"), about: "outcome or steps" },
        SEPARATOR,
        Parameter { name: "max_length", default: Some("0"), about: "longest prompt and completion, 0 = the model's" },
        Parameter { name: "batch", default: Some("8"), about: "completions of a forward pass" },
        Parameter { name: "threads", default: Some("0"), about: "threads of the model, 0 = one per core" },
    ],
    build,
};

/// The directory of the model. A run has fetched it before; a command fetches it here.
fn folder(parameters: &Parameters) -> Result<PathBuf, String> {
    match on_hub(&parameters.get::<String>("path")?, &parameters.host().dir) {
        Some(name) => shared_hub::locate_model(Path::new(&name)).map_err(|error| error.to_string()),
        None => parameters.path("path"),
    }
}

/// Loads a model directory, and exports it the first time. An error is one line with the path.
fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
    let separator = match parameters.get::<String>("scope")?.as_str() {
        "outcome" => None,
        "steps" => Some(separator(parameters)?),
        other => return Err(format!("parameter `scope` must be outcome or steps, got `{other}`")),
    };
    let batch: usize = parameters.get("batch")?;
    if batch == 0 {
        return Err("parameter `batch` must be at least 1".into());
    }
    let (threads, max_length) = (parameters.get("threads")?, parameters.get("max_length")?);
    let model = ModelDir::open(folder(parameters)?).map_err(|e| e.to_string())?;
    let tokenizer = Tokenizer::open(&model).map_err(|e| e.to_string())?;
    let network = Network::open(&model, threads)?;
    let limit = network.positions;
    if max_length > limit {
        return Err(format!("parameter `max_length` is {max_length}, but the model is for {limit} tokens"));
    }
    let max_length = if max_length == 0 { limit } else { max_length };
    Ok(Arc::new(ModelReward { network, tokenizer, separator, max_length, batch }))
}
