//! The ranks of one learner together: who meets whom, who gives orders, and who follows them.
//!
//! Only the first rank knows channel, records, guard and disk. It starts the others as children (`learner rank`), or it
//! waits for those that torchrun's variables announce. `tandem learner-rank` starts these, and starts them again when a
//! rank is gone. [`Crew`], which the first rank has, gives orders, batches and the state that a checkpoint holds;
//! a member follows ([`serve`]).

mod content;
mod first;
mod meeting;
mod member;

pub use first::Crew;
pub use member::{LetGo, Rendezvous, serve, show_life};
