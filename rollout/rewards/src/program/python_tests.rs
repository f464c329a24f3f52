//! Functions that score, raise, print, wait and are not there.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use shared::{Logged, RewardOutcome, config::RewardHost};

use crate::{Conversation, Registry, RewardError, RewardFunction, RewardInput, testing};

const REWARDS: &str = r#"
import asyncio
import functools
import sys

import words

print("imported")


def think_format_reward(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if content.startswith("<think>") else 0.0 for content in contents]


def as_given(prompts, completions, completion_ids, answer, **kwargs):
    assert prompts == ["2+2="] * 2 and completion_ids == [[97], [98]] and kwargs["nums"] == [[2, 2], [2, 2]]
    kwargs["nums"][0].append(3)
    assert kwargs["nums"][1] == [2, 2], "rows do not share their values"
    return [float(completion == right) for completion, right in zip(completions, answer)]


def as_messages(prompts, completions, **kwargs):
    assert prompts[0] == [{"role": "user", "content": "hi"}]
    return [len(completion) + len(completion[0]["content"]) for completion in completions]


def with_tools(prompts, completions, completion_ids, owner_masks, **kwargs):
    assert [prompt[-1]["content"] for prompt in prompts] == ["hi, go left", "hi"]
    assert [[message["role"] for message in messages] for messages in completions] == [
        ["assistant", "tool", "assistant"],
        ["assistant"],
    ]
    assert completions[0][1] == {"role": "tool", "name": "look", "content": "a wall"}
    assert owner_masks == [[1, 0, 0, 1], [1, 1]]
    return [sum(owners) for owners in owner_masks]


async def judged(completions):
    await asyncio.sleep(0.01)
    return [None if completion == "a" else True for completion in completions]


def raises(completions, **kwargs):
    print("about to raise", flush=False)
    return [words.VALUES[completion] for completion in completions]


def loud(completions, **kwargs):
    sys.stdout.write("[1, 2]\n" * 3)
    return [0.5 for _ in completions]


def hangs(completions, **kwargs):
    import time

    time.sleep(1000)


def dies(completions, **kwargs):
    import os

    os._exit(3)


def too_few(completions, **kwargs):
    return [1.0]


def no_list(completions, **kwargs):
    return 0.5


def no_numbers(completions, **kwargs):
    return ["good", float("nan")]


def logs(completions, log_extra, log_metric, **kwargs):
    log_extra("length", [len(completion) for completion in completions])
    log_extra("what", [{"text": completion, "set": {1}} for completion in completions])
    log_metric("share", 0.25)
    log_metric("share", 0.5)
    log_metric("infinite", float("inf"))
    return [0.0 for _ in completions]


def halves(completions, log_extra, log_metric, **kwargs):
    print("printed \ud83d")
    log_extra("said\ud83d", ["caf\udce9"] * len(completions))
    log_metric("mean\ud83d", 0.5)
    return [1.0 for _ in completions]


def raises_halves(completions, **kwargs):
    raise ValueError("half a character: \ud83d")


def logs_and_raises(completions, log_extra, log_metric, **kwargs):
    log_extra("seen", completions)
    log_metric("calls", len(completions))
    if "b" in completions:
        raise ValueError("no b")
    return [1.0 for _ in completions]


def logs_too_little(completions, log_extra, **kwargs):
    log_extra("seen", ["only one"])
    return [1.0 for _ in completions]


CALLS = []


def relative(completions, **kwargs):
    CALLS.append(len(completions))
    if CALLS == [3]:
        raise TimeoutError("busy")
    if "x" in completions:
        raise ValueError("no x")
    return [sorted(completions).index(completion) for completion in completions]


def scaled(function):
    @functools.wraps(function)
    def wrapper(completions, answer, **kwargs):
        return [10 * score + len(answer) + len(kwargs) for score in function(completions)]

    return wrapper


@scaled
def decorated(completions):
    return [len(completion) for completion in completions]


def passing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@passing_on
def strict(completions, answer):
    return [len(completion) + len(right) for completion, right in zip(completions, answer)]


def unordered(completions, **kwargs):
    return set(range(len(completions)))


class Style:
    def __init__(self, completions, **kwargs):
        pass


def _private(completions):
    return [0.0 for _ in completions]
"#;

/// A folder with a module of rewards and one that it imports.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("my_rewards.py", REWARDS);
        place.write("words.py", "VALUES = {'a': 1.0}\n");
        place
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.0.path().join(name), text).unwrap();
        self.0.path().join(name)
    }

    /// Processes that start in the folder.
    fn host(&self) -> RewardHost {
        RewardHost { dir: self.0.path().to_owned(), ..testing::host() }
    }

    fn load(&self, spec: &str) -> Result<RewardFunction, RewardError> {
        Registry::default().on(self.host()).function(spec)
    }

    fn function(&self, name: &str) -> RewardFunction {
        self.load(&format!("my_rewards.py:{name}")).unwrap()
    }

    fn scores(&self, name: &str, input: RewardInput) -> Vec<RewardOutcome> {
        scores(&self.function(name), input, 60.0)
    }

    /// The reason why a function cannot be loaded, and the words of the interpreter.
    fn refusal(&self, spec: &str) -> (String, String) {
        let error = self.load(spec).unwrap_err();
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message}");
        (message, error.last_words().join("\n"))
    }
}

fn scores(function: &RewardFunction, input: RewardInput, seconds: f64) -> Vec<RewardOutcome> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    function.reward().score(&RewardInput { deadline: Some(deadline), ..input })
}

fn input(prompt: &str, texts: &[&str], columns: &Value) -> RewardInput {
    let columns = columns.as_object().unwrap().clone().into();
    RewardInput { prompt: prompt.into(), completions: testing::completions(texts), columns, ..RewardInput::default() }
}

fn two() -> RewardInput {
    input("2+2=", &["a", "b"], &json!({"answer": "a", "nums": [2, 2]}))
}

fn numbers(scores: &[f64]) -> Vec<RewardOutcome> {
    scores.iter().copied().map(RewardOutcome::Score).collect()
}

fn reason(outcome: &RewardOutcome) -> &str {
    match outcome {
        RewardOutcome::Failed(reason) => reason,
        other => panic!("{other:?} is no failure"),
    }
}

#[test]
fn functions_are_called_as_by_trl() {
    let place = Folder::new();
    assert_eq!(place.scores("as_given", two()), numbers(&[1.0, 0.0]));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = |texts| RewardInput {
        messages: Some(messages.as_array().unwrap().clone().into()),
        ..input("", texts, &json!({}))
    };
    assert_eq!(place.scores("as_messages", chat(&["abc"])), numbers(&[4.0]));
    assert_eq!(place.scores("think_format_reward", chat(&["<think>x</think>", "x"])), numbers(&[1.0, 0.0]));
    let judged = place.scores("judged", two());
    assert_eq!(judged, [RewardOutcome::NotApplicable, RewardOutcome::Score(1.0)]);
}

#[test]
fn a_conversation_with_tools_is_its_messages_with_the_owner_of_each_token() {
    let place = Folder::new();
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let wall = json!({"role": "tool", "name": "look", "content": "a wall"});
    let conversation = |messages: Vec<Value>, opening: Option<&str>| {
        let opening = opening.map(str::to_owned);
        Some(std::sync::Arc::new(Conversation { messages, opening }))
    };
    let mut input = input("", &["a__b", "cd"], &json!({}));
    input.messages = Some([message("user", "hi")].into());
    input.completions[0].given = vec![1..2, 2..3];
    let messages = vec![message("assistant", "a"), wall, message("assistant", "b")];
    input.completions[0].conversation = conversation(messages, Some(", go left"));
    input.completions[1].conversation = conversation(vec![message("assistant", "cd")], None);
    assert_eq!(place.scores("with_tools", input), numbers(&[2.0, 2.0]));
}

#[test]
fn the_words_of_an_environment_follow_the_last_message_of_the_user_else_the_last_one() {
    let place = Folder::new();
    let function = "def f(prompts, completions, **kwargs):\n    \
                    return [float([m['content'] for m in prompt] == ['a', 'b go']) for prompt in prompts]\n";
    place.write("opened.py", function);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    for (prompt, right) in [
        ([message("user", "a"), message("user", "b")], 1.0),
        ([message("developer", "a"), message("system", "b")], 1.0),
        ([message("user", "a"), message("system", "b")], 0.0),
    ] {
        let mut input = input("", &["c"], &json!({}));
        input.messages = Some(prompt.into());
        let conversation = Conversation { messages: vec![message("assistant", "c")], opening: Some(" go".to_owned()) };
        input.completions[0].conversation = Some(std::sync::Arc::new(conversation));
        assert_eq!(scores(&place.load("opened.py:f").unwrap(), input, 60.0), numbers(&[right]));
    }
}

#[test]
fn what_a_function_logs_comes_with_its_scores() {
    let place = Folder::new();
    let logged = |name: &str| place.function(name).reward().score_and_log(&two());
    let extra = |logged: &Logged, completion| -> Vec<(String, Value)> {
        logged.extra_of(completion).map(|(name, note)| (name.to_owned(), note.value())).collect()
    };
    let (scores, log) = logged("logs");
    assert_eq!(scores, numbers(&[0.0, 0.0]));
    assert_eq!(Logged::means([&log]), [("share", 0.375)].into());
    // What JSON has no kind for is a text.
    let what = json!("{'text': 'b', 'set': {1}}");
    assert_eq!(extra(&log, 1), [("length".to_owned(), json!(1)), ("what".to_owned(), what)]);

    // Of calls that raised, nothing is kept.
    let (scores, log) = logged("logs_and_raises");
    assert!(scores[0] == RewardOutcome::Score(1.0) && scores[1].has_failed());
    assert_eq!(Logged::means([&log]), [("calls", 1.0)].into());
    assert_eq!(extra(&log, 0), [("seen".to_owned(), json!("a"))]);
    assert_eq!(extra(&log, 1), [("seen".to_owned(), Value::Null)]);
    // A list of another length fits a completion that is scored alone, and no group.
    let (scores, log) = logged("logs_too_little");
    let words = "ValueError: log_extra: 'seen' has 1 values for 2 completions";
    assert!(scores.iter().all(|outcome| reason(outcome).starts_with(words)), "{scores:?}");
    assert_eq!(extra(&log, 1), []);
}

/// Python's texts may have halves of pairs of surrogates, from file names and cut texts.
#[test]
fn half_a_character_costs_no_score() {
    let place = Folder::new();
    let (scores, log) = place.function("halves").reward().score_and_log(&two());
    assert_eq!(scores, numbers(&[1.0, 1.0]));
    let extra: Vec<_> = log.extra_of(1).map(|(name, note)| (name.to_owned(), note.value())).collect();
    assert_eq!(extra, [("said\u{fffd}".to_owned(), json!("caf\u{fffd}"))]);
    assert_eq!(Logged::means([&log]), [("mean\u{fffd}", 0.5)].into());
    let outcomes = place.scores("raises_halves", two());
    assert!(reason(&outcomes[0]).starts_with("ValueError: half a character: \u{fffd} (my_rewards.py"), "{outcomes:?}");
    place.write("broken.py", "raise RuntimeError('no \\ud83d')\n");
    let (message, _) = place.refusal("broken.py:f");
    assert!(message.contains("RuntimeError: no \u{fffd} (broken.py, line 1"), "{message}");
}

#[test]
fn an_exception_costs_its_own_completion_and_names_its_line() {
    let place = Folder::new();
    let function = place.function("raises");
    for _ in 0..2 {
        let outcomes = scores(&function, two(), 60.0);
        assert_eq!(outcomes[0], RewardOutcome::Score(1.0));
        let line = REWARDS.lines().position(|line| line.contains("words.VALUES[")).unwrap() + 1;
        // Before Python 3.12, a comprehension is a function of its own.
        let place = format!("KeyError: 'b' (my_rewards.py, line {line}, in ");
        assert!(reason(&outcomes[1]).starts_with(&place), "{outcomes:?}");
    }
    let words = function.reward().last_words().join("\n");
    assert!(words.contains("words.VALUES[completion]") && words.ends_with("KeyError: 'b'"), "{words}");
}

/// A function may compare the completions of a group, so none is scored alone.
#[test]
fn completions_that_do_not_raise_are_scored_together() {
    let place = Folder::new();
    let function = place.function("relative");
    let of = |texts: &[&str]| scores(&function, input("2+2=", texts, &json!({})), 60.0);
    assert_eq!(of(&["c", "a", "b"]), numbers(&[2.0, 0.0, 1.0]), "what raised once is asked again");
    let outcomes = of(&["c", "x", "a"]);
    assert_eq!([&outcomes[0], &outcomes[2]], [&RewardOutcome::Score(1.0), &RewardOutcome::Score(0.0)]);
    assert!(reason(&outcomes[1]).starts_with("ValueError: no x"), "{outcomes:?}");
}

#[test]
fn of_a_decorated_function_the_wrapper_says_what_it_is_called_with() {
    let input = input("2+2=", &["a", "bb"], &json!({"answer": "x", "other": 1}));
    // Of `prompts`, `completion_ids`, `owner_masks`, `log_extra`, `log_metric` and `other`.
    let place = Folder::new();
    assert_eq!(place.scores("decorated", input.clone()), numbers(&[18.0, 28.0]));
    // A wrapper without names of its own passes on what the function within takes.
    assert_eq!(place.scores("strict", input), numbers(&[2.0, 3.0]));
}

#[test]
fn what_is_printed_is_no_answer() {
    let place = Folder::new();
    for _ in 0..2 {
        assert_eq!(place.scores("loud", two()), numbers(&[0.5, 0.5]));
    }
}

#[test]
fn what_is_no_list_of_numbers_fails() {
    let place = Folder::new();
    let reasons = |name: &str| -> Vec<String> {
        place.scores(name, two()).iter().map(|outcome| reason(outcome).to_owned()).collect()
    };
    assert_eq!(reasons("too_few"), ["returned 1 scores for 2 completions"; 2]);
    assert_eq!(reasons("no_list"), ["returned 0.5 (float) and not a list of 2 numbers"; 2]);
    assert_eq!(reasons("unordered"), ["returned {0, 1} (set) and not a list of 2 numbers"; 2]);
    let of_class = reasons("Style").remove(0);
    assert!(of_class.ends_with("and not a list of 2 numbers; name an instance of the class"), "{of_class}");
    assert_eq!(reasons("no_numbers"), ["returned the text 'good' and not a number", "returned nan"]);
}

#[test]
fn a_function_that_hangs_is_killed_and_one_that_died_is_started_again() {
    let place = Folder::new();
    let late = scores(&place.function("hangs"), two(), 0.5);
    assert!(reason(&late[0]).contains("no answer within the deadline"), "{late:?}");
    let function = place.function("dies");
    for _ in 0..2 {
        let ended = scores(&function, two(), 60.0);
        assert_eq!(reason(&ended[1]), "the process ended without an answer (exit status: 3)");
    }
}

#[test]
fn what_cannot_be_loaded_says_why_with_its_traceback() {
    let place = Folder::new();
    place.write("syntax.py", "import sys\n\ndef f(completions, **kwargs)\n    return []\n");
    place.write("missing.py", "import sys\nimport no_such_module_of_mine\n\ndef f(completions): ...\n");
    place.write("chatty.py", "print('ready')\nraise RuntimeError('no key')\n");
    let (message, words) = place.refusal("syntax.py:f");
    assert!(message.starts_with("reward function `syntax.py:f` cannot be loaded: SyntaxError: "), "{message}");
    assert!(
        message.ends_with("(syntax.py, line 3)") && words.contains("def f(completions, **kwargs)"),
        "{message} {words}"
    );
    let (message, words) = place.refusal("missing.py:f");
    assert!(message.contains("No module named 'no_such_module_of_mine' (missing.py, line 2"), "{message}");
    assert!(words.starts_with("Traceback") && words.contains("import no_such_module_of_mine"), "{words}");
    assert!(!words.contains("<string>") && !words.contains("<frozen"), "only the user's frames: {words}");
    let (message, _) = place.refusal("chatty.py:f");
    assert!(message.contains("RuntimeError: no key (chatty.py, line 2"), "{message}");
    let (message, _) = place.refusal("absent.py:f");
    assert!(message.contains("absent.py: no such file") && message.contains(&place.0.path().display().to_string()));
    let (message, _) = place.refusal("my_rewards.py:nosuch");
    assert!(message.contains("no function `nosuch`") && message.contains("judged, raises"), "{message}");
    let (message, _) = place.refusal("no_such_lib.rewards.f");
    assert!(message.contains("No module named 'no_such_lib'"), "{message}");
}

#[test]
fn a_file_with_one_function_needs_no_name_and_a_module_is_imported() {
    let place = Folder::new();
    place.write(
        "one.py",
        "from math import floor\n\ndef _half(x): return x / 2\n\ndef only(completions):\n    return \
        [_half(1) for _ in completions]\n",
    );
    let function = place.load("one.py").unwrap();
    assert_eq!(function.name(), "one.py:only");
    assert_eq!(scores(&function, two(), 60.0), numbers(&[0.5, 0.5]));
    let (message, _) = place.refusal("my_rewards.py");
    assert!(
        message.contains("23 public functions: name one, as my_rewards.py:think_format_reward (or as_given"),
        "{message}"
    );
    let (message, _) = place.refusal("words.py");
    assert!(message.contains("words.py has no public function"), "{message}");
    let function = place.load("my_rewards.loud").unwrap();
    assert_eq!(scores(&function, two(), 60.0), numbers(&[0.5, 0.5]));
}

#[test]
fn a_function_that_asks_for_environments_keeps_no_process_here_in_a_run_that_has_some() {
    let place = Folder::new();
    place.write("asks.py", "def f(completions, environments=None, **kwargs):\n    return [0.0] * len(completions)\n");
    let function = place.load("asks.py:f").unwrap();
    assert!(!function.is_rater());
    assert_eq!(scores(&function, two(), 60.0), numbers(&[0.0, 0.0]));
    let host = RewardHost { with_environments: true, ..place.host() };
    let registry = Registry::default().on(host);
    let rater = registry.function("asks.py").unwrap();
    assert!(rater.is_rater());
    assert_eq!(rater.name(), "asks.py:f");
    assert!(!registry.function("my_rewards.py:loud").unwrap().is_rater());
}

#[test]
fn an_interpreter_that_is_not_there_is_named() {
    let place = Folder::new();
    let host = RewardHost { python: "no-such-python".into(), ..place.host() };
    let error = Registry::default().on(host).function("my_rewards.py:loud").unwrap_err().to_string();
    assert!(error.contains("`no-such-python` cannot be started") && error.contains("reward_python"), "{error}");
}

#[test]
fn what_lies_beside_the_file_can_be_imported() {
    let place = Folder::new();
    fs::create_dir(place.0.path().join("lib")).unwrap();
    place.write("lib/beside.py", "VALUE = 3.0\n");
    place.write("lib/r.py", "import beside\n\ndef f(completions):\n    return [beside.VALUE for _ in completions]\n");
    assert_eq!(scores(&place.load("lib/r.py:f").unwrap(), two(), 60.0), numbers(&[3.0, 3.0]));
}

#[test]
fn processes_load_at_the_same_time_and_none_is_lost() {
    let place = Folder::new();
    let text = "import os, time\n\nwith open('pids', 'a') as pids:\n    \
        pids.write(f'{os.getpid()}\\n')\ntime.sleep(0.5)\n\n\
                def f(completions):\n    return [1.0 for _ in completions]\n";
    place.write("slow.py", text);
    let mut host = RewardHost { processes: 2, ..place.host() };
    host.bounds.writable = vec![place.0.path().to_owned()];
    let function = Registry::default().on(host).function("slow.py:f").unwrap();
    for _ in 0..2 {
        // A process that has said that it is ready is no reason to start another.
        std::thread::sleep(Duration::from_millis(300));
        let call = |_| {
            let function = function.clone();
            std::thread::spawn(move || scores(&function, two(), 60.0))
        };
        let calls: Vec<_> = (0..2).map(call).collect();
        calls.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), numbers(&[1.0, 1.0])));
    }
    let pids = fs::read_to_string(place.0.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 2, "{pids}");
}

/// As the functions of `tandem_rl`, which another process calls.
#[test]
fn an_object_that_answers_gets_requests_as_they_come_and_nothing_contains_its_errors() {
    let place = Folder::new();
    let text = r#"
class Asked:
    def __call__(self):
        raise AssertionError

    def answer(self, request):
        assert set(request) == {"id", "prompt", "completions", "columns"}
        failed = {"error": "PermissionError: permission denied"}
        scores = [0.5, failed if request["columns"]["answer"] == "a" else {**failed, "contained": False}]
        return {"scores": scores, "log_metric": {"asked": 1}}


asked = Asked()
"#;
    place.write("asked.py", text);
    let function = place.load("asked.py:asked").unwrap();
    let of = |answer: &str| {
        let found = scores(&function, input("2+2=", &["a", "b"], &json!({"answer": answer})), 60.0);
        assert_eq!(found[0], RewardOutcome::Score(0.5));
        match &found[1] {
            RewardOutcome::Failed(reason) => reason.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(of("a").contains("permission denied; reward programs may write"), "{}", of("a"));
    assert_eq!(of("b"), "PermissionError: permission denied");
}
