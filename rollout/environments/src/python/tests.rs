//! Functions and classes in Python: golden cases, the rules of calls, and all that can go wrong.

mod faults;
mod golden;
mod rating;
mod starting;

use std::collections::HashSet;

use serde_json::json;

use crate::{
    Event,
    testing::{Folder, nothing, row, sample, turn},
};

/// Functions and a class as users write them.
const RULES: &str = r#"
import asyncio
import os

TOKEN = os.urandom(8).hex()
done = []


def add(a: int, b: int = 1) -> int:
    """Adds.

    Args:
        a: One.
        b: Another.
    """
    done.append("add")
    return a + b


async def later(seconds: float) -> str:
    """Waits.

    Args:
        seconds: How long.
    """
    done.append("later")
    await asyncio.sleep(seconds)
    return f"after {seconds}"


def raises(what: str) -> None:
    """Raises.

    Args:
        what: What to say.
    """
    raise KeyError(what)


def blocks() -> list:
    """Returns content blocks."""
    return [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "more": 1}]


def numbers() -> list:
    """Returns numbers."""
    return [1, 2]


def half() -> str:
    """Returns half a character."""
    return "a\ud800b"


def seen() -> str:
    """Says what ran, in order."""
    return " ".join(done)


class Counter:
    made = 0

    def __init__(self):
        Counter.made += 1
        self.number = Counter.made

    def reset(self, start=0, **row):
        self.count = start
        return f"number {self.number}, columns {sorted(row)}"

    @property
    def trap(self):
        raise RuntimeError("evaluated")

    async def up(self, by: int = 1) -> int:
        """Counts up.

        Args:
            by: How far.
        """
        self.count += by
        return self.count

    def process(self) -> str:
        """Says which process this is."""
        return TOKEN

    def _hidden(self):
        return 1

    async def get_reward(self):
        return None if self.count < 0 else self.count / 10
"#;

const FUNCTIONS: [&str; 7] = ["add", "later", "raises", "blocks", "numbers", "half", "seen"];

#[test]
fn calls_follow_the_rules_of_trl() {
    let folder = Folder::with(RULES);
    let environments = folder.start(&FUNCTIONS, None).unwrap();
    let sample = sample(1, 0);
    assert_eq!(environments.opened(sample, nothing()), Ok(None));
    for (name, arguments, content, failed) in [
        ("add", json!({"a": 2}), json!("3"), false),
        ("add", json!({"a": 2, "b": 0.5}), json!("2.5"), false),
        ("add", nothing(), json!(r#"{'error': "add() missing 1 required positional argument: 'a'"}"#), true),
        ("raises", json!({"what": "x"}), json!(r#"{'error': "'x'"}"#), true),
        ("blocks", nothing(), json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), false),
        ("numbers", nothing(), json!("[1, 2]"), false),
        ("half", nothing(), json!("a?b"), false),
        ("print", nothing(), json!("{'error': 'Tool print not found.'}"), true),
    ] {
        let reply = environments.reply(sample, name, arguments).unwrap();
        assert_eq!((&*reply.name, reply.content, reply.failed), (name, content, failed));
    }
    assert_eq!(environments.scored(sample), Ok(None));
}

#[test]
fn replies_have_the_order_of_the_calls_and_async_ones_run_together() {
    let folder = Folder::with(RULES);
    let environments = folder.start(&FUNCTIONS, None).unwrap();
    environments.opened(sample(1, 0), nothing()).unwrap();
    let begun = std::time::Instant::now();
    let wait = |seconds: f64| ("later", json!({"seconds": seconds}));
    let calls = [wait(0.9), ("add", json!({"a": 1})), wait(0.8), ("no", nothing()), wait(0.7)];
    let step = environments.stepped(sample(1, 0), &calls).unwrap();
    let contents: Vec<_> = step.replies.iter().map(|reply| reply.content.as_str().unwrap()).collect();
    assert_eq!(contents, ["after 0.9", "2", "after 0.8", "{'error': 'Tool no not found.'}", "after 0.7"]);
    assert!(begun.elapsed().as_secs_f64() < 2.0, "{:?}", begun.elapsed());
    assert_eq!(environments.said(sample(1, 0), "seen", nothing()), "add later later later", "as TRL runs them");
}

#[test]
fn a_class_is_reset_with_the_row_and_its_instances_are_used_again_but_never_shared() {
    let folder = Folder::with(RULES);
    let environments = folder.start(&["add"], Some("Counter")).unwrap();
    assert_eq!(environments.names(nothing()), ["add", "process", "up"]);
    assert!(environments.give_rewards());
    let columns = json!({"prompt": "p", "start": 3, "environment": "kept where nothing chooses"});
    let text = environments.opened(sample(1, 0), columns.clone()).unwrap().unwrap();
    assert_eq!(text, "number 1, columns ['environment', 'prompt']");
    let other = environments.opened(sample(1, 1), columns.clone()).unwrap().unwrap();
    assert!(other.starts_with("number 2"), "{other}");
    assert_eq!(environments.said(sample(1, 0), "up", json!({"by": 4})), "7");
    assert_eq!(environments.said(sample(1, 1), "up", nothing()), "4");
    assert_eq!(environments.scored(sample(1, 0)), Ok(Some(0.7)));
    environments.close(sample(1, 0));
    let again = environments.opened(sample(2, 0), json!({"start": -1})).unwrap().unwrap();
    assert_eq!(again, "number 1, columns []");
    assert_eq!(environments.scored(sample(2, 0)), Ok(None), "no reward is none, and not nought");
    assert_eq!(environments.scored(sample(1, 1)), Ok(Some(0.4)));
}

#[test]
fn the_column_chooses_a_class_and_is_not_passed_to_it() {
    let folder = Folder::with(RULES);
    let environments = folder.start_with(&["add"], None, |sources| {
        let table = r#"{"one": "e.py:Counter", "two": "builtin:maze"}"#;
        sources.environment_factory = Some(table.parse().unwrap());
    });
    let environments = environments.unwrap();
    let (one, two) = (json!({"environment": "one"}), json!({"environment": "two", "maze": "SG"}));
    assert_eq!(environments.names(one.clone()), ["add", "process", "up"]);
    assert_eq!(environments.names(two.clone()), ["add", "look", "move"]);
    assert_eq!(environments.opened(sample(1, 0), one).unwrap().unwrap(), "number 1, columns []");
    assert!(environments.opened(sample(1, 1), two).unwrap().unwrap().contains("row 1, column 1"));
    let east = ("move", json!({"direction": "east"}));
    let step = environments.stepped(sample(1, 1), &[east, ("add", json!({"a": 1})), ("up", nothing())]).unwrap();
    let failed: Vec<_> = step.replies.iter().map(|reply| reply.failed).collect();
    assert_eq!(failed, [false, false, true], "a tool of another class is none");
    assert_eq!(environments.scored(sample(1, 1)), Ok(Some(1.0)));
}

#[test]
fn a_group_stays_in_one_process_and_groups_are_spread() {
    let folder = Folder::with(RULES);
    let environments = folder.start_with(&[], Some("Counter"), |sources| sources.host.processes = 2).unwrap();
    let mut process = |tag, index| {
        environments.opened(sample(tag, index), nothing()).unwrap();
        environments.said(sample(tag, index), "process", nothing())
    };
    let of_group = |tag, process: &mut dyn FnMut(u64, u32) -> String| -> HashSet<String> {
        (0..3).map(|index| process(tag, index)).collect()
    };
    let (first, second) = (of_group(1, &mut process), of_group(2, &mut process));
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first, second);
}

#[test]
fn thousands_of_conversations_wait_together() {
    const MANY: u32 = 2000;
    let text = "import asyncio\n\n\nclass Sleeper:\n    async def reset(self, **row):\n        await \
                asyncio.sleep(2)\n\n    async def nap(self) -> None:\n        \"\"\"Naps.\"\"\"\n        await \
                asyncio.sleep(2)\n";
    let folder = Folder::with(text);
    let environments = folder.start(&[], Some("Sleeper")).unwrap();
    let begun = std::time::Instant::now();
    let samples = || (0..MANY).map(|index| sample(u64::from(index / 8), index % 8));
    let row = row(nothing());
    samples().for_each(|sample| environments.open(sample, row.clone()));
    for _ in 0..MANY {
        let (sample, event) = environments.event();
        assert!(matches!(event, Event::Opened(_)), "{event:?}");
        environments.step(sample, turn(&[("nap", nothing())]));
    }
    let stepped: HashSet<_> = (0..MANY).map(|_| environments.event().0).collect();
    assert_eq!(stepped.len(), MANY as usize);
    // One after the other, they would take more than two hours.
    assert!(begun.elapsed().as_secs() < 40, "{:?}", begun.elapsed());
}
