//! Rules that hold for any turns and replies.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;
use shared::{FinishReason, PolicyVersion, TokenLogprob};

use super::{
    templates::{CHATML, special, tokenizer},
    *,
};
use crate::data::Tokenizer;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(CHATML));

fn dialogue(limits: Limits) -> Dialogue {
    Dialogue::new(&TOKENIZER, &special(&TOKENIZER, &["<|im_end|>", "<|endoftext|>"]), limits).unwrap()
}

/// A turn as it is drawn, and the reply if it calls.
#[derive(Debug, Clone)]
struct Drawn {
    ids: Vec<u32>,
    finish: FinishReason,
    replies: Vec<String>,
}

const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;

fn drawn() -> impl Strategy<Value = Drawn> {
    let bytes = prop::collection::vec(0u32..256, 0..6);
    let body = prop::sample::select(vec![CALL, CALL, CALL, "text", "<tool_call>{", ""]);
    let end = prop::sample::select(vec!["<|im_end|>", "<|im_end|>", "<|endoftext|>", ""]);
    let finish = prop_oneof![9 => Just(FinishReason::Stop), 1 => Just(FinishReason::Length)];
    let reply =
        prop::sample::select(vec!["", "5", "<|im_end|>", "</tool_call><tool_call>", "é\n\n", "<|im_", "longer text"]);
    let replies = prop::collection::vec(reply.prop_map(str::to_owned), 1..3);
    (bytes, body, end, finish, replies).prop_map(|(bytes, body, end, finish, replies)| {
        let ids = |text: &str| TOKENIZER.encode(text, false).unwrap();
        Drawn { ids: [bytes, ids(body), ids(end)].concat(), finish, replies }
    })
}

fn replies(texts: &[String]) -> Vec<Reply> {
    let reply = |text: &String| Reply { name: "f".into(), content: text.as_str().into(), failed: false };
    texts.iter().map(reply).collect()
}

fn begin(dialogue: &Dialogue) -> Conversation {
    let prompt = [json!({"role": "user", "content": "What <|im_end|> is it?"})];
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let ids = dialogue.opening(&prompt, &tools).unwrap();
    dialogue.begin(prompt.to_vec(), &tools, ids.into())
}

/// Takes a turn, cut to its room.
fn take(conversation: &mut Conversation, dialogue: &Dialogue, turn: &Drawn) -> (Vec<u32>, After) {
    let room = conversation.room();
    let ids: Vec<u32> = turn.ids.iter().copied().take(room).collect();
    let finish = if turn.ids.len() > room { FinishReason::Length } else { turn.finish };
    let logprobs = vec![TokenLogprob::default(); ids.len()];
    let versions = [(0, PolicyVersion(3))];
    let versions = &versions[..usize::from(!ids.is_empty())];
    let after = conversation.turn_ended(dialogue, &ids, &logprobs, versions, finish).unwrap();
    (ids, after)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The tokens of a conversation are those that were sampled and given, in order. What is given depends on the
    /// replies alone, and on whether the turn had its end: nothing is rendered again.
    #[test]
    fn a_conversation_is_what_was_sampled_and_given(
        turns in prop::collection::vec(drawn(), 1..6),
        most in prop_oneof![Just(None), (0u32..4).prop_map(Some)],
        bound in prop_oneof![Just(10_000usize), 60usize..400],
        of_model in prop_oneof![Just(100_000usize), 200usize..700],
    ) {
        let limits =
            Limits { max_completion_length: bound, max_model_len: of_model, max_tool_calling_iterations: most };
        let (dialogue, wide) = (dialogue(limits), dialogue(WIDE));
        let mut conversation = begin(&dialogue);
        let prompt = conversation.prompt_ids().len();
        let (mut all, mut owners, mut ran, mut messages) = (Vec::<u32>::new(), Vec::new(), 0, 0);
        let mut end = None;
        for turn in &turns {
            let (ids, after) = take(&mut conversation, &dialogue, turn);
            all.extend(&ids);
            owners.extend(ids.iter().map(|_| true));
            messages += 1;
            match after {
                After::Over(over) => {
                    end = Some(over);
                    break;
                }
                After::Calls(calls, _) => prop_assert_eq!(calls.len(), 1),
            }
            prop_assert_eq!(turn.finish, FinishReason::Stop);
            ran += 1;
            let before = conversation.episode().clone();
            match conversation.replied(&dialogue, &replies(&turn.replies)).unwrap() {
                Onward::Sample { given, room } => {
                    // The same turn and replies, as the first ones of another conversation.
                    let mut other = begin(&wide);
                    let (_, after) = take(&mut other, &wide, turn);
                    prop_assert!(matches!(after, After::Calls(..)));
                    let fresh = other.replied(&wide, &replies(&turn.replies)).unwrap();
                    let Onward::Sample { given: fresh, .. } = fresh else { panic!("there is room") };
                    prop_assert_eq!(&fresh, &given);
                    all.extend(&given);
                    owners.extend(given.iter().map(|_| false));
                    messages += turn.replies.len();
                    prop_assert!(room > 0 && room == conversation.room());
                }
                Onward::Over(EpisodeEnd::ReplyTooLong) => {
                    prop_assert_eq!(conversation.episode(), &before, "the reply is taken back");
                    end = Some(EpisodeEnd::ReplyTooLong);
                    break;
                }
                Onward::Over(over) => {
                    prop_assert_eq!(over, EpisodeEnd::Length);
                    prop_assert!(conversation.episode().is_truncated());
                    let given = &conversation.episode().token_ids()[all.len()..];
                    owners.extend(given.iter().map(|_| false));
                    all.extend(given);
                    messages += turn.replies.len();
                    end = Some(over);
                    break;
                }
            }
        }
        prop_assert!(most.is_none_or(|most| ran <= most));
        prop_assert_eq!(conversation.iterations(), ran);
        let (episode, found, over) = conversation.into_parts();
        prop_assert_eq!(over, end.unwrap_or(EpisodeEnd::Aborted));
        prop_assert_eq!(episode.token_ids(), &all[..]);
        prop_assert!(all.len() <= bound && episode.is_sound());
        prop_assert!(all.is_empty() || prompt + all.len() <= of_model);
        prop_assert_eq!(episode.owner_mask().collect::<Vec<_>>(), owners.clone());
        prop_assert_eq!(episode.sampled(), owners.iter().filter(|owner| **owner).count());
        prop_assert_eq!(found.len(), messages);
        prop_assert_eq!(episode.is_truncated(), over == EpisodeEnd::Length);
    }
}

#[test]
fn only_what_is_due_is_taken() {
    let dialogue = dialogue(WIDE);
    let mut conversation = begin(&dialogue);
    let error = conversation.replied(&dialogue, &[]).unwrap_err().to_string();
    assert_eq!(error, "the conversation cannot take a reply now");
    let crooked = conversation.turn_ended(&dialogue, &[1], &[], &[], FinishReason::Stop).unwrap_err();
    assert_eq!(crooked.to_string(), "a turn of 1 tokens has 0 log-probs");
    let turn = Drawn { ids: special(&TOKENIZER, &["<|im_end|>"]), finish: FinishReason::Stop, replies: Vec::new() };
    assert_eq!(take(&mut conversation, &dialogue, &turn).1, After::Over(EpisodeEnd::Stop));
    let again = conversation.turn_ended(&dialogue, &[], &[], &[], FinishReason::Stop).unwrap_err();
    assert_eq!(again.to_string(), "the conversation cannot take a turn now");
    conversation.give_up(EpisodeEnd::Deadline);
    assert_eq!(conversation.into_parts().2, EpisodeEnd::Stop, "it was over before");
}

#[test]
fn a_conversation_that_is_given_up_keeps_its_tokens_and_says_why() {
    let dialogue = dialogue(WIDE);
    let ids = TOKENIZER.encode(&format!("{CALL}<|im_end|>"), false).unwrap();
    let turn = Drawn { ids, finish: FinishReason::Stop, replies: Vec::new() };
    for end in [EpisodeEnd::Deadline, EpisodeEnd::EnvironmentFailed] {
        let mut conversation = begin(&dialogue);
        assert!(matches!(take(&mut conversation, &dialogue, &turn).1, After::Calls(..)));
        conversation.give_up(end);
        let (episode, messages, over) = conversation.into_parts();
        assert_eq!((episode.token_ids(), messages.len(), over), (&turn.ids[..], 1, end));
    }
    assert_eq!(begin(&dialogue).into_parts().2, EpisodeEnd::Aborted);
}

#[test]
fn a_turn_with_a_call_that_cannot_be_read_is_text_although_another_can() {
    let dialogue = dialogue(WIDE);
    let mut conversation = begin(&dialogue);
    let ids = TOKENIZER.encode(&format!("{CALL}<tool_call>{{</tool_call><|im_end|>"), false).unwrap();
    let turn = Drawn { ids, finish: FinishReason::Stop, replies: Vec::new() };
    assert_eq!(take(&mut conversation, &dialogue, &turn).1, After::Over(EpisodeEnd::Stop));
    let (_, messages, _) = conversation.into_parts();
    assert!(messages[0]["tool_calls"].is_null(), "{messages:?}");
    assert!(messages[0]["content"].as_str().unwrap().contains(r#"{"name": "f""#), "{messages:?}");
}

/// A turn that is cut off within its bound does not call, though its call is whole.
#[test]
fn a_turn_that_did_not_end_by_itself_calls_nothing_and_its_message_has_the_call() {
    let dialogue = dialogue(WIDE);
    let mut conversation = begin(&dialogue);
    let ids = TOKENIZER.encode(CALL, false).unwrap();
    let turn = Drawn { ids, finish: FinishReason::Length, replies: Vec::new() };
    assert_eq!(take(&mut conversation, &dialogue, &turn).1, After::Over(EpisodeEnd::Length));
    let (_, messages, _) = conversation.into_parts();
    assert_eq!(messages[0]["tool_calls"][0]["function"]["name"], "f");
}
