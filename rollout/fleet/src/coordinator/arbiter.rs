//! The engine beside the learner that decides whose completions are right. It exists only while there is something to
//! decide. A side thread makes it, from the weights that workers have.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    thread::{self, JoinHandle},
};

use rollout::{
    data::Tokenizer,
    engine::{Engine, EngineOptions, Output, WeightSource, distance_of},
    generate::{self, Generate},
};
use shared::{
    ModelDir, RunDir,
    channel::fleet::{Edition, Made},
};

use super::check::{Check, Found};
use crate::{
    messages,
    weights::{self, GiveUp, Origin},
};

/// A case with what the arbiter has found, or the reason why it has found nothing.
pub type Decided = (Check, Result<Found, String>);

/// Everything that an arbiter works with.
#[derive(Clone)]
pub struct ArbiterOptions {
    /// Where weights are.
    pub origin: Origin,
    /// Where it may put them.
    pub scratch: PathBuf,
    /// The model, without weights.
    pub model: ModelDir,
    /// For stop strings.
    pub tokenizer: Tokenizer,
    /// How its engine computes.
    pub engine: EngineOptions,
}

/// Decides one bunch of cases, or about one edition, at a time.
pub struct Arbiter {
    options: ArbiterOptions,
    session: Option<JoinHandle<Outcome>>,
    /// The finding about the edition that was looked at last, with its publication.
    opinion: Option<(u64, Result<(), String>)>,
}

/// The result of a session.
enum Outcome {
    Decided(Vec<Decided>),
    LookedAt(u64, Result<(), String>),
}

impl Arbiter {
    /// An arbiter without cases.
    #[must_use]
    pub fn new(options: ArbiterOptions) -> Self {
        Self { options, session: None, opinion: None }
    }

    /// Whether it would take cases.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.session.is_none()
    }

    /// Begins with cases. Those that were not sampled from `edition` are too old.
    pub fn take(&mut self, cases: Vec<Check>, edition: Option<Edition>) {
        if !cases.is_empty() {
            self.begin(move |options| Outcome::Decided(decide(options, cases, edition.as_ref())));
        }
    }

    /// Begins to look at an edition as a worker does, unless it is busy: at its bytes, its norms and its log-probs of
    /// the learner's tokens.
    pub fn look_at(&mut self, edition: Edition) {
        if self.is_free() {
            self.begin(move |options| {
                let found = open(options, &edition).map(drop).map_err(|error| format!("{error:#}"));
                Outcome::LookedAt(edition.publication, found)
            });
        }
    }

    /// The finding about an edition, once it was looked at; an error says what is wrong with it.
    #[must_use]
    pub fn opinion(&self, edition: &Edition) -> Option<Result<(), String>> {
        self.opinion
            .as_ref()
            .filter(|(publication, _)| *publication == edition.publication)
            .map(|(_, found)| found.clone())
    }

    fn begin(&mut self, work: impl FnOnce(&ArbiterOptions) -> Outcome + Send + 'static) {
        let options = self.options.clone();
        match thread::Builder::new().name("arbiter".into()).spawn(move || work(&options)) {
            Ok(session) => self.session = Some(session),
            Err(error) => tracing::warn!("completions are not checked, there is no thread for it: {error}"),
        }
    }

    /// The cases that it has decided since the last call.
    pub fn decided(&mut self) -> Vec<Decided> {
        let Some(session) = self.session.take_if(|session| session.is_finished()) else { return Vec::new() };
        match session.join() {
            Ok(Outcome::Decided(decided)) => decided,
            Ok(Outcome::LookedAt(publication, found)) => {
                self.opinion = Some((publication, found));
                Vec::new()
            }
            Err(_) => {
                tracing::error!("the engine that checks completions has panicked");
                Vec::new()
            }
        }
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.join();
        }
    }
}

fn decide(options: &ArbiterOptions, cases: Vec<Check>, edition: Option<&Edition>) -> Vec<Decided> {
    let of_edition = |check: &Check| edition.filter(|edition| edition.version == check.version);
    let mut engine: Option<Result<Engine, String>> = None;
    let mut decided = Vec::new();
    for check in cases {
        let Some(edition) = of_edition(&check) else {
            decided.push((check, Ok(Found::Late)));
            continue;
        };
        let engine = engine.get_or_insert_with(|| open(options, edition).map_err(|e| format!("{e:#}")));
        let found = match engine {
            Ok(engine) if check.tolerance.is_some() => apart(engine, &check).map(Found::Apart),
            Ok(engine) => make(options, engine, &check).map(Found::Made),
            Err(reason) => Err(reason.clone()),
        };
        decided.push((check, found));
    }
    decided
}

/// The largest distance between a completion's log-probs and those of this engine.
fn apart(engine: &mut Engine, check: &Check) -> Result<f64, String> {
    let mut farthest = 0.0_f64;
    for made in check.made.iter().flat_map(|(_, made)| made) {
        let found = engine.score(&check.request.prompt_ids, &made.token_ids).map_err(|e| e.to_string())?;
        let said: Vec<f64> = made.logprobs.iter().map(|l| l.logprob.into()).collect();
        farthest = farthest.max(distance_of(&found, &said));
    }
    Ok(farthest)
}

fn open(options: &ArbiterOptions, edition: &Edition) -> anyhow::Result<Engine> {
    let folder = tempfile::tempdir_in(&options.scratch)?;
    let run_dir = RunDir::new(folder.path());
    weights::fetch(&options.origin, edition, None, &run_dir, &GiveUp::default())?;
    let source = WeightSource { dir: run_dir.version(edition.version), version: edition.version };
    // Packed weights are in memory, and a mapped file stays until it is unmapped.
    Ok(Engine::new(source, &options.model, options.engine.clone())?)
}

fn make(options: &ArbiterOptions, generator: &mut dyn Generate, check: &Check) -> Result<Vec<Made>, String> {
    let mut request = check.request.clone();
    request.stop_criterion = options.tokenizer.stop_criterion(&request.sampling.stop);
    request.tag = 0;
    generator.begin(request.into()).map_err(|e| e.to_string())?;
    let mut made = Vec::new();
    let finished = generate::finish(generator, |_, outputs| {
        made.extend(outputs.into_iter().filter_map(Output::ended).map(|sequence| messages::made(0, sequence)));
        Ok(ControlFlow::Continue(()))
    });
    finished.map_err(|e| e.to_string())?;
    Ok(made)
}
