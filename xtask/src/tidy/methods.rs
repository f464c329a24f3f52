//! Only the descriptions in `shared/src/methods` and the learner's formulas may ask which method is configured:
//! elsewhere, a forgotten method would silently be trained as another one.

use super::sources::{Sources, code};

/// The choices that are methods.
const METHODS: &[&str] =
    &["LossType", "AdvantageEstimator", "KlEstimator", "LossAggregation", "MultiObjectiveAggregation", "ScaleRewards"];

/// The options that hold them.
const OPTIONS: &[&str] = &[
    "loss_type",
    "advantage_estimator",
    "kl_estimator",
    "loss_aggregation",
    "multi_objective_aggregation",
    "scale_rewards",
];

/// Descriptions, formulas, and the declaration of the options with their defaults.
const ALLOWED: &[&str] = &[
    "shared/src/config/options",
    "shared/src/methods/",
    "learner/src/loss/",
    "learner/src/advantage/",
    "learner/src/kl.rs",
];

pub fn check(sources: &Sources) -> Vec<String> {
    sources.rust().flat_map(|source| comparisons(&source.path, &source.text)).collect()
}

/// Places in a source file that distinguish methods, one line each.
fn comparisons(shown: &str, text: &str) -> Vec<String> {
    let is_test = shown.starts_with("tests/") || shown.contains("/tests/") || shown.ends_with("tests.rs");
    if is_test || ALLOWED.iter().any(|place| shown.starts_with(place)) {
        return Vec::new();
    }
    let code = code(text);
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let variants = METHODS.iter().flat_map(|name| words(&code, name)).filter(|&(_, end)| names_variant(&code[end..]));
    let options = OPTIONS.iter().flat_map(|name| words(&code, name)).filter(|&(at, end)| compares(&code, at, end));
    let mut lines: Vec<usize> = variants.chain(options).map(|(at, _)| line(at)).collect();
    lines.sort_unstable();
    lines.dedup();
    let finding = |line| {
        format!(
            "{shown}:{line}: methods are told apart in shared/src/methods and the learner's formulas only; ask \
             `spec()` of what you need to know"
        )
    };
    lines.into_iter().map(finding).collect()
}

/// Where a word begins and ends.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(at, _)| (at, at + word.len())).filter(move |&(at, end)| {
        !code[..at].chars().next_back().is_some_and(part) && !code[end..].chars().next().is_some_and(part)
    })
}

/// Whether a variant, or a list of variants, follows the name of an enum; associated functions and constants do not
/// count.
fn names_variant(rest: &str) -> bool {
    let Some(member) = rest.strip_prefix("::") else {
        return false;
    };
    let constant = member.chars().take_while(|&c| c.is_alphanumeric() || c == '_').all(|c| !c.is_lowercase());
    member.starts_with(['{', '*']) || member.starts_with(char::is_uppercase) && !constant
}

/// Whether the option between `at` and `end` is compared or matched.
fn compares(code: &str, at: usize, end: usize) -> bool {
    let place = |c: char| c.is_alphanumeric() || "_.&*?".contains(c);
    let before = code[..at].trim_end_matches(place).trim_end();
    let after = code[end..].trim_start();
    // A call on its description is no comparison.
    let is_field = code[..at].ends_with('.') && !after.starts_with('.');
    is_field
        && (after.starts_with("==")
            || after.starts_with("!=")
            || ["==", "!=", "match", "matches!("].iter().any(|sign| before.ends_with(sign))
            || before.ends_with('=') && code[..at].rsplit(['{', '}', ';']).next().is_some_and(|s| s.contains("if let")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        comparisons("learner/src/step/mod.rs", &format!("//! Docs.\nfn f() {{\n{line}\n}}\n")).len()
    }

    #[test]
    fn every_way_to_tell_methods_apart_is_found() {
        for line in [
            "if self.loss_type == LossType::Dapo {}",
            "if config.loss_type == other {}",
            "if other != config.advantage_estimator {}",
            "matches!(config.loss_type, Dapo)",
            "matches!(\n    self.config.kl_estimator,\n    K1\n)",
            "match config.loss_type {\n    _ => 1,\n}",
            "if let Dapo = config.loss_type {}",
            "let dapo = LossType::Dapo;",
            "use LossType::{Dapo, Grpo};",
            "use shared::config::LossType::*;",
        ] {
            assert!(found(line) > 0, "{line}");
        }
    }

    #[test]
    fn what_does_not_ask_is_left_alone() {
        for line in [
            "let spec = config.loss_type.spec();",
            "let all = LossType::ALL;",
            "if self.kl_estimator.spec().right_in_reward {}",
            "match config.loss_type.spec().ratio {\n    Ratio::Chosen => 1,\n}",
            "let plain = LossType::default();",
            "let config = TrainConfig { loss_type, ..config };",
            "config.loss_type = other;",
            "// if self.loss_type == LossType::Dapo",
            "bail!(\"LossType::Dapo\");",
        ] {
            assert_eq!(found(line), 0, "{line}");
        }
        let compared = "if a.loss_type == b {}";
        assert_eq!(comparisons("learner/tests/step.rs", compared), Vec::<String>::new());
        assert_eq!(comparisons("learner/src/loss/policy.rs", compared), Vec::<String>::new());
        let test = format!("//! Docs.\n#[cfg(test)]\nmod tests {{\n    {compared}\n}}\n");
        assert_eq!(comparisons("src/a.rs", &test), Vec::<String>::new());
        let elsewhere = format!("//! Docs.\n#[cfg(test)]\nmod tests;\n\n{compared}\n");
        assert_eq!(comparisons("src/a.rs", &elsewhere).len(), 1, "tests in a file of their own hide nothing");
        assert!(comparisons("src/a.rs", &format!("//! Docs.\n\n{compared}\n"))[0].starts_with("src/a.rs:3: "));
    }
}
