//! The models that requests choose from by their names: the one that is served, and adapters on it.
//!
//! A request finds its model when its body is read, and keeps it. So an adapter that is replaced or unloaded meanwhile
//! stays in memory until the last request that has begun with it has ended.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use axum::http::StatusCode;
use rollout::{
    commands::adapters::Base,
    engine::{AdapterLoader, LoadedAdapter},
};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::ApiError;

/// Most characters of a name that a client gives.
const LONGEST_NAME: usize = 256;

/// A model as a request has found it.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name.
    pub name: Arc<str>,
    /// The adapter on the model that is served, if it is one.
    pub adapter: Option<LoadedAdapter>,
}

/// An adapter with its name.
struct Named {
    adapter: LoadedAdapter,
    /// Where it was found, as it was named.
    path: String,
}

/// How adapters come to be.
pub struct Loading {
    /// Packs them.
    pub loader: AdapterLoader,
    /// Finds them.
    pub base: Base,
    /// Most adapters with a name.
    pub most: usize,
    /// Whether clients may load and unload some.
    pub by_clients: bool,
}

/// All models.
pub struct Models {
    base: Arc<str>,
    /// Whether every name is its name.
    is_any: bool,
    adapters: RwLock<BTreeMap<Arc<str>, Named>>,
    loading: Option<Loading>,
    /// Held while an adapter is loaded.
    turn: Arc<Mutex<()>>,
}

impl Models {
    /// The model that is served; without `loading`, it is the only one.
    #[must_use]
    pub fn new(base: &str, loading: Option<Loading>) -> Self {
        Self { base: base.into(), is_any: false, adapters: RwLock::default(), loading, turn: Arc::default() }
    }

    /// One model, which answers to every name: the policy of a run, whose agents may call it as they like.
    #[must_use]
    pub fn of_any_name(base: &str) -> Self {
        Self { is_any: true, ..Self::new(base, None) }
    }

    /// The name of the model that is served.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// A model by its name; without one, the model that is served.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn find(&self, name: Option<&str>) -> Result<Model, ApiError> {
        let Some(name) = name.filter(|name| !self.is_any && *name != &*self.base) else {
            return Ok(Model { name: Arc::clone(&self.base), adapter: None });
        };
        let found = self.read(|adapters| {
            let (name, Named { adapter, .. }) = adapters.get_key_value(name)?;
            Some(Model { name: Arc::clone(name), adapter: Some(adapter.clone()) })
        });
        found.ok_or_else(|| self.unknown("model", name))
    }

    /// The names of the adapters, each with the path where it was found.
    #[must_use]
    pub fn adapters(&self) -> Vec<(Arc<str>, String)> {
        self.read(|adapters| adapters.iter().map(|(name, named)| (Arc::clone(name), named.path.clone())).collect())
    }

    /// A name that no model has.
    #[must_use]
    pub fn unknown(&self, param: &str, name: &str) -> ApiError {
        let mut names: Vec<Arc<str>> = self.adapters().into_iter().map(|(name, _)| name).collect();
        names.insert(0, Arc::clone(&self.base));
        let are = if names.len() == 1 { "model is" } else { "models are" };
        let message = format!("there is no model `{name}` here; the {are} `{}`", names.join("`, `"));
        ApiError { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..ApiError::field(param, message) }
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<Arc<str>, Named>) -> T) -> T {
        look(&self.adapters.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How clients load adapters.
    ///
    /// # Errors
    /// When they may not.
    pub fn by_clients(&self) -> Result<&Loading, ApiError> {
        let message = "adapters are loaded and unloaded by requests with --allow-runtime-lora-updating only";
        let loading = self.loading.as_ref().filter(|loading| loading.by_clients);
        loading.ok_or_else(|| ApiError::new(StatusCode::FORBIDDEN, message))
    }

    /// Waits until nobody loads an adapter, and keeps others from it.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Loads an adapter from a folder that a client names, in place of one of the same name. Takes the [`Models::turn`]
    /// along, so that adapters come one by one even where a client does not wait for its own.
    ///
    /// # Errors
    /// When clients may not, a name that cannot be one, too many adapters, or a path where there is none for this
    /// model.
    pub fn load(&self, name: &str, path: &str, _turn: &OwnedMutexGuard<()>) -> Result<(), ApiError> {
        let loading = self.by_clients()?;
        let refuse = |param: &str, message: String| Err(ApiError::field(param, message));
        if name == &*self.base {
            return refuse("lora_name", format!("`{name}` is the model that is served, and no adapter"));
        }
        if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
            return refuse("lora_name", format!("a name has 1 to {LONGEST_NAME} characters that can be shown"));
        }
        let most = loading.most;
        if self.read(|adapters| adapters.len() >= most && !adapters.contains_key(name)) {
            return refuse(
                "lora_name",
                format!("there are {most} adapters already (--max-loras), and none of them is `{name}`; unload one"),
            );
        }
        if loading.loader.in_memory() > most {
            let message = "requests still use adapters that were replaced or unloaded; try again when they have ended";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        if !Path::new(path).is_dir() {
            return refuse("lora_path", format!("{path}: there is no such folder on the host of the endpoint"));
        }
        let unfit = |reason: String| ApiError::field("lora_path", reason);
        let adapter = loading.base.adapter(Path::new(path)).map_err(|error| unfit(format!("{error:#}")))?;
        let loaded = loading.loader.load(&adapter).map_err(|error| unfit(format!("{path}: {error}")))?;
        self.insert(name, path.to_owned(), loaded);
        Ok(())
    }

    /// Gives an adapter its name. One that had it has none any more.
    pub fn insert(&self, name: &str, path: String, adapter: LoadedAdapter) {
        let mut adapters = self.adapters.write().unwrap_or_else(PoisonError::into_inner);
        let before = adapters.insert(name.into(), Named { adapter, path });
        // To free one takes a while: not while requests wait for the lock.
        drop(adapters);
        drop(before);
    }

    /// Takes the name of an adapter away. Its memory is free when no request uses it any more.
    ///
    /// # Errors
    /// When clients may not, or there is none of that name.
    pub fn unload(&self, name: &str) -> Result<(), ApiError> {
        self.by_clients()?;
        let before = self.adapters.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        before.map(drop).ok_or_else(|| self.unknown("lora_name", name))
    }
}
