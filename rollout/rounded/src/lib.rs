//! Versions of the weights on their way to samplers on other hosts: as many bits as these samplers compute with, whole
//! or as a difference to a version that they have.
//!
//! A sampler whose linear layers compute in bf16 or int8 forgets most of every number when it packs them. [`round`]
//! writes only the rest of a version directory: `rounded.bin` with an index, beside the graph and the canaries.
//! [`difference`] turns two such directories into one that leads from the older to the newer. [`unpack`] turns either
//! kind into a version directory again, whose numbers the sampler packs to the same bits as those of the version
//! itself. Tensors that no linear layer rounds (norms, biases, embeddings, a head that is tied to them) stay fp32, and
//! so does everything for samplers in fp32, to whom differences are of use too.
//!
//! | file | what it does |
//! |---|---|
//! | `form` | how much is kept of a tensor, and the numbers that stand for it again |
//! | `planes` | compression: bytes of one significance together, differences of neighbours small |
//! | [`index`] | where each block lies in `rounded.bin` |
//! | `packed` | a directory with such a file, opened |
//! | `round`, `difference`, `unpack` | the three functions |
//!
//! # How a rounded version stays what the learner published
//!
//! The gate of a sampler compares the norms of the weights that it reads with those of the learner's own parameters,
//! and rounded numbers have other norms. So [`round`] makes that comparison with the version as the learner left it,
//! and refuses to round anything else. It then writes the manifest and the canaries of the directory that the other
//! host will have: with its hashes and its norms. [`unpack`] compares the hashes, the gate there hashes and norms. The
//! tokens and log-probs of the canaries are still the learner's: they cover the whole way, rounding included. The
//! manifest says for which format a version was rounded, and a sampler that computes in another one refuses it.
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
