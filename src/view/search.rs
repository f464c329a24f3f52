//! Searches the completions of a run for a text.

use std::{
    io,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;
use shared::RunDir;

use super::completions::{position, read, rows, sample};

/// Most hits.
const MOST: usize = 200;
/// How long a search may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Characters around a hit.
const AROUND: usize = 60;

/// A completion with the text in it or in its prompt.
#[derive(Debug, Serialize)]
struct Hit {
    step: u64,
    position: u64,
    sample: u64,
    reward: Option<f64>,
    /// The text around the hit.
    excerpt: String,
}

/// The hits, the newest steps first.
#[derive(Debug, Serialize)]
pub struct Found {
    hits: Vec<Hit>,
    /// The oldest step that was searched.
    down_to: Option<u64>,
    /// Whether older steps were not searched, because there are enough hits or it took too long.
    more: bool,
}

/// Searches prompts and completions, ignoring case.
///
/// # Errors
/// Any error of the file system.
pub fn search(dir: &RunDir, text: &str) -> io::Result<Found> {
    let (begin, wanted) = (Instant::now(), text.to_lowercase());
    let mut found = Found { hits: Vec::new(), down_to: None, more: false };
    for step in dir.logged_steps()?.into_iter().rev() {
        if found.hits.len() >= MOST || begin.elapsed() > PATIENCE {
            found.more = true;
            break;
        }
        found.down_to = Some(step);
        // The file may be removed at this moment.
        let Some(bytes) = read(&dir.step_completions(step))? else { continue };
        for row in rows(&bytes) {
            let Some(position) = position(&row) else { continue };
            let in_text = |key: &str| excerpt(row.get(key)?.as_str()?, &wanted);
            if let Some(excerpt) = in_text("completion").or_else(|| in_text("prompt")) {
                let reward = row.get("reward").and_then(Value::as_f64);
                found.hits.push(Hit { step, position, sample: sample(&row), reward, excerpt });
            }
        }
    }
    found.more |= found.hits.len() > MOST;
    found.hits.truncate(MOST);
    Ok(found)
}

/// The text around the first place that matches.
fn excerpt(text: &str, wanted: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let at = lower[..lower.find(wanted)?].chars().count();
    let begin = at.saturating_sub(AROUND);
    Some(text.chars().skip(begin).take(at - begin + wanted.chars().count() + AROUND).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn texts_are_found_in_the_newest_steps_first() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        dir.create().unwrap();
        for step in [1, 2, 30] {
            let row = serde_json::json!({"position": step, "sample": 1, "prompt": "Ask Ö",
                "completion": format!("answer {step} ")});
            fs::write(dir.step_completions(step), format!("{row}\n")).unwrap();
        }
        let steps = |text: &str| search(&dir, text).unwrap().hits.iter().map(|hit| hit.step).collect::<Vec<_>>();
        assert_eq!(steps("ask ö"), [30, 2, 1]);
        assert_eq!(steps("ANSWER 2"), [2]);
        assert_eq!(steps("answer 3 "), [0u64; 0]);
    }

    #[test]
    fn an_excerpt_is_about_its_hit() {
        let text = format!("{}Needle{}", "x".repeat(500), "y".repeat(500));
        let found = excerpt(&text, "needle").unwrap();
        assert!(found.starts_with("xx") && found.contains("Needle") && found.ends_with("yy") && found.len() < 200);
    }
}
