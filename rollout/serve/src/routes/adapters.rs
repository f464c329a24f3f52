//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, as vLLM has them.

use std::sync::Arc;

use axum::extract::{Request, State};

use super::App;
use crate::{error::ApiError, request::Fields};

/// Loads an adapter, in place of one of the same name.
pub async fn load(State(app): State<Arc<App>>, request: Request) -> Result<String, ApiError> {
    app.models.by_clients()?;
    let read = |_: &App, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let (name, path): (String, String) = (fields.require("lora_name")?, fields.require("lora_path")?);
        fields.end().map(|()| (name, path))
    };
    let (name, path) = app.read(request, read).await?;
    let loaded = async {
        let turn = app.models.turn().await;
        let load = move |app: &App| app.models.load(&name, &path, &turn).map(|()| name);
        app.apart(load).await
    };
    let name = app.in_time(loaded).await?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// Takes the name of an adapter away.
pub async fn unload(State(app): State<Arc<App>>, request: Request) -> Result<String, ApiError> {
    app.models.by_clients()?;
    let unload = |app: &App, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let name: String = fields.require("lora_name")?;
        fields.end()?;
        app.models.unload(&name).map(|()| name)
    };
    let name = app.read(request, unload).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
