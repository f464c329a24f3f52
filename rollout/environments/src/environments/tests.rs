//! What is built in, through the public interface, and how conversations end.

use serde_json::json;
use shared::config::EnvironmentFactory;

use super::*;
use crate::{
    environment::BoxFuture,
    testing::{nothing, row, sample, sources},
};

const MAZE: &str = "S.#\n#.G";

fn built_in(tools: &[&str], factory: Option<EnvironmentFactory>) -> Result<Environments, StartError> {
    let mut sources = sources(std::env::temp_dir().as_path());
    sources.tools = tools.iter().map(|&entry| entry.to_owned()).collect();
    sources.environment_factory = factory;
    Environments::start(&sources)
}

fn one(entry: &str) -> Option<EnvironmentFactory> {
    Some(EnvironmentFactory::One(entry.to_owned()))
}

#[test]
fn a_maze_and_a_calculator_answer_together_without_python() {
    let environments = built_in(&["builtin:calculator"], one("builtin:maze")).unwrap();
    assert!(environments.hosts.is_empty());
    assert_eq!(environments.names(nothing()), ["calculate", "look", "move"]);
    assert!(environments.give_rewards());
    let sample = sample(1, 0);
    let text = environments.opened(sample, json!({"maze": MAZE})).unwrap().unwrap();
    assert!(text.starts_with("\nYou are at row 1, column 1."), "{text}");
    let east = json!({"direction": "east"});
    let calls = [("move", east.clone()), ("calculate", json!({"expression": "6*7"})), ("jump", nothing())];
    let step = environments.stepped(sample, &calls).unwrap();
    let told: Vec<_> = step.replies.iter().map(|reply| (reply.name.as_str(), reply.failed)).collect();
    assert_eq!(told, [("move", false), ("calculate", false), ("jump", true)]);
    assert_eq!(step.replies[1].content, "42");
    environments.said(sample, "move", json!({"direction": "south"}));
    assert_eq!(environments.scored(sample), Ok(Some(0.0)));
    assert_eq!(environments.said(sample, "move", east), "You are at the goal.");
    assert_eq!(environments.scored(sample), Ok(Some(1.0)));
    environments.close(sample);
}

#[test]
fn tools_alone_have_no_opening_and_no_reward() {
    let environments = built_in(&["builtin:calculator"], None).unwrap();
    assert!(!environments.give_rewards());
    assert_eq!(environments.opened(sample(1, 0), nothing()), Ok(None));
    let reply = environments.reply(sample(1, 0), "calculate", json!({"expression": "1/0"})).unwrap();
    assert!(reply.failed);
    assert_eq!(reply.content, "{'error': 'division by zero'}");
    assert_eq!(environments.scored(sample(1, 0)), Ok(None));
}

#[test]
fn the_column_chooses_and_is_not_passed_on() {
    let factory = r#"{"labyrinth": "builtin:maze", "other": "builtin:maze"}"#.parse().unwrap();
    let environments = built_in(&[], Some(factory)).unwrap();
    let kind = environments.plan.kind(&row(json!({"environment": "other"}))).unwrap();
    assert_eq!(*kind.columns(&row(json!({"environment": "other", "maze": MAZE}))), *row(json!({"maze": MAZE})));
    for (columns, words) in [
        (json!({"environment": "sea"}), "says `sea`, and `environment_factory` has labyrinth, other"),
        (json!({"environment": 5}), "no text in the column `environment`"),
        (nothing(), "no text in the column `environment`"),
    ] {
        let error = environments.tools(&row(columns.clone())).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        let failure = environments.opened(sample(1, 0), columns).unwrap_err();
        assert_eq!((failure.kind(), failure.to_string()), ("row", error));
    }
}

#[test]
fn a_row_that_is_no_maze_fails_and_is_no_reward_of_nought() {
    let environments = built_in(&[], one("builtin:maze")).unwrap();
    let failure = environments.opened(sample(1, 0), json!({"maze": "G"})).unwrap_err();
    assert_eq!(failure.to_string(), "builtin:maze: the column `maze` has no `S`: S is the start, G the goal, # a wall");
    // Orders to what has failed lead to nothing more.
    environments.score(sample(1, 0));
    environments.close(sample(1, 0));
    assert!(environments.opened(sample(2, 0), json!({"maze": MAZE})).is_ok());
}

#[test]
fn entries_that_name_nothing_are_refused_with_the_way_out() {
    let refused = |tools: &[&str], factory| built_in(tools, factory).err().unwrap().to_string();
    for (error, words) in [
        (refused(&["builtin:abacus"], None), "`tools`: `builtin:abacus`: the tools that are built in are calculator"),
        (refused(&["abacus"], None), "`tools`: `abacus`: write `file.py:name` or `module.name`"),
        (refused(&["e.py"], None), "write `file.py:name`"),
        (refused(&["mcp:"], None), "`mcp:` needs an address or a command line"),
        (
            refused(&[], one("openenv:host")),
            "`openenv:` needs an address of a server, as in `openenv:ws://localhost:8000`",
        ),
        (refused(&["command: "], None), "`command:` needs a command line, as in `command:./my_env`"),
        (
            refused(&[], one("builtin:sea")),
            "`environment_factory`: `builtin:sea`: the environments that are built in are maze",
        ),
        (refused(&["builtin:calculator"; 2], None), "two tools are called `calculate`"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

/// Panics when it is asked for a score, and waits for ever when it is asked for a step.
struct Odd;

impl Environment for Odd {
    fn init(&mut self, _: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        Box::pin(async { Ok(Opening::default()) })
    }

    fn step(&mut self, _: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        Box::pin(std::future::pending())
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        Box::pin(async { panic!("no score") })
    }
}

/// A conversation with [`Odd`] that has begun, and its events.
fn odd(room: &Room) -> (Conversation, Receiver<(Sample, Event)>) {
    let (sender, events) = unbounded();
    let (orders, taken) = mpsc::unbounded_channel();
    let (open, closed) = oneshot::channel();
    let told = Teller { sample: sample(1, 0), sender };
    room.handle.spawn(converse(Box::new(Odd), Map::new(), taken, closed, told));
    assert_eq!(events.recv().unwrap().1, Event::Opened(Opening::default()));
    (Conversation { orders, _open: open }, events)
}

#[test]
fn an_environment_that_panics_has_failed() {
    let room = Room::open().unwrap();
    let (conversation, events) = odd(&room);
    conversation.orders.send(Order::Score).unwrap();
    let (_, event) = events.recv().unwrap();
    assert!(matches!(&event, Event::Failed(failure) if failure.to_string().contains("panicked")), "{event:?}");
    let (_conversation, _events) = odd(&room);
}

#[test]
fn a_conversation_that_is_closed_says_no_more_and_ends_what_runs() {
    let room = Room::open().unwrap();
    let (conversation, events) = odd(&room);
    conversation.orders.send(Order::Step(Turn::default())).unwrap();
    drop(conversation);
    assert!(events.recv().is_err(), "the conversation is gone with its sender");
}
