//! A run as JSON, for the live page of `tandem ui` and for the report, which are made of the same parts.
//!
//! [`assets`] holds the page: plain scripts around uPlot, without a build step. `tandem ui` serves it and announces
//! changes. The report is one file with the same scripts and the data beside them.

pub mod assets;
pub mod catalogue;
pub mod completions;
pub mod curves;
pub mod found;
mod lines;
pub mod overview;
pub mod pairs;
pub mod run;
pub mod search;
pub mod tokens;
pub mod workers;
