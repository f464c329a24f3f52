//! Rewards as the commands of this crate use them: all functions of [`rollout_rewards`] and the one that needs ONNX
//! Runtime, [`model`].

pub mod model;
pub mod sampled;
pub mod samples;

use std::{sync::LazyLock, time::Duration};

use rayon::ThreadPoolBuildError;
use rollout_rewards::{Call, Registry, RewardError, RewardFunction, RewardPool};
use shared::config::rewards::short_name;

use crate::{
    assembly::Scoring,
    data::Dataset,
    trace::{self, Event},
};

/// Every function that can be asked for.
#[must_use]
pub fn registry() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| Registry::with(&[model::ENTRY]));
    &REGISTRY
}

/// Checks that each function can score at least one row of a dataset.
///
/// # Errors
/// The first function that cannot, with the columns that it needs.
pub fn check(functions: &[RewardFunction], dataset: &Dataset) -> Result<(), RewardError> {
    functions.iter().try_for_each(|function| function.check(dataset.name().as_ref(), dataset.columns()))
}

/// Descriptions of the answers of a dataset that functions cannot read, a line for each function.
#[must_use]
pub fn unreadable(functions: &[RewardFunction], dataset: &Dataset) -> Vec<String> {
    let line = |function: &RewardFunction| {
        let words = function.unreadable(dataset.columns())?;
        Some(format!("reward function `{}`: {words}", short_name(function.name())))
    };
    functions.iter().filter_map(line).collect()
}

/// The raters, each with its place among the functions.
pub fn raters(functions: &[RewardFunction]) -> impl Iterator<Item = (usize, &RewardFunction)> {
    functions.iter().enumerate().filter(|(_, function)| function.is_rater())
}

/// The names of the raters, in order, by which the processes of environments find them.
#[must_use]
pub fn names_of_raters(functions: &[RewardFunction]) -> Vec<String> {
    raters(functions).map(|(_, rater)| rater.name().to_owned()).collect()
}

/// The functions of a run as an assembly has them, called within `deadline`, with the names and weights of all rewards.
///
/// # Errors
/// When the threads cannot be started.
pub fn scoring(
    functions: &[RewardFunction],
    threads: usize,
    deadline: Duration,
    names: Vec<(String, f64)>,
) -> Result<Scoring, ThreadPoolBuildError> {
    let of_pool = functions.iter().filter(|function| !function.is_rater()).cloned().collect();
    let raters = raters(functions).map(|(place, _)| place).collect();
    Ok(Scoring { pool: pool(of_pool, threads, deadline)?, names, raters })
}

/// A [`RewardPool`] whose calls are shown in the timeline.
///
/// # Errors
/// When the threads cannot be started.
pub fn pool(
    functions: Vec<RewardFunction>,
    threads: usize,
    deadline: Duration,
) -> Result<RewardPool, ThreadPoolBuildError> {
    RewardPool::new(functions, threads, deadline, |Call { begin, end, thread, function, completions }| {
        trace::span(begin, end, Event::Reward { thread, function, completions });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_there_is_named() {
        let error = |spec: &str| registry().function(spec).unwrap_err().to_string();
        assert!(error("model:path=/no/such/model").contains("/no/such/model: no such directory"));
        let escaped = error(r"model:path=/no\:where");
        assert!(escaped.contains("/no:where: no such directory"), "{escaped}");
    }
}
