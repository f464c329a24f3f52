//! Completions that are conversations: the policy samples a turn, its tools answer, and the next turn goes on.
//!
//! [`Conversing`] is a generator around another one. Whoever drives it begins groups and takes completions as with any
//! generator. In between, each completion is a [`Live`] conversation. It opens its environment, samples a turn, waits
//! for replies, and goes on from the state that the turn has left, until it ends and its environment has been asked for
//! a reward. While a conversation waits, it takes no slot of the generator, and further conversations are begun.
//!
//! The text of conversations is in [`conversation`](crate::conversation), environments are the crate
//! `rollout-environments`, and [`prompts`] makes the prompts of a dataset. [`Rewards`] knows which environment's reward
//! stands in which column. [`Conversations`] starts all of it for a run.
//!
//! Nothing that a policy samples depends on how long anybody waits: a turn depends on all ids before it alone. Only
//! where [`Patience`] has a bound of time, that decides which conversations are left out and which are drawn again.

mod generator;
mod hosts;
mod live;
mod patience;
pub mod prompts;
mod rewards;
mod setup;
#[cfg(test)]
mod tests;

pub use generator::{Conversing, sampled};
pub use hosts::Hosts;
pub use live::{Live, conversed};
pub use patience::Patience;
pub use rewards::Rewards;
pub use setup::Conversations;
