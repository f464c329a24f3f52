//! How tokens are drawn: OpenAI's fields and some of vLLM's.

use std::{ops::RangeInclusive, sync::Arc};

use rollout::{
    data::{
        Tokenizer,
        stop::{StopCriterionFactory, StopStrings},
    },
    engine::{Constrained, GroupRequest, StopCriterion},
};
use rollout_constraint::{Grammars, Start};
use serde::Deserialize;
use shared::{PromptId, SamplingParams, generation::rng};

use super::{Fields, completion::Prompt, grammar};
use crate::error::ApiError;

/// Most completions of a prompt, as OpenAI has it.
const MOST_CHOICES: u32 = 128;
/// Most stop strings. Each is looked for with every token.
const MOST_STOPS: usize = 16;
/// Most tokens that end a completion.
const MOST_STOP_TOKENS: usize = 1024;
/// Smallest temperature beside 0. Below it, and with penalties beyond theirs, finite logits may leave the range of
/// numbers, and an engine that can draw no token ends.
const LEAST_TEMPERATURE: f32 = 1e-3;
/// Repetition penalties.
const PENALTIES: RangeInclusive<f32> = 0.01..=100.0;
/// OpenAI's penalties.
const DEDUCTIONS: RangeInclusive<f32> = -2.0..=2.0;

/// Fields that say by which values tokens are drawn.
const VALUES: [&str; 8] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
];

/// How completions are made.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// Seed and length are set later.
    pub params: SamplingParams,
    /// Completions of each prompt.
    pub n: u32,
    /// The values by which tokens are drawn that the client has named.
    pub named: Vec<&'static str>,
    /// The client's seed.
    pub seed: Option<u64>,
    /// Tokens that end a completion, beside those of the model; in order.
    pub stop_token_ids: Vec<u32>,
    /// What completions may be.
    pub grammar: Option<grammar::Asked>,
    /// The same for the engine, after [`Sampling::compile`].
    pub constraint: Option<Constrained>,
}

/// A value, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be a text or a list of texts")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn many(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

impl Sampling {
    /// Takes the fields of a request to a model with so many tokens.
    ///
    /// # Errors
    /// A value of another type, or out of range.
    pub fn take(fields: &mut Fields, vocab_size: usize) -> Result<Self, ApiError> {
        let defaults = SamplingParams::default();
        let named = VALUES.into_iter().filter(|name| fields.0.contains_key(*name)).collect();
        let stop = fields.take::<OneOrMany<String>>("stop")?.map(OneOrMany::many).unwrap_or_default();
        if stop.len() > MOST_STOPS || stop.iter().any(String::is_empty) {
            return Err(ApiError::field("stop", format!("`stop` takes up to {MOST_STOPS} texts, none of them empty")));
        }
        let n: u32 = fields.take("n")?.unwrap_or(1);
        if !(1..=MOST_CHOICES).contains(&n) {
            return Err(ApiError::field("n", format!("`n` must be 1 to {MOST_CHOICES}")));
        }
        if fields.take::<u32>("best_of")?.is_some_and(|best| best != n) {
            return Err(ApiError::field("best_of", "`best_of` is not supported: every completion is returned"));
        }
        // vLLM writes -1 where nothing is cut off.
        let top_k: i64 = fields.take("top_k")?.unwrap_or(-1);
        if top_k < -1 {
            return Err(ApiError::field("top_k", "`top_k` must be at least 1, or else 0 or -1 for all tokens"));
        }
        let params = SamplingParams {
            temperature: fields.take("temperature")?.unwrap_or(1.0),
            top_k: u32::try_from(top_k.max(0)).unwrap_or(u32::MAX),
            top_p: fields.take("top_p")?.unwrap_or(1.0),
            min_p: fields.take("min_p")?.filter(|min_p: &f32| *min_p != 0.0),
            repetition_penalty: fields.take("repetition_penalty")?.unwrap_or(1.0),
            presence_penalty: fields.take("presence_penalty")?.unwrap_or(0.0),
            frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(0.0),
            stop,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            ..defaults
        };
        params.validate().map_err(|message| {
            let name = message.split([' ', '`']).find(|word| !word.is_empty()).unwrap_or_default().to_owned();
            ApiError::field(&name, message)
        })?;
        if !params.greedy() && params.temperature < LEAST_TEMPERATURE {
            let message = format!("`temperature` must be 0 or at least {LEAST_TEMPERATURE}");
            return Err(ApiError::field("temperature", message));
        }
        for (name, value, range) in [
            ("repetition_penalty", params.repetition_penalty, PENALTIES),
            ("presence_penalty", params.presence_penalty, DEDUCTIONS),
            ("frequency_penalty", params.frequency_penalty, DEDUCTIONS),
        ] {
            if !range.contains(&value) {
                let message = format!("`{name}` must be {} to {}", range.start(), range.end());
                return Err(ApiError::field(name, message));
            }
        }
        let stop_token_ids = stop_token_ids(fields, vocab_size)?;
        let (seed, grammar) = (seed(fields)?, grammar::take(fields)?);
        Ok(Self { params, n, named, seed, stop_token_ids, grammar, constraint: None })
    }

    /// Compiles the grammar that is asked for. This takes a while: it is no work for the engine's thread.
    ///
    /// # Errors
    /// A grammar that cannot be followed, by the name of its field, and of the tool whose parameters are the reason.
    pub fn compile(&mut self, grammars: &Grammars, start: Start) -> Result<(), ApiError> {
        let Some(asked) = &self.grammar else { return Ok(()) };
        let compiled = grammars.compile(asked.field, &asked.grammar, start);
        self.constraint = Some(compiled.map_err(|reason| asked.refused(&reason))?);
        Ok(())
    }

    /// What is asked of the engine for a prompt. Tokens are drawn by seed, prompt and index of the completion, so the
    /// same request with the same seed has the same answer, whatever else runs.
    #[must_use]
    pub fn group(&self, tokenizer: &Tokenizer, prompt: &Prompt, fresh_seed: u64) -> GroupRequest {
        let keys: Vec<u64> = prompt.ids.iter().map(|&id| id.into()).collect();
        let params = SamplingParams {
            max_completion_length: prompt.max_tokens,
            seed: self.seed.unwrap_or(fresh_seed),
            ..self.params.clone()
        };
        GroupRequest {
            tag: 0,
            prompt_id: PromptId(rng::hash(&keys)),
            epoch: 0,
            prompt_ids: Arc::clone(&prompt.ids),
            samples: (0..self.n).collect(),
            sampling: Arc::new(params),
            lengths: None,
            stop_criterion: self.stop(tokenizer, prompt),
            constraint: self.constraint.clone(),
        }
    }

    /// Looks for stop strings in the text that the client gets.
    fn stop(&self, tokenizer: &Tokenizer, prompt: &Prompt) -> Option<StopCriterionFactory> {
        let tokens: Arc<[u32]> = self.stop_token_ids.as_slice().into();
        let texts: Arc<[String]> = self.params.stop.as_slice().into();
        if tokens.is_empty() && texts.is_empty() {
            return None;
        }
        let (tokenizer, prompt) = (tokenizer.clone(), prompt.clone());
        Some(Arc::new(move || {
            let watch = || StopStrings::after(tokenizer.clone(), Arc::clone(&texts), prompt.before());
            Box::new(Stop { tokens: Arc::clone(&tokens), texts: (!texts.is_empty()).then(watch) })
        }))
    }
}

/// Ends a completion at a token, or at a text.
struct Stop {
    tokens: Arc<[u32]>,
    texts: Option<StopStrings>,
}

impl StopCriterion for Stop {
    fn push(&mut self, token: u32) -> bool {
        let in_text = self.texts.as_mut().is_some_and(|texts| texts.push(token));
        in_text || self.tokens.binary_search(&token).is_ok()
    }
}

/// Tokens that end a completion, in order: they are looked for with every token that is drawn.
fn stop_token_ids(fields: &mut Fields, vocab_size: usize) -> Result<Vec<u32>, ApiError> {
    let mut ids: Vec<u32> = fields.take("stop_token_ids")?.unwrap_or_default();
    ids.sort_unstable();
    if ids.len() > MOST_STOP_TOKENS || ids.last().is_some_and(|&id| id as usize >= vocab_size) {
        let message = format!("`stop_token_ids` takes up to {MOST_STOP_TOKENS} of the model's {vocab_size} tokens");
        return Err(ApiError::field("stop_token_ids", message));
    }
    Ok(ids)
}

/// A seed may be any whole number of 64 bits.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(seed) = fields.take::<serde_json::Number>("seed")? else { return Ok(None) };
    let bits = seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned));
    bits.map(Some).ok_or_else(|| ApiError::field("seed", "`seed` must be a whole number of 64 bits"))
}

/// The tokens that a completion of a prompt of `prompt` tokens may have: as many as are wanted, or all that the model
/// has room for.
///
/// # Errors
/// When the model has no room for them.
pub fn room(param: &str, prompt: usize, wanted: Option<u32>, max_model_len: usize) -> Result<u32, ApiError> {
    let room = u32::try_from(max_model_len.saturating_sub(prompt)).unwrap_or(u32::MAX);
    let asked = match wanted {
        // No token may be wanted at all, of a prompt that is scored alone.
        Some(tokens) if tokens <= room && prompt <= max_model_len => return Ok(tokens),
        None if room > 0 => return Ok(room),
        Some(tokens) => format!("{tokens} of the completion"),
        None => "at least one of the completion".to_owned(),
    };
    Err(ApiError::too_long(
        param,
        format!(
            "this model's maximum context length is {max_model_len} tokens, and the request is for {prompt} tokens of \
             the prompt and {asked}"
        ),
    ))
}

/// Takes the most tokens of a completion, from the first of these fields that is there.
///
/// # Errors
/// A value that is no number, or below `least`.
pub fn max_tokens(fields: &mut Fields, names: &[&str], least: u32) -> Result<Option<u32>, ApiError> {
    let mut first = None;
    for name in names {
        let value: Option<u32> = fields.take(name)?;
        if value.is_some_and(|value| value < least) {
            return Err(ApiError::field(name, format!("`{name}` must be at least {least}")));
        }
        first = first.or(value);
    }
    Ok(first)
}
