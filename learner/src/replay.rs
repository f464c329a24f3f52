//! The loss lab: a kept step of a run, trained again with any method.

use std::path::Path;

use shared::{ModelDir, Placed, PolicyVersion, config::TrainConfig, metrics::MetricRecord};
use tch::{Device, Kind, Tensor};

use crate::{
    checkpoint::open_trainer,
    error::LearnerError,
    step::{StepBatch, record},
};

/// The result of a replayed step.
#[derive(Debug)]
pub struct Replayed {
    /// The metrics, as a run records them.
    pub record: MetricRecord,
    /// Gradient of the first update, before clipping, flat.
    pub gradient: Tensor,
    /// Sum of all changes of the weights, flat.
    pub change: Tensor,
}

/// Trains the step that `dir` keeps with the methods of `config`. Nothing is written.
///
/// # Errors
/// A configuration, model or file that cannot be used.
pub fn replay(dir: &Path, groups: &[Placed], config: &TrainConfig, device: Device) -> Result<Replayed, LearnerError> {
    let model = ModelDir::open(&config.model)?;
    let (mut trainer, state) = open_trainer(config, &model, Some(dir), device)?;
    trainer.keep_first_gradient();
    let before = trainer.policy().parameters().flat().detach().copy();
    let batch = StepBatch::new(groups, config, PolicyVersion(state.step));
    let mut trained = trainer.step(&batch, state.step)?;
    let change = trainer.policy().parameters().flat().detach() - before;
    // A critic's warm-up has no update of the policy.
    let gradient = trained.metrics.first_gradient.take().unwrap_or_else(|| change.zeros_like());
    Ok(Replayed { record: record(&batch, &trained.inputs, &trained.metrics), gradient, change })
}

/// Cosine of the angle between two flat tensors; none when one of them is 0.
#[must_use]
pub fn cosine(a: &Tensor, b: &Tensor) -> Option<f64> {
    let dot = |x: &Tensor, y: &Tensor| {
        (x.to_kind(Kind::Double) * y.to_kind(Kind::Double)).sum(Kind::Double).double_value(&[])
    };
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    (norms > 0.0).then(|| dot(a, b) / norms)
}

/// A short hash of a tensor's bits.
///
/// # Errors
/// When it cannot be copied to the host.
pub fn fingerprint(tensor: &Tensor) -> Result<String, LearnerError> {
    let values = Vec::<f32>::try_from(tensor.to_device(Device::Cpu).to_kind(Kind::Float))?;
    let mut hasher = blake3::Hasher::new();
    for value in values {
        hasher.update(&value.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_knows_directions_only() {
        let a = Tensor::from_slice(&[1.0f32, 2.0, 2.0]);
        assert_eq!(cosine(&a, &(&a * 7.0)), Some(1.0));
        assert_eq!(cosine(&a, &a.neg()), Some(-1.0));
        assert_eq!(cosine(&a, &Tensor::from_slice(&[2.0f32, -1.0, 0.0])), Some(0.0));
        assert_eq!(cosine(&a, &a.zeros_like()), None);
    }

    #[test]
    fn a_fingerprint_changes_with_a_bit() {
        let of = |values: &[f32]| fingerprint(&Tensor::from_slice(values)).unwrap();
        assert_eq!(of(&[1.0, 0.0]), of(&[1.0, 0.0]));
        assert_ne!(of(&[1.0, 0.0]), of(&[1.0, -0.0]));
    }
}
