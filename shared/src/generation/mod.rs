//! Generation: identifiers, episodes and groups of them, sampling parameters, and random numbers as a function of their
//! purpose.

pub mod episode;
pub mod group;
pub mod ids;
pub mod rng;
pub mod routing;
pub mod sampling;
pub mod testing;
