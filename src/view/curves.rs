//! The figures of a run by column, read once and then followed.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Serialize, Serializer, ser::SerializeSeq};
use shared::metrics::{self, MetricRecord, catalogue};

use super::lines::{Lines, News};

/// Most metrics of a run that are held. A run logs some eighty, and one for each name that its reward functions log.
const MOST_METRICS: usize = 1_000;

/// One value for each record. Six digits are more than a screen shows, and take half the memory.
#[derive(Debug, Clone, Default)]
pub struct Column(Vec<f32>);

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        sequence(&self.0, serializer)
    }
}

fn sequence<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    let mut sequence = serializer.serialize_seq(Some(values.len()))?;
    for value in values {
        // JSON has no NaN.
        sequence.serialize_element(&value.is_finite().then_some(value))?;
    }
    sequence.end()
}

/// Records by column, from the record `from` on.
#[derive(Debug, Serialize)]
pub struct Excerpt {
    /// Index of the first record.
    pub from: usize,
    /// Completed steps of each.
    pub step: Vec<u64>,
    /// The other metrics that a chart or a lane shows; each column is as long as `step`.
    pub columns: BTreeMap<String, Column>,
}

/// The figures of a run, or the new ones among them.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Changes when earlier figures no longer hold.
    pub generation: u64,
    /// Figures of the steps.
    pub steps: Excerpt,
    /// Figures of the evaluations.
    pub evaluations: Excerpt,
    /// Metrics of the steps that no chart shows; a page asks for those that it draws.
    pub others: Vec<String>,
}

/// A growing file of records, by column.
#[derive(Debug)]
pub struct Curves {
    lines: Lines,
    /// Changes as the file is replaced by one that does not continue it.
    generation: u64,
    step: Vec<u64>,
    columns: BTreeMap<String, Vec<f32>>,
}

impl Curves {
    /// Follows a file that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { lines: Lines::new(path), generation: first_generation(), step: Vec::new(), columns: BTreeMap::new() }
    }

    /// Reads what was added since.
    ///
    /// # Errors
    /// Any error of the file system but that there is no file.
    pub fn refresh(&mut self) -> io::Result<()> {
        let Self { lines, generation, step, columns } = self;
        lines.refresh(|news| match news {
            News::Anew => {
                *generation += 1;
                step.clear();
                columns.clear();
            }
            News::Line(line) => {
                if let Some(record) = MetricRecord::from_line(line) {
                    add(step, columns, &record);
                }
            }
        })
    }

    /// How often the records were replaced by others; a part of another generation does not fit.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The records behind the first `known` ones: of the metrics that a chart or a lane shows, and of `also`.
    pub fn part(&self, known: usize, also: &[String]) -> Excerpt {
        let from = known.min(self.step.len());
        let rest = |column: &Vec<f32>| {
            let missing = self.step.len() - column.len().max(from);
            let values = column.get(from..).unwrap_or_default().iter().copied();
            Column(values.chain(std::iter::repeat_n(f32::NAN, missing)).collect())
        };
        let wanted = self.columns.iter().filter(|(key, _)| is_shown(key) || also.contains(key));
        let columns = wanted.map(|(key, column)| (key.clone(), rest(column))).collect();
        Excerpt { from, step: self.step[from..].to_vec(), columns }
    }

    /// Metrics that no chart shows.
    pub fn others(&self) -> Vec<String> {
        self.columns.keys().filter(|key| !is_shown(key)).cloned().collect()
    }
}

fn add(step: &mut Vec<u64>, columns: &mut BTreeMap<String, Vec<f32>>, record: &MetricRecord) {
    let known = step.len();
    step.push(crate::records::tail::step_of(record));
    // Steps are the places of the other values.
    for (key, value) in record.values().iter().filter(|(key, _)| *key != metrics::STEP.key) {
        let Some(value) = value.as_f64() else { continue };
        if !columns.contains_key(key) && columns.len() < MOST_METRICS {
            columns.insert(key.clone(), Vec::new());
        }
        if let Some(column) = columns.get_mut(key) {
            column.resize(known, f32::NAN);
            column.push(value as f32);
        }
    }
}

/// Differs between processes, so that a page that outlives the server does not take the next server's figures for the
/// continuation of its own.
fn first_generation() -> u64 {
    static FIRST: LazyLock<u64> =
        LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64);
    *FIRST
}

/// Metrics for lanes and tiles, in addition to those of the charts.
const ALSO: [&metrics::Metric; 8] = [
    metrics::TOTAL_STEPS,
    metrics::STEP_TIME,
    metrics::COMPLETIONS_NUM_TOKENS,
    metrics::MISMATCH_KL,
    metrics::PERF_ROLLOUT_WAIT_S,
    metrics::PERF_PUBLISH_S,
    metrics::ROLLOUT_BUSY_S,
    metrics::ROLLOUT_IDLE_S,
];

fn is_shown(key: &str) -> bool {
    let charted = |metric: &&'static metrics::Metric| metric.chart.is_some() && metric.name_in(key).is_some();
    // The errors of evaluations are drawn around their curves.
    let error = metrics::AVG_STDERR.metric();
    ALSO.into_iter().any(|metric| metric.key == key)
        || error.name_in(key).is_some()
        || catalogue::all().any(|m| charted(&m))
}

/// Reads a whole file.
///
/// # Errors
/// As [`Curves::refresh`].
pub fn read(path: &Path) -> io::Result<Excerpt> {
    let mut curves = Curves::new(path.to_owned());
    curves.refresh()?;
    Ok(curves.part(0, &[]))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Write,
    };

    use super::*;

    fn json(curves: &Curves, known: usize) -> serde_json::Value {
        serde_json::to_value(curves.part(known, &[])).unwrap()
    }

    #[test]
    fn columns_grow_with_the_file_and_have_gaps_where_a_record_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut curves = Curves::new(path.clone());
        curves.refresh().unwrap();
        assert_eq!(json(&curves, 0), serde_json::json!({"from": 0, "step": [], "columns": {}}));
        let mut file = File::create(&path).unwrap();
        file.write_all(
            b"{\"step\":1,\"kl\":0.5,\"perf/guard_s\":1.0}\n{\"step\":2,\"kl\":null,\"reward\":0.2}\n{\"ste",
        )
        .unwrap();
        curves.refresh().unwrap();
        let expected = serde_json::json!({
            "from": 0, "step": [1, 2], "columns": {"kl": [0.5, null], "reward": [null, 0.2f32]},
        });
        assert_eq!(json(&curves, 0), expected);
        file.write_all(b"p\":3,\"reward\":1}\n").unwrap();
        curves.refresh().unwrap();
        let expected = serde_json::json!({"from": 2, "step": [3], "columns": {"kl": [null], "reward": [1.0]}});
        assert_eq!(json(&curves, 2), expected);
        assert_eq!(json(&curves, 9)["step"], serde_json::json!([]));
        // What no chart shows is sent to whoever asks for it.
        assert_eq!(curves.others(), ["perf/guard_s"]);
        let asked = serde_json::to_value(curves.part(0, &["perf/guard_s".into()])).unwrap();
        assert_eq!(asked["columns"]["perf/guard_s"], serde_json::json!([1.0, null, null]));
    }

    #[test]
    fn a_file_that_is_written_anew_is_another_generation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n").unwrap();
        let mut curves = Curves::new(path.clone());
        curves.refresh().unwrap();
        let first = curves.generation();
        assert_eq!(curves.part(0, &[]).step, [1, 2]);
        shared::files::atomic::write(&path, b"{\"step\":1}\n").unwrap();
        curves.refresh().unwrap();
        assert_ne!(curves.generation(), first);
        assert_eq!(curves.part(0, &[]).step, [1]);
    }

    #[test]
    fn another_file_in_the_place_of_one_is_noticed_by_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n").unwrap();
        let mut curves = Curves::new(path.clone());
        curves.refresh().unwrap();
        let first = curves.generation();
        // Overwritten, so that the inode stays.
        fs::write(&path, "{\"step\":1}\n{\"step\":3}\n{\"step\":4}\n").unwrap();
        curves.refresh().unwrap();
        assert_ne!(curves.generation(), first);
        assert_eq!(curves.part(0, &[]).step, [1, 3, 4]);
    }
}
