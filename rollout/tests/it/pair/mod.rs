//! The sampler as a process of its own, against a learner that this test plays: same hand-over contract, no training.

mod ends;
mod hand_over;
mod records;
mod refusals;
mod support;
