//! The correction for the mismatch between sampler and learner.

use crate::config::{ConfigError, TrainConfig};

impl TrainConfig {
    pub(super) fn check_mismatch(&self) -> Result<(), ConfigError> {
        let (min, max) = (self.importance_sampling_clip_min, self.importance_sampling_clip_max);
        ensure!(
            min.is_none_or(|min| min <= max),
            "`importance_sampling_clip_min` must not be above `importance_sampling_clip_max` ({max})"
        );
        if self.importance_sampling_correction && self.decoupled_objective {
            return Ok(());
        }
        let without = if self.decoupled_objective {
            "`importance_sampling_correction` is off"
        } else {
            "`decoupled_objective` is off and the ratio is taken against the sampler's log-probs itself"
        };
        for key in [
            "importance_sampling_mode",
            "importance_sampling_clip_max",
            "importance_sampling_clip_min",
            "importance_sampling_batch_normalize",
        ] {
            ensure!(!self.is_set(key), "`{key}` has no effect: {without}; remove it");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{
        ImportanceSamplingMode,
        validate::testing::{accepted, refused},
    };

    #[test]
    fn bounds_must_be_bounds() {
        refused("`importance_sampling_clip_max`", |c| c.importance_sampling_clip_max = 0.0);
        refused("`importance_sampling_clip_max`", |c| c.importance_sampling_clip_max = f64::NAN);
        refused("`importance_sampling_clip_min`", |c| c.importance_sampling_clip_min = Some(-1.0));
        refused("`importance_sampling_clip_min` must not", |c| c.importance_sampling_clip_min = Some(4.0));
        accepted(|c| c.importance_sampling_clip_max = f64::INFINITY);
        accepted(|c| c.importance_sampling_clip_min = Some(0.5));
    }

    #[test]
    fn a_correction_that_is_off_has_no_settings() {
        refused("`importance_sampling_mode` has no effect: `importance_sampling_correction` is off", |c| {
            c.importance_sampling_correction = false;
            c.importance_sampling_mode = ImportanceSamplingMode::TokenTruncate;
        });
        refused("`importance_sampling_batch_normalize` has no effect: `decoupled_objective` is off", |c| {
            (c.decoupled_objective, c.importance_sampling_batch_normalize) = (false, true);
        });
        accepted(|c| c.decoupled_objective = false);
        accepted(|c| c.importance_sampling_correction = false);
    }
}
