//! Datasets as their owners have them. [`read`] gives the rows of a file or folder as JSON objects, whatever its
//! format, and [`count`] gives their number; [`Columns`] finds prompt and answer in columns of other names, and
//! [`Shape`] says which system's rows they are. `docs/data.md` has a table of all formats that are read.
//!
//! The bytes of a file say its format ([`Format`]); its name is asked only where they leave it open. Nothing is guessed
//! about rows: a cell that could be a number or a text stays the text.
//!
//! Sampler, learner and launcher read datasets through this crate. The launcher reads everything once before it starts
//! anything. The names of a folder's files alone decide which of them are read. The crate knows nothing of models and
//! tokens.

mod bytes;
mod card;
mod choice;
mod columnar;
mod columns;
mod csv;
mod error;
mod extension;
mod folder;
mod format;
mod json;
mod memory;
mod messages;
mod quotes;
mod row;
mod shape;
mod split;
mod table;
#[cfg(test)]
mod testing;
mod times;
mod to_json;
mod typed;
mod unread;
mod wording;
mod writable;

pub use choice::{CARD, Selection, choose};
pub use columns::{Columns, template_variables};
pub use error::DataError;
pub use format::Format;
pub use messages::{Content, check_messages, messages};
pub use row::{LeftOut, Location, Row};
pub use shape::Shape;
pub use table::{Table, count, files, json_lines, read};

/// A row: its columns by name, in their order.
pub type Values = serde_json::Map<String, serde_json::Value>;
