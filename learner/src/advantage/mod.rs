//! Credit: rewards to the advantage of every token, as pure functions in float64.
//!
//! [`credit`] is the one entrance: [`CreditOptions`] name the method, [`Sample`]s hold the rewards of each completion.
//! Behind it, [`outcome`] holds TRL's group advantages, [`estimators`] those of verl for rewards of whole completions,
//! [`process`] the ones for rewards of steps (DeepSeekMath), [`gae`] the recursions over tokens. [`kl_reward`] is the
//! penalty that is subtracted from the rewards beforehand.

#![deny(clippy::wildcard_enum_match_arm)]

mod credit;
pub mod estimators;
pub mod gae;
pub mod kl_reward;
mod moments;
pub mod outcome;
pub mod process;

pub use credit::{Credit, CreditOptions, RewardSummary, Sample, credit};
pub use kl_reward::{KlController, KlPenalty};
pub use moments::Moments;
