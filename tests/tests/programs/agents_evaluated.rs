//! `tandem eval` and `tandem compare` where completions are conversations with tools and environments.

use std::{fs, process::Command};

use harness::{
    binary,
    cli::{self, Finished},
    training::json_lines,
};
use serde_json::Value;

use crate::agents::{Bench, number};

/// A reward function that reads the environments of its group.
const RATER: &str = r#"
def seen(completions, environments, **kwargs):
    assert len(completions) == len(environments)
    return [float(len(one.seen)) for one in environments]
"#;

/// Asks in another folder than that of the run, whose tools are found all the same.
fn tandem(bench: &Bench, words: &[&str]) -> Finished {
    tandem_with(bench, "../my_rewards.py:short", words)
}

/// As [`tandem`], with these reward functions.
fn tandem_with(bench: &Bench, functions: &str, words: &[&str]) -> Finished {
    let folder = bench.path("elsewhere");
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(binary("tandem"));
    command.current_dir(folder).env("TANDEM_CACHE_DIR", bench.path("cache")).args(words);
    command.args(["--dataset", "../prompts.jsonl", "--reward-funcs", functions]);
    command.args(["--max-completion-length", "240"]);
    cli::finish(command)
}

fn answer(finished: &Finished) -> Value {
    serde_json::from_str(finished.stdout.trim_end()).unwrap_or_else(|_| panic!("{finished:?}"))
}

/// A checkpoint is asked with the tools of its run, so the command measures what the evaluation of the run has
/// measured. The compared models get the same tools.
#[test]
fn a_checkpoint_is_evaluated_and_compared_with_the_tools_of_its_run() {
    let bench = Bench::new();
    let more = "environment_factory = \"my_env.py:Sums\"\nmax_steps = 2\nsave_steps = 2\n\
                eval_dataset = \"prompts.jsonl\"\neval_steps = 2\n";
    let _ = bench.train("model", "run", more).success();
    let of_run = json_lines(&bench.path("run/eval.jsonl")).pop().unwrap();
    let finished = tandem(&bench, &["eval", "--model", "../run", "--output", "../out.jsonl"]).success();
    assert!(
        finished.stderr.contains("with the tools of") && finished.stderr.contains("my_env.py:Sums"),
        "{finished:?}"
    );
    let found = answer(&finished);
    for key in ["eval_reward", "eval_rewards/Sums/mean", "eval_rewards/short/mean", "eval_num_tokens"]
        .into_iter()
        .chain(["eval_tools/call_frequency", "eval_turns/mean", "eval_turns/max", "eval_environment/failed"])
    {
        assert_eq!(number(&found, key), number(&of_run, key), "{key}: {found} {of_run}");
    }
    assert!(number(&found, "eval_tools/call_frequency") > 0.5, "{found}");
    let rows = json_lines(&bench.path("out.jsonl"));
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert_eq!((&row["opening"], &row["messages"][0]["role"]), (&" Go.".into(), &"assistant".into()), "{row}");
        let replies = row["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
        assert_eq!(number(row, "calls") as usize, replies, "{row}");
        assert!(row["rewards"]["Sums"].is_number() && row["owner"].as_array().unwrap().contains(&0.into()), "{row}");
    }
    let plain = answer(&tandem(&bench, &["eval", "--model", "../run", "--without-tools"]).success());
    assert!(plain.get("eval_tools/call_frequency").is_none() && plain.get("eval_rewards/Sums/mean").is_none());

    // Sampled, and of a model of no run, which gets the tools of the other.
    let compared = tandem(&bench, &["compare", "../model", "../run", "--num-generations", "2"]).success();
    let last: Value = serde_json::from_str(compared.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["reward"]["prompts"], 8, "{last}");
    assert!(number(&last["reward"], "a") > 0.0 && number(&last["reward"], "b") > 0.0, "{last}: both earn by calls");

    // Functions that see environments are called as in the run, although they lie elsewhere than its classes.
    bench.write("elsewhere/my_raters.py", RATER);
    let functions = "../my_rewards.py:short,my_raters.py:seen";
    let rated = answer(&tandem_with(&bench, functions, &["eval", "--model", "../run"]).success());
    assert!(number(&rated, "eval_rewards/seen/mean") > 0.5, "{rated}");
    assert_eq!(number(&rated, "eval_rewards/short/mean"), number(&found, "eval_rewards/short/mean"), "{rated}");
    let compared = tandem_with(&bench, "my_raters.py:seen", &["compare", "../model", "../run"]).success();
    let last: Value = serde_json::from_str(compared.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["reward"]["prompts"], 8, "{last}");
    assert!(number(&last["reward"], "a") > 0.5 && number(&last["reward"], "b") > 0.5, "{last}");
}

/// Environments that fail give no reward, are counted, and their first reason is told.
#[test]
fn an_evaluation_counts_conversations_whose_environment_fails() {
    let bench = Bench::new();
    let finished = tandem(&bench, &["eval", "--model", "../model", "--environment-factory", "../my_env.py:Broken"]);
    assert!(!finished.status.success(), "{finished:?}");
    let found = answer(&finished);
    assert_eq!((number(&found, "eval_environment/failed"), &found["eval_reward"]), (8.0, &Value::Null), "{found}");
    assert!(finished.stderr.contains("the judge is out"), "{}", finished.stderr);
    let finished = tandem(&bench, &["eval", "--model", "../model", "--tools", "../my_tools.py:nothing"]);
    let refused = finished.refusal();
    assert!(refused.contains("nothing") && refused.contains("my_tools.py"), "{refused}");
}
