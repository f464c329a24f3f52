//! The factory of a run's generator, which is an engine in this process, or whatever another program supplies in its
//! place.
//!
//! The pair knows a [`PairGenerator`] only by its trait, and a factory likewise. Samplers on other hosts come with a
//! factory of their own from the package `rollout-fleet`, so that nothing of them is compiled here.

use std::{path::Path, sync::atomic::AtomicBool};

use anyhow::{Context, ensure};
use shared::{
    Dtype, ModelDir, RunDir, TensorRole, WeightManifest, WeightReceiver, channel::LearnerStatus, config::TrainConfig,
    run::memory_plan::RunPlan,
};

use super::{link::Link, weights::DirectoryReceiver};
use crate::{
    data::Tokenizer,
    engine::{Engine, EngineOptions, WeightSource, machine},
    generate::{PairGenerator, follower::refusal},
};

/// How to get the program that serves samplers on other hosts, for messages.
pub const FLEET_BUILD: &str = "`cargo build --release --workspace --bin rollout-fleet` builds it";

/// How to get the program that answers agents, for messages.
pub const SERVE_BUILD: &str = "`cargo build --release --workspace --bin rollout-serve` builds it";

/// Makes the generator of a run.
pub trait GeneratorFactory {
    /// Checks whether this configuration is one for this factory, before anything of the run is read.
    ///
    /// # Errors
    /// A configuration that another factory is for, with the option.
    fn check(&self, config: &TrainConfig) -> anyhow::Result<()>;

    /// Makes the generator; `None` where a signal asked for the end before it was ready.
    ///
    /// # Errors
    /// What is wrong with the run, the machine, or the first version.
    fn generator(&self, run: RunParts<'_>) -> anyhow::Result<Option<Box<dyn PairGenerator>>>;
}

/// The parts of a run that exist when its generator is made.
pub struct RunParts<'a> {
    /// The run directory.
    pub run_dir: &'a RunDir,
    /// Its resolved configuration.
    pub config: &'a TrainConfig,
    /// Its model.
    pub model: &'a ModelDir,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The options of an engine beside the learner.
    pub options: EngineOptions,
    /// The newest status of the learner, whose version comes first. A factory that waits for another status leaves that
    /// one here.
    pub learner: &'a mut LearnerStatus,
    /// Knows where that version lies, and is told of another status and of a refusal.
    pub receiver: &'a mut DirectoryReceiver,
    /// The way to the learner.
    pub link: &'a Link,
    /// Set by a signal: the end is asked for.
    pub stop: &'a AtomicBool,
}

/// Makes the engine of this process, with the learner's newest version.
#[derive(Debug, Clone, Copy)]
pub struct LocalEngine;

impl GeneratorFactory for LocalEngine {
    fn check(&self, config: &TrainConfig) -> anyhow::Result<()> {
        ensure!(
            config.listen.is_none(),
            "`listen`: the sampler of a run with workers is `rollout-fleet run`; {FLEET_BUILD}"
        );
        ensure!(
            config.agent.is_none(),
            "`agent`: the sampler of a run with agents is `rollout-serve run`; {SERVE_BUILD}"
        );
        Ok(())
    }

    /// Waits for another version where the first one is refused.
    fn generator(&self, run: RunParts<'_>) -> anyhow::Result<Option<Box<dyn PairGenerator>>> {
        loop {
            let first = run.receiver.published().clone();
            let version = first.source.version;
            let error = match engine(&run, first.source) {
                Ok(engine) => return Ok(Some(Box::new(engine))),
                Err(error) => error,
            };
            let refusal = refusal(&error, version, first.number).ok_or(error)?;
            run.receiver.refused(refusal.clone());
            let is_another = |learner: &LearnerStatus| !refusal.is_of(learner.version, learner.publication);
            match run.link.next_status(run.stop, is_another)? {
                Some(learner) => {
                    run.receiver.hear(&learner);
                    *run.learner = learner;
                }
                None => return Ok(None),
            }
        }
    }
}

fn engine(run: &RunParts<'_>, source: WeightSource) -> anyhow::Result<Engine> {
    let RunParts { config, model, .. } = run;
    let manifest = WeightManifest::read(&source.dir)?;
    let dtype = dtype(&manifest);
    let mut options = run.options.clone();
    let critic = config.critic_model.as_ref().map(ModelDir::open).transpose().context("`critic_model`")?;
    let critic = critic.as_ref().map(ModelDir::config);
    let shared = source.dir.parent().is_some_and(Path::is_symlink);
    let plan = RunPlan::new(config, model.config(), critic, machine(options.device)?, shared)?;
    options.memory = Some(plan.sampler_share());
    options.fit(config.max_num_seqs, model.config(), dtype)?;
    Ok(Engine::new(source, model, options)?)
}

fn dtype(manifest: &WeightManifest) -> Dtype {
    manifest.tensors.iter().find(|t| t.role == TensorRole::Parameter).map_or(Dtype::Fp32, |t| t.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_workers_or_agents_is_left_to_the_program_that_has_them() {
        LocalEngine.check(&TrainConfig::default()).unwrap();
        let listening = TrainConfig { listen: Some("tcp/127.0.0.1:7447".into()), ..TrainConfig::default() };
        let refused = LocalEngine.check(&listening).unwrap_err().to_string();
        assert!(refused.contains("`listen`") && refused.contains("`rollout-fleet run`"), "{refused}");
        assert!(refused.ends_with(FLEET_BUILD), "{refused}");
        let agents = TrainConfig { agent: Some("my_agent".into()), ..TrainConfig::default() };
        let refused = LocalEngine.check(&agents).unwrap_err().to_string();
        assert!(refused.contains("`agent`") && refused.ends_with(SERVE_BUILD), "{refused}");
    }
}
