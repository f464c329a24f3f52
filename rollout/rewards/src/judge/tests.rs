//! A judge against a scripted endpoint.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    sync::mpsc::{self, Receiver},
    time::Duration,
};

use serde_json::{Value, json};
use shared::{
    FinishReason,
    config::{RewardHost, TrainConfig},
};

use super::*;
use crate::{Registry, RewardCompletion, RewardFunction};

/// Answers requests one after another: a status, further headers, and the text of the assistant or of an error.
/// Requests come out of the channel, headers and content. The status 206 stands for an answer that is cut off.
fn endpoint(script: Vec<(u16, &'static str, &'static str)>) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for (status, header, text) in script {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                head.push_str(&std::mem::take(&mut line));
            }
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let mut content = vec![0; length.unwrap()];
            reader.read_exact(&mut content).unwrap();
            sender.send((head, serde_json::from_slice(&content).unwrap())).unwrap();
            let message = json!({"role": "assistant", "content": text});
            let body = match status {
                200 => json!({"choices": [{"message": message}], "usage": {"total_tokens": 7}}),
                206 => json!({"choices": [{"message": message, "finish_reason": "length"}]}),
                _ => json!({"error": {"message": text}}),
            };
            let body = body.to_string();
            let (length, close) = (body.len(), "connection: close");
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n{close}\r\n{header}\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    (address, requests)
}

fn judge(address: &str, more: &str) -> (tempfile::TempDir, RewardFunction) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rubric.md"), "Is {{ completion }} {{ answer }}?").unwrap();
    let function = registry(folder.path(), Some(address)).function(&format!("judge:rubric.md{more}")).unwrap();
    (folder, function)
}

fn registry(folder: &std::path::Path, address: Option<&str>) -> Registry {
    let mut host = RewardHost { dir: folder.to_owned(), ..TrainConfig::default().reward_host() };
    host.judge.base_url = address.map(str::to_owned);
    host.judge.model = Some("small".to_owned());
    Registry::default().on(host)
}

fn input(texts: &[&str]) -> RewardInput {
    let completion = |text: &&str| RewardCompletion::of_one_turn(*text, vec![1], FinishReason::Stop);
    RewardInput {
        completions: texts.iter().map(completion).collect(),
        columns: Arc::new(json!({"answer": "five"}).as_object().unwrap().clone()),
        deadline: Some(Instant::now() + Duration::from_secs(20)),
        ..RewardInput::default()
    }
}

fn reason(outcome: &RewardOutcome) -> &str {
    if let RewardOutcome::Failed(reason) = outcome { reason } else { panic!("{outcome:?}") }
}

#[test]
fn the_last_score_of_the_answer_counts_and_an_equal_text_is_asked_about_once() {
    let (address, requests) = endpoint(vec![(200, "", "Score 1? No.\nScore: **-2.5**"), (200, "", "score - .5")]);
    let (_folder, function) = judge(&address, ":concurrency=1");
    let (outcomes, logged) = function.reward().score_and_log(&input(&["a", "b", "a"]));
    let score = RewardOutcome::Score;
    assert_eq!(outcomes, [score(-2.5), score(0.5), score(-2.5)]);
    let means = Logged::means([&logged]);
    assert!((means["judge/tokens"] - 14.0 / 3.0).abs() < 1e-12 && (means["judge/cached"] - 1.0 / 3.0).abs() < 1e-12);
    let (head, content) = requests.recv().unwrap();
    assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
    assert_eq!((&content["model"], &content["messages"][0]["content"]), (&json!("small"), &json!("Is a five?")));
    assert_eq!(function.reward().score(&input(&["b"])), [score(0.5)], "without a third request");
}

#[test]
fn equal_texts_of_a_call_with_many_requests_at_once_are_asked_about_once_and_fail_together() {
    let (address, requests) = endpoint(vec![(200, "", "score: 4"), (400, "", "no")]);
    let (_folder, function) = judge(&address, ":concurrency=8");
    let same = input(&["a"; 8]);
    assert_eq!(function.reward().score(&same), vec![RewardOutcome::Score(4.0); 8]);
    assert_eq!(requests.try_iter().count(), 1);
    let failed = function.reward().score(&input(&["b"; 3]));
    assert!(failed.len() == 3 && failed.iter().all(|outcome| *outcome == failed[0]), "{failed:?}");
    reason(&failed[0]);
    assert_eq!(requests.try_iter().count(), 1);
}

#[test]
fn a_busy_endpoint_is_asked_again_and_a_refusal_is_a_failure_and_no_score() {
    let busy = vec![(503, "", "busy"), (429, "retry-after: 0\r\n", "slow down"), (200, "", "Score: 3")];
    let (address, requests) = endpoint(busy);
    let (_folder, function) = judge(&address, "");
    assert_eq!(function.reward().score(&input(&["a"])), [RewardOutcome::Score(3.0)]);
    assert_eq!(requests.try_iter().count(), 3);
    let (address, requests) = endpoint(vec![(401, "", "wrong key"), (200, "", "fine"), (500, "", "down")]);
    let (_folder, function) = judge(&address, ":concurrency=1:retries=0");
    let outcomes = function.reward().score(&input(&["a", "b", "c", "d"]));
    assert!(reason(&outcomes[0]).ends_with("answered 401: wrong key"), "{outcomes:?}");
    assert!(reason(&outcomes[1]).contains("`pattern` finds no number") && reason(&outcomes[1]).contains("`fine`"));
    assert!(reason(&outcomes[2]).ends_with("answered 500: down"), "{outcomes:?}");
    assert!(reason(&outcomes[3]).contains("no answer from http://127.0.0.1"), "{outcomes:?}");
    assert_eq!(requests.try_iter().count(), 3, "a refusal is not repeated");
}

/// The start of another number is a wrong score, and nothing would tell.
#[test]
fn a_score_is_the_whole_number_or_a_failure() {
    let scored = |answer: &'static str| {
        let (address, _requests) = endpoint(vec![(200, "", answer)]);
        judge(&address, "").1.reward().score(&input(&["a"])).remove(0)
    };
    for (answer, score) in [
        ("Score: 8.", 8.0),
        ("Score: 7, for its brevity", 7.0),
        ("Score: 4 of course", 4.0),
        ("Score: 8 (90% sure)", 8.0),
        ("Score: 1e1", 10.0),
        ("**Score**: -0.25\n", -0.25),
    ] {
        assert_eq!(scored(answer), RewardOutcome::Score(score), "{answer}");
    }
    for (answer, found) in [
        ("score: 0,5", "`0,5`"),
        ("Score: 1,000", "`1,000`"),
        ("Score: 1_000", "`1_000`"),
        ("Score: 1.2.3", "`1.2.3`"),
        ("Score (0-10): 7", "`0-10`"),
        ("Score: −1", "`−1`"),
        ("Score: 0x10", "`0x10`"),
        ("score: 7/10", "`7/10`"),
        ("Score: 1/2", "`1/2`"),
        ("**Score: 7** / 10", "`7** / 10`"),
        ("Final score = 4/5 stars", "`4/5`"),
        ("Score: 50%", "`50%`"),
        ("Score: 50 %", "`50 %`"),
        ("Score: 4 out of 5", "`4 out of 5`"),
        ("Score: 3 of 4", "`3 of 4`"),
    ] {
        let outcome = scored(answer);
        assert!(reason(&outcome).contains(&format!("`pattern` finds {found} in the judge's answer")), "{outcome:?}");
    }
    assert!(reason(&scored("Score: none")).contains("finds no number"));
    let (address, _requests) = endpoint(vec![(200, "", "Score: 7/10")]);
    let (_folder, function) = judge(&address, r":pattern=(?i)score\W*([0-9.]+)/10");
    assert_eq!(function.reward().score(&input(&["a"])), [RewardOutcome::Score(7.0)]);
}

#[test]
fn a_score_that_may_be_cut_off_is_a_failure() {
    let scored = |answer: &'static str| {
        let (address, _requests) = endpoint(vec![(206, "", answer)]);
        judge(&address, "").1.reward().score(&input(&["a"])).remove(0)
    };
    assert!(reason(&scored("Score: 1")).contains("is cut off at `max_tokens`, perhaps within its score: `Score: 1`"));
    assert_eq!(scored("Score: 10. It is"), RewardOutcome::Score(10.0));
}

#[test]
fn an_endpoint_that_says_nothing_is_given_up_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_folder, function) = judge(&format!("http://{}/v1", silent.local_addr().unwrap()), "");
    let begun = Instant::now();
    let input = RewardInput { deadline: Some(begun + Duration::from_millis(700)), ..input(&["a", "b"]) };
    let outcomes = function.reward().score(&input);
    assert!(outcomes.iter().all(RewardOutcome::has_failed) && begun.elapsed() < Duration::from_secs(10));
    for outcome in &outcomes {
        assert!(reason(outcome).ends_with("/v1/chat/completions in time: raise `reward_timeout`"), "{outcome:?}");
    }
}

#[test]
fn a_failure_says_that_the_deadline_left_no_time_for_another_attempt() {
    let pause = "retry-after: 30\r\n";
    let (address, _requests) = endpoint(vec![(429, pause, "slow down"), (429, pause, "slow down"), (503, "", "busy")]);
    let failed = |more: &str, within: u64| {
        let (_folder, function) = judge(&address, more);
        let input = RewardInput { deadline: Some(Instant::now() + Duration::from_millis(within)), ..input(&["a"]) };
        reason(&function.reward().score(&input)[0]).to_owned()
    };
    let late = "answered 429: slow down; it asks for a pause of 30 s, beyond the deadline: raise `reward_timeout`";
    let long = failed("", 20_000);
    assert!(long.ends_with(late), "{long}");
    let last = failed(":retries=0", 20_000);
    assert!(last.ends_with("answered 429: slow down"), "the deadline was not the cause: {last}");
    let short = failed("", 400);
    let late = "answered 503: busy; there is no time for another attempt: raise `reward_timeout`";
    // On a busy machine, the answer itself may come too late.
    assert!(short.ends_with(late) || short.ends_with("in time: raise `reward_timeout`"), "{short}");
}

#[test]
fn an_endpoint_that_has_moved_is_named_with_its_new_address() {
    let header = "location: https://judge.example/v2/chat/completions\r\n";
    let (address, requests) = endpoint(vec![(308, header, "moved")]);
    let (_folder, function) = judge(&address, "");
    let outcomes = function.reward().score(&input(&["a"]));
    let words = "answered 308: it has moved to https://judge.example/v2/chat/completions; `judge_base_url` needs that";
    assert!(reason(&outcomes[0]).contains(words), "{outcomes:?}");
    assert_eq!(requests.try_iter().count(), 1, "it is not followed");
}

#[test]
fn what_a_judge_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("r.md"), "{{ completion }}").unwrap();
    let error =
        |address: Option<&str>, spec: &str| registry(folder.path(), address).function(spec).unwrap_err().to_string();
    assert!(error(None, "judge:r.md").contains("needs the option `judge_base_url`"));
    assert!(error(Some("localhost:8000"), "judge:r.md").contains("must begin with http://"));
    let given = Some("http://localhost:1");
    assert!(error(given, "judge:no.md").contains("no.md: "));
    assert!(error(given, "judge").contains("needs `rubric`"));
    assert!(error(given, "judge:rubric=r.md:pattern=[0-9]").contains("a group in parentheses"));
    assert!(error(given, "judge:r.md:max_tokens=0").contains("`max_tokens` must be at least 1"));
    assert!(error(given, "judge:r.md:concurrency=0").contains("`concurrency` must be at least 1"));
    assert!(error(given, "judge:r.md:patern=x").contains("unknown parameter `patern`"));
}
