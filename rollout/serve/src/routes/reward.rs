//! `POST /reward`: the reward that an agent of a run gives itself.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Request, State},
};
use serde_json::{Value, json};

use super::App;
use crate::{agent::Sample, error::ApiError, request::Fields};

/// Takes the reward of a sample, once.
pub async fn give(
    State(app): State<Arc<App>>,
    Extension(sample): Extension<Arc<Sample>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let read = app.read(request, |_, body| {
        let mut fields = Fields::parse(body)?;
        let reward: f64 = fields.require("reward")?;
        fields.end()?;
        if reward.is_finite() { Ok(reward) } else { Err(ApiError::field("reward", "`reward` must be a finite number")) }
    });
    let reward = read.await?;
    sample.reward(reward)?;
    Ok(Json(json!({ "reward": reward })))
}
