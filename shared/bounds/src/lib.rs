//! Guards between the programs and the bytes of strangers.
//!
//! [`read`] reads a regular file up to a size; [`open`] and [`append`] open regular files only. [`guarded`] runs a
//! parser of somebody else: its panics become errors, and its memory is bounded ([`Metered`]). [`Shown`] and
//! [`OneLine`] write text of unknown origin so that it cannot move the cursor of a terminal or begin a line of its own.
//! [`KeysOnce`] is JSON whose objects give no key twice.
//!
//! Code cannot go on without the memory that it asks for. So a template or tokenizer that exceeds its allowance ends
//! the program, with one line. [`Metered`] is therefore the allocator of all three programs. Their error lines and
//! their log go through [`Shown`] and [`OneLine`], so no other code has to think of foreign texts.

mod file;
mod foreign;
mod keys;
mod memory;
mod panics;
mod shown;

pub use file::{append, open, read, read_text, require_replaceable, what_is_no_file};
pub use foreign::foreign_content;
pub use keys::KeysOnce;
pub use memory::{Metered, abort_on_excess, within};
pub use panics::guarded;
pub use shown::{OneLine, Shown};
