//! `GET /v1/models`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::Uri,
};
use serde_json::{Value, json};

use super::App;
use crate::error::ApiError;

/// All models, the one that is served before its adapters.
fn models(app: &App) -> Vec<Value> {
    let model = |id: &str, root: &str, parent: Option<&str>| {
        json!({
            "id": id,
            "object": "model",
            "created": 0,
            "owned_by": "tandem",
            "root": root,
            "parent": parent,
            "max_model_len": app.max_model_len,
        })
    };
    let base = app.models.base();
    let adapters = app.models.adapters();
    let adapters = adapters.iter().map(|(name, path)| model(name, path, Some(base)));
    [model(base, base, None)].into_iter().chain(adapters).collect()
}

/// The models that are served.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": models(&app) }))
}

/// A model by its name. A path that is no text names none.
pub async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let name = name.map_or_else(|_| uri.path().trim_start_matches("/v1/models/").to_owned(), |Path(name)| name);
    match models(&app).into_iter().find(|model| model["id"] == name) {
        Some(model) => Ok(Json(model)),
        None => Err(app.models.unknown("model", &name)),
    }
}
