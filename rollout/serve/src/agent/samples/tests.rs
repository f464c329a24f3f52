//! Requests of one sample, in whatever form they come back.

use harness::tiny_model::{CHARACTERS, ModelFolder, write_conversation_tokenizer};
use rollout::{commands::constraint::Grammar, conversation::Limits, data::Tokenizer};
use serde_json::json;
use shared::{ModelDir, PolicyVersion, PromptId, TokenLogprob};

use super::*;
use crate::request::grammar;

const SEED: u64 = 7;

struct Bench {
    tokenizer: Tokenizer,
    samples: Samples,
    sample: Arc<Sample>,
}

impl Bench {
    fn new(max_completion_length: usize) -> Self {
        let folder = ModelFolder::new();
        write_conversation_tokenizer(&folder.path("model"));
        let tokenizer = Tokenizer::open(&ModelDir::open(folder.path("model")).unwrap()).unwrap();
        let limits = Limits { max_completion_length, max_model_len: 500, max_tool_calling_iterations: None };
        let samples = Samples::new(Dialogue::new(&tokenizer, &[CHARACTERS as u32], limits).unwrap());
        let request = GroupRequest {
            tag: 3,
            prompt_id: PromptId(5),
            epoch: 2,
            prompt_ids: [1].into(),
            samples: [0, 1].into(),
            sampling: Arc::new(SamplingParams { seed: SEED, ..SamplingParams::default() }),
            lengths: None,
            stop_criterion: None,
            constraint: None,
        };
        let sample = samples.open("key".into(), 1, request, [Said::of(&said("user", "2+3?"))].into());
        Self { tokenizer, samples, sample }
    }

    fn begin(&self, messages: &[Value]) -> Result<Turn, ApiError> {
        self.begin_in(None, messages)
    }

    fn begin_in(&self, session: Option<&str>, messages: &[Value]) -> Result<Turn, ApiError> {
        self.sample.begin(&self.samples.dialogue, (messages, &[], session), false)
    }

    /// Ends a turn with this text, and tells its ids.
    fn end(&self, mut turn: Turn, text: &str) -> Vec<u32> {
        let token_ids = self.tokenizer.encode(&format!("{text}<|im_end|>"), false).unwrap();
        let sequence = FinishedSequence {
            tag: 0,
            sample: 1,
            logprobs: vec![TokenLogprob::default(); token_ids.len()],
            top_logprobs: Vec::new(),
            versions: vec![(0, PolicyVersion(0))],
            routing: None,
            finish_reason: FinishReason::Stop,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: 0.0,
            token_ids: token_ids.clone(),
        };
        turn.ended(&sequence, None, text, &[]);
        [turn.all.to_vec(), token_ids].concat()
    }

    fn paths(&self) -> usize {
        lock(&self.sample.record).paths.len()
    }
}

fn said(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

#[test]
fn messages_that_continue_a_conversation_go_on_from_its_ids_and_others_begin_one() {
    let bench = Bench::new(200);
    let mut messages = vec![said("user", "2+3?")];
    let first = bench.begin(&messages).unwrap();
    assert!(first.at.is_none() && first.path.seed == SEED);
    let so_far = bench.end(first, "5");
    messages.extend([said("assistant", "5"), said("user", "Sure?")]);
    let second = bench.begin(&messages).unwrap();
    assert_eq!(second.at, Some(0));
    assert_eq!(second.all[..], [&so_far[..], &second.next].concat());
    let suffix = "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(second.next[..], bench.tokenizer.encode(suffix, false).unwrap());
    // It goes on by one request at a time: another one meanwhile has an answer of its own.
    let beside = bench.begin(&messages).unwrap();
    assert!(beside.at.is_none() && beside.path.seed != SEED && second.path.seed == SEED);
    drop(beside);
    // What nobody waits for any more has not been.
    drop(second);
    let again = bench.begin(&messages).unwrap();
    assert_eq!((again.at, bench.paths()), (Some(0), 1));
    let so_far = bench.end(again, "Yes.");
    let mut changed = messages.clone();
    changed.extend([said("assistant", "No."), said("user", "Why?")]);
    assert_eq!(bench.begin(&changed).unwrap().at, None, "that was not said");
    let ids = [&so_far[..], &[10, 11]].concat();
    let by_ids = bench.sample.begin_ids(&bench.samples.dialogue, &ids, false).unwrap();
    assert_eq!((by_ids.at, &by_ids.next[..]), (Some(0), &[10, 11][..]));
    let _ = bench.end(by_ids, "!");
    let record = bench.sample.finish();
    let [path] = &record.paths[..] else { panic!("{} paths", record.paths.len()) };
    assert_eq!(path.conversation.episode().sampled_spans().count(), 3);
    assert_eq!(bench.begin(&messages).err().map(|error| error.status), Some(StatusCode::CONFLICT));
}

#[test]
fn a_conversation_that_goes_on_from_an_earlier_turn_keeps_its_ids_and_is_a_path_of_its_own() {
    let bench = Bench::new(300);
    let mut messages = vec![said("user", "2+3?")];
    let first = bench.end(bench.begin(&messages).unwrap(), "5");
    messages.extend([said("assistant", "5"), said("user", "Sure?")]);
    let _ = bench.end(bench.begin(&messages).unwrap(), "Yes.");
    messages[2] = said("user", "Why?");
    let other = bench.begin(&messages).unwrap();
    assert!(other.at.is_none() && other.path.seed != SEED, "the path has gone on in another way");
    assert_eq!(other.all[..first.len()], first[..], "what was sampled is not rendered again");
    let _ = bench.end(other, "So.");
    let record = bench.sample.finish();
    assert_eq!(record.paths.len(), 2);
    let [whole, fork] = [0, 1].map(|at| &record.paths[at].conversation);
    assert_eq!((whole.episode().turns(), fork.episode().turns()), (2, 1), "what is shared is of one path alone");
    assert_eq!(fork.prompt_ids()[..], first[..]);
    let written = |of_row: &[u32]| [0, 1].map(|at| record.paths[at].written(of_row));
    assert_eq!(written(&[1]), [Some(whole.prompt_ids().len()), None], "a branch has no prompt of its agent's own");
    assert_eq!(written(whole.prompt_ids()), [None, None], "the dataset is looked over for the row's prompt");
    let (prompt, said_since) = (fork.prompt().to_vec(), fork.messages().to_vec());
    assert_eq!((prompt.len(), said_since.len()), (2, 2), "{prompt:?} {said_since:?}");
}

#[test]
fn ids_that_tell_a_conversation_in_another_way_are_no_prompt_of_the_agents_own() {
    let bench = Bench::new(300);
    let begin = |ids: &[u32]| bench.sample.begin_ids(&bench.samples.dialogue, ids, false).unwrap();
    let _ = bench.end(begin(&[10, 11]), "5");
    let again = begin(&[10, 11, 12, 13]);
    assert!(again.at.is_none() && again.path.is_branch && again.path.written(&[1]).is_none());
    let other = begin(&[11, 10]);
    assert!(other.at.is_none() && other.path.written(&[1]) == Some(2));
}

#[test]
fn sessions_are_conversations_of_their_own_and_whichever_comes_first_has_the_same_random_numbers() {
    let asked = [(Some("a"), "plan"), (Some("b"), "plan"), (None, "solve"), (None, "2+3?")];
    let seeds = |order: [usize; 4]| {
        let bench = Bench::new(200);
        let mut seeds = [0; 4];
        for at in order {
            let (session, text) = asked[at];
            let turn = bench.begin_in(session, &[said("user", text)]).unwrap();
            seeds[at] = turn.path.seed;
            let _ = bench.end(turn, text);
        }
        let further = [said("user", "plan"), said("assistant", "plan"), said("user", "On.")];
        let path = |session| bench.begin_in(session, &further).unwrap().at;
        assert!(path(None).is_none() && path(Some("a")).is_some() && path(Some("a")) != path(Some("b")));
        let record = bench.sample.finish();
        let prompts: Vec<Vec<u32>> = record.paths.iter().map(|path| path.conversation.prompt_ids().to_vec()).collect();
        (seeds, prompts)
    };
    let (found, paths) = seeds([0, 1, 2, 3]);
    assert_eq!(found[3], SEED, "the row's own prompt has the numbers of the run");
    assert!((0..4).all(|a| (0..a).all(|b| found[a] != found[b])), "{found:?}");
    for order in [[3, 2, 0, 1], [1, 0, 2, 3]] {
        assert_eq!(seeds(order), (found, paths.clone()), "{order:?}");
    }
}

#[test]
fn a_request_has_the_keys_of_its_sample_and_continues_behind_the_state() {
    let bench = Bench::new(200);
    let turn = bench.begin(&[said("user", "a")]).unwrap();
    let asked = GroupRequest { tag: 9, samples: [0].into(), ..bench.sample.request.clone() };
    let group = turn.group(asked);
    assert_eq!((group.tag, group.prompt_id, group.epoch, &group.samples[..]), (9, PromptId(5), 2, &[1][..]));
    assert_eq!(group.prompt_ids, turn.all);
}

#[test]
fn messages_without_room_are_refused_by_the_code_of_openai() {
    let bench = Bench::new(20);
    let long = "x".repeat(600);
    let code = |refused: Result<Turn, ApiError>| refused.err().and_then(|error| error.code);
    assert_eq!(code(bench.begin(&[said("user", &long)])), Some("context_length_exceeded"));
    let _ = bench.end(bench.begin(&[said("user", "a")]).unwrap(), "b");
    let further = [said("user", "a"), said("assistant", "b"), said("user", "longer than the room")];
    assert_eq!(code(bench.begin(&further)), Some("context_length_exceeded"));
}

#[test]
fn a_key_is_live_then_ended_and_a_reward_is_given_once() {
    let bench = Bench::new(20);
    assert!(matches!(bench.samples.find("key"), Known::Live(_)));
    assert!(matches!(bench.samples.find("other"), Known::Unknown));
    bench.sample.reward(0.5).unwrap();
    assert_eq!(bench.sample.reward(1.0).map_err(|error| error.status), Err(StatusCode::CONFLICT));
    bench.samples.close("key");
    assert!(matches!(bench.samples.find("key"), Known::Ended));
    assert_eq!(bench.sample.finish().reward, Some(0.5));
}

#[test]
fn what_forces_an_answer_is_refused_by_the_name_of_its_field() {
    let bench = Bench::new(200);
    for (field, param) in [("tools", "tool_choice"), ("response_format", "response_format")] {
        let grammar = Grammar::Json { schema: json!({}), compact: false };
        let mut asked = Sampling {
            params: SamplingParams::default(),
            n: 1,
            named: Vec::new(),
            seed: None,
            stop_token_ids: Vec::new(),
            grammar: Some(grammar::Asked { field, grammar, parts: Vec::new() }),
            constraint: None,
        };
        let error = bench.sample.adopt(&mut asked).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
        assert!(error.message.contains(&format!("`{param}`")), "{}", error.message);
    }
}
