//! PPO's value model.
