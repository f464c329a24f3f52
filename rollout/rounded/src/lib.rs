//! Versions of the weights on their way to samplers on other hosts: as much of them as those compute with, whole or as
//! a difference to a version that they have.
//!
//! A sampler whose linear layers compute in bf16 or int8 forgets most of every number when it packs them. [`round`]
//! makes of a version directory what is left: `rounded.bin` with an index, beside the graph and the canaries.
//! [`difference`] makes of two such directories one that leads from the older to the newer. [`unpack`] makes of either
//! a version directory again, whose numbers the sampler packs to the same bits as those of the version itself. What is
//! used as it is (norms, biases, embeddings, a head that is tied to them) stays fp32, and so does everything for
//! samplers in fp32, to whom differences are of use too.
//!
//! | file | what it does |
//! |---|---|
//! | `form` | what is kept of a tensor, and the numbers that stand for it again |
//! | `planes` | compression: bytes of one significance together, differences of neighbours small |
//! | [`index`] | what lies where in `rounded.bin` |
//! | `packed` | a directory with such a file, opened |
//! | `round`, `difference`, `unpack` | the three functions |
//!
//! # How a rounded version stays what the learner published
//!
//! The gate of a sampler compares the norms of what it reads with those of the learner's own parameters, and these are
//! not the norms of rounded numbers. So [`round`] makes that comparison, with the version as the learner left it, and
//! refuses to round anything else. It then writes a manifest with the hashes and canaries with the norms that the
//! directory of the other host must have. [`unpack`] compares the hashes, the gate there hashes and norms. The tokens
//! and log-probs of the canaries are still the learner's: they cover the whole way, rounding included. The manifest
//! says what a version was rounded for, and a sampler that computes in anything else refuses it.
//!
//! Nothing here is secret or signed: whoever hands a directory on has to vouch for its files by a hash of its own.

mod difference;
mod error;
mod form;
pub mod index;
mod packed;
mod planes;
mod round;
mod unpack;

pub use difference::difference;
pub use error::RoundedError;
pub use form::Form;
pub use index::Index;
pub use packed::{DATA_FILE, INDEX_FILE, Sizes};
pub use round::round;
pub use unpack::unpack;
