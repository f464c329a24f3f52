//! Methods as data: one description each of every loss, advantage estimator, way to combine rewards and KL estimator.
//!
//! [`LossType::spec`](crate::config::LossType::spec) and its siblings say everything about a method but its formula:
//! what it must see at once, which options it has and excludes, what it counts, where it comes from. Validation,
//! warnings, the importer, the generated pages, the metrics and the learner read these descriptions. The formulas are
//! in the learner (`loss::policy`, `advantage::credit`, `kl`). No other code asks which method is configured: the
//! compiler points at descriptions and formulas that a new method lacks, and `cargo xtask tidy` finds comparisons
//! elsewhere.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod advantage;
pub mod kl;
pub mod loss;
pub mod metric;
pub mod reduction;

pub use advantage::{AdvantageSpec, CreditUnit, MultiObjectiveSpec};
pub use kl::{KlCorrection, KlSpec};
pub use loss::{ImportanceWeights, LossSpec, Ratio, Scope};
pub use metric::{Counted, LossMetric};
pub use reduction::Reduction;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::{
        config::{AdvantageEstimator, Choice, LossType, OPTIONS},
        metrics,
    };

    /// The catalogue says with which losses a metric is recorded; the code agrees: those losses count it.
    #[test]
    fn a_metric_names_the_losses_that_record_it() {
        for metric in metrics::POLICY.metrics {
            let Some(named) = metric.when.and_then(|when| when.strip_prefix("`loss_type` ")) else { continue };
            let named: BTreeSet<&str> = named.split([',', ' ']).filter(|word| !["", "or"].contains(word)).collect();
            let counts = |loss: &LossType| {
                let counted = loss.spec().metrics.iter();
                counted.flat_map(|m| [Some(m.mean), m.smallest, m.largest]).flatten().any(|m| m.key == metric.key)
            };
            let counting: Vec<String> =
                LossType::ALL.iter().copied().filter(counts).map(|loss| loss.to_string()).collect();
            assert_eq!(named, counting.iter().map(String::as_str).collect(), "{}", metric.key);
        }
    }

    #[test]
    fn a_description_names_options_that_exist() {
        let of_losses = LossType::ALL.iter().copied().flat_map(|loss| {
            let spec = loss.spec();
            assert!(!spec.title.is_empty() && !spec.about.is_empty() && !spec.source.is_empty(), "{loss:?}");
            spec.options.iter().chain(spec.required.iter().map(|(key, _)| key))
        });
        let of_estimators = AdvantageEstimator::ALL.iter().copied().flat_map(|estimator| {
            let spec = estimator.spec();
            assert!(!spec.title.is_empty() && !spec.about.is_empty() && !spec.source.is_empty(), "{estimator:?}");
            spec.options
        });
        for key in of_losses.chain(of_estimators) {
            assert!(OPTIONS.iter().any(|option| option.key == *key), "{key}");
        }
    }
}
