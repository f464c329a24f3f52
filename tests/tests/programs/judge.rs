//! A run whose reward is a language model behind an endpoint.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use harness::cli;
use serde_json::{Value, json};

use crate::agents::{Bench, number};

/// What the endpoint says to a rubric: the number of its letters `e`, and nothing of use to a text with a `q`.
fn verdict(text: &str) -> String {
    if text.contains('q') { "I cannot say.".to_owned() } else { format!("Score: {}", text.matches('e').count()) }
}

fn serve(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut length, mut key, mut line) = (0, false, String::new());
    while reader.read_line(&mut line).unwrap() > 2 {
        let header = std::mem::take(&mut line).to_lowercase();
        length = header.strip_prefix("content-length: ").map_or(length, |number| number.trim().parse().unwrap());
        key |= header.starts_with("authorization: bearer sesame");
    }
    let mut content = vec![0; length];
    reader.read_exact(&mut content).unwrap();
    let request: Value = serde_json::from_slice(&content).unwrap();
    let message = json!({"content": verdict(request["messages"][0]["content"].as_str().unwrap())});
    let (status, body) = match key {
        true => (200, json!({"choices": [{"message": message}], "usage": {"total_tokens": 11}}).to_string()),
        false => (401, json!({"error": {"message": "no key"}}).to_string()),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

#[test]
fn a_judge_scores_completions_and_what_it_does_not_score_has_no_reward() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    let bench = Bench::new();
    bench.write("rubric.md", "Rate: {{ completion }}");
    let train = |run: &str, key: &str| {
        let more = format!("judge_base_url = {address:?}\njudge_model = \"any\"\njudge_api_key_env = \"JUDGE_KEY\"\n");
        let mut command = bench.command("model", run, &format!("{more}max_steps = 2\ntemperature = 2.0\n"));
        command.env("JUDGE_KEY", key).args(["--reward_funcs", "judge:rubric.md", "--max_completion_length", "24"]);
        cli::finish(command)
    };
    let finished = train("run", "sesame");
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
    let rows: Vec<Value> = (1..=2).flat_map(|step| bench.completions("run", step)).collect();
    for row in &rows {
        let text = row["completion"].as_str().unwrap();
        if text.contains('q') {
            assert!(row["reward"].is_null() && row["state"] == "reward_failed", "{row}");
            assert!(row["reward_errors"]["judge"].as_str().unwrap().contains("`I cannot say.`"), "{row}");
        } else {
            assert_eq!(
                number(&row["rewards"], "judge"),
                ("Rate: ".to_owned() + text).matches('e').count() as f64,
                "{row}"
            );
        }
    }
    let tokens: Vec<f64> = bench.metrics("run").iter().map(|record| number(record, "logged/judge/tokens")).collect();
    assert!(tokens.iter().all(|&tokens| tokens > 0.0 && tokens <= 11.0), "{tokens:?}");

    let refused = train("refused", "wrong");
    assert!(refused.stderr.contains("answered 401: no key"), "{}", refused.stderr);
    assert!(!refused.status.success());
}
