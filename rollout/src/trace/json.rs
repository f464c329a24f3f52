//! The file: a JSON object with a list of events, one a line. Times are microseconds.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use serde_json::{Map, Value, json};

use super::{
    event::Shown,
    recording::{Recorded, Recording},
};

/// Writes a recording.
pub(super) fn write(recording: &Recording, out: &mut impl Write) -> io::Result<()> {
    let process = std::process::id();
    let events = recording.events();
    let shown = || events.iter().map(|e| (e, e.event.shown()));
    let tracks: BTreeMap<usize, String> = shown().map(|(_, shown)| (shown.track, shown.track_name)).collect();
    let metadata = |kind: &str, tid: usize, args: Value| {
        json!({"ph": "M", "pid": process, "tid": tid, "name": kind,
        "args": args})
    };

    write!(out, "{{\"otherData\":{},\"traceEvents\":[", json!({"dropped_events": recording.dropped()}))?;
    write!(out, "\n{}", metadata("process_name", 0, json!({"name": "rollout"})))?;
    for (tid, name) in &tracks {
        write!(out, ",\n{}", metadata("thread_name", *tid, json!({"name": name})))?;
        write!(out, ",\n{}", metadata("thread_sort_index", *tid, json!({"sort_index": tid})))?;
    }
    for (Recorded { begin, end, .. }, Shown { track, name, arguments, counters, .. }) in shown() {
        let args: Map<String, Value> = arguments.into_iter().map(|(name, n)| (name.to_owned(), n.into())).collect();
        let (ts, dur) = (micros(*begin), micros(end - begin));
        let span = json!({"ph": "X", "pid": process, "tid": track, "name": name, "ts": ts, "dur": dur, "args": args});
        write!(out, ",\n{span}")?;
        for (name, value) in counters {
            let counter = json!({"ph": "C", "pid": process, "name": name, "ts": micros(*end), "args": {name: value}});
            write!(out, ",\n{counter}")?;
        }
    }
    writeln!(out, "\n]}}")
}

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::trace::Event;

    #[test]
    fn the_file_is_json_with_named_tracks_spans_and_counters() {
        let start = Instant::now();
        let mut recording = Recording::new(start, 10);
        let at = |ns| start + Duration::from_nanos(ns);
        recording.push(at(1500), at(4000), Event::Decode { rows: 3, positions: 70 });
        recording.push(at(1000), at(5000), Event::Step { running: 3, waiting: 2, kv_bytes: 640 });
        let mut text = Vec::new();
        write(&recording, &mut text).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(file["otherData"]["dropped_events"], 0);
        let events = file["traceEvents"].as_array().unwrap();
        let with = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let names: Vec<&Value> =
            with("M").iter().filter(|e| e["name"] == "thread_name").map(|e| &e["args"]["name"]).collect();
        assert_eq!(names, ["engine steps", "decode"]);
        let spans: Vec<_> = with("X").iter().map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap())).collect();
        assert_eq!(spans, [(1.0, 4.0), (1.5, 2.5)]);
        assert_eq!(with("X")[1]["args"], json!({"rows": 3, "positions": 70}));
        let counters: Vec<_> = with("C").iter().map(|e| e["args"].clone()).collect();
        assert_eq!(counters, [json!({"running": 3}), json!({"waiting": 2}), json!({"KV bytes": 640})]);
    }
}
