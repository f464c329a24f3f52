//! Weights from a Hugging Face directory, or random ones.

use exporters::{Checkpoint, Codes};
use shared::{
    BaseFormat, Head, ModelConfig, ModelDir,
    generation::rng,
    run::memory_plan::LearnerSizes,
    system::memory::{self, Size},
};
use tch::{Device, Kind};

use super::{Decoder, Parameters, Scorer, Weights, coded::Coded, kinds::wide_kind, scorer::SCORE};
use crate::{device, error::LearnerError};

/// Standard deviation of random weights when `config.json` has no `initializer_range`; transformers' default.
const INITIALIZER_RANGE: f64 = 0.02;

/// Range of the random factors of a delta rule's decays, as in transformers.
const DECAYS: [f64; 2] = [0.01, 16.0];

/// How a model is loaded.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Element type that the layers compute in; stored values are converted. A model that is trained in bfloat16 has a
    /// float32 copy of its trained weights.
    pub kind: Kind,
    /// Device of the weights.
    pub device: Device,
    /// Whether gradients will be asked for.
    pub trainable: bool,
    /// As [`Decoder::new`] says.
    pub gradient_checkpointing: bool,
    /// How the matrices of layers are held, in a model that is not trained; None: with all digits.
    pub base: Option<BaseFormat>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { kind: Kind::Float, device: Device::Cpu, trainable: true, gradient_checkpointing: false, base: None }
    }
}

impl LoadOptions {
    /// How the matrices of layers are held: a model that is trained has all digits.
    fn held_in(self) -> Option<BaseFormat> {
        self.base.filter(|_| !self.trainable)
    }

    /// Options for a model that is trained.
    #[must_use]
    pub fn training(device: Device, bf16: bool, gradient_checkpointing: bool) -> Self {
        let kind = if bf16 { Kind::BFloat16 } else { Kind::Float };
        Self { kind, device, trainable: true, gradient_checkpointing, base: None }
    }
}

/// Loads a model with the weights of its directory.
///
/// # Errors
/// Missing, damaged or ill-shaped tensors, by name.
pub fn load(model: &ModelDir, options: LoadOptions) -> Result<Decoder, LearnerError> {
    if model.config().head != Head::LanguageModel {
        return Err(LearnerError::content(
            model.path(),
            "has a classification head (config.json: `architectures`); name the directory of a language model",
        ));
    }
    let checkpoint = Checkpoint::open(model)?;
    build(model.config(), options, &mut |name| Ok(checkpoint.read_f32(name)?))
}

/// Loads a scorer. A directory with a classification head gives its first label as the score. A language model gives
/// its transformer, under a head that starts at 0.
///
/// # Errors
/// As [`load`], or a model of which no scorer can be written ([`ModelConfig::refuses_scorers`]).
pub fn load_scorer(model: &ModelDir, options: LoadOptions) -> Result<Scorer, LearnerError> {
    if let Some(reason) = model.config().refuses_scorers() {
        return Err(LearnerError::content(model.path(), reason));
    }
    let config = Scorer::config_of(model.config());
    let checkpoint = Checkpoint::open(model)?;
    let mut read = |name: &str| -> Result<Vec<f32>, LearnerError> {
        if name != SCORE {
            return Ok(checkpoint.read_f32(name)?);
        }
        if model.config().head == Head::LanguageModel {
            return Ok(vec![0.0; config.hidden_size]);
        }
        let mut labels = checkpoint.read_f32(name)?;
        labels.truncate(config.hidden_size);
        Ok(labels)
    };
    let weights = weights(&config, options, &mut read)?;
    Ok(Scorer::new(config, weights, options.gradient_checkpointing))
}

/// A model with random weights, as transformers initialises them: matrices from a normal distribution with standard
/// deviation `initializer_range` of `config.json`, norms so that they multiply with 1, biases 0, decays of a
/// delta rule from their usual range, those of Mamba-2 the numbers of their heads. They depend on the seed alone.
///
/// # Errors
/// When `config.json` cannot be read.
pub fn initialise(model: &ModelDir, seed: u64, options: LoadOptions) -> Result<Decoder, LearnerError> {
    let path = model.path().join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| LearnerError::content(&path, e.to_string()))?;
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| LearnerError::content(&path, e.to_string()))?;
    let range = json.get("initializer_range").and_then(serde_json::Value::as_f64).unwrap_or(INITIALIZER_RANGE);
    let parameters = model.config().parameters();
    build(model.config(), options, &mut |wanted| {
        let (index, (_, shape)) = parameters
            .iter()
            .enumerate()
            .find(|(_, (name, _))| name == wanted)
            .ok_or_else(|| LearnerError::Parameter(wanted.to_owned()))?;
        let elements = shape.iter().product();
        let mut stream = rng::Stream::new(&[seed, index as u64]);
        let is_of_rule = |part: &str| wanted.ends_with(&format!("linear_attn.{part}"));
        Ok(if wanted.ends_with(".bias") {
            vec![0.0; elements]
        } else if is_of_rule("A_log") {
            let [low, high] = DECAYS;
            (0..elements).map(|_| (low + (high - low) * stream.next_f64()).ln() as f32).collect()
        } else if wanted.ends_with("mamba.A_log") {
            (1..=elements).map(|head| (head as f64).ln() as f32).collect()
        } else if is_of_rule("dt_bias") || is_of_rule("norm.weight") {
            vec![1.0; elements]
        } else if shape.len() == 1 {
            vec![1.0 - model.config().norm_offset(); elements]
        } else {
            (0..elements).map(|_| (range * stream.next_normal()) as f32).collect()
        })
    })
}

/// Refuses a model that cannot fit into memory, before libtorch ends the process over it.
fn check_memory(config: &ModelConfig, options: LoadOptions) -> Result<(), LearnerError> {
    if options.device != Device::Cpu {
        return Ok(());
    }
    let bf16 = options.kind == Kind::BFloat16;
    let base = options.held_in();
    let plan = LearnerSizes { trained: options.trainable, bf16, base, ..LearnerSizes::evaluated(config) }.plan(0);
    let needed = plan.weights + plan.gradients + plan.optimizer;
    let total = memory::total()?;
    if needed <= total {
        return Ok(());
    }
    let more = if options.trainable { ", their gradients and the state of AdamW" } else { "" };
    Err(LearnerError::Config(format!(
        "the model is too large for this machine: its parameters{more} need {} of the {} of memory",
        Size(needed),
        Size(total)
    )))
}

fn build(
    config: &ModelConfig,
    options: LoadOptions,
    read: &mut dyn FnMut(&str) -> Result<Vec<f32>, LearnerError>,
) -> Result<Decoder, LearnerError> {
    Ok(Decoder::new(config.clone(), weights(config, options, read)?, options.gradient_checkpointing))
}

fn weights(
    config: &ModelConfig,
    options: LoadOptions,
    read: &mut dyn FnMut(&str) -> Result<Vec<f32>, LearnerError>,
) -> Result<Weights, LearnerError> {
    check_memory(config, options)?;
    if let Some(format) = options.held_in() {
        return quantised(config, options, format, read);
    }
    if options.trainable && options.kind != wide_kind(options.kind) {
        if options.device == Device::Cpu {
            device::keep_freed_memory();
        }
        let masters = Parameters::load(config.parameters(), wide_kind(options.kind), options.device, read)?;
        return Ok(Weights::rounded(masters, options.kind));
    }
    Ok(Weights::new(frozen(config.parameters(), options, read)?))
}

/// Parameters that nothing moves. What must not be rounded is there once more.
fn frozen(
    named: Vec<(String, Vec<usize>)>,
    options: LoadOptions,
    read: &mut dyn FnMut(&str) -> Result<Vec<f32>, LearnerError>,
) -> Result<Parameters, LearnerError> {
    let wide = wide_kind(options.kind);
    let exact: Vec<_> = named.iter().filter(|(name, _)| ModelConfig::is_exact(name)).cloned().collect();
    let parameters = Parameters::load(named, options.kind, options.device, read)?;
    if exact.is_empty() || wide == options.kind {
        return Ok(parameters);
    }
    Ok(parameters.with_exact(Parameters::load(exact, wide, options.device, read)?))
}

/// The weights of a frozen model whose matrices are quantised: the same codes as in the export of the base.
fn quantised(
    config: &ModelConfig,
    options: LoadOptions,
    format: BaseFormat,
    read: &mut dyn FnMut(&str) -> Result<Vec<f32>, LearnerError>,
) -> Result<Weights, LearnerError> {
    let (mut whole, mut coded) = (Vec::new(), Vec::new());
    for (name, shape) in config.parameters() {
        match BaseFormat::matrix(&name, &shape) {
            Some(matrix) => {
                let codes = Codes::of(format, &read(&name)?, matrix);
                coded.push((name, Coded::new(&codes, matrix[1], options.kind, options.device)));
            }
            None => whole.push((name, shape)),
        }
    }
    Ok(Weights::new(frozen(whole, options, read)?.with_coded(coded)))
}
