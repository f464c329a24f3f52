//! Names of reward functions, which each registry defines for itself: TRL's script has four, open-r1 and projects
//! derived from it have others, and the rules here have names of their own. A name in a foreign file keeps its meaning
//! there.

use std::path::Path;

use rollout_rewards::Registry;
use serde_json::Value;
use shared::config::{on_hub, rewards::PythonFunction};

use super::rules::Lookup;

/// A function with the meaning that a name has.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its entry in `reward_funcs`.
    pub entry: String,
    /// A remark on it.
    pub remark: Option<String>,
}

/// The functions that a value of `reward_funcs` names.
///
/// # Errors
/// Every name without a counterpart here, with the way out.
pub fn functions(value: &Value, get: Lookup<'_>) -> Result<Vec<Function>, String> {
    let list = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(list) => list,
        _ => return Err("it must be a list of names".to_owned()),
    };
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for name in list {
        match name.as_str().ok_or_else(|| "it must be a list of names".to_owned()).and_then(|name| of_name(name, get)) {
            Ok(function) => found.push(function),
            Err(reason) => wrong.push(reason),
        }
    }
    if wrong.is_empty() { Ok(found) } else { Err(wrong.join("; ")) }
}

/// A reward model by its folder or its name on the Hub.
pub fn model(path: &str) -> String {
    match on_hub(path, Path::new("")) {
        Some(name) => format!("model:path={name}"),
        None => format!("model:path={}", path.replace(':', "\\:")),
    }
}

fn of_name(name: &str, get: Lookup<'_>) -> Result<Function, String> {
    let plain = |entry: &str| Ok(Function { entry: entry.to_owned(), remark: None });
    // Names with parameters, and programs, are written in our own way only.
    if name.contains(':') || PythonFunction::parse(name).is_some() {
        return plain(name);
    }
    if name.contains('/') {
        return Ok(Function {
            entry: model(name),
            remark: Some(format!("`{name}` is a reward model: a folder, or a name on the Hugging Face Hub")),
        });
    }
    match name {
        "accuracy_reward" | "reasoning_accuracy_reward" => Ok(of_trl(name)),
        "think_format_reward" => plain(name),
        "get_soft_overlong_punishment" => plain("soft_overlong:max_completion_len=1280:soft_punish_cache=256"),
        _ => of_open_r1(name, get).unwrap_or_else(|| of_others(name)),
    }
}

/// TRL's own function, in Python.
fn of_trl(name: &str) -> Function {
    let rule = name.trim_end_matches("_reward");
    let remark = format!(
        "`{name}` is TRL's own function, called in Python with math-verify (`reward_python` names the interpreter); \
         the rule `{rule}` needs no Python and abstains where it is not sure"
    );
    Function { entry: format!("trl.rewards.{name}"), remark: Some(remark) }
}

/// A name of open-r1's registry, which its recipes and those of derived projects use; with its parameters, if keys of
/// the recipe give them.
fn of_open_r1(name: &str, get: Lookup<'_>) -> Option<Result<Function, String>> {
    let number = |key: &str, default: &str| {
        get(key).filter(|value| !value.is_null()).map_or(default.to_owned(), |v| v.to_string())
    };
    let word =
        |key: &str, default: &str| get(key).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or(default.to_owned());
    let (entry, told) = match name {
        "accuracy" => {
            let Function { entry, remark } = of_trl("accuracy_reward");
            let told = "`accuracy` is read as open-r1's, which is TRL's `accuracy_reward`";
            return Some(Ok(Function { entry, remark: remark.map(|remark| format!("{told}: {remark}")) }));
        }
        "format" | "format_reward" => (
            "think_answer_format".to_owned(),
            "1 for <think>…</think> and <answer>…</answer> with the tags on lines of their own; the rule `format` here \
             is theLMbook's, which goes by <reasoning>",
        ),
        "tag_count" | "tag_count_reward" => ("tag_count".to_owned(), "a quarter for each of its tags"),
        "reasoning_steps" | "reasoning_steps_reward" => ("reasoning_steps".to_owned(), "a third for each step"),
        "code_format" | "code_format_reward" => {
            let language = word("code_language", "python").replace(':', "\\:");
            (format!("code_format:language={language}"), "the format with a block of code")
        }
        "repetition_penalty" => (
            format!(
                "word_repetition_penalty:ngram_size={}:max_penalty={}",
                number("repetition_n_grams", "3"),
                number("repetition_max_penalty", "-1.0")
            ),
            "it goes by words; the rule `repetition_penalty` here is TRL's, which goes by tokens",
        ),
        "soft_overlong_punishment" => (
            format!(
                "soft_overlong:max_completion_len={}:soft_punish_cache={}",
                number("max_completion_len", "16384"),
                number("soft_punish_cache", "4096")
            ),
            "with its figures, or those of the file",
        ),
        _ => return no_rule(name).map(Err),
    };
    let remark = format!("`{name}` is read as open-r1's: {told} (`{entry}`)");
    Some(Ok(Function { entry, remark: Some(remark) }))
}

/// Names of open-r1's and ms-swift's registries that no rule here stands for.
fn no_rule(name: &str) -> Option<String> {
    let why = match name {
        "cosine" | "cosine_reward" => {
            "open-r1's goes by letters and ms-swift's by tokens; `cosine_scaled:max_len=N` is TRL's, which goes by \
             tokens"
        }
        "length" | "len_reward" => {
            "open-r1's compares letters within a group and spares wrong answers no penalty; `relative_length` compares \
             tokens, and `length:target=N` is another rule"
        }
        "code" | "code_reward" | "binary_code" | "binary_code_reward" | "ioi_code" | "cf_code" => {
            "it runs the code of completions with tests of the row; call your own runner in a function, \
             my_rewards.py:my_function"
        }
        "repetition" => "ms-swift's goes by words, as `word_repetition_penalty:ngram_size=3:max_penalty=-1` does",
        "soft_overlong" => "it needs its figures: `soft_overlong:max_completion_len=N:soft_punish_cache=N`",
        "repetition_penalty_reward" | "get_repetition_penalty_reward" => {
            "TRL's goes by tokens (`repetition_penalty:ngram_size=3:max_penalty=-1`), open-r1's by words \
             (`word_repetition_penalty`)"
        }
        "cosine_scaled_reward" | "get_cosine_scaled_reward" => {
            "TRL's goes by tokens (`cosine_scaled:max_len=N`), open-r1's by letters"
        }
        "react_format" | "toolbench" | "math_acc" | "math_format" | "countdown_reward" | "tool_call" => {
            "it is a function of another registry; write it in Python and name it as my_rewards.py:my_function"
        }
        _ => return None,
    };
    Some(format!("`{name}` has no rule of the same meaning: {why}. Name what is meant with --reward_funcs"))
}

/// A name that TRL does not have: a rule of this name, or an error.
fn of_others(name: &str) -> Result<Function, String> {
    let bare = name.trim_end_matches("_reward");
    if Registry::default().entry(bare).is_none() {
        return Err(format!(
            "`{name}` is no function that is known; name the Python function as my_rewards.py:{name}, or a rule \
             (`tandem rewards` lists them)"
        ));
    }
    let remark = format!(
        "TRL's script has no `{name}`; it is taken for the rule of that name (`tandem rewards` says what it pays)"
    );
    Ok(Function { entry: bare.to_owned(), remark: Some(remark) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(names: Value, keys: Value) -> Result<Vec<Function>, String> {
        functions(&names, &|key| keys.get(key).cloned())
    }

    #[test]
    fn names_of_open_r1_mean_what_they_mean_there() {
        let keys = json!({ "repetition_n_grams": 4, "repetition_max_penalty": -0.5, "code_language": "cpp",
            "soft_punish_cache": 10 });
        let names = [
            "accuracy",
            "format",
            "tag_count",
            "reasoning_steps",
            "repetition_penalty",
            "code_format",
            "soft_overlong_punishment",
        ];
        let found = of(json!(names), keys).unwrap();
        let entries: Vec<&str> = found.iter().map(|function| function.entry.as_str()).collect();
        let expected = [
            "trl.rewards.accuracy_reward",
            "think_answer_format",
            "tag_count",
            "reasoning_steps",
            "word_repetition_penalty:ngram_size=4:max_penalty=-0.5",
            "code_format:language=cpp",
            "soft_overlong:max_completion_len=16384:soft_punish_cache=10",
        ];
        assert_eq!(entries, expected);
        assert!(
            found.iter().all(|function| function.remark.as_ref().is_some_and(|remark| remark.contains("open-r1's")))
        );
        for entry in &entries[1..] {
            Registry::default().function(entry).unwrap();
        }
    }

    #[test]
    fn names_without_a_rule_of_the_same_meaning_are_refused_with_the_way_out() {
        for (name, words) in [
            ("cosine", "cosine_scaled:max_len=N"),
            ("length", "relative_length"),
            ("code", "my_rewards.py:my_function"),
            ("cf_code", "runs the code"),
            ("repetition", "word_repetition_penalty"),
            ("soft_overlong", "needs its figures"),
            ("repetition_penalty_reward", "open-r1's by words"),
            ("weird", "my_rewards.py:weird"),
        ] {
            let message = of(json!(["format", name]), json!({})).unwrap_err();
            assert!(message.contains(&format!("`{name}`")) && message.contains(words), "{message}");
        }
        assert!(of(json!(3), json!({})).unwrap_err().contains("list of names"));
    }

    #[test]
    fn what_is_no_name_of_a_registry_stays() {
        let found = of(json!(["my.rewards.f", "r.py:f", "length:target=9", "gsm8k", "org/RM-7B"]), json!({})).unwrap();
        let entries: Vec<&str> = found.iter().map(|function| function.entry.as_str()).collect();
        assert_eq!(entries, ["my.rewards.f", "r.py:f", "length:target=9", "gsm8k", "model:path=hf://org/RM-7B"]);
        assert_eq!(found.iter().map(|f| f.remark.is_some()).collect::<Vec<_>>(), [false, false, false, true, true]);
    }
}
