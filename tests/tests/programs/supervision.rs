//! Where the reward comes from: steps of a completion, and a reward model that is trained along. Each must move the
//! demo's warm start in the direction that it rewards.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use harness::{binary, cli, training::json_lines};
use serde_json::Value;

/// Scores the two lines of a worked addition of the demo, `<reasoning>7+8=15,4+3+1=8</reasoning>…`, each on its own:
/// the units, and the tens with the carry that belongs to them. The answer itself is not looked at.
const STEP_SCORES: &str = r"
import json, re, sys
TAGS = re.compile('</?[a-z]+>')
for line in sys.stdin:
    request = json.loads(line)
    a, b = map(int, re.match(r'(\d+)\+(\d+)=', request['prompt']).groups())
    units = a % 10 + b % 10
    right = [f'{a % 10}+{b % 10}={units}',
             f'{a // 10}+{b // 10}' + ('+1' if units > 9 else '') + f'={a // 10 + b // 10 + units // 10}']
    answer = []
    for completion in request['completions']:
        text = TAGS.sub('#', completion['text'])
        steps, at = [], 1
        for wanted, found in zip(right, text.split('#')[1].split(',') if text.startswith('#') else []):
            end = min(at + len(found), len(completion['token_ids']) - 1)
            steps.append([end, 1.0 if found == wanted else 0.0])
            at = end + 1
        answer.append(steps or None)
    print(json.dumps(answer), flush=True)
";

/// The demo's warm start: model and data, made once for all tests of this file.
fn warm_start() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("supervision");
        let path = dir.join("demo");
        let mut demo = tandem(&dir);
        demo.args(["demo", "--warm-up-only", "--output-dir"]).arg(&path);
        let _ = cli::finish(demo).success();
        path
    })
}

fn tandem(dir: &Path) -> Command {
    let mut command = Command::new(binary("tandem"));
    command.env("TANDEM_CACHE_DIR", dir.join("cache"));
    command
}

/// Share of the held-out additions that a model solves.
fn accuracy(model: &Path) -> f64 {
    let mut eval = Command::new(binary("rollout"));
    eval.args(["eval", "--reward-funcs", "correctness", "--max-completion-length", "32", "--model"]).arg(model);
    eval.arg("--dataset").arg(warm_start().join("data/held_out.jsonl"));
    last_json(&cli::finish(eval).success().stdout)["avg@1"].as_f64().unwrap()
}

fn last_json(stdout: &str) -> Value {
    serde_json::from_str(stdout.trim_end().lines().last().unwrap()).unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn rewards_of_steps_alone_teach_the_carry() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("steps.py");
    fs::write(&script, STEP_SCORES).unwrap();
    let run = dir.path().join("run");
    let mut train = tandem(dir.path());
    train.arg("train").arg(warm_start().join("run.toml")).arg("--output_dir").arg(&run);
    train.args(["--advantage_estimator=process", "--generation_batch_size=128", "--per_device_train_batch_size=64"]);
    train.args([
        "--max_steps=80",
        "--learning_rate=3e-4",
        "--lr_scheduler_type=linear",
        "--warmup_ratio=0",
        "--eval_steps=none",
        "--seed=5",
    ]);
    train.arg(format!("--reward_funcs=command:run=python3 {}", script.display()));
    let _ = cli::finish(train).success();

    let records = json_lines(&run.join("metrics.jsonl"));
    let rewards: Vec<f64> = records.iter().map(|record| record["reward"].as_f64().unwrap()).collect();
    let (first, last) = (mean(&rewards[..5]), mean(&rewards[75..]));
    // How many there are before hangs on the last bits of the warm start: most of the wrong ones go.
    assert!(1.0 - last < 0.4 * (1.0 - first), "share of right steps {first:.3} before, {last:.3} after");
    let (before, after) = (accuracy(&warm_start().join("warm")), accuracy(&run.join("checkpoint-80")));
    assert!(after > before + 0.2, "accuracy {before:.3} before, {after:.3} after");
}

#[test]
fn rounds_with_a_reward_model_trained_along_raise_what_the_judge_rewards() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("iterate");
    let mut iterate = tandem(dir.path());
    iterate.arg("iterate").arg(warm_start().join("run.toml"));
    iterate.args(["--rounds=2", "--judge=correctness", "--comparisons=1200", "--history-share=0.1"]);
    iterate.args(["--reward-learning-rate=5e-4", "--reward-epochs=6", "--"]);
    iterate.arg(format!("--output_dir={}", out.display()));
    iterate.args(["--reward_funcs=format", "--generation_batch_size=128", "--per_device_train_batch_size=128"]);
    // At twice the rate the policy leaves what the reward model has seen, and the judge's rewards fall again.
    iterate.args([
        "--max_steps=20",
        "--learning_rate=5e-5",
        "--lr_scheduler_type=linear",
        "--warmup_ratio=0",
        "--beta=0.1",
        "--eval_steps=none",
        "--seed=5",
    ]);
    let result = last_json(&cli::finish(iterate).success().stdout);

    let rounds = result["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        let accuracy = |key: &str| round[key].as_f64().unwrap();
        assert!(accuracy("accuracy_after") > 0.8, "the reward model ranks badly: {round}");
    }
    // A tenth of what the second round's reward model learned from are comparisons of the first.
    let count = |round: &Value, key: &str| round[key].as_f64().unwrap();
    assert_eq!(count(&rounds[0], "replayed"), 0.0);
    let share = count(&rounds[1], "replayed") / count(&rounds[1], "trained");
    assert!((share - 0.1).abs() < 0.01, "share of replayed comparisons {share}: {}", rounds[1]);
    // The reference is the policy that the round before ended with: the first step finds no difference between them.
    for round in 1..=2 {
        let records = json_lines(&out.join(format!("round-{round}/run/metrics.jsonl")));
        assert_eq!(records[0]["kl"].as_f64(), Some(0.0), "round {round}");
        assert!(records.last().unwrap()["kl"].as_f64().unwrap() > 0.0, "round {round}");
    }
    let judged: Vec<f64> = result["judged"].as_array().unwrap().iter().map(|j| j.as_f64().unwrap()).collect();
    assert!(judged[2] > judged[0] + 0.2, "judged rewards before each round and at the end: {judged:?}");
}
