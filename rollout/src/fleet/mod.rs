//! Samplers on other hosts: the hub beside the learner, and the workers.
//!
//! The step loop, the plan, the dataset and the rewards of a run are where they always are. What differs is the
//! [`Generate`](crate::generate::Generate) behind them: [`hub::Fleet`] leases what the plan has begun to workers and
//! gives back what they have made. A completion depends on weights, seed, prompt, sample and sampling parameters alone, so it
//! does not matter who makes it, how often, or when.
//!
//! A worker asks, and the hub answers. A lease ends when no token comes of it for `lease_timeout`, or when the
//! connection is gone for some seconds. Its samples then wait for another worker, and the first completion counts. A
//! lease that takes three times as long as usual is given to an idle worker as well. Nothing that a worker sends is
//! believed before it has been looked at. The engine beside the learner also scores what workers with other kernels
//! make, and looks at versions that workers refuse.
//!
//! | file | subject |
//! |---|---|
//! | [`hub`] | the generator, and the thread that answers calls |
//! | [`desk`] | requests, leases and workers: who makes what, without a transport or a clock |
//! | [`roster`] | what is known of a worker |
//! | [`check`], [`judge`] | completions that are made again; the engine beside the learner that decides |
//! | [`scores`] | reward functions beside a worker's engine, where the run wants that |
//! | `weights` | versions on their way into the store, and out of it |
//! | `open` | all of that from a configuration |
//! | [`facts`] | what a worker has to know of a run |
//! | [`table`] | `workers.json` |
//! | [`worker`] | the other side |

pub mod check;
pub mod desk;
pub mod facts;
pub mod hub;
pub mod judge;
mod open;
pub mod roster;
pub mod scores;
pub mod table;
pub(crate) mod weights;
pub mod worker;

pub use open::open;
