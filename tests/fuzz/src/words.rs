//! Files of options, and answers of models.

use std::path::Path;

use rollout_rewards::rules::{answer, arithmetic, countdown, expression, gsm8k, number, tags};
use shared::config::layers;

use crate::text;

pub fn run_toml_seeds() -> Vec<Vec<u8>> {
    let all = layers::to_toml(&shared::config::TrainConfig::default());
    let some = "model = \"m\"\ndataset = [\"a.jsonl\", \"b.jsonl\"]\n# words\nlearning_rate = 1e-6\nreward_funcs = \
        [\"format\"]\n\
                reward_weights = [0.5]\n[guard]\nkl = 1\n";
    vec![all.into_bytes(), some.into(), b"beta = 0.1\r\nstop = ['''a''', \"\\u0041\"]".to_vec()]
}

/// A file that is read and written again is read as the same.
pub fn run_toml(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let path = Path::new("run.toml");
    if let Ok(config) = layers::parse(text, path, &Vec::new()) {
        let written = layers::to_toml(&config);
        let again = layers::parse(&written, path, &Vec::new()).expect("what was written is read");
        assert_eq!(layers::to_toml(&again), written);
    }
}

pub fn answer_seeds() -> Vec<Vec<u8>> {
    [
        "\\boxed{\\frac{1}{2}}\n0.5",
        "<answer>x^2 + 2x + 1</answer>\n(x+1)^2",
        "#### 1,234\n1234",
        "[1, 2) \\cup (3, \\infty)\n\\{1; 2\\}",
        "\\sqrt{2} \\text{ cm}^2\n141%",
        "(44 + 19) * 35 / 2 = 9\n44 19 35",
        "3 \\times 10^{-5} \\pi\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "<think>a</think>\n-7/8",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Two answers of a model, a line each, for every rule that reads answers. An answer always equals itself.
pub fn answer(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let (given, expected) = text.split_once('\n').unwrap_or((text, "0.5"));
    let _ = answer::compare(given, expected);
    assert!(answer::compare(given, given) != answer::Verdict::Different, "{given}");
    let _ = (answer::accuracy(given, expected), answer::boxed(given, expected), answer::numeric(given, expected));
    let _ = answer::reasoning_accuracy(given, expected, "</think>");
    let _ = (tags::format(given), tags::think_format(given), tags::correctness(given, expected));
    let _ = (gsm8k::score(given, expected), number::number(given), arithmetic::equations_hold(given));
    if let Some(found) = expression::evaluate(given) {
        assert!(!found.as_f64().is_nan(), "{given}");
    }
    let _ = countdown::score_equation(countdown::extract_equation(given), &[44, 19, 35], 98, 1.0, 0.1);
}
