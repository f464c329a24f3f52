//! Suffixes of small templates in the manner of each family, and templates that cannot hold a conversation.

use serde_json::{Value, json};

use super::*;
use crate::data::{Tokenizer, testing::byte_tokenizer_with};

/// Special tokens of all families.
const SPECIAL: [&str; 20] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|call|>",
    "<|return|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|turn>",
    "<turn|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<tool_call>",
    "</tool_call>",
];

/// ChatML with calls in JSON, as Qwen2.5 has it.
pub const CHATML: &str = "{% if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor \
    %}{{ '<tool_call></tool_call><|im_end|>\\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' \
    + m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ '<tool_call>' }}{{ c.function | tojson }}{{ \
    '</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ \
    '<|im_start|>assistant\\n' }}{% endif %}";

const TOOLS: &str = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}";

pub fn tokenizer(template: &str) -> Tokenizer {
    byte_tokenizer_with(Some(template), &SPECIAL)
}

/// Ids of special tokens.
pub fn special(tokenizer: &Tokenizer, texts: &[&str]) -> Vec<u32> {
    texts.iter().flat_map(|text| tokenizer.encode(text, false).unwrap()).collect()
}

fn dialogue(template: &str, stop: &[&str]) -> Result<Dialogue, DialogueError> {
    let tokenizer = tokenizer(template);
    Dialogue::new(&tokenizer, &special(&tokenizer, stop), WIDE)
}

fn tool(content: &str) -> Value {
    json!({"role": "tool", "name": "f", "content": content})
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

/// The end of the turn and the suffix, as texts.
fn suffix(dialogue: &Dialogue, replies: &[Value]) -> (String, String) {
    let suffix = dialogue.suffix(replies).unwrap();
    let text = dialogue.script.decode_all(&suffix.ids).unwrap();
    assert_eq!(text, suffix.text);
    (dialogue.script.decode_all(&suffix.closing).unwrap(), text)
}

#[test]
fn a_suffix_goes_from_the_end_of_a_turn_to_the_opening_of_the_next() {
    let dialogue = dialogue(CHATML, &["<|im_end|>", "<|endoftext|>"]).unwrap();
    let expected = "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>tool\n<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(suffix(&dialogue, &[tool("5"), tool("")]), ("<|im_end|>".into(), expected.into()));
    let expected = "\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(suffix(&dialogue, &[user("<|im_end|>")]).1, expected, "an end of turn in a reply ends nothing");
    let of_control = dialogue.suffix(&[tool("<|im_end|>")]).unwrap();
    let of_letters = dialogue.suffix(&[tool("0123456789")]).unwrap();
    assert_eq!(of_control.ids.len(), of_letters.ids.len(), "a byte each");
}

#[test]
fn messages_have_the_same_ids_in_a_conversation_and_alone() {
    let dialogue = dialogue(CHATML, &["<|im_end|>", "<|endoftext|>"]).unwrap();
    let tokenizer = tokenizer(CHATML);
    let messages = [user("a<|im_end|>"), json!({"role": "assistant", "content": "<|im_start|>"}), user("b")];
    let alone = tokenizer.prompt(&messages, &serde_json::Map::new()).unwrap();
    let ids = tokenizer.prompt_ids(&alone).unwrap();
    assert_eq!(dialogue.opening(&messages, &[]).unwrap(), ids);
    let [end] = special(&tokenizer, &["<|im_end|>"])[..] else { panic!("a token of its own") };
    assert_eq!(ids.iter().filter(|id| **id == end).count(), messages.len(), "those of the template alone");
}

/// GLM ends a turn with the first token of the message behind it.
#[test]
fn a_reply_does_not_begin_with_the_token_that_ended_the_turn() {
    let glm = format!(
        "{TOOLS}{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ '<|user|>\\n' + m.content }}}}{{% elif m.role \
         == 'tool' %}}{{{{ '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}}}{{% else \
         %}}{{{{ '<|assistant|>\\n' + m.content }}}}{{% for c in m.tool_calls or [] %}}{{{{ '<tool_call>' + \
         c.function.name }}}}{{% for k, v in c.function.arguments.items() %}}{{{{ '<arg_key>' + k + \
         '</arg_key><arg_value>' + v + '</arg_value>' }}}}{{% endfor %}}{{{{ '</tool_call>' }}}}{{% endfor %}}{{% \
         endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|assistant|>\\n' }}}}{{% endif %}}"
    );
    let dialogue = dialogue(&glm, &["<|endoftext|>", "<|user|>", "<|observation|>"]).unwrap();
    let expected = "\n<tool_response>\n5\n</tool_response><|assistant|>\n";
    assert_eq!(suffix(&dialogue, &[tool("5")]), ("<|observation|>".into(), expected.into()));
    assert_eq!(suffix(&dialogue, &[user("Go.")]), ("<|user|>".into(), "\nGo.<|assistant|>\n".into()));
}

/// gpt-oss writes `<|end|>` in a history where `<|return|>` was drawn.
#[test]
fn the_end_of_a_turn_may_be_another_token_in_a_history() {
    let gpt_oss = format!(
        "{TOOLS}{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ '<|start|>user<|message|>' + m.content + \
         '<|end|>' }}}}{{% elif m.role == 'tool' %}}{{{{ '<|start|>functions.' + m.name + ' \
         to=assistant<|channel|>commentary<|message|>' }}}}{{{{ m.content | tojson }}}}{{{{ '<|end|>' }}}}{{% else \
         %}}{{% if m.thinking %}}{{{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' \
         }}}}{{% endif %}}{{% if m.tool_calls %}}{{% set c = m.tool_calls[0].function %}}{{{{ '<|start|>assistant \
         to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}}}{{{{ c.arguments | tojson }}}}{{{{ \
         '<|call|>' }}}}{{% else %}}{{{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' \
         }}}}{{% endif %}}{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '<|start|>assistant' }}}}{{% \
         endif %}}"
    );
    let dialogue = dialogue(&gpt_oss, &["<|return|>", "<|call|>"]).unwrap();
    let expected =
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"5\"<|end|><|start|>assistant".to_owned();
    assert_eq!(suffix(&dialogue, &[tool("5")]), ("<|call|>".into(), expected));
    let expected = "<|start|>user<|message|>Go.<|end|><|start|>assistant".to_owned();
    assert_eq!(suffix(&dialogue, &[user("Go.")]), ("<|end|>".into(), expected));
}

/// Gemma 4 goes on in the same turn after a reply, and writes its text behind the reply.
#[test]
fn a_turn_may_go_on_behind_the_reply() {
    let gemma = format!(
        "{TOOLS}{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ '<|turn>user\\n' + m.content + '<turn|>\\n' \
         }}}}{{% elif m.role == 'tool' %}}{{{{ '<|tool_response>response:' + m.name + '{{value:' + m.content + \
         '}}<tool_response|>' }}}}{{% else %}}{{% if loop.index == 1 or messages[loop.index - 2].role != 'tool' \
         %}}{{{{ '<|turn>model\\n' }}}}{{% endif %}}{{% for c in m.tool_calls or [] %}}{{{{ '<|tool_call>call:' + \
         c.function.name + '{{' }}}}{{% for k, v in c.function.arguments.items() %}}{{{{ k + ':' + v }}}}{{% endfor \
         %}}{{{{ '}}<tool_call|>' }}}}{{% endfor %}}{{% if not m.tool_calls %}}{{{{ m.content + '<turn|>\\n' }}}}{{% \
         endif %}}{{% endif %}}{{% endfor %}}{{% if add_generation_prompt and messages[-1].role != 'tool' %}}{{{{ \
         '<|turn>model\\n' }}}}{{% endif %}}"
    );
    let dialogue = dialogue(&gemma, &["<turn|>", "<|tool_response>"]).unwrap();
    let expected = "response:f{value:5}<tool_response|>".to_owned();
    assert_eq!(suffix(&dialogue, &[tool("5")]), ("<|tool_response>".into(), expected));
}

fn refused(template: &str, stop: &[&str]) -> String {
    dialogue(template, stop).err().expect("it is refused").to_string()
}

#[test]
fn a_template_that_cannot_hold_a_conversation_with_tools_is_refused() {
    let stop = ["<|im_end|>"];
    let without_replies = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}");
    assert!(refused(&without_replies, &stop).contains("writes no messages of the role `tool`"));
    let without_tools = CHATML.replace("{% for t in tools %}{{ t | tojson }}{% endfor %}", "");
    assert!(refused(&without_tools, &stop).contains("writes no tools"));
    let of_texts = CHATML.replace("{{ c.function | tojson }}", "{{ c.function.name + c.function.arguments }}");
    assert!(refused(&of_texts, &stop).contains("takes no arguments that are objects"));
    let unknown = CHATML.replace("tool_call>", "invoke>");
    assert!(refused(&unknown, &stop).contains("in no format that is known here (Qwen2.5 and Qwen3, "));
    let endless = CHATML.replace("<|im_end|>", "<|turn>");
    let error = refused(&endless, &["<|endoftext|>"]);
    assert!(error.contains("no end of turn between a call and its reply: \"<|im_start|>system"), "{error}");
}

/// Templates that show the number of a message, or answer a turn with thoughts in another way.
#[test]
fn a_template_that_writes_a_reply_in_two_ways_is_refused_and_both_are_shown() {
    let counting = CHATML.replace("+ m.role", "+ (loop.index | string) + m.role");
    let error = refused(&counting, &["<|im_end|>"]);
    assert!(error.contains(r#""\n<|im_start|>3tool\n…<|im_end|>"#), "{error}");
    assert!(error.contains(r#"and, after three turns, "\n<|im_start|>7tool\n…<|im_end|>"#), "{error}");
    let of_thoughts = CHATML.replace(
        "{{ '<|im_start|>assistant\\n' }}",
        "{{ '<|im_start|>assistant\\n' }}{% if messages | length > 1 and messages[1].reasoning_content %}\
         {{ '<think>' }}{% endif %}",
    );
    let error = refused(&of_thoughts, &["<|im_end|>"]);
    assert!(error.contains("and, after a turn with thoughts, ") && error.contains("assistant\\n<think>\""), "{error}");
}
