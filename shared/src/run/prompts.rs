//! Prompts that are too long: the sampler counts them, the launcher reports them.

use std::{fmt, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::files::atomic;

/// Most prompts that are listed.
pub const NAMED: usize = 10_000;
/// Most bytes of the file.
const MOST_BYTES: u64 = 64 << 20;

/// Prompts of a dataset that the model does not get, or gets shortened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongPrompts {
    /// The files or folders of the dataset.
    pub dataset: String,
    /// Number of rows.
    pub rows: u64,
    /// Rows that are left out because their prompt leaves no room for a completion.
    pub left_out: u64,
    /// Their ids (`prompt_id` of completions and ledger), ascending; of many, the first [`NAMED`].
    #[serde(default)]
    pub left_out_ids: Vec<u64>,
    /// Tokens of prompt and completion together, at most.
    pub max_model_len: u64,
    /// Rows whose prompt lost its beginning to `max_prompt_length`.
    pub shortened: u64,
    /// Further remarks on the prompts, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Rows whose prompt leaves room for fewer tokens than `max_completion_length`.
    #[serde(default)]
    pub crowded: u64,
    /// Most tokens of a completion.
    #[serde(default)]
    pub max_completion_length: u64,
}

impl LongPrompts {
    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left_out == 0 && self.shortened == 0 && self.crowded == 0
    }

    /// The report, in lines.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let long = (!self.is_empty()).then(|| self.to_string());
        long.into_iter().chain(self.remarks.iter().cloned()).collect()
    }

    /// Writes the reports on several datasets, or removes the file if there is nothing to report.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(path: &Path, found: &[Self]) -> io::Result<()> {
        let told: Vec<&Self> = found.iter().filter(|prompts| !prompts.lines().is_empty()).collect();
        if told.is_empty() {
            // The report of an earlier start no longer holds.
            return atomic::remove_file(path);
        }
        atomic::write(path, serde_json::to_string_pretty(&told)?.as_bytes())
    }

    /// Reads the reports; none if the file is missing.
    #[must_use]
    pub fn read(path: &Path) -> Vec<Self> {
        shared_bounds::read(path, MOST_BYTES)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }
}

/// The report in one line.
impl fmt::Display for LongPrompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dataset, rows, left_out, max_model_len, shortened, crowded, max_completion_length, .. } = self;
        let mut parts = Vec::new();
        if *left_out > 0 {
            parts.push(format!("{left_out} left out ({max_model_len} tokens or more leave no room for a completion)"));
        }
        if *shortened > 0 {
            parts.push(format!("{shortened} without their beginning (`max_prompt_length`)"));
        }
        if *crowded > 0 {
            parts.push(format!(
                "{crowded} with room for fewer than the {max_completion_length} tokens of `max_completion_length`, \
                 since prompt and completion may have {max_model_len} together: longer completions are cut off there"
            ));
        }
        write!(f, "{dataset}: of {rows} prompts {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_are_told_in_a_line_and_none_in_none() {
        let none = LongPrompts { dataset: "a.jsonl".into(), rows: 9, max_model_len: 64, ..LongPrompts::default() };
        let out = LongPrompts { left_out: 2, left_out_ids: vec![3, 7], ..none.clone() };
        let both = LongPrompts { shortened: 3, ..out.clone() };
        let left_out = "a.jsonl: of 9 prompts 2 left out (64 tokens or more leave no room for a completion)";
        assert_eq!(out.to_string(), left_out);
        assert_eq!(both.to_string(), format!("{left_out}, 3 without their beginning (`max_prompt_length`)"));
        let crowded = LongPrompts { crowded: 9, max_completion_length: 4096, ..none.clone() };
        let words =
            "a.jsonl: of 9 prompts 9 with room for fewer than the 4096 tokens of `max_completion_length`, since prompt";
        assert!(crowded.to_string().starts_with(words), "{crowded}");
        assert!(!crowded.is_empty());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.json");
        LongPrompts::write(&path, std::slice::from_ref(&none)).unwrap();
        assert!(!path.exists() && LongPrompts::read(&path).is_empty());
        LongPrompts::write(&path, &[none, both.clone()]).unwrap();
        assert_eq!(LongPrompts::read(&path), [both]);
        let odd = LongPrompts { remarks: vec!["odd".into()], ..LongPrompts::default() };
        LongPrompts::write(&path, std::slice::from_ref(&odd)).unwrap();
        assert_eq!(LongPrompts::read(&path)[0].lines(), ["odd"]);
        LongPrompts::write(&path, &[]).unwrap();
        assert!(!path.exists(), "another start has none");
    }
}
