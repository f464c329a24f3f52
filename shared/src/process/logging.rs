//! Log output of the binaries: plain lines on stderr, from level info up unless `TANDEM_LOG` says otherwise.

use std::{
    env,
    io::{self, Write},
};

use shared_bounds::OneLine;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt,
    layer::{Filter, SubscriberExt},
    registry,
    util::SubscriberInitExt,
};

/// Environment variable with a `tracing` filter, for instance `debug` or `rollout::engine=trace`.
pub const LOG_VARIABLE: &str = "TANDEM_LOG";

/// Installs the process-wide subscriber. A second call does nothing.
pub fn init() {
    init_from("info");
}

/// As [`init`], for a program that says itself what matters: from `level` up unless the variable says otherwise.
pub fn init_from(level: &str) {
    init_with(level, |filter, _| Box::new(filter), Vec::new());
}

/// Which records are written.
pub type RecordFilter = Box<dyn Filter<Registry> + Send + Sync>;

/// A receiver of records besides the log, with a filter of its own.
pub type RecordLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// As [`init_from`], for a program that links a library whose records a level does not bound well enough. `bound` makes
/// the filter of what is written from the filter that is asked for and from the words that ask for it; `others` get
/// records too.
pub fn init_with(level: &str, bound: impl FnOnce(EnvFilter, &str) -> RecordFilter, others: Vec<RecordLayer>) {
    let asked = env::var_os(LOG_VARIABLE).unwrap_or_default();
    let asked = if asked.is_empty() { level.into() } else { asked.to_string_lossy() };
    let (filter, remark) = filter(&asked);
    let lines = fmt::layer().with_writer(|| Lines(io::stderr())).with_ansi(false).with_target(false);
    // If a line cannot be written, for instance to a full disk, the layer would complain with `eprintln!`, which
    // panics.
    let lines = lines.log_internal_errors(false).with_filter(bound(filter, &asked)).boxed();
    let layers: Vec<RecordLayer> = [lines].into_iter().chain(others).collect();
    let _ = registry().with(layers).try_init();
    if let Some(remark) = remark {
        tracing::warn!("{remark}");
    }
}

/// Writes each record as one line; each arrives whole. File names and words of programs in it may hold anything.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(record);
        self.0.write_all(format!("{}\n", OneLine(line.strip_suffix('\n').unwrap_or(&line))).as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The requested filter, or info if there is none; with a remark if it cannot be read.
fn filter(asked: &str) -> (EnvFilter, Option<String>) {
    let info = || EnvFilter::new("info");
    if asked.is_empty() {
        return (info(), None);
    }
    match EnvFilter::try_new(asked) {
        Ok(filter) => (filter, None),
        Err(error) => {
            let example = "rollout::engine=trace";
            (
                info(),
                Some(format!("{LOG_VARIABLE} is no log filter ({error}), so it is info; write debug or {example}")),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_whatever_it_quotes() {
        let mut out = Vec::new();
        Lines(&mut out).write_all("INFO a\nb\x1b[2J\n".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "INFO a\\nb\\u{1b}[2J\n");
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_remarked_on() {
        for (asked, level) in [("", "info"), ("debug", "debug"), ("rollout::engine=trace", "rollout::engine=trace")] {
            let (filter, remark) = filter(asked);
            assert_eq!((filter.to_string().as_str(), remark), (level, None));
        }
        let (filter, remark) = filter("rollout=loud");
        assert_eq!(filter.to_string(), "info");
        assert!(remark.unwrap().starts_with("TANDEM_LOG is no log filter"));
    }
}
