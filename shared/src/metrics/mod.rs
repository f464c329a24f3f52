//! Metrics: a run's measurements of itself, one flat JSON object per step.
//!
//! Every metric is declared once, in [`catalogue`]: its key, its unit, what it means, what is normal, where its name
//! comes from and which chart shows it. A [`MetricRecord`] takes declared metrics only, and the report, the progress
//! line, `learner replay` and the page `docs/metrics.md` read the same declarations. To add a metric, declare it in the
//! catalogue and write it; nothing else has to know of it.
//!
//! Keys are TRL's where TRL has the metric, else verl's. A key has the same definition here as in the tool that it is
//! taken from; a metric with another definition has another key.

pub mod catalogue;
mod chart;
mod figure;
mod file;
mod metric;
mod record;

pub use catalogue::*;
pub use chart::{CHARTS, Chart};
pub use figure::Figure;
pub use file::{MetricsFile, read};
pub use metric::{Family, Key, Metric, Section, Unit};
pub use record::MetricRecord;
