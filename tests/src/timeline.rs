//! Reads the timelines of `--trace` as strictly as a viewer would like them.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

/// An interval of time.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its label.
    pub name: String,
    /// Nanoseconds since the start of the recording.
    pub begin: u64,
    /// In the same unit.
    pub end: u64,
    /// Its arguments.
    pub args: Value,
}

/// A timeline whose spans are in order and nest on each track.
#[derive(Debug)]
pub struct Timeline {
    tracks: BTreeMap<String, Vec<Span>>,
    counters: BTreeMap<String, Vec<f64>>,
}

impl Timeline {
    /// Reads a file.
    ///
    /// # Panics
    /// When it is no timeline: no JSON, a track without a name, spans that overlap or are out of order.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(file["otherData"]["dropped_events"], 0, "events are missing");
        let events = file["traceEvents"].as_array().expect("a list of events");
        let of_kind = |kind: &'static str| events.iter().filter(move |e| e["ph"] == kind);
        let named = of_kind("M").filter(|e| e["name"] == "thread_name");
        let names: BTreeMap<u64, String> =
            named.map(|e| (e["tid"].as_u64().expect("a number"), text_of(&e["args"]["name"]))).collect();
        let mut timeline = Self { tracks: BTreeMap::new(), counters: BTreeMap::new() };
        let mut last = 0;
        for event in of_kind("X") {
            let begin = nanoseconds(&event["ts"]);
            assert!(begin >= last, "{event} is out of order");
            last = begin;
            let name = &names[&event["tid"].as_u64().expect("a number")];
            timeline.tracks.entry(name.clone()).or_default().push(Span {
                name: text_of(&event["name"]),
                begin,
                end: begin + nanoseconds(&event["dur"]),
                args: event["args"].clone(),
            });
        }
        for event in of_kind("C") {
            let name = text_of(&event["name"]);
            let value = event["args"][&name].as_f64().expect("a value under the counter's name");
            timeline.counters.entry(name).or_default().push(value);
        }
        timeline.tracks.iter().for_each(|(name, spans)| assert_nested(name, spans));
        timeline
    }

    /// The spans of a track; none if there is no such track.
    #[must_use]
    pub fn track(&self, name: &str) -> &[Span] {
        self.tracks.get(name).map_or(&[], Vec::as_slice)
    }

    /// Seconds of all spans of a track together.
    #[must_use]
    pub fn seconds(&self, track: &str) -> f64 {
        self.track(track).iter().map(|span| (span.end - span.begin) as f64 / 1e9).sum()
    }

    /// The values of a counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> &[f64] {
        self.counters.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether each span of a track lies within one of another.
    #[must_use]
    pub fn within(&self, inner: &str, outer: &str) -> bool {
        let outer = self.track(outer);
        self.track(inner).iter().all(|i| outer.iter().any(|o| o.begin <= i.begin && i.end <= o.end))
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

fn nanoseconds(microseconds: &Value) -> u64 {
    (microseconds.as_f64().unwrap_or_else(|| panic!("{microseconds} is no time")) * 1e3).round() as u64
}

/// Checks that of any two spans of a track, one follows or contains the other.
fn assert_nested(track: &str, spans: &[Span]) {
    let mut open: Vec<u64> = Vec::new();
    for span in spans {
        while open.last().is_some_and(|&end| end <= span.begin) {
            open.pop();
        }
        assert!(open.last().is_none_or(|&end| span.end <= end), "{track}: {span:?} overlaps what is before it");
        open.push(span.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(begin: u64, end: u64) -> Span {
        Span { name: "s".into(), begin, end, args: Value::Null }
    }

    #[test]
    fn spans_that_follow_or_contain_each_other_pass() {
        assert_nested("t", &[span(0, 10), span(1, 4), span(4, 10), span(10, 12)]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn spans_that_overlap_do_not() {
        assert_nested("t", &[span(0, 10), span(5, 11)]);
    }
}
