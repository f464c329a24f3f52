//! GSM8K's convention: the answer follows `####`.

use super::{
    answer::{
        expected_answer, last_boxed,
        looks::{self, without_commands},
    },
    number::{decimal_comma, same_number, vote_of_number},
};

/// The answer of a GSM8K solution as theLMbook extracts it: the text after the first `####`, up to the next one,
/// stripped; `None` without the marker. Every rule but `correctness`, which is theLMbook's, goes by the last one.
#[must_use]
pub fn answer(solution: &str) -> Option<&str> {
    solution.split("####").nth(1).map(str::trim)
}

/// 1 if the completion names, after its last `####`, the expected number, else 0.
#[must_use]
pub fn score(completion: &str, expected: &str) -> f64 {
    let expected = self::given(expected).unwrap_or_else(|| expected_answer(expected)).trim();
    let Some(given) = given(completion) else { return 0.0 };
    let plain = bare(expected);
    let same = |text: &str| {
        let text = first_word(text);
        let with_point = decimal_comma(text).filter(|_| !plain.contains(','));
        same_number(with_point.as_deref().unwrap_or(text), &plain)
    };
    let right = same(given).or_else(|| same(&bare(given))).unwrap_or(given == expected || bare(given) == plain);
    f64::from(u8::from(right))
}

/// The answer that [`score`] looks at. Two answers that it takes for the same have the same text.
#[must_use]
pub fn vote(completion: &str) -> Option<String> {
    let given = given(completion)?;
    let number = vote_of_number(first_word(given)).or_else(|| vote_of_number(first_word(&bare(given))));
    Some(number.unwrap_or_else(|| given.to_owned()))
}

/// The rest of the line after the last `####`.
fn given(completion: &str) -> Option<&str> {
    let (_, given) = completion.rsplit_once("####")?;
    given.trim_start().lines().next().map(str::trim).filter(|given| !given.is_empty())
}

fn first_word(given: &str) -> &str {
    given.split_whitespace().next().unwrap_or_default().trim_end_matches(',')
}

/// A text without Markdown and LaTeX, in which numbers may be set.
fn bare(text: &str) -> String {
    let text = text.trim().trim_matches('$');
    without_commands(&looks::bare(last_boxed(text).unwrap_or(text))).trim_end_matches(',').to_owned()
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
            ("#### 72", "#### 7\n#### 72", 1.0),
            ("#### 7", "#### 7\n#### 72", 0.0),
            ("#### 72,", "72", 1.0),
            ("#### 72", "48 + 24. The answer is 72.", 1.0),
            ("18", "18", 0.0),
            ("####", "18", 0.0),
            ("#### 72", "48 + 24\n#### 72", 1.0),
            ("#### 72", "48 + 24 = 72\nThe answer is: 72", 1.0),
            ("#### **58**", "58", 1.0),
            ("**#### 58**", "58", 1.0),
            (r"#### $\boxed{58}$", "58", 1.0),
            (r"#### \textbf{58}", "58", 1.0),
            ("#### **58** eggs", "58", 1.0),
            ("#### **59**", "58", 0.0),
            ("#### 3,5", "3.5", 1.0),
            ("#### 36893488147419103232", "36893488147419103232", 1.0),
            ("#### 36893488147419103233", "36893488147419103232", 0.0),
        ] {
            assert_eq!(score(completion, expected), score_, "{completion} for {expected}");
        }
    }
}
