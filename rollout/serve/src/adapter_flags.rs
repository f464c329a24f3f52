//! The flags of `rollout-serve serve` about adapters, and what they name.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use exporters::Adapter;
use rollout::{
    commands::{adapters::Base, model::NamedModel},
    engine::{Engine, EngineOptions, Kernels, adapter_bytes},
};
use shared::{ModelConfig, config::Device, process::pace::Waiting};

use crate::models::{Loading, Models};

/// Adapters on the model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Adapters")]
pub struct AdapterFlags {
    /// LoRA adapters on the model, which requests choose by these names: directories of PEFT, checkpoints of runs with
    /// `use_peft`, such runs, or names on the Hub
    #[arg(long, value_name = "NAME=PATH", num_args = 1..)]
    pub lora_modules: Vec<String>,
    /// Most adapters at once: requests beyond it load none [default: as many as --lora-modules names, at least 1]
    #[arg(long, env = "TANDEM_MAX_LORAS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_loras: Option<u32>,
    /// Let clients load adapters from folders of this host, and unload them (`/v1/load_lora_adapter`): only where all
    /// clients may read these folders
    #[arg(long, env = "TANDEM_ALLOW_RUNTIME_LORA_UPDATING", value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_runtime_lora_updating: bool,
}

/// Adapters that were found, before there is an engine.
pub struct Found<'a> {
    base: Base,
    /// Each with its name and its path.
    adapters: Vec<(&'a str, &'a str, Adapter)>,
    most: usize,
    by_clients: bool,
}

impl AdapterFlags {
    /// Opens the adapters; nothing where no flag asks for any. `served` is the name of the model.
    ///
    /// # Errors
    /// With the flag: kernels that know no adapters, a name that is taken, too many adapters, or one that cannot be
    /// used.
    pub fn find(&self, model: &NamedModel, served: &str, options: &EngineOptions) -> Result<Option<Found<'_>>> {
        let flag = match (self.lora_modules.is_empty(), self.allow_runtime_lora_updating) {
            (false, _) => "--lora-modules",
            (true, true) => "--allow-runtime-lora-updating",
            (true, false) => {
                ensure!(self.max_loras.is_none(), "--max-loras needs --lora-modules or --allow-runtime-lora-updating");
                return Ok(None);
            }
        };
        ensure!(options.device == Device::Cpu, "{flag} needs --device cpu");
        ensure!(options.kernels == Kernels::Packed, "{flag} needs --kernels packed");
        let base = Base::of(model).context(flag)?;
        let mut adapters: Vec<(&str, &str, Adapter)> = Vec::new();
        for module in &self.lora_modules {
            let Some((name, path)) = module.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty())
            else {
                bail!("{flag} {module}: an adapter is given as NAME=PATH");
            };
            ensure!(name != served, "{flag} {name}: the model has this name (--served-model-name)");
            ensure!(adapters.iter().all(|(other, ..)| *other != name), "{flag} {name}: two adapters have this name");
            let adapter = base.adapter(Path::new(path)).with_context(|| format!("{flag} {name}"))?;
            adapters.push((name, path, adapter));
        }
        let (given, by_clients) = (adapters.len(), self.allow_runtime_lora_updating);
        let most = self.max_loras.map_or(given.max(1), |most| most as usize);
        ensure!(given <= most, "--max-loras {most}: {flag} names {given}");
        Ok(Some(Found { base, adapters, most, by_clients }))
    }
}

impl Found<'_> {
    /// Bytes of the most adapters that may be in memory at once, beside their base. Where clients load some, one that
    /// was replaced may still be in use.
    #[must_use]
    pub fn bytes(&self, config: &ModelConfig, options: &EngineOptions) -> u64 {
        let bytes = |adapter| adapter_bytes(config, options.format(), adapter);
        let given: u64 = self.adapters.iter().map(|(.., adapter)| bytes(Some(adapter))).sum();
        let coming = if self.by_clients { self.most + 1 - self.adapters.len() } else { 0 };
        given.saturating_add(bytes(None).saturating_mul(coming as u64))
    }

    /// Loads them into an engine, whose model has this name.
    ///
    /// # Errors
    /// With the name: too little memory, or weights that no logits come of.
    pub fn load(self, engine: &mut Engine, served: &str) -> Result<Models> {
        let _waiting = Waiting::new("loading the adapters");
        let loader = engine.adapter_loader()?;
        let mut loaded = Vec::new();
        for (name, path, adapter) in &self.adapters {
            let adapter = loader.load(adapter).with_context(|| format!("--lora-modules {name}={path}"))?;
            loaded.push((*name, (*path).to_owned(), adapter));
        }
        let Self { base, most, by_clients, .. } = self;
        let models = Models::new(served, Some(Loading { loader, base, most, by_clients }));
        loaded.into_iter().for_each(|(name, path, adapter)| models.insert(name, path, adapter));
        Ok(models)
    }
}
