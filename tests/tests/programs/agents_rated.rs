//! Rewards of conversations: reward functions that see live environments, and prompts that environments begin.

use harness::cli::{self, Finished};
use serde_json::{Value, json};

use crate::agents::{Bench, number};

const RATERS: &str = r#"
import os


def seen(completions, environments, log_metric, dies, **kwargs):
    if dies[0]:
        os._exit(9)
    log_metric("environments", len(environments))
    for messages, one in zip(completions, environments):
        assert len(one.seen) >= sum(message["role"] == "tool" for message in messages)
        one.seen.append("rated")
    return [float(len(one.seen)) for one in environments]


def plain(completions, **kwargs):
    return [0.5 for _ in completions]
"#;

fn train(bench: &Bench, run: &str, more: &str, functions: &str) -> Finished {
    let mut command = bench.command("model", run, more);
    command.args(["--reward_funcs", functions]);
    cli::finish(command)
}

/// The functions see each environment as its calls have left it, and the environment then gives its own reward. One row
/// ends the process of its environments.
#[test]
fn a_reward_function_sees_the_environments_of_its_group_and_a_dead_process_gives_no_reward() {
    let bench = Bench::new();
    bench.write("my_rewards.py", RATERS);
    let row = |dies: bool| {
        let prompt = json!([{"role": "user", "content": "2+3?"}]);
        json!({"prompt": prompt, "answer": 5, "dies": dies}).to_string() + "\n"
    };
    bench.write("prompts.jsonl", &[row(false).repeat(5), row(true), row(false).repeat(2)].concat());
    let more = "environment_factory = \"my_env.py:Sums\"\nmax_steps = 4\nreward_processes = 2\n\
                reward_failure_stops = false\n";
    let finished = train(&bench, "run", more, "my_rewards.py:seen,my_rewards.py:plain");
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
    let rows: Vec<Value> = (1..=4).flat_map(|step| bench.completions("run", step)).collect();
    let (dead, alive): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["state"] == "environment_failed");
    assert!(dead.iter().all(|row| row["reward"].is_null()), "{dead:?}");
    assert_eq!(dead.iter().filter(|row| row["columns"]["dies"] == true).count(), 4, "{dead:?}");
    assert!(alive.iter().all(|row| row["columns"]["dies"] == false) && alive.len() >= 16, "{alive:?}");
    for row in alive {
        let calls = row["calls"].as_u64().unwrap() as f64;
        let rewards = &row["rewards"];
        assert_eq!((number(rewards, "seen"), number(rewards, "plain")), (calls + 1.0, 0.5), "{row}");
        let own = number(rewards, "Sums");
        assert!(own == 0.25 * (calls + 1.0) || own == 0.25 * (calls + 1.0) + 1.0, "asked after the function: {row}");
    }
    assert!(bench.metrics("run").iter().any(|record| record["logged/environments"] == 4.0));

    let refused =
        train(&bench, "refused", "environment_factory = \"builtin:maze\"\nmax_steps = 1\n", "my_rewards.py:seen");
    let line = refused.refusal();
    assert!(line.contains("`my_rewards.py:seen`") && line.contains("`builtin:maze` is no class in Python"), "{line}");
}

#[test]
fn a_row_without_a_prompt_begins_with_the_words_of_its_environment() {
    let bench = Bench::new();
    bench.write("prompts.jsonl", &(json!({"maze": "SG"}).to_string() + "\n").repeat(8));
    let finished = train(&bench, "run", "environment_factory = \"builtin:maze\"\nmax_steps = 1\n", "finished");
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
    for row in bench.completions("run", 1) {
        assert!(row["prompt"].as_str().unwrap().contains("<|im_start|>user\n<|im_end|>"), "{row}");
        assert!(row["opening"].as_str().unwrap().contains("The goal is at row 1, column 2."), "{row}");
    }
}
