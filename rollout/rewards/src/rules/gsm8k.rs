//! GSM8K's convention: the answer follows `####`.

use super::number::number;

/// The answer of a GSM8K solution: the text after the first `####`, stripped; `None` without the marker.
#[must_use]
pub fn answer(solution: &str) -> Option<&str> {
    // Up to the next marker, should there be one.
    solution.split("####").nth(1).map(str::trim)
}

/// 1 if the completion names, after its last `####`, the expected number, else 0.
#[must_use]
pub fn score(completion: &str, expected: &str) -> f64 {
    let expected = answer(expected).unwrap_or(expected).trim();
    let Some((_, given)) = completion.rsplit_once("####") else { return 0.0 };
    let given = given.trim_start().lines().next().unwrap_or_default().trim();
    let word = given.split_whitespace().next().unwrap_or_default();
    let right = match (number(word), number(expected)) {
        (Some(given), Some(expected)) => given == expected,
        _ => !given.is_empty() && given == expected,
    };
    f64::from(u8::from(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_gsm8k_answer_extract() {
        for case in harness::golden::cases("gsm8k_answer_extract.json", "gsm8k_extract", &[], &["text"], &["answer"]) {
            let text = case["inputs"]["text"].as_str().unwrap();
            assert_eq!(answer(text), case["expected"]["answer"].as_str(), "{}", case["name"]);
        }
    }

    #[test]
    fn the_last_marked_number_counts() {
        for (completion, expected, score_) in [
            ("6 * 3 = 18\n#### 18", "18", 1.0),
            ("#### 18.0", "18", 1.0),
            ("#### $1,234", "1234", 1.0),
            ("#### 1234.", "1,234", 1.0),
            ("#### 18 eggs\nNext", "18", 1.0),
            ("#### -5", "5", 0.0),
            ("#### 17\n#### 18", "18", 1.0),
            ("#### 18\n#### 17", "18", 0.0),
            ("18", "18", 0.0),
            ("####", "18", 0.0),
            ("#### 72", "48 + 24\n#### 72", 1.0),
        ] {
            assert_eq!(score(completion, expected), score_, "{completion} for {expected}");
        }
    }
}
