//! TinyZero's countdown rule (Jiayi-Pan/TinyZero, `verl/utils/reward_score/countdown.py`).

use std::sync::Arc;

use serde_json::Value;
use shared::RewardOutcome;

use super::{Built, Parameters, Rule, expression, tags};
use crate::{RewardCompletion, RewardInput};

/// Where the answer begins in the whole text of prompt and completion.
const MARKERS: [&str; 2] = ["Assistant:", "<|im_start|>assistant"];

/// The equation of a whole text: the last `<answer>…</answer>` in the last line of the text behind the first marker,
/// stripped. `None` if any of these is missing.
#[must_use]
pub fn extract_equation(response: &str) -> Option<&str> {
    let (_, answer) = MARKERS.iter().find_map(|marker| response.split_once(marker))?;
    let last_line = answer.rsplit('\n').next().unwrap_or(answer);
    last_answer(last_line)
}

/// The last non-overlapping match of `<answer>(.*?)</answer>`, stripped.
fn last_answer(line: &str) -> Option<&str> {
    let mut rest = line;
    let mut last = None;
    while let Some((answer, after)) = rest.split_once("<answer>").and_then(|(_, rest)| rest.split_once("</answer>")) {
        last = Some(answer.trim());
        rest = after;
    }
    last
}

/// Scores an equation: `score` if it uses each number exactly once and evaluates to the target (within 1e-5),
/// `format_score` for any other equation, 0 for none.
#[must_use]
pub fn score_equation(equation: Option<&str>, numbers: &[i64], target: i64, score: f64, format_score: f64) -> f64 {
    let Some(equation) = equation else { return 0.0 };
    let right = uses_exactly(equation, numbers)
        && expression::evaluate(equation).is_some_and(|value| value.distance(target) < 1e-5);
    if right { score } else { format_score }
}

fn uses_exactly(equation: &str, numbers: &[i64]) -> bool {
    let used: Option<Vec<i64>> = equation
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().ok())
        .collect();
    let Some(mut used) = used else { return false };
    let mut numbers = numbers.to_vec();
    used.sort_unstable();
    numbers.sort_unstable();
    used == numbers
}

pub(super) fn build(parameters: &Parameters) -> Built {
    let (score, format_score): (f64, f64) = (parameters.get("score")?, parameters.get("format_score")?);
    if !(score.is_finite() && format_score.is_finite()) {
        return Err("the scores must be finite numbers".into());
    }
    let rule = move |input: &RewardInput, completion: &RewardCompletion| match task(input) {
        Some((numbers, target)) => {
            let text = whole_text(&input.prompt, &completion.text);
            RewardOutcome::Score(score_equation(extract_equation(&text), &numbers, target, score, format_score))
        }
        None => RewardOutcome::NotApplicable,
    };
    // Many equations are right, so it says nothing that one of them is written more often.
    Ok(Arc::new(Rule { score: rule, correct_at: score, extract: None }))
}

/// Prompt and completion in the form that the rule reads. With a chat template whose markers TinyZero does not know,
/// every answer would be worth 0. Then the completion alone is the text, with a tag that the prompt opens.
fn whole_text(prompt: &str, completion: &str) -> String {
    if MARKERS.iter().any(|marker| prompt.contains(marker)) {
        format!("{prompt}{completion}")
    } else {
        format!("{}{}", MARKERS[0], tags::with_opened(prompt, completion))
    }
}

fn task(input: &RewardInput) -> Option<(Vec<i64>, i64)> {
    let numbers = input.columns.get("nums")?.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?;
    Some((numbers, input.columns.get("target")?.as_i64()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, testing};

    #[test]
    fn golden_countdown_reward() {
        for case in harness::golden::cases(
            "countdown_reward.json",
            "countdown",
            &["format_score", "score"],
            &["numbers", "response", "target"],
            &["equation", "reward"],
        ) {
            let (inputs, params) = (&case["inputs"], &case["params"]);
            let equation = extract_equation(inputs["response"].as_str().unwrap());
            assert_eq!(equation, case["expected"]["equation"].as_str(), "{}", case["name"]);
            let numbers: Vec<i64> = inputs["numbers"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
            let found = score_equation(
                equation,
                &numbers,
                inputs["target"].as_i64().unwrap(),
                params["score"].as_f64().unwrap(),
                params["format_score"].as_f64().unwrap(),
            );
            assert_eq!(found, case["expected"]["reward"].as_f64().unwrap(), "{}", case["name"]);
        }
    }

    fn score(prompt: &str, completion: &str) -> RewardOutcome {
        let columns = serde_json::json!({"nums": [1, 2, 3], "target": 9}).as_object().unwrap().clone();
        let completions = testing::completions(&[completion]);
        let input =
            RewardInput { prompt: prompt.into(), columns: Arc::new(columns), completions, ..RewardInput::default() };
        Registry::default().function("countdown").unwrap().reward().score(&input).remove(0)
    }

    #[test]
    fn the_marker_may_be_in_the_prompt_or_nowhere() {
        let answer = "<think>hm</think>\n<answer>(1 + 2) * 3</answer>";
        assert_eq!(score("User: make 9\nAssistant: ", answer), RewardOutcome::Score(1.0));
        assert_eq!(score("<|user|>make 9<|assistant|>", answer), RewardOutcome::Score(1.0));
        assert_eq!(score("Assistant: ", &format!("{answer}\ndone")), RewardOutcome::Score(0.0));
        assert_eq!(score("Assistant: ", "<answer>1+2+3</answer>"), RewardOutcome::Score(0.1));
    }

    #[test]
    fn solutions_that_come_with_the_data_are_right() {
        let Some(data) = harness::data_dir("solutions_that_come_with_the_data_are_right") else { return };
        for size in 2..=4 {
            let path = data.join(format!("countdown/countdown{size}_test.jsonl"));
            for line in std::fs::read_to_string(path).unwrap().lines() {
                let row: Value = serde_json::from_str(line).unwrap();
                let numbers: Vec<i64> = row["nums"].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect();
                let target = row["target"].as_i64().unwrap();
                assert_eq!(score_equation(row["solution"].as_str(), &numbers, target, 1.0, 0.1), 1.0, "{line}");
            }
        }
    }
}
