//! Tools that hang, crash, flood and lie, and what becomes of their neighbours.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    Environments, Event, Failure, Sources,
    testing::{Folder, fails, nothing, row, sample, turn},
};

const FAULTS: &str = r#"
import asyncio
import os
import sys
import time

TOKEN = os.urandom(8).hex()
KINDS = {kind.__name__: kind for kind in (StopIteration, StopAsyncIteration, GeneratorExit)}


class Faulty:
    def reset(self, how=None, **row):
        if how == "raise":
            raise ValueError("no sea")
        if how == "stop":
            raise StopIteration("no sea")
        if how == "number":
            return 5
        if how == "long":
            return "x" * (2 << 20)
        self.how = how

    def who(self) -> str:
        """Says which process this is."""
        return TOKEN

    def folder(self) -> str:
        """Says where it may write."""
        return os.environ["TMPDIR"]

    def hang(self) -> str:
        """Hangs."""
        time.sleep(1000)

    async def wait(self) -> str:
        """Waits."""
        await asyncio.sleep(1000)

    async def block(self) -> str:
        """Holds up all others."""
        time.sleep(1000)

    def crash(self) -> str:
        """Ends the process."""
        print("last words", file=sys.stderr)
        os._exit(3)

    def leave(self) -> str:
        """Would end the program."""
        sys.exit(1)

    def stop(self, kind: str) -> str:
        """Raises what ends generators.

        Args:
            kind: Which.
        """
        raise KINDS[kind]("no more")

    async def stop_later(self, kind: str) -> str:
        """Raises what ends generators.

        Args:
            kind: Which.
        """
        await asyncio.sleep(0)
        raise KINDS[kind]("no more")

    def flood(self) -> str:
        """Writes lines that look like answers."""
        for number in range(20000):
            print(f'{{"id": {number}, "replies": []}}')
        os.write(1, b"more\n")
        return "flooded"

    def large(self, size: int) -> str:
        """Returns a long text.

        Args:
            size: How long.
        """
        return "x" * size

    def wide(self) -> str:
        """Returns a long text of characters of two bytes, at odd places."""
        return "x" + "é" * (1 << 20)

    def pieces(self) -> list:
        """Returns long content blocks."""
        return [{"type": "text", "text": letter * (1 << 20)} for letter in "abc"]

    def complain(self) -> str:
        """Fails at length."""
        raise ValueError("x" * (5 << 20))

    def picture(self) -> list:
        """Returns a picture."""
        return [{"type": "image", "image": "…"}]

    def get_reward(self):
        if self.how == "late":
            time.sleep(1000)
        if self.how == "end":
            raise StopIteration("no end")
        return {"nan": float("nan"), "text": "much"}[self.how]
"#;

/// Environments, and the folder that further processes import from.
fn start(seconds: f64) -> (Environments, Folder) {
    let folder = Folder::with(FAULTS);
    let change = |sources: &mut Sources| sources.timeout = Duration::from_secs_f64(seconds);
    (folder.start_with(&[], Some("Faulty"), change).unwrap(), folder)
}

#[test]
fn what_ends_generators_is_an_error_like_others() {
    let (environments, _folder) = start(20.0);
    environments.opened(sample(1, 0), json!({"how": "end"})).unwrap();
    for kind in ["StopIteration", "StopAsyncIteration", "GeneratorExit"] {
        for tool in ["stop", "stop_later"] {
            let reply = environments.reply(sample(1, 0), tool, json!({"kind": kind})).unwrap();
            assert_eq!((reply.content, reply.failed), (json!("{'error': 'no more'}"), true), "{tool}: {kind}");
        }
    }
    let ended = ["e.py:Faulty: StopIteration: no end (e.py, line ", "in get_reward)"];
    fails(environments.scored(sample(1, 0)), "broken", &ended);
    fails(environments.opened(sample(1, 1), json!({"how": "stop"})), "broken", &["StopIteration: no sea (e.py"]);
}

#[test]
fn what_hangs_is_late_and_its_neighbours_go_on() {
    let (environments, _folder) = start(1.0);
    for index in 0..4 {
        environments.opened(sample(1, index), nothing()).unwrap();
    }
    fails(
        environments.reply(sample(1, 0), "hang", nothing()),
        "late",
        &["e.py:Faulty: `hang` has not", "1 s (`environment_timeout`)"],
    );
    fails(environments.reply(sample(1, 1), "wait", nothing()), "late", &["`wait`"]);
    assert!(environments.reply(sample(1, 2), "who", nothing()).is_ok());
    environments.close(sample(1, 0));
    environments.close(sample(1, 1));
    environments.opened(sample(2, 0), json!({"how": "late"})).unwrap();
    fails(environments.scored(sample(2, 0)), "late", &["`get_reward`"]);
}

#[test]
fn a_process_with_several_calls_that_cannot_be_ended_is_replaced() {
    let (environments, _folder) = start(0.5);
    let who = |tag, index| {
        environments.opened(sample(tag, index), nothing()).unwrap();
        environments.said(sample(tag, index), "who", nothing())
    };
    let first = who(1, 9);
    for index in 0..4 {
        environments.opened(sample(1, index), nothing()).unwrap();
        environments.step(sample(1, index), turn(&[("hang", nothing())]));
    }
    for _ in 0..4 {
        assert!(matches!(environments.event().1, Event::Failed(Failure::Late { .. })));
    }
    let begun = Instant::now();
    let replaced = loop {
        // Answers of the process say how many calls go on.
        environments.said(sample(1, 9), "who", nothing());
        let tag = 2 + begun.elapsed().as_millis() as u64;
        let now = who(tag, 0);
        environments.close(sample(tag, 0));
        if now != first || begun.elapsed() > Duration::from_secs(20) {
            break now;
        }
    };
    assert_ne!(replaced, first);
    assert_eq!(environments.said(sample(1, 9), "who", nothing()), first, "conversations in it go on");
}

#[test]
fn a_process_that_is_held_up_is_ended_and_replaced() {
    let (environments, _folder) = start(0.5);
    environments.opened(sample(1, 0), nothing()).unwrap();
    environments.opened(sample(1, 1), nothing()).unwrap();
    let words = ["its process has answered nothing", "an `async` function that waits without `await`"];
    fails(environments.reply(sample(1, 0), "block", nothing()), "stuck", &words);
    fails(environments.reply(sample(1, 1), "who", nothing()), "stuck", &words);
    environments.opened(sample(2, 0), nothing()).unwrap();
    assert!(environments.reply(sample(2, 0), "who", nothing()).is_ok());
}

#[test]
fn a_crash_fails_the_conversations_of_the_process_and_no_other() {
    let (environments, _folder) = start(20.0);
    environments.opened(sample(1, 0), nothing()).unwrap();
    environments.opened(sample(1, 1), nothing()).unwrap();
    let crashed = environments.reply(sample(1, 0), "crash", nothing());
    assert_eq!(crashed.clone().unwrap_err().words(), ["last words"]);
    fails(crashed, "died", &["e.py:Faulty: the process ended (exit status: 3)"]);
    fails(environments.scored(sample(1, 1)), "died", &["exit status: 3"]);
    environments.opened(sample(1, 2), nothing()).unwrap();
    assert!(environments.reply(sample(1, 2), "who", nothing()).is_ok());
}

#[test]
fn what_is_printed_is_no_answer() {
    let (environments, _folder) = start(20.0);
    environments.opened(sample(1, 0), nothing()).unwrap();
    assert_eq!(environments.said(sample(1, 0), "flood", nothing()), "flooded");
    assert!(environments.reply(sample(1, 0), "who", nothing()).is_ok());
}

/// What a policy provokes with a call must not take its conversation out of the loss.
#[test]
fn replies_of_megabytes_are_cut_and_the_conversation_goes_on() {
    const MOST: usize = 1 << 20;
    let (environments, _folder) = start(20.0);
    environments.opened(sample(1, 0), nothing()).unwrap();
    let large = |size: usize| json!({"size": size});
    for size in [MOST, MOST + 1, 1_500_000, 5 * MOST] {
        assert_eq!(environments.said(sample(1, 0), "large", large(size)).len(), MOST);
    }
    let wide = environments.said(sample(1, 0), "wide", nothing());
    assert_eq!((wide.len(), wide.ends_with('é')), (MOST - 1, true), "half a character goes too");
    let failed = environments.reply(sample(1, 0), "complain", nothing()).unwrap();
    assert_eq!((failed.content.as_str().unwrap().len(), failed.failed), (MOST, true));
    assert_eq!(environments.said(sample(1, 0), "pieces", nothing()), "a".repeat(MOST) + &"b".repeat(MOST));
    let calls = [("large", large(MOST)), ("who", nothing()), ("large", large(5 * MOST)), ("who", nothing())];
    let step = environments.stepped(sample(1, 0), &calls).unwrap();
    let lengths: Vec<usize> = step.replies.iter().map(|reply| reply.content.as_str().unwrap().len()).collect();
    assert_eq!(lengths, [MOST, 16, MOST - 16, 0]);
    assert_eq!(environments.said(sample(1, 0), "who", nothing()).len(), 16);
}

#[test]
fn an_opening_of_megabytes_fails_the_conversation() {
    let (environments, _folder) = start(20.0);
    let opened = environments.opened(sample(1, 0), json!({"how": "long"}));
    fails(opened, "too_long", &["`reset` returned a text of 2097152 bytes; at most 1048576"]);
    environments.opened(sample(2, 0), nothing()).unwrap();
    assert!(environments.reply(sample(2, 0), "who", nothing()).is_ok());
}

#[test]
fn what_breaks_outside_of_a_call_is_a_failure_with_its_traceback_and_never_a_reward() {
    let (environments, _folder) = start(20.0);
    let opened = |how: Value| environments.opened(sample(1, 0), json!({"how": how}));
    let raised = opened("raise".into()).unwrap_err();
    assert_eq!(raised.to_string(), "e.py:Faulty: ValueError: no sea (e.py, line 14, in reset)");
    assert!(raised.words().iter().any(|line| line.contains("raise ValueError")), "{:?}", raised.words());
    fails(opened("number".into()), "broken", &["`reset` returned 5 (int); it may return a text"]);
    for (how, words) in
        [("nan", "`get_reward` returned nan"), ("text", "returned the text 'much'"), ("x", "KeyError: 'x'")]
    {
        opened(how.into()).unwrap();
        fails(environments.scored(sample(1, 0)), "broken", &[words]);
        environments.close(sample(1, 0));
    }
    opened(Value::Null).unwrap();
    fails(
        environments.reply(sample(1, 0), "picture", nothing()),
        "broken",
        &["`picture` returned a content block of type 'image'"],
    );
    opened(Value::Null).unwrap();
    fails(environments.reply(sample(1, 0), "leave", nothing()), "broken", &["`leave` raised SystemExit"]);
    let missing = Folder::with("class E:\n    def reset(self, sea):\n        pass\n").start(&[], Some("E")).unwrap();
    fails(missing.opened(sample(1, 0), json!({"lake": 1})), "broken", &["TypeError: ", "'lake'"]);
}

#[test]
fn a_conversation_that_is_closed_frees_what_waits() {
    let (environments, _folder) = start(20.0);
    let row = row(nothing());
    for index in 0..50 {
        environments.open(sample(1, index), row.clone());
    }
    for _ in 0..50 {
        let (sample, event) = environments.event();
        assert!(matches!(event, Event::Opened(_)), "{event:?}");
        environments.step(sample, turn(&[("wait", nothing())]));
    }
    for index in 0..50 {
        environments.close(sample(1, index));
    }
    environments.opened(sample(2, 0), nothing()).unwrap();
    environments.said(sample(2, 0), "who", nothing());
    assert!(environments.events().is_empty(), "nobody hears of what was closed");
}

#[test]
fn processes_end_with_their_environments() {
    let (environments, _folder) = start(20.0);
    environments.opened(sample(1, 0), nothing()).unwrap();
    let folder = environments.said(sample(1, 0), "folder", nothing());
    let folder = std::path::Path::new(&folder);
    assert!(folder.is_dir());
    environments.step(sample(1, 0), turn(&[("hang", nothing())]));
    drop(environments);
    // Their folders are removed when they have ended.
    let begun = Instant::now();
    while folder.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", folder.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}
