//! Every option of a run, declared once. How to read and extend the list is said in the [module above](super).
//!
//! | file | sections |
//! |---|---|
//! | [`mod@data`] | model and data, rewards, generation, tools and environments |
//! | [`mod@learning`] | batch, memory, advantages, objective, reference, mismatch, optimiser, guard |
//! | [`mod@run`] | the pair, samplers on other hosts, bookkeeping |

mod data;
mod learning;
mod run;

use std::path::PathBuf;

use self::{data::data, learning::learning, run::run};
use super::{
    AdvantageEstimator, AdvantageLevel, Device, EnvironmentFactory, ImportanceSamplingLevel, ImportanceSamplingMode,
    JsonTable, Kernels, KlController, KlEstimator, KvDtype, LoneAdvantage, LossAggregation, LossType, LrSchedulerType,
    MultiObjectiveAggregation, Paths, Precision, RewardFailure, RewardsOn, RolloutDtype, RouterReplay, ScaleRewards,
    StepDeviation, StoreFormat, Stragglers, VersionStorage, WeightSwap, option::options,
};

/// Seconds of a year: a clock can add that many to its time, and no timeout needs more.
const YEAR: f64 = 365.0 * 24.0 * 3600.0;

data! { learning, run, options; }
