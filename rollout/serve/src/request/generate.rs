//! The body of `POST /inference/v1/generate`: token ids in, token ids out.

use super::{
    Fields,
    completion::{Prompt, check_ids},
    sampling::{Sampling, max_tokens, room},
    take_model,
};
use crate::{
    error::ApiError,
    models::{Model, Models},
};

/// What is asked for.
#[derive(Debug)]
pub struct Generation {
    /// Who is asked.
    pub model: Model,
    /// The prompt.
    pub prompt: Prompt,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Whether log-probs of the drawn tokens come along.
    pub logprobs: bool,
}

impl AsRef<Model> for Generation {
    fn as_ref(&self) -> &Model {
        &self.model
    }
}

impl Generation {
    /// Reads a body. Fields of `sampling_params` that are not known are ignored, as trainers send fields for servers of
    /// several kinds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(body: &[u8], models: &Models, vocab_size: usize, max_model_len: usize) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = take_model(&mut fields, models)?;
        let ids: Vec<u32> = fields.require("token_ids")?;
        let mut params = fields.fields("sampling_params")?;
        if fields.take::<bool>("stream")?.unwrap_or(false) {
            return Err(ApiError::field("stream", "`stream` is not supported by this route"));
        }
        fields.end()?;
        let sampling = Sampling::take(&mut params, vocab_size)?;
        let logprobs = params.take::<u32>("logprobs")?.is_some();
        let wanted = max_tokens(&mut params, &["max_tokens"], 1)?;
        check_ids("token_ids", &ids, vocab_size)?;
        let max_tokens = room("token_ids", ids.len(), wanted, max_model_len)?;
        let prompt = Prompt { text: String::new(), ids: ids.into(), max_tokens, goes_on: true };
        Ok(Self { model, prompt, sampling, logprobs })
    }
}
