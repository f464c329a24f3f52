//! Conversations over a scripted generator and scripted environments.

mod logprobs;
mod patience;
mod requests;

use std::sync::{Arc, LazyLock, Mutex};

use crossbeam::channel::{Receiver, Sender, unbounded};
use harness::tiny_model::CONVERSATION_TEMPLATE;
use rollout_environments::{Event, Failure, Opening, Rating, Sample, Step, Turn};
use rollout_rewards::RewardInput;
use serde_json::{Map, Value, json};
use shared::{EpisodeEnd, FinishReason, PromptId, RewardOutcome, SamplingParams, Segment};

use super::{Conversing, Hosts, Rewards, prompts};
use crate::{
    conversation::{Dialogue, Limits, Reply},
    data::{
        Beginning, PromptRow, Tokenizer,
        testing::{BOS, byte_tokenizer_with},
    },
    engine::{FinishedSequence, GroupRequest, Output},
    generate::{
        Conversed, Generate, PairGenerator,
        testing::{Heard, Scripted},
    },
};

const END: u32 = BOS + 2;

static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| byte_tokenizer_with(Some(CONVERSATION_TEMPLATE), &["<|im_start|>", "<|im_end|>"]));

fn ids(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).unwrap()
}

fn text(ids: &[u32]) -> String {
    TOKENIZER.decode(ids).unwrap()
}

/// Sample 0 calls `add` once, sample 1 twice, and others never.
fn script(context: &[u32], sample: u32) -> Vec<u32> {
    let replies = text(context).matches("</tool_response>").count() as u32;
    let turn = if sample < 2 && replies <= sample {
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call><|im_end|>".to_owned()
    } else {
        format!("It is {replies}.<|im_end|>")
    };
    ids(&turn)
}

fn tools() -> Arc<[Value]> {
    let number = json!({ "type": "integer", "description": "A number." });
    let parameters = json!({ "type": "object", "properties": { "a": number, "b": number } });
    let function = json!({ "name": "add", "description": "Adds.", "parameters": parameters });
    [json!({ "type": "function", "function": function })].into()
}

fn dialogue(max_completion_length: usize, max_model_len: usize) -> Dialogue {
    let limits = Limits { max_completion_length, max_model_len, max_tool_calling_iterations: None };
    Dialogue::new(&TOKENIZER, &[END], limits).unwrap()
}

fn row() -> PromptRow {
    let messages = Arc::from([json!({ "role": "user", "content": "2+3?" })]);
    let beginning = Beginning { messages: Arc::clone(&messages), tools: tools() };
    let columns = Map::from_iter([("answer".to_owned(), json!("5"))]);
    PromptRow {
        prompt_id: PromptId(7),
        prompt_text: String::new(),
        prompt_ids: dialogue(99, 9999).opening(&messages, &beginning.tools).unwrap().into(),
        shortened: false,
        prefill: String::new(),
        messages: Some(messages),
        question: None,
        columns: Arc::new(columns),
        tokenizer: TOKENIZER.clone(),
        beginning: Some(beginning),
    }
}

fn request(tag: u64, samples: u32) -> GroupRequest {
    GroupRequest {
        tag,
        prompt_id: PromptId(7),
        epoch: 0,
        prompt_ids: row().prompt_ids,
        samples: (0..samples).collect(),
        sampling: Arc::new(SamplingParams { max_completion_length: 400, ..SamplingParams::default() }),
        lengths: None,
        stop_criterion: None,
        constraint: None,
    }
}

/// What an environment was asked for.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Open(Map<String, Value>),
    Step(Turn),
    /// With so many completions.
    Rate(usize),
    Score,
    Close,
}

type Log = Arc<Mutex<Vec<(Sample, Asked)>>>;

/// Environments that answer as a test says, at once or when the test does.
struct Answering {
    log: Log,
    answer: fn(Sample, &Asked) -> Option<Event>,
    sender: Sender<(Sample, Event)>,
    events: Receiver<(Sample, Event)>,
}

impl Answering {
    fn ask(&self, sample: Sample, asked: Asked) {
        if let Some(event) = (self.answer)(sample, &asked) {
            self.sender.send((sample, event)).unwrap();
        }
        self.log.lock().unwrap().push((sample, asked));
    }
}

impl Hosts for Answering {
    fn open(&mut self, sample: Sample, row: Arc<Map<String, Value>>) {
        self.ask(sample, Asked::Open((*row).clone()));
    }

    fn step(&mut self, sample: Sample, turn: Turn) {
        self.ask(sample, Asked::Step(turn));
    }

    fn rate(&mut self, samples: Vec<Sample>, input: RewardInput) {
        let score = |text: &str| RewardOutcome::Score(text.len() as f64);
        assert_eq!(samples.len(), input.completions.len());
        for (sample, completion) in samples.iter().zip(&input.completions) {
            self.ask(*sample, Asked::Rate(samples.len()));
            let rating = Rating { outcomes: vec![score(&completion.text)], ..Rating::default() };
            self.sender.send((*sample, Event::Rated(rating))).unwrap();
        }
    }

    fn score(&mut self, sample: Sample) {
        self.ask(sample, Asked::Score);
    }

    fn close(&mut self, sample: Sample) {
        self.ask(sample, Asked::Close);
    }

    fn events(&self) -> &Receiver<(Sample, Event)> {
        &self.events
    }
}

/// Opens without words, adds, and gives half a point.
fn adding(_: Sample, asked: &Asked) -> Option<Event> {
    Some(match asked {
        Asked::Open(_) => Event::Opened(Opening { text: None }),
        Asked::Step(turn) => Event::Stepped(step(turn, "5")),
        Asked::Score => Event::Scored(Some(0.5)),
        Asked::Rate(_) | Asked::Close => return None,
    })
}

fn step(turn: &Turn, content: &str) -> Step {
    let reply = |call: &crate::conversation::ToolCall| Reply {
        name: call.name.clone(),
        content: content.into(),
        failed: content.contains("error"),
    };
    Step { replies: turn.calls.iter().map(reply).collect(), reward: None, done: false }
}

struct World {
    generator: Conversing,
    log: Log,
    sender: Sender<(Sample, Event)>,
    /// What the scripted generator was asked for.
    heard: Arc<Mutex<Heard>>,
}

fn world(capacity: usize, answer: fn(Sample, &Asked) -> Option<Event>) -> World {
    world_of(capacity, answer, dialogue(400, 9999))
}

fn world_of(capacity: usize, answer: fn(Sample, &Asked) -> Option<Event>, dialogue: Dialogue) -> World {
    world_with(Scripted::new(capacity, script), answer, dialogue, 0)
}

/// A world with so many raters.
fn world_with(
    inner: Scripted,
    answer: fn(Sample, &Asked) -> Option<Event>,
    dialogue: Dialogue,
    raters: usize,
) -> World {
    let heard = inner.heard.clone();
    World { heard, ..world_over(Box::new(inner), answer, dialogue, raters) }
}

/// A world with so many raters around this generator.
fn world_over(
    inner: Box<dyn PairGenerator>,
    answer: fn(Sample, &Asked) -> Option<Event>,
    dialogue: Dialogue,
    raters: usize,
) -> World {
    let (sender, events) = unbounded();
    let log = Log::default();
    let hosts = Answering { log: log.clone(), answer, sender: sender.clone(), events };
    let rewards = Rewards::of(Some(&"e.py:Sums".parse().unwrap())).with_raters(raters);
    let generator = Conversing::new(inner, dialogue, (Box::new(hosts), rewards));
    World { generator, log, sender, heard: Arc::default() }
}

impl World {
    /// What ends within so many steps.
    fn run(&mut self, steps: usize) -> Vec<(FinishedSequence, Conversed)> {
        let mut ended = Vec::new();
        for _ in 0..steps {
            for output in self.generator.advance().unwrap() {
                let Output::Ended { sequence, .. } = output else { panic!("no token is told") };
                let conversed = self.generator.take_conversation(&sequence).unwrap();
                ended.push((sequence, conversed));
            }
        }
        ended.sort_by_key(|(sequence, _)| (sequence.tag, sequence.sample));
        ended
    }

    fn asked(&self, is_it: impl Fn(&Asked) -> bool) -> usize {
        self.log.lock().unwrap().iter().filter(|(_, asked)| is_it(asked)).count()
    }
}

/// The texts of an episode, each with its owner.
fn parts(conversed: &Conversed) -> Vec<(bool, String)> {
    let part = |segment: Segment<'_>| match segment {
        Segment::Sampled { ids, .. } => (true, text(ids)),
        Segment::Given { ids, .. } => (false, text(ids)),
    };
    conversed.episode.segments().map(part).collect()
}

const REPLY: &str = "\nuser\n<tool_response>\n5\n</tool_response>\nassistant\n";

#[test]
fn a_conversation_goes_on_with_the_replies_of_its_tools_and_ends_with_its_reward() {
    let mut world = world(8, adding);
    world.generator.begin_row(request(3, 3).into(), &row()).unwrap();
    let ended = world.run(400);
    assert_eq!(ended.len(), 3);
    assert!(world.generator.is_idle());
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>";
    let (given, turn) = (|| (false, REPLY.to_owned()), |text: &str| (true, text.to_owned()));
    assert_eq!(parts(&ended[0].1), [turn(call), given(), turn("It is 1.")]);
    assert_eq!(parts(&ended[1].1), [turn(call), given(), turn(call), given(), turn("It is 2.")]);
    assert_eq!(parts(&ended[2].1), [turn("It is 0.")]);
    for (index, (sequence, conversed)) in ended.iter().enumerate() {
        assert_eq!((sequence.tag, sequence.sample as usize, conversed.tag), (3, index, 3));
        assert_eq!(sequence.token_ids.len(), conversed.episode.sampled());
        assert_eq!(sequence.logprobs.len(), conversed.episode.logprobs().count());
        assert_eq!(conversed.prompt_ids.as_deref(), Some(&*row().prompt_ids));
        assert!(conversed.episode.is_sound());
        let exchange = &conversed.exchange;
        let calls = [1, 2, 0][index];
        assert_eq!((exchange.end, exchange.calls, exchange.failed_calls), (EpisodeEnd::Stop, calls, 0));
        assert_eq!(exchange.rewards, [RewardOutcome::Score(0.5)]);
        assert_eq!(exchange.messages.values().len(), 2 * calls as usize + 1);
    }
    let messages = ended[0].1.exchange.messages.values();
    assert_eq!(messages[1], json!({ "role": "tool", "name": "add", "content": "5" }));
    let log = world.log.lock().unwrap();
    let Asked::Open(columns) = &log[0].1 else { panic!("it is opened first") };
    assert_eq!(columns["answer"], "5");
    assert_eq!(columns["prompt"], json!([{ "role": "user", "content": "2+3?" }]));
}

#[test]
fn conversations_that_wait_take_no_slot_and_hold_up_new_weights() {
    let mut world = world(1, |sample, asked| match asked {
        Asked::Step(_) => None,
        other => adding(sample, other),
    });
    assert!(!world.generator.waits(), "there is nobody to wait for");
    for tag in 0..3 {
        world.generator.begin_row(request(tag, 1).into(), &row()).unwrap();
    }
    assert!(!world.generator.waits(), "environments have answered");
    assert!(world.run(400).is_empty());
    assert!(world.generator.waits(), "all tools are at work");
    assert_eq!(world.asked(|asked| matches!(asked, Asked::Step(_))), 3, "all have had their turn in the one slot");
    assert_eq!((world.generator.running(), world.generator.waiting(), world.generator.capacity()), (3, 0, 4));
    // A swap under `drain` closes the admission: what has begun goes on, what has not waits.
    world.generator.set_admission(false);
    world.generator.begin_row(request(3, 1).into(), &row()).unwrap();
    let steps: Vec<(Sample, Turn)> = (world.log.lock().unwrap().iter())
        .filter_map(|(sample, asked)| if let Asked::Step(turn) = asked { Some((*sample, turn.clone())) } else { None })
        .collect();
    for (sample, turn) in &steps {
        world.sender.send((*sample, Event::Stepped(step(turn, "5")))).unwrap();
    }
    assert!(!world.generator.waits());
    assert_eq!(world.run(400).len(), 3);
    assert_eq!((world.generator.running(), world.generator.waiting()), (0, 1));
    assert!(world.generator.waits(), "its first turn is held back");
    world.generator.set_admission(true);
    assert!(!world.generator.waits(), "its first turn may begin");
    world.run(200);
    assert_eq!((world.generator.running(), world.generator.waiting()), (1, 0));
}

#[test]
fn a_failed_environment_ends_its_own_conversation_without_a_reward() {
    let mut world = world(8, |sample, asked| match (sample.index, asked) {
        (0, Asked::Step(_)) | (2, Asked::Open(_)) => Some(Event::Failed(broken())),
        (_, other) => adding(sample, other),
    });
    world.generator.begin_row(request(0, 4).into(), &row()).unwrap();
    let ended = world.run(400);
    let ends: Vec<EpisodeEnd> = ended.iter().map(|(_, conversed)| conversed.exchange.end).collect();
    use EpisodeEnd::{EnvironmentFailed, Stop};
    assert_eq!(ends, [EnvironmentFailed, Stop, EnvironmentFailed, Stop]);
    for (_, failed) in [&ended[0], &ended[2]] {
        assert_eq!(failed.exchange.rewards, [RewardOutcome::NotApplicable]);
        assert!(failed.exchange.reason().unwrap().contains("the maze is gone"), "{:?}", failed.exchange);
    }
    assert_eq!(ended[0].1.episode.sampled_spans().count(), 1, "what was sampled before is known");
    assert_eq!((ended[2].1.episode.sampled(), ended[2].1.prompt_ids.is_none()), (0, true));
    assert_eq!(ended[2].1.episode.oldest().map(|version| version.0), Some(0));
    assert_eq!(world.asked(|asked| *asked == Asked::Close), 4, "each is given back once");
    // What a conversation that is gone still says is of no account.
    world.sender.send((Sample { tag: 0, index: 0 }, Event::Scored(Some(1.0)))).unwrap();
    assert!(world.run(3).is_empty());
}

#[test]
fn a_group_is_rated_when_all_of_it_is_over_and_before_any_environment_is_asked_or_closed() {
    let mut world = world_with(
        Scripted::new(1, script),
        |sample, asked| match (sample.index, asked) {
            (3, Asked::Open(_)) => Some(Event::Failed(broken())),
            (_, other) => adding(sample, other),
        },
        dialogue(400, 9999),
        1,
    );
    world.generator.begin_row(request(0, 4).into(), &row()).unwrap();
    let ended = world.run(1000);
    let rated = |text: &str| vec![RewardOutcome::Score(text.len() as f64)];
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>";
    let rewards: Vec<_> = ended.iter().map(|(_, conversed)| conversed.rewards.clone()).collect();
    let (one, two) = (format!("{call}\nIt is 1."), format!("{call}\n{call}\nIt is 2."));
    assert_eq!(rewards, [rated(&one), rated(&two), rated("It is 0."), Vec::new()]);
    assert!(world.generator.is_idle());
    let log = world.log.lock().unwrap();
    let of_three: Vec<&Asked> = log.iter().filter(|(sample, _)| sample.index != 3).map(|(_, asked)| asked).collect();
    let rated: Vec<usize> = (0..of_three.len()).filter(|&at| matches!(of_three[at], Asked::Rate(_))).collect();
    assert_eq!(rated.len(), 3);
    assert!(rated.windows(2).all(|pair| pair[0] + 1 == pair[1]), "in one request: {of_three:?}");
    assert_eq!(of_three[rated[0]], &Asked::Rate(3), "a conversation without an environment is left out");
    assert!(!of_three[..rated[0]].iter().any(|asked| matches!(asked, Asked::Score | Asked::Close)), "{of_three:?}");
}

/// The last conversations that begin are those that others have to wait for.
#[test]
fn conversations_begin_before_others_go_on_as_long_as_their_states_are_held() {
    let order = |kept_states: usize| {
        let mut world = world(1, adding);
        world.generator = world.generator.with_kept_states(kept_states);
        assert_eq!(world.generator.capacity(), 1 + kept_states);
        for tag in 0..4 {
            world.generator.begin_row(request(tag, 1).into(), &row()).unwrap();
        }
        assert_eq!(world.run(2000).len(), 4);
        let heard = world.heard.lock().unwrap();
        heard.begun.iter().map(|request| request.group.tag).collect::<Vec<_>>()
    };
    assert_eq!(order(0), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(order(1), [0, 1, 0, 1, 2, 3, 2, 3]);
    assert_eq!(order(9), [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn conversations_that_wait_for_their_group_take_no_slot_and_hold_up_no_weights() {
    let mut world = world_with(
        Scripted::new(1, script),
        |sample, asked| match (sample.index, asked) {
            (1, Asked::Step(_)) => None,
            (_, other) => adding(sample, other),
        },
        dialogue(400, 9999),
        1,
    );
    world.generator.begin_row(request(0, 3).into(), &row()).unwrap();
    assert!(world.run(600).is_empty(), "two of three are over");
    assert_eq!((world.generator.running(), world.generator.waiting(), world.generator.capacity()), (1, 2, 4));
    assert!(world.generator.waits());
    // The last one is given up: the others are rated without it.
    assert_eq!(world.generator.cancel(0, Some(1)).len(), 1);
    let ended = world.run(3);
    assert_eq!(ended.len(), 2);
    assert!(ended.iter().all(|(_, conversed)| conversed.rewards.len() == 1));
    assert!(world.generator.is_idle());
}

fn broken() -> Failure {
    Failure::Broken { environment: "Sums".into(), reason: "the maze is gone".into(), traceback: None }
}

#[test]
fn samples_with_the_same_first_words_share_a_prompt_and_others_have_their_own() {
    let mut world = world(8, |sample, asked| match asked {
        Asked::Open(_) => {
            Some(Event::Opened(Opening { text: Some(format!(" Room {}", if sample.index == 2 { 2 } else { 1 })) }))
        }
        other => adding(sample, other),
    });
    world.generator.begin_row(request(0, 3).into(), &row()).unwrap();
    let ended = world.run(400);
    let prompts: Vec<String> = ended.iter().map(|(_, c)| text(c.prompt_ids.as_deref().unwrap())).collect();
    assert!(prompts[0].ends_with("user\n2+3? Room 1\nassistant\n"), "{}", prompts[0]);
    assert!(prompts[1] == prompts[0] && prompts[2].contains("Room 2"));
    assert_eq!(ended[2].1.exchange.opening.as_deref(), Some(" Room 2"));
}

#[test]
fn samples_that_wait_for_a_place_hold_up_no_other_of_their_group() {
    let mut together = world(8, adding);
    together.generator.begin_row(request(3, 4).into(), &row()).unwrap();
    let expected = together.run(400);
    // A server with one place: whoever comes second waits.
    let mut world = world(8, |sample, asked| match asked {
        Asked::Open(_) if sample.index > 0 => Some(Event::Queued),
        other => adding(sample, other),
    });
    world.generator.begin_row(request(3, 4).into(), &row()).unwrap();
    let mut ended = world.run(400);
    assert_eq!(ended.len(), 1, "the first has the place");
    assert!(world.generator.waits() && world.generator.running() == 0);
    for index in 1..3 {
        let sample = Sample { tag: 0, index };
        for event in [Event::Queued, Event::Opened(Opening { text: None })] {
            world.sender.send((sample, event)).unwrap();
        }
        ended.extend(world.run(400));
        assert_eq!(ended.len(), index as usize + 1);
    }
    for ((_, one), (_, other)) in ended.iter().zip(&expected) {
        assert_eq!((one.sample, parts(one)), (other.sample, parts(other)));
    }
    world.sender.send((Sample { tag: 0, index: 3 }, Event::Failed(broken()))).unwrap();
    let failed = world.run(3);
    assert_eq!(failed[0].1.exchange.end, EpisodeEnd::EnvironmentFailed);
    assert!(world.generator.is_idle());
}

#[test]
fn a_reply_without_room_ends_the_conversation_and_no_tool_is_called_for_nothing() {
    let call = script(&[], 0).len();
    let mut tight = world_of(8, adding, dialogue(call + 5, 9999));
    tight.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    let ended = tight.run(400);
    assert_eq!(ended[0].1.exchange.end, EpisodeEnd::ReplyTooLong);
    assert_eq!(ended[0].1.episode.finish_reason(), FinishReason::Stop, "it is not truncated");
    assert_eq!(parts(&ended[0].1).len(), 1);
    let mut full = world_of(8, adding, dialogue(call, 9999));
    full.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    assert_eq!(full.run(400)[0].1.exchange.end, EpisodeEnd::ReplyTooLong);
    assert_eq!(full.asked(|asked| matches!(asked, Asked::Step(_))), 0);
}

#[test]
fn what_is_cancelled_gives_its_environment_back() {
    let mut world = world(8, |sample, asked| match asked {
        Asked::Step(_) => None,
        other => adding(sample, other),
    });
    world.generator.begin_row(request(5, 2).into(), &row()).unwrap();
    world.run(400);
    let cancelled = world.generator.cancel(5, Some(0));
    assert_eq!((cancelled.len(), cancelled[0].tag, cancelled[0].finish_reason), (1, 5, FinishReason::Aborted));
    assert_eq!(world.generator.running(), 1);
    assert_eq!(world.generator.cancel(5, None).len(), 1);
    assert!(world.generator.is_idle() && world.generator.advance().unwrap().is_empty());
    assert_eq!(world.asked(|asked| *asked == Asked::Close), 2);
}

#[test]
fn a_row_for_an_environment_has_its_prompt() {
    let found = prompts::environment_row(&row());
    assert_eq!(found.keys().collect::<Vec<_>>(), ["answer", "prompt"]);
}
