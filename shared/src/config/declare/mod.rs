//! How an option, a range of numbers and a choice are declared.

mod bounds;
mod choice;
mod option;
mod value;

pub use bounds::Bounds;
pub use choice::{Choice, ChoiceSpec, UnknownChoice};
pub use option::{OptionSpec, Source};
pub use value::{Given, Kind, OptionValue};

pub(crate) use choice::choices;
pub(super) use option::options;

#[cfg(test)]
mod tests;
