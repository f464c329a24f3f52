//! Rewards of conversations: reward functions that see live environments, and rewards by turn.

use std::process::Command;

use harness::{
    binary,
    cli::{self, Finished},
    training::json_lines,
};
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

/// A model that goes east to the goal, and then on into the wall or not.
fn warm_for_the_maze(bench: &Bench) {
    // Without a prompt: the environment says everything.
    let row = json!({"maze": "SG"});
    bench.write("prompts.jsonl", &format!("{row}\n").repeat(8));
    let mut first = bench.command("model", "first", "environment_factory = \"builtin:maze\"\nmax_steps = 1\n");
    first.args(["--reward_funcs", "finished"]);
    let first = cli::finish(first);
    assert!(matches!(first.status.code(), Some(0 | 4)), "{}", first.stderr);
    let rows = json_lines(&bench.path("first/completions/step-1.jsonl"));
    let (prompt, opening) = (rows[0]["prompt"].as_str().unwrap(), rows[0]["opening"].as_str().unwrap());
    let empty = "<|im_start|>user\n<|im_end|>";
    assert!(prompt.contains(empty), "{prompt}");
    let prompt = prompt.replace(empty, &empty.replace("<|im_end|>", &format!("{opening}<|im_end|>")));
    let go = |direction: &str| {
        let call = json!({"name": "move", "arguments": {"direction": direction}});
        format!("<tool_call>\n{call}\n</tool_call><|im_end|>\n")
    };
    let reply = |words: &str| {
        format!("<|im_start|>user\n<tool_response>\n{words}\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    };
    let there = [go("east"), reply("You are at the goal.")].concat();
    let once_more = [go("east"), reply("There is a wall to the east. You are at the goal.")].concat();
    let end = "Done.<|im_end|>";
    let (straight, beyond) = (format!("{there}{end}"), format!("{there}{once_more}{end}"));
    let row = |completion: &str| json!({"prompt": prompt, "completion": completion}).to_string();
    bench.write("sft.jsonl", &[row(&straight), row(&beyond)].join("\n"));
    let mut sft = Command::new(binary("learner"));
    sft.current_dir(bench.path(".")).args(["sft", "--model", "model", "--data", "sft.jsonl"]);
    sft.args(["--output", "walker", "--max-steps", "300", "--batch-size", "2", "--learning-rate", "5e-3"]);
    let _ = cli::finish(sft).success();
}

#[test]
fn each_turn_of_a_shaped_maze_has_a_reward_and_an_advantage_of_its_own() {
    let bench = Bench::new();
    warm_for_the_maze(&bench);
    let more = "environment_factory = \"builtin:shaped_maze\"\nadvantage_level = \"turn\"\n\
                advantage_estimator = \"process\"\nmax_steps = 2\n";
    let mut command = bench.command("walker", "run", more);
    command.args(["--reward_funcs", "finished", "--reward_weights", "0", "--max_completion_length", "420"]);
    let finished = cli::finish(command);
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
    let rows: Vec<Value> = (1..=2).flat_map(|step| bench.completions("run", step)).collect();
    let mut arrived = 0;
    for row in rows.iter().filter(|row| row["calls"].as_u64() > Some(0)) {
        let turns = row["turn_rewards"].as_array().unwrap_or_else(|| panic!("{row}"));
        assert_eq!(turns.len() as u64, row["turns"].as_u64().unwrap(), "{row}");
        let sum: f64 = turns.iter().filter_map(Value::as_f64).sum();
        assert!((sum - number(&row["rewards"], "shaped_maze")).abs() < 1e-12, "{row}");
        assert!(row.get("end_reward").is_none(), "{row}");
        let replies = row["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool");
        let is_there = |message: &&Value| message["content"] == "You are at the goal.";
        if let Some(turn) = replies.clone().position(|message| is_there(&message)) {
            assert_eq!(turns[turn], 1.0, "{row}");
            arrived += 1;
        }
    }
    assert!(arrived > 2, "{rows:?}");
    let metrics = bench.metrics("run");
    assert!(metrics.iter().any(|record| number(record, "grad_norm") > 0.0), "{metrics:?}");
    let explained = cli::run("rollout", ["explain", bench.path("run").to_str().unwrap(), "1.0.0"]).success();
    assert!(explained.stdout.contains("policy, reward "), "{}", explained.stdout);

    let refused = train(&bench, "refused", &more.replace("builtin:shaped_maze", "my_env.py:Sums"), "finished");
    let line = refused.refusal();
    assert!(line.contains("`advantage_level`: no environment gives rewards by turn"), "{line}");
}
