//! Golden conversations and suffixes, with the tokenizer that made them.

use std::collections::HashMap;

use serde_json::{Value, json};
use shared::{Episode, FinishReason, ModelDir, PolicyVersion, TokenLogprob, config::JsonTable};

use super::*;
use crate::data::Tokenizer;

/// Qwen2.5's tokenizer under the templates of the cases.
struct Tokenizers {
    data: std::path::PathBuf,
    opened: HashMap<String, Tokenizer>,
}

impl Tokenizers {
    fn new(test: &str) -> Option<Self> {
        Some(Self { data: harness::data_dir(test)?, opened: HashMap::new() })
    }

    fn open(&mut self, params: &Value) -> Tokenizer {
        let name = params["template"].as_str().unwrap();
        let file = match name {
            "qwen2.5" => "chat_template.jinja",
            "qwen3" => "qwen3.chat_template.jinja",
            other => panic!("{other}"),
        };
        let data = &self.data;
        let open = || {
            let (dir, source) = (tempfile::tempdir().unwrap(), data.join("tokenizers/qwen2.5"));
            let copy = |from: std::path::PathBuf, to: &str| _ = std::fs::copy(from, dir.path().join(to)).unwrap();
            ["tokenizer.json", "tokenizer_config.json"].into_iter().for_each(|name| copy(source.join(name), name));
            copy(source.join(file), "chat_template.jinja");
            copy(data.join("configs/qwen2.5-0.5b.config.json"), "config.json");
            Tokenizer::open(&ModelDir::open(dir.path()).unwrap()).unwrap()
        };
        let tokenizer = self.opened.entry(name.to_owned()).or_insert_with(open).clone();
        let kwargs = params["chat_template_kwargs"].as_object().cloned().unwrap_or_default();
        tokenizer.with_template_kwargs(Some(&JsonTable::from(kwargs)))
    }
}

/// The stop tokens of Qwen2.5's generation_config.json.
fn stop_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    ["<|im_end|>", "<|endoftext|>"].map(|text| tokenizer.encode(text, false).unwrap()).concat()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn limits(params: &Value) -> Limits {
    let number = |key: &str| params[key].as_u64().unwrap() as usize;
    Limits {
        max_completion_length: number("max_completion_length"),
        max_model_len: number("max_model_len"),
        max_tool_calling_iterations: params["max_tool_calling_iterations"].as_u64().map(|most| most as u32),
    }
}

#[test]
fn golden_turn_suffixes() {
    let Some(mut tokenizers) = Tokenizers::new("golden_turn_suffixes") else { return };
    let cases = harness::golden::cases(
        "turn_suffixes.json",
        "turn_suffixes",
        &["template"],
        &["replies"],
        &["ids", "ids_safe?", "text"],
    );
    for case in cases {
        let tokenizer = tokenizers.open(&case["params"]);
        let dialogue = Dialogue::new(&tokenizer, &stop_tokens(&tokenizer), WIDE).unwrap();
        let suffix = dialogue.suffix(list(&case["inputs"]["replies"])).unwrap();
        let expected = &case["expected"];
        assert_eq!(suffix.text, expected["text"].as_str().unwrap(), "{}", case["name"]);
        let wanted = expected.get("ids_safe").unwrap_or(&expected["ids"]);
        assert_eq!(suffix.ids, ids(wanted), "{}", case["name"]);
        assert_eq!(suffix.closing, tokenizer.encode("<|im_end|>", false).unwrap(), "{}", case["name"]);
        assert_eq!(tokenizer.encode(&suffix.text, false).unwrap(), ids(&expected["ids"]), "{}", case["name"]);
    }
}

/// The wanted value of a figure: the house's own where it differs from TRL.
fn wanted<'a>(episode: &'a Value, key: &str) -> &'a Value {
    let own = ["safe", "wanted"].into_iter().find_map(|own| episode.get(own)?.get(key));
    own.unwrap_or(&episode[key])
}

/// The replies that the environment gives to the turns.
fn replies(turn: &Value, episode: &Value) -> Vec<Reply> {
    let replies = if turn["replies"].is_null() { &turn["replies"] } else { wanted_replies(episode, turn) };
    let reply = |reply: &Value| Reply {
        name: reply["name"].as_str().unwrap().to_owned(),
        content: reply["content"].clone(),
        failed: false,
    };
    list(replies).iter().map(reply).collect()
}

fn wanted_replies<'a>(episode: &'a Value, turn: &'a Value) -> &'a Value {
    episode.get("wanted").and_then(|wanted| wanted.get("replies")).unwrap_or(&turn["replies"])
}

/// Runs the turns of a script through a conversation. Returns the ids that were given before each turn, and the parts.
fn converse(
    dialogue: &Dialogue,
    mut conversation: Conversation,
    script: &Value,
    episode: &Value,
) -> (Vec<Vec<u32>>, (Episode, Vec<Value>, EpisodeEnd)) {
    let turns = list(&script["sampled"]);
    let mut given = vec![Vec::new()];
    for (number, (turn, expected)) in turns.iter().zip(list(&episode["turns"])).enumerate() {
        let mut drawn = ids(&turn["ids"]);
        // The script knows the bound of completions alone: one case has a prompt beyond the model's length.
        let used = conversation.episode().token_ids().len();
        let room = dialogue.limits.max_completion_length - used;
        let is_cut = drawn.len() > room;
        drawn.truncate(room);
        let ended = drawn.last().is_some_and(|id| dialogue.stop_tokens.contains(id));
        // A turn without an end of its own ended by a stop string, if others follow and there was room.
        let goes_on = !is_cut && drawn.len() < room && number + 1 < turns.len();
        let finish = if ended || goes_on { FinishReason::Stop } else { FinishReason::Length };
        let logprob = |value: &Value| {
            let logprob = value.as_f64().unwrap() as f32;
            TokenLogprob { logprob, logprob_at_temperature: logprob, ..TokenLogprob::default() }
        };
        let logprobs: Vec<TokenLogprob> = list(&turn["logprobs"]).iter().take(drawn.len()).map(logprob).collect();
        assert_eq!(drawn, ids(&expected["sampled"]), "turn {number}");
        let versions = [(0, PolicyVersion(number as u64))];
        let versions = &versions[..usize::from(!drawn.is_empty())];
        let after = conversation.turn_ended(dialogue, &drawn, &logprobs, versions, finish).unwrap();
        let After::Calls(calls, text) = after else { break };
        let called = list(&expected["message"]["tool_calls"]);
        assert_eq!(text, expected["message"]["content"].as_str().unwrap());
        assert_eq!(calls.len(), called.len(), "turn {number}");
        for (call, called) in calls.iter().zip(called) {
            assert_eq!(call.name, called["function"]["name"].as_str().unwrap());
            assert_eq!(call.arguments, called["function"]["arguments"]);
        }
        assert!(!expected["replies"].is_null(), "turn {number} calls, and no tool ran");
        match conversation.replied(dialogue, &replies(expected, episode)).unwrap() {
            Onward::Sample { given: ids, room } => {
                assert_eq!(room, conversation.room());
                given.push(ids);
            }
            Onward::Over(_) => break,
        }
    }
    (given, conversation.into_parts())
}

/// Log-probs of the sampled tokens, those of TRL's given tokens left out.
fn sampled_logprobs(episode: &Value) -> Vec<f32> {
    let owned = list(&episode["owner"]).iter().zip(list(&episode["logprobs"]));
    owned.filter(|(owner, _)| **owner == 1).map(|(_, logprob)| logprob.as_f64().unwrap() as f32).collect()
}

/// Runs of equal owners.
fn runs(owner: &[u64]) -> Vec<Value> {
    let word = |owner: u64| if owner == 1 { "sampled" } else { "given" };
    owner.chunk_by(|a, b| a == b).map(|run| json!([word(run[0]), run.len()])).collect()
}

/// The messages, with replies in the order of the calls.
fn wanted_messages(episode: &Value) -> Vec<Value> {
    let mut own = episode.get("wanted").map_or(&[][..], |wanted| list(&wanted["replies"])).iter();
    let message = |message: &Value| match message["role"].as_str() {
        Some("tool") => own.next().unwrap_or(message).clone(),
        _ => message.clone(),
    };
    list(&episode["messages"]).iter().map(message).collect()
}

fn check(name: &str, mask_truncated: bool, parts: &(Episode, Vec<Value>, EpisodeEnd), episode: &Value) -> usize {
    let (found, messages, end) = parts;
    assert!(found.is_sound(), "{name}");
    assert_eq!(found.token_ids(), ids(wanted(episode, "completion_ids")), "{name}");
    let owner: Vec<u64> = found.owner_mask().map(u64::from).collect();
    assert_eq!(owner, serde_json::from_value::<Vec<u64>>(wanted(episode, "owner").clone()).unwrap(), "{name}");
    if owner.len() == list(&episode["owner"]).len() {
        assert_eq!(runs(&owner), list(&episode["segments"]), "{name}");
        assert_eq!(found.sampled(), episode["sampled_tokens"].as_u64().unwrap() as usize, "{name}");
        assert_eq!(found.given(), episode["given_tokens"].as_u64().unwrap() as usize, "{name}");
    }
    let logprobs: Vec<f32> = found.logprobs().map(TokenLogprob::sampling_logprob).collect();
    assert_eq!(logprobs, sampled_logprobs(episode), "{name}");
    assert_eq!(*messages, wanted_messages(episode), "{name}");
    assert_eq!(end.to_string(), wanted(episode, "end_reason").as_str().unwrap(), "{name}");
    assert_eq!(found.is_truncated(), episode["truncated"].as_bool().unwrap(), "{name}");
    let is_masked = mask_truncated && found.is_truncated();
    let positions: Vec<usize> = if is_masked { Vec::new() } else { found.sampled_spans().flatten().collect() };
    if owner.len() == list(&episode["owner"]).len() {
        assert_eq!(json!(positions), episode["loss_positions"], "{name}");
    }
    positions.len()
}

#[test]
fn golden_turns() {
    let Some(mut tokenizers) = Tokenizers::new("golden_turns") else { return };
    let params = [
        "template",
        "max_completion_length",
        "max_tool_calling_iterations",
        "max_model_len",
        "mask_truncated_completions",
        "chat_template_kwargs",
        "trl_template",
    ];
    let inputs = ["tools", "tool_functions", "episodes", "environment?", "environment_tools?"];
    let expected = [
        "episodes",
        "metrics",
        "num_items_in_batch",
        "rewards",
        "reward_function_arguments",
        "environments?",
        "wanted_metrics?",
    ];
    for case in harness::golden::cases("turns.json", "turns", &params, &inputs, &expected) {
        let (name, params, inputs) = (case["name"].as_str().unwrap(), &case["params"], &case["inputs"]);
        let tokenizer = tokenizers.open(params);
        let dialogue = Dialogue::new(&tokenizer, &stop_tokens(&tokenizer), limits(params)).unwrap();
        let mask_truncated = params["mask_truncated_completions"].as_bool().unwrap();
        let mut items = 0;
        let episodes = list(&case["expected"]["episodes"]);
        assert_eq!(episodes.len(), list(&inputs["episodes"]).len());
        for (script, episode) in list(&inputs["episodes"]).iter().zip(episodes) {
            let environment = script["row"]["environment"].as_str().unwrap_or("None");
            let own = inputs.get("environment_tools").map_or(&inputs["tools"], |tools| &tools[environment]);
            let tools = list(own);
            let prompt = list(&episode["prompt_messages"]);
            let opening = dialogue.opening(prompt, tools).unwrap();
            let safe = episode.get("prompt_ids_safe").unwrap_or(wanted(episode, "prompt_ids"));
            assert_eq!(opening, ids(safe), "{name}: the prompt");
            let conversation = dialogue.begin(prompt.to_vec(), tools, opening.into());
            let (given, parts) = converse(&dialogue, conversation, script, episode);
            items += check(name, mask_truncated, &parts, episode);
            let turns = list(&episode["turns"]);
            for (given, turn) in given.iter().skip(1).zip(turns) {
                let safe = turn.get("reply_ids_safe").unwrap_or(&turn["reply_ids"]);
                if episode.get("wanted").is_none() {
                    assert_eq!(*given, ids(safe), "{name}");
                }
            }
        }
        if episodes.iter().all(|episode| episode.get("wanted").is_none()) {
            assert_eq!(items as u64, case["expected"]["num_items_in_batch"].as_u64().unwrap(), "{name}");
        }
    }
}
