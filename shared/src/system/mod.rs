//! The machine: its memory, its load and its native libraries, and the devices, kernels and element types of a
//! computation.

pub mod compute;
pub mod load;
pub mod memory;
pub mod native;
