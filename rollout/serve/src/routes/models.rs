//! `GET /v1/models`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::Uri,
};
use serde_json::{Value, json};

use super::App;
use crate::{error::ApiError, request::unknown_model};

fn model(app: &App) -> Value {
    json!({
        "id": &*app.model,
        "object": "model",
        "created": 0,
        "owned_by": "tandem",
        "root": &*app.model,
        "max_model_len": app.max_model_len,
    })
}

/// The models that are served: one.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model(&app)] }))
}

/// A model by its name. A path that is no text names none.
pub async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let name = name.map_or_else(|_| uri.path().trim_start_matches("/v1/models/").to_owned(), |Path(name)| name);
    if name == *app.model { Ok(Json(model(&app))) } else { Err(unknown_model(&name, &app.model)) }
}
