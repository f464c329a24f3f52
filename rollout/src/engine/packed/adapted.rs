//! Adapters beside the weights in use: sequences of several of them run at once.
//!
//! An adapter has products of its own where it changes the base, packed with its update, so they have the bits of the
//! merged model. All else is the base's, and a call computes it once for the tokens of all adapters.

use std::{
    fmt, ptr,
    sync::{Arc, Weak},
};

use exporters::Adapter;
use rollout_kernels::{element::Format, linear::Linear};
use shared::ModelConfig;

use super::{
    super::{EngineError, gate::probe},
    session::{PackedOptions, PackedSession},
    weights::{PackedProduct, PackedWeights, Panels, changed_words},
};

/// An adapter that an engine can compute with. It stays in memory while somebody has a clone, and sequences that were
/// begun with it have one.
#[derive(Clone)]
pub struct LoadedAdapter(Arc<Adapted>);

struct Adapted {
    /// The weights that it changes.
    base: Arc<PackedWeights>,
    /// The products that it changes.
    changed: Panels,
    /// Counts for [`AdapterLoader::in_memory`].
    _loader: Weak<()>,
}

impl fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoadedAdapter").field(&Arc::as_ptr(&self.0)).finish()
    }
}

impl LoadedAdapter {
    /// Whether it changes these weights.
    pub(super) fn is_of(&self, weights: &Arc<PackedWeights>) -> bool {
        Arc::ptr_eq(&self.0.base, weights)
    }
}

/// Neighbours in a call that are computed with one adapter, or with none.
#[derive(Debug, Clone)]
pub(in super::super) struct Share {
    pub adapter: Option<LoadedAdapter>,
    pub tokens: usize,
}

impl Share {
    /// A key that is the same for all that have one adapter.
    pub fn key(adapter: Option<&LoadedAdapter>) -> usize {
        adapter.map_or(0, |adapter| Arc::as_ptr(&adapter.0).addr())
    }

    fn changed(&self, index: usize) -> Option<&PackedProduct> {
        self.adapter.as_ref()?.0.changed.product(index)
    }

    /// Whether a product is the same one for both.
    pub fn has_product_of(&self, other: &Self, index: usize) -> bool {
        match (self.changed(index), other.changed(index)) {
            (None, None) => true,
            (Some(one), Some(other)) => ptr::eq(one, other),
            _ => false,
        }
    }

    /// One of the products, as the adapter has it.
    pub fn product<'a>(&'a self, index: usize, of_base: Linear<'a>) -> Linear<'a> {
        let changed = self.adapter.as_ref().and_then(|adapter| adapter.0.changed.get(index));
        changed.map_or(of_base, |(panels, quantized)| Linear { panels, quantized, ..of_base })
    }
}

/// Loads adapters for the weights that an engine had when it was made ([`Engine::adapter_loader`]), on any thread.
///
/// [`Engine::adapter_loader`]: super::super::Engine::adapter_loader
pub struct AdapterLoader {
    base: Arc<PackedWeights>,
    config: ModelConfig,
    options: PackedOptions,
    /// Each adapter has a weak handle.
    loaded: Arc<()>,
}

impl AdapterLoader {
    pub(super) fn new(base: Arc<PackedWeights>, config: &ModelConfig, options: PackedOptions) -> Self {
        Self { base, config: config.clone(), options, loaded: Arc::default() }
    }

    /// Packs what an adapter for the engine's model changes. Sequences go on meanwhile.
    ///
    /// # Errors
    /// Too little memory, or logits that are not finite.
    pub fn load(&self, adapter: &Adapter) -> Result<LoadedAdapter, EngineError> {
        let (format, threads) = (self.options.format, self.options.session.threads);
        let changed = self.base.changed(&self.config, adapter, format, threads)?;
        let (base, _loader) = (Arc::clone(&self.base), Arc::downgrade(&self.loaded));
        let loaded = LoadedAdapter(Arc::new(Adapted { base, changed, _loader }));
        probe(self.config.vocab_size, |tokens, scored, each| {
            self.session(tokens.len())?.score(tokens, scored, Some(&loaded), each)
        })?;
        Ok(loaded)
    }

    /// A session for a short sequence.
    fn session(&self, positions: usize) -> Result<PackedSession, EngineError> {
        let options = self.options.to_score(&self.config, positions);
        PackedSession::new(Arc::clone(&self.base), &self.config, options)
    }

    /// How many of its adapters are in memory: those that somebody has a handle of, or that sequences run with.
    #[must_use]
    pub fn in_memory(&self) -> usize {
        Arc::weak_count(&self.loaded)
    }
}

/// Bytes that an adapter takes beside its base with packed kernels; without one, the most that any takes.
#[must_use]
pub fn adapter_bytes(config: &ModelConfig, format: Format, adapter: Option<&Adapter>) -> u64 {
    (changed_words(config, format, adapter) * size_of::<f32>()) as u64
}
