//! The reward functions that come with the sampler.

pub mod answer;
pub mod arithmetic;
pub mod cosine;
pub mod countdown;
pub mod expression;
pub mod gsm8k;
pub mod length;
pub mod number;
pub mod open_r1;
pub mod rational;
pub mod repetition;
pub mod tags;
pub mod text;

use std::sync::Arc;

use shared::RewardOutcome;

use crate::{
    Answers, Extract, Reward, RewardCompletion, RewardInput,
    answers::ANSWER_COLUMNS,
    entry::{Entry, Parameter, Parameters},
};

/// A rule that looks at one completion at a time.
struct Rule<F> {
    score: F,
    correct_at: f64,
    extract: Option<Box<Extract>>,
}

impl<F> Reward for Rule<F>
where
    F: Fn(&RewardInput, &RewardCompletion) -> RewardOutcome + Send + Sync,
{
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        input.completions.iter().map(|completion| (self.score)(input, completion)).collect()
    }

    fn stated_correct_at(&self) -> Option<f64> {
        Some(self.correct_at)
    }

    fn extract(&self) -> Option<&Extract> {
        self.extract.as_deref()
    }
}

pub use arithmetic::separator;

type Built = Result<Arc<dyn Reward>, String>;

/// A rule that reads the completion alone.
fn of_completion(correct_at: f64, rule: impl Fn(&RewardCompletion) -> f64 + Send + Sync + 'static) -> Built {
    let score = move |_: &RewardInput, completion: &RewardCompletion| RewardOutcome::Score(rule(completion));
    Ok(Arc::new(Rule { score, correct_at, extract: None }))
}

/// A rule that looks for the tags `known` in the completion, with a tag that the prompt opens.
fn of_tags(
    correct_at: f64,
    known: &'static [&'static str],
    rule: impl Fn(&str) -> f64 + Send + Sync + 'static,
) -> Built {
    let score = move |input: &RewardInput, completion: &RewardCompletion| {
        RewardOutcome::Score(rule(&tags::with_known(&input.prompt, &completion.text, known)))
    };
    Ok(Arc::new(Rule { score, correct_at, extract: None }))
}

/// A rule that compares the completion's answer, as `extract` finds it, with the row's answer, from the first of the
/// columns that has one. It abstains when the row has none.
fn of_answer(
    correct_at: f64,
    columns: &'static [&'static str],
    extract: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    rule: impl Fn(&str, &str) -> f64 + Send + Sync + 'static,
) -> Built {
    judged(correct_at, columns, extract, move |text, _, answer| Some(rule(text, answer)))
}

/// As [`of_answer`], with a rule that may abstain. The rule gets the text with a tag that the prompt opens, since the
/// answer may stand behind the tag; the completion; and the row's answer.
fn judged(
    correct_at: f64,
    columns: &'static [&'static str],
    extract: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    rule: impl Fn(&str, &RewardCompletion, &str) -> Option<f64> + Send + Sync + 'static,
) -> Built {
    let score = move |input: &RewardInput, completion: &RewardCompletion| {
        let (answers, text) = (input.answers(columns), tags::with_opened(&input.prompt, &completion.text));
        match answers.and_then(|answers| best(correct_at, &answers, |answer| rule(&text, completion, answer))) {
            Some(score) => RewardOutcome::Score(score),
            None => RewardOutcome::NotApplicable,
        }
    };
    Ok(Arc::new(Rule { score, correct_at, extract: Some(Box::new(extract)) }))
}

/// The score by several alternative answers: the highest if it is that of a right one. Else `None` where the rule
/// abstains on one of them (unless they spell a truth value), and otherwise the highest.
fn best(correct_at: f64, answers: &Answers, rule: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let scores: Vec<Option<f64>> = answers.any_of.iter().map(|answer| rule(answer)).collect();
    let highest = scores.iter().flatten().copied().reduce(f64::max)?;
    let open = scores.contains(&None) && !answers.truth;
    (highest >= correct_at || !open).then_some(highest)
}

/// Every rule, in the order in which they are listed.
pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: "correctness",
        about: "theLMbook: the last <answer> equals the row's answer: 2 as text, 1.5 as the only number in it, else 0",
        columns: &["answer"],
        parameters: &[],
        // The same number is a right answer, however it is written.
        build: |_| of_answer(1.5, &["answer"], tags::vote, tags::correctness),
    },
    Entry {
        name: "format",
        about: "theLMbook: 0.2 for each of <reasoning>, </reasoning>, <answer>, </answer> that appears",
        columns: &[],
        parameters: &[],
        build: |_| of_tags(0.8, &["<reasoning>", "<answer>"], tags::format),
    },
    Entry {
        name: "think_format",
        about: "TRL: 1 if the completion opens with one <think>…</think>, else 0",
        columns: &[],
        parameters: &[],
        build: |_| of_tags(1.0, &["<think>"], tags::think_format),
    },
    Entry {
        name: "gsm8k",
        about: "1 if the number after the last #### equals the row's answer, else 0",
        columns: &["answer"],
        parameters: &[],
        build: |_| of_answer(1.0, &["answer"], gsm8k::vote, gsm8k::score),
    },
    Entry {
        name: "accuracy",
        about: "TRL: 1 if the final answer (\\boxed{}, <answer> or ####) equals the row's in value, 0 if not, abstains \
            if unsure",
        columns: ANSWER_COLUMNS,
        parameters: &[],
        build: |_| judged(1.0, ANSWER_COLUMNS, answer::vote, |text, _, expected| answer::accuracy(text, expected)),
    },
    Entry {
        name: "reasoning_accuracy",
        about: "TRL: as accuracy, of what follows the reasoning; 0 if that never ends",
        columns: ANSWER_COLUMNS,
        parameters: &[Parameter { name: "delimiter", default: Some("</think>"), about: "what ends the reasoning" }],
        build: |p| {
            let delimiter: String = p.get("delimiter")?;
            let end = delimiter.clone();
            let extract = move |text: &str| text.rsplit_once(&*end).and_then(|(_, answer)| answer::vote(answer));
            judged(1.0, ANSWER_COLUMNS, extract, move |text, _, expected| {
                answer::reasoning_accuracy(text, expected, &delimiter)
            })
        },
    },
    Entry {
        name: "cosine_scaled",
        about: "TRL: accuracy scaled by length along a cosine: short is best when right, long is best when wrong",
        columns: ANSWER_COLUMNS,
        parameters: &[
            Parameter { name: "max_len", default: None, about: "tokens at which the scale ends" },
            Parameter { name: "min_value_wrong", default: Some("-1"), about: "wrong, no tokens" },
            Parameter { name: "max_value_wrong", default: Some("-0.5"), about: "wrong, max_len tokens" },
            Parameter { name: "min_value_correct", default: Some("0.5"), about: "right, max_len tokens" },
            Parameter { name: "max_value_correct", default: Some("1"), about: "right, no tokens" },
        ],
        build: cosine::build,
    },
    Entry {
        name: "boxed",
        about: "1 if the last \\boxed{} equals the row's answer or solution, as text or as a number, else 0",
        columns: ANSWER_COLUMNS,
        parameters: &[],
        build: |_| of_answer(1.0, ANSWER_COLUMNS, answer::vote_boxed, answer::boxed),
    },
    Entry {
        name: "numeric",
        about: "1 if the last number of the completion equals the row's answer, else 0",
        columns: ANSWER_COLUMNS,
        parameters: &[],
        build: |_| of_answer(1.0, ANSWER_COLUMNS, answer::vote_numeric, answer::numeric),
    },
    Entry {
        name: "countdown",
        about: "TinyZero: the equation in the last <answer> uses each of the row's nums once and gives its target",
        columns: &["nums"],
        parameters: &[
            Parameter { name: "score", default: Some("1"), about: "for a right equation" },
            Parameter { name: "format_score", default: Some("0.1"), about: "for any other equation" },
        ],
        build: countdown::build,
    },
    Entry {
        name: "finished",
        about: "1 if the completion ended by itself, 0 if it was cut off",
        columns: &[],
        parameters: &[],
        build: |_| of_completion(1.0, length::finished),
    },
    Entry {
        name: "length",
        about: "0 at the wanted number of tokens, falling linearly to -1 at none and at twice as many",
        columns: &[],
        parameters: &[Parameter { name: "target", default: None, about: "the wanted number of tokens" }],
        build: |p| {
            let target = p.positive("target")?;
            of_completion(0.0, move |c| length::near(c.length(), target))
        },
    },
    Entry {
        name: "relative_length",
        about: "Kimi k1.5: 0.5 for the shortest completion of the group, falling linearly to -0.5 for the longest",
        columns: &[],
        parameters: &[],
        build: |_| Ok(Arc::new(length::Relative)),
    },
    Entry {
        name: "soft_overlong",
        about: "DAPO eq. 13: 0 up to max_completion_len - soft_punish_cache tokens, falling linearly to -1 at the \
            maximum",
        columns: &[],
        parameters: &[
            Parameter { name: "max_completion_len", default: None, about: "tokens from which the reward is -1" },
            Parameter { name: "soft_punish_cache", default: None, about: "tokens over which it falls" },
        ],
        build: length::build_soft_overlong,
    },
    Entry {
        name: "repetition_penalty",
        about: "TRL: max_penalty times the share of n-grams of tokens that are repeats",
        columns: &[],
        parameters: &[
            Parameter { name: "ngram_size", default: Some("3"), about: "tokens of an n-gram" },
            Parameter { name: "max_penalty", default: Some("-1"), about: "reward when everything repeats, at most 0" },
        ],
        build: repetition::build,
    },
    Entry {
        name: "think_answer_format",
        about: "open-r1's format: 1 if the completion is <think>…</think> and <answer>…</answer>, tags on lines of \
            their own",
        columns: &[],
        parameters: &[],
        build: |_| of_tags(1.0, open_r1::TAGS, open_r1::think_answer_format),
    },
    Entry {
        name: "tag_count",
        about: "open-r1: 0.25 for each of the tags of think_answer_format that is there exactly once, with its line \
            breaks",
        columns: &[],
        parameters: &[],
        build: |_| of_tags(1.0, open_r1::TAGS, open_r1::tag_count),
    },
    Entry {
        name: "reasoning_steps",
        about: "open-r1: a third for each step, bullet or word such as First, up to 1",
        columns: &[],
        parameters: &[],
        build: |_| of_completion(1.0, |c| open_r1::reasoning_steps(&c.text)),
    },
    Entry {
        name: "word_repetition_penalty",
        about: "open-r1's repetition_penalty: max_penalty times the share of n-grams of words that are repeats",
        columns: &[],
        parameters: &[
            Parameter { name: "ngram_size", default: Some("3"), about: "words of an n-gram" },
            Parameter { name: "max_penalty", default: Some("-1"), about: "reward when everything repeats, at most 0" },
        ],
        build: open_r1::build_word_repetition,
    },
    Entry {
        name: "code_format",
        about: "open-r1: as think_answer_format, with a block of code in the answer, in the language of the row's \
            column language",
        columns: &[],
        parameters: &[Parameter {
            name: "language",
            default: Some("python"),
            about: "where the row has no such column",
        }],
        build: open_r1::build_code_format,
    },
    Entry {
        name: "sentence_share",
        about: "the share of sentences that contain a word",
        columns: &[],
        parameters: &[Parameter { name: "word", default: None, about: "the word, in any case" }],
        build: text::build,
    },
    Entry {
        name: "step_arithmetic",
        about: "process reward: each step with an equation of numbers earns 1 if all its equations hold, else 0",
        columns: &[],
        parameters: &[SEPARATOR],
        build: arithmetic::build,
    },
];

/// The parameter of functions that score steps; [`separator`] reads it.
pub const SEPARATOR: Parameter =
    Parameter { name: "separator", default: Some("\\n"), about: "what closes a step; \\n is a line break" };

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Registry, testing};

    #[test]
    fn answers_that_are_the_same_have_the_same_vote() {
        let vote =
            |spec: &str, text: &str| Registry::default().function(spec).unwrap().reward().extract().unwrap()(text);
        for (spec, first, same, other) in [
            ("correctness", "<answer>18</answer>", "<answer>$18.0 in all</answer>", "<answer>81</answer>"),
            ("gsm8k", "#### 1,234", "so\n#### $1234. eggs", "#### 1235"),
            ("numeric", "it is 0.5", "first 3, then .50", "it is 5"),
            ("boxed", r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{2}"),
            ("accuracy", r"\boxed{ x^2 }", "<answer>$x^2$</answer>", r"\boxed{x^3}"),
            ("reasoning_accuracy", r"\boxed{9}</think>#### 7", "</think>\\boxed{7.0}", r"</think>\boxed{8}"),
            ("cosine_scaled:max_len=9", "#### -0", r"\boxed{0}", r"\boxed{1}"),
        ] {
            assert_eq!(vote(spec, first), vote(spec, same), "{spec}");
            assert_ne!(vote(spec, first), vote(spec, other), "{spec}");
            assert!(vote(spec, first).is_some() && vote(spec, "nothing").is_none(), "{spec}");
        }
        for spec in ["format", "countdown", "relative_length", "step_arithmetic"] {
            assert!(Registry::default().function(spec).unwrap().reward().extract().is_none(), "{spec}");
        }
    }

    #[test]
    fn a_tag_that_the_prompt_opens_counts_for_the_rules_of_tags() {
        let columns = Arc::new(json!({"answer": "2", "nums": [1, 1], "target": 2}).as_object().unwrap().clone());
        let score = |spec: &str, prompt: &str, text: &str| {
            let function = Registry::default().function(spec).unwrap();
            let (completions, columns) = (testing::completions(&[text]), Arc::clone(&columns));
            let input = RewardInput { prompt: prompt.into(), columns, completions, ..RewardInput::default() };
            function.reward().score(&input)[0].score().unwrap()
        };
        let opens = "[user] 1 + 1?\n[assistant] <think>\n";
        assert_eq!(score("think_format", opens, "two</think>2"), 1.0);
        assert_eq!(score("think_format", "[user] 1 + 1?\n[assistant] ", "two</think>2"), 0.0);
        assert_eq!(score("think_format", opens, "two"), 0.0);
        let reasons = "[assistant] <reasoning>\n";
        assert!((score("format", reasons, "a</reasoning><answer>2</answer>") - 0.8).abs() < 1e-9);
        assert!((score("format", "", "a</reasoning><answer>2</answer>") - 0.6).abs() < 1e-9);
        let text = "a\n</think>\n<answer>\n```python\n2\n```\n</answer>";
        for (rule, with, without) in
            [("think_answer_format", 1.0, 0.0), ("tag_count", 1.0, 0.75), ("code_format", 1.0, 0.0)]
        {
            assert_eq!((score(rule, opens, text), score(rule, "", text)), (with, without), "{rule}");
        }
        let answers = "[user] 1 + 1?\n[assistant] It is 2.</think> <answer>";
        for (rule, right) in
            [("correctness", 2.0), ("accuracy", 1.0), ("cosine_scaled:max_len=1:min_value_correct=1", 1.0)]
        {
            assert_eq!(score(rule, answers, "2</answer>"), right, "{rule}");
            assert!(score(rule, "[assistant] ", "2</answer>") <= 0.0, "{rule}");
        }
        assert_eq!(score("countdown", answers, "1 + 1</answer>"), 1.0);
        assert_eq!(score("countdown", "[assistant] ", "1 + 1</answer>"), 0.0);
    }

    /// A tag that a rule does not look for would be text to it.
    #[test]
    fn a_tag_that_is_foreign_to_a_rule_does_not_count() {
        let score = |rule: &str, prompt: &str, text: &str| {
            let completions = testing::completions(&[text]);
            let input = RewardInput { prompt: prompt.into(), completions, ..RewardInput::default() };
            Registry::default().function(rule).unwrap().reward().score(&input)[0].score().unwrap()
        };
        let (think, form) = ("<think>a</think>b", "<think>\na\n</think>\n<answer>\nb\n</answer>");
        for opened in ["<answer>", "<reasoning>\n"] {
            assert_eq!(score("think_format", opened, think), 1.0, "{opened}");
        }
        for rule in ["think_answer_format", "tag_count"] {
            assert_eq!(score(rule, "<reasoning>\n", form), 1.0, "{rule}");
        }
        assert_eq!(score("think_format", "<think>\n\n</think>\n\n", "b"), 0.0);
    }

    /// Any answer of a list will do; a truth value is a word; a mapping is no answer.
    #[test]
    fn rules_read_what_datasets_call_an_answer() {
        let score = |spec: &str, answer: serde_json::Value, text: &str| {
            let input = RewardInput {
                columns: Arc::new(serde_json::from_value(json!({ "answer": answer })).unwrap()),
                completions: testing::completions(&[text]),
                ..RewardInput::default()
            };
            Registry::default().function(spec).unwrap().reward().score(&input)[0].score()
        };
        for rule in ["accuracy", "boxed", "numeric", "gsm8k", "correctness"] {
            let given = |number: &str| format!("<answer>{number}</answer>\n\\boxed{{{number}}}\n#### {number}");
            let right = |answer: serde_json::Value, number: &str| score(rule, answer, &given(number)).map(|s| s >= 1.0);
            assert_eq!(right(json!(["7"]), "7"), Some(true), "{rule}");
            assert_eq!(right(json!(["6", 7]), "7"), Some(true), "{rule}");
            assert_eq!(right(json!(["6", "8"]), "7"), Some(false), "{rule}");
            assert_eq!(right(json!("36893488147419103232"), "36893488147419103232"), Some(true), "{rule}");
            assert_eq!(right(json!("36893488147419103232"), "36893488147419103233"), Some(false), "{rule}");
            assert_eq!(right(json!({"target": ["7"]}), "7"), None, "{rule}");
            assert_eq!(right(json!([]), "7"), None, "{rule}");
            assert_eq!(right(json!(null), "7"), None, "{rule}");
        }
        for (truth, word, expected) in
            [(true, "True", 1.0), (true, "yes", 1.0), (true, "false", 0.0), (false, "No", 1.0), (false, "true", 0.0)]
        {
            let text = format!(r"\boxed{{{word}}}");
            assert_eq!(score("accuracy", json!(truth), &text), Some(expected), "{truth} and {word}");
            assert_eq!(score("boxed", json!(truth), &text), Some(expected), "{truth} and {word}");
        }
        assert_eq!(score("accuracy", json!(true), r"\boxed{perhaps}"), None);
    }

    /// A completion that earns as much as the row's answer votes as the row's answer does.
    #[test]
    fn a_vote_is_for_what_is_scored() {
        for (spec, answer, text) in [
            ("correctness", "5", "<answer>6</answer><answer>5.0</answer>"),
            ("gsm8k", "5", "#### 6\n#### 5"),
            ("numeric", "5", "6 and 5"),
            ("boxed", "5", r"\boxed{6} \boxed{5}"),
            ("accuracy", "5", "#### 6 <answer>5</answer>"),
        ] {
            let function = Registry::default().function(spec).unwrap();
            let reward = function.reward();
            let input = RewardInput {
                columns: Arc::new(serde_json::from_value(json!({ "answer": answer })).unwrap()),
                completions: testing::completions(&[text]),
                ..RewardInput::default()
            };
            assert!(reward.score(&input)[0].score().unwrap() >= reward.correct_at(), "{spec}");
            let number: f64 = reward.extract().unwrap()(text).unwrap().parse().unwrap();
            assert_eq!(number, 5.0, "{spec}");
        }
    }
}
