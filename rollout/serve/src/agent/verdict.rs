//! The reward of an agent.

use std::iter;

use shared::EpisodeEnd;

use super::Outcome;

/// Characters of an agent's last line that a message shows.
const SHOWN: usize = 80;

/// Names of a reward.
const NAMES: [&str; 2] = ["reward", "score"];

/// Values of programs that are no finite numbers.
const VALUES: [&str; 7] = ["true", "false", "none", "null", "nan", "inf", "infinity"];

/// What begins a value: brackets, quotes, and the marks of Markdown.
const OPENERS: [char; 7] = ['(', '[', '{', '"', '\'', '*', '`'];

/// What ends it.
const CLOSERS: [char; 7] = [')', ']', '}', '"', '\'', '*', '`'];

/// The minus of typography.
const MINUS: char = '\u{2212}';

/// The reward of an agent: one that it has given itself, a number on its last line, or 1 for its success.
pub fn judged(given: Option<f64>, outcome: Outcome) -> Result<f64, (EpisodeEnd, String)> {
    match (given, outcome) {
        (_, Outcome::Late(reason)) => Err((EpisodeEnd::Deadline, reason)),
        (Some(reward), _) => Ok(reward),
        (None, Outcome::Rewarded(reward)) => Ok(reward),
        (None, Outcome::Failed(reason)) => Err((EpisodeEnd::EnvironmentFailed, reason)),
        (None, Outcome::Done(line)) => match line.parse::<f64>() {
            Ok(reward) if reward.is_finite() => Ok(reward),
            Err(_) if !is_meant_as_verdict(&line) => Ok(1.0),
            _ => Err((EpisodeEnd::EnvironmentFailed, no_reward(&line))),
        },
    }
}

/// Whether somebody may have meant a line for the reward: it begins like a number, names a reward, or is a value of a
/// program. Lines of other words say nothing.
fn is_meant_as_verdict(line: &str) -> bool {
    let line = without_colours(line).to_lowercase();
    let line = line.trim();
    begins_like_a_number(line) || names_a_reward(line) || is_a_value(line)
}

/// `0,5`, `50%`, `3 of 4 tests passed`.
fn begins_like_a_number(line: &str) -> bool {
    let digits = line.strip_prefix(['+', '-', MINUS]).unwrap_or(line);
    digits.strip_prefix(['.', ',']).unwrap_or(digits).starts_with(char::is_numeric)
}

/// `reward: 0`, `Final score = high`, `Reward 0.5`, `{"ok": true, "reward": 0}`.
fn names_a_reward(line: &str) -> bool {
    let is_given = |after: &str| {
        let after = after.trim_start_matches(['s', '"', '\'', '*', '`', ' ']);
        after.starts_with([':', '=']) || begins_like_a_number(after)
    };
    NAMES.into_iter().any(|name| line.split(name).skip(1).any(is_given))
}

/// `False`, `[0.0]`, `tensor(0.)`, `np.float64(0.0)`, `(0.5, 'why')`, `{"correct": false}`.
fn is_a_value(line: &str) -> bool {
    let mut rest = line;
    while !begins_with_a_value(rest) {
        // A name before an opener is that of a type, or a key.
        let after = rest.trim_start_matches(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.'));
        let Some(after) = after.strip_prefix(OPENERS) else { return false };
        rest = after.trim_start_matches([':', ' ']);
    }
    true
}

/// Whether a text is a value, up to a comma or to its end. Words behind the value show that it is only a part of the
/// line: `none of them failed`, `3] done`.
fn begins_with_a_value(text: &str) -> bool {
    let after = text.trim_start_matches(|c: char| c.is_alphanumeric() || matches!(c, '.' | '+' | '-' | MINUS));
    let value = &text[..text.len() - after.len()];
    let is_value = begins_like_a_number(value) || VALUES.contains(&value.trim_matches(['.', '+', '-', MINUS]));
    is_value && (after.trim_start_matches(CLOSERS).starts_with(',') || !after.contains(char::is_alphabetic))
}

/// A line without the codes that colour it on a terminal, each of which ends with its first letter.
fn without_colours(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default();
    let texts = pieces.map(|piece| piece.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, text)| text));
    iter::once(first).chain(texts).collect()
}

fn no_reward(line: &str) -> String {
    let quoted: String = line.chars().take(SHOWN).collect();
    format!(
        "the agent's last line reads like a reward and is no finite number: `{quoted}`; let it print the reward alone, \
         as in 0.5, or send it to `POST /reward`, or end with a line of words for the reward 1"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_is_posted_or_printed_or_the_success_and_a_failure_is_none() {
        let done = |line: &str| Outcome::Done(line.into());
        assert_eq!(judged(Some(0.25), done("7")), Ok(0.25));
        assert_eq!(judged(None, done("-0.5")), Ok(-0.5));
        assert_eq!(judged(None, done("all is well")), Ok(1.0));
        assert_eq!(judged(None, done("")), Ok(1.0));
        assert_eq!(judged(None, Outcome::Rewarded(0.5)), Ok(0.5));
        assert_eq!(judged(Some(0.25), Outcome::Failed("crash".into())), Ok(0.25));
        let end = |given, outcome| judged(given, outcome).unwrap_err().0;
        assert_eq!(end(None, done("nan")), EpisodeEnd::EnvironmentFailed);
        assert_eq!(end(None, Outcome::Failed("crash".into())), EpisodeEnd::EnvironmentFailed);
        assert_eq!(end(Some(1.0), Outcome::Late("late".into())), EpisodeEnd::Deadline);
    }

    fn reward(line: &str) -> Result<f64, (EpisodeEnd, String)> {
        judged(None, Outcome::Done(line.into()))
    }

    fn is_failure_that_names(line: &str) {
        let (end, reason) = reward(line).expect_err(line);
        assert_eq!(end, EpisodeEnd::EnvironmentFailed, "{line}");
        assert!(reason.contains(&format!("`{line}`; let it print the reward alone, as in 0.5")), "{reason}");
    }

    #[test]
    fn a_last_line_that_was_meant_for_a_number_is_a_failure_that_names_it() {
        let commas = ["0,5", "+1,5", ",5"];
        let others = ["1e", "0.5/1", "50%", "50 %", "NaN", "-inf", "1e999", "-0.5.", ".5x", "\u{2212}0.5", "½"];
        for line in commas.into_iter().chain(others).chain(["3 of 4 tests passed"]) {
            is_failure_that_names(line);
        }
        let long = "1ä".repeat(SHOWN);
        assert!(reward(&long).unwrap_err().1.contains(&format!("`{}`;", "1ä".repeat(SHOWN / 2))));
        for (line, score) in [("0.5", 0.5), ("+.5", 0.5), ("-1e-3", -1e-3), ("5.", 5.0)] {
            assert_eq!(reward(line), Ok(score), "{line}");
        }
        for line in ["all 4 tests passed", "-- done --", "...", "- 1 is none", "nanny"] {
            assert_eq!(reward(line), Ok(1.0), "{line}");
        }
    }

    /// The success of such a program would be the reward 1 for a failed task.
    #[test]
    fn a_last_line_with_another_verdict_than_a_number_is_a_failure_that_names_it() {
        let words = ["False", "True", "None", "null", "FALSE.", "inf.", "None, sadly"];
        let named = ["reward: 0", "Reward=0.5", "Reward 0.5", "final_reward: no", "**Score:** 3", "rewards = [0.5]"];
        let typed = ["np.float64(0.0)", "tensor(0.)", "tensor([0.5], device='cuda:0')", "Decimal('0.5')", "[nan]"];
        let inside = ["[0.0]", "[0. 1.]", "(0.5, 'why')", "\"0.5\"", "**1e-05**", "[-inf]"];
        let given = [r#"{"reward": 0.0}"#, r#"{"reward": 0.5}"#, r#"{"why": "no", "reward": 0}"#, "{'correct': False}"];
        let coloured = ["\u{1b}[31m0.5\u{1b}[0m", "\u{1b}[1;32mTrue\u{1b}[0m"];
        let all = words.iter().chain(&named).chain(&typed).chain(&inside).chain(&given).chain(&coloured);
        all.for_each(|line| is_failure_that_names(line));
    }

    #[test]
    fn a_last_line_of_words_leaves_the_reward_to_the_exit_code() {
        for line in [
            "done in 3 s",
            "all good",
            "none of the tests failed",
            "True to its word",
            "errors: 0 in 3 files",
            "saved 3 files (7 s)",
            "[3] done",
            "[1/3] done",
            "[2026-11-30 12:00:00,123] INFO all done",
            r#"{"level": "info", "message": "done"}"#,
            "{}",
            "the reward was sent",
            "it's done",
            "\u{1b}[32mall good\u{1b}[0m",
            "\u{1b}[",
        ] {
            assert_eq!(reward(line), Ok(1.0), "{line}");
        }
    }
}
