//! The parts of an option's declaration: types, ranges of numbers, and choices. Methods and groups declare choices too,
//! so this module knows of no configuration.

mod bounds;
mod choice;
mod paths;
mod table;
mod value;

pub use bounds::Bounds;
pub use choice::{Choice, ChoiceSpec, UnknownChoice};
pub use paths::Paths;
pub use table::JsonTable;
pub use value::{OptionValue, ValueKind};

pub(crate) use choice::choices;
