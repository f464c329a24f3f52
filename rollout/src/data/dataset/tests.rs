//! Rows of every format, good and bad.

use std::{fs, path::Path};

use serde_json::json;
use shared::FinishReason;

use super::*;
use crate::data::testing::{BOS, bare_byte_tokenizer, byte_tokenizer};

const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}<|assistant|>{% endif %}{{ tools | default('', true) }}";

fn load_with(lines: &str, template: Option<&str>, options: &PromptOptions) -> Result<Vec<PromptRow>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, lines).unwrap();
    let dataset = Dataset::load(&[path], "train", &byte_tokenizer(template), options);
    dataset.map(|d| d.rows().to_vec()).map_err(|e| e.to_string().replace(&dir.path().display().to_string(), ""))
}

fn load(lines: &str, template: Option<&str>) -> Vec<PromptRow> {
    load_with(lines, template, &PromptOptions::default()).unwrap()
}

#[test]
fn text_and_messages_become_prompts_and_other_columns_are_kept() {
    let lines = "{\"prompt\": \"2+3=\", \"answer\": 5, \"level\": \"easy\"}\n\n  \n\
                 {\"prompt\": [{\"role\": \"user\", \"content\": \"2+3?\"}]}\r\n\
                 {\"prompt_ids\": [1, 2, 256]}";
    let rows = load(lines, Some(TEMPLATE));
    assert_eq!(rows.iter().map(|r| r.prompt_id.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((rows[0].prompt_text.as_str(), rows[0].prompt_ids[0], rows[0].prompt_ids.len()), ("2+3=", BOS, 5));
    assert_eq!(*rows[0].columns, *json!({"answer": 5, "level": "easy"}).as_object().unwrap());
    assert_eq!(rows[1].prompt_text, "<|user|>2+3?\n<|assistant|>");
    assert_eq!(rows[1].prompt_ids.len(), rows[1].prompt_text.len(), "a template brings its own special tokens");
    assert_eq!(*rows[2].prompt_ids, [1, 2, 256]);
    let without = json!({"answer": null, "level": null});
    assert_eq!(*rows[1].columns, *without.as_object().unwrap(), "every row has the columns that any row has");
}

#[test]
fn gsm8k_rows_give_the_question_and_the_final_answer() {
    let line = r#"{"question": "6*3?", "answer": "It is 18.\n#### 18"}"#;
    let plain = load(line, None).remove(0);
    assert_eq!(plain.prompt_text, "6*3?");
    let columns = json!({"question": "6*3?", "answer": "18", "solution": "It is 18.\n#### 18"});
    assert_eq!(*plain.columns, *columns.as_object().unwrap());
    assert_eq!(load(line, Some(TEMPLATE))[0].prompt_text, "<|user|>6*3?\n<|assistant|>");
}

#[test]
fn countdown_rows_give_tinyzeros_task() {
    let line = r#"{"target": 9, "nums": [1, 2, 3]}"#;
    let plain = load(line, None).remove(0);
    assert!(plain.prompt_text.starts_with("A conversation between User and Assistant. "));
    assert!(plain.prompt_text.contains("\nUser: Using the numbers [1, 2, 3], create an equation that equals 9. "));
    assert!(plain.prompt_text.ends_with("\nAssistant: Let me solve this step by step.\n<think>"));
    assert_eq!(plain.columns.len(), 2);
    let chat = load(line, Some(TEMPLATE)).remove(0);
    assert!(chat.prompt_text.starts_with("<|user|>Using the numbers [1, 2, 3]"));
    assert!(chat.prompt_text.ends_with("<|assistant|>Let me solve this step by step.\n<think>"));
    for row in [plain, chat] {
        let input = row.reward_input([RewardCompletion::of_one_turn("1</think>", vec![7], FinishReason::Stop)]);
        assert_eq!(input.completions[0].text, "Let me solve this step by step.\n<think>1</think>");
        assert!(!input.prompt.contains("Let me solve"));
        assert_eq!(format!("{}{}", input.prompt, row.prefill), row.prompt_text);
    }
}

#[test]
fn rewards_see_the_messages_that_a_row_has_itself() {
    let options = PromptOptions { system_prompt: Some("be brief".into()), ..PromptOptions::default() };
    let lines = r#"{"prompt": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "It is"}]}
{"prompt": "2+3="}
{"question": "6*3?", "answer": "18"}"#;
    let rows = load_with(lines, Some(TEMPLATE), &options).unwrap();
    let messages = |row: &PromptRow| row.reward_input([]).messages.map(|messages| messages.to_vec());
    assert_eq!(messages(&rows[0]), Some(vec![json!({"role": "user", "content": "2+3?"})]));
    assert_eq!((messages(&rows[1]), messages(&rows[2])), (None, None), "these were given as texts");
}

#[test]
fn only_as_many_rows_as_wanted_become_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}\n{\"prompt\": 7}").unwrap();
    let (paths, options) = ([path], PromptOptions::default());
    let first = |limit| Dataset::load_first(&paths, "train", &byte_tokenizer(None), &options, limit);
    assert_eq!(first(2).unwrap().len(), 2);
    assert!(first(3).unwrap_err().to_string().contains("line 4"));
}

#[test]
fn a_system_prompt_turns_text_into_a_chat() {
    let options = PromptOptions { system_prompt: Some("be brief".into()), ..PromptOptions::default() };
    let lines = "{\"prompt\": \"2+3=\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"2+3?\"}]}";
    let rows = load_with(lines, Some(TEMPLATE), &options).unwrap();
    assert_eq!(rows[0].prompt_text, "<|system|>be brief\n<|user|>2+3=\n<|assistant|>");
    assert_eq!(rows[1].prompt_text, "<|system|>be brief\n<|user|>2+3?\n<|assistant|>");
    let error = load_with(lines, None, &options).unwrap_err();
    assert!(error.contains("line 1: the model has no chat template"), "{error}");
    let error = load_with(r#"{"prompt_ids": [1]}"#, Some(TEMPLATE), &options).unwrap_err();
    assert!(error.contains("cannot take a system prompt"), "{error}");
}

#[test]
fn long_prompts_lose_their_beginning() {
    let options = PromptOptions { max_prompt_length: Some(3), ..PromptOptions::default() };
    let rows = load_with(r#"{"prompt": "abcdef"}"#, None, &options).unwrap();
    assert_eq!(*rows[0].prompt_ids, byte_tokenizer(None).encode("def", false).unwrap());
    assert_eq!(rows[0].prompt_text, "abcdef");
    assert!(rows[0].shortened);
}

#[test]
fn verls_rows_give_the_ground_truth_as_the_answer() {
    let row = |more: &str| {
        let line = format!(
            "{{\"data_source\": \"gsm8k\", \"prompt\": \
             [{{\"role\": \"user\", \"content\": \"2+3?\"}}], \"ability\": \"math\", \"reward_model\": \
             {{\"style\": \"rule\", \"ground_truth\": [\"5\"]}}, \"extra_info\": {{\"index\": 0}}{more}}}"
        );
        load(&line, Some(TEMPLATE)).remove(0)
    };
    let plain = row("");
    assert_eq!(plain.prompt_text, "<|user|>2+3?\n<|assistant|>");
    assert_eq!(plain.columns["answer"], "5");
    let others = ["data_source", "ability", "reward_model", "extra_info"];
    assert!(others.iter().all(|column| plain.columns.contains_key(*column)), "{:?}", plain.columns);
    assert_eq!(row(", \"answer\": \"six\"").columns["answer"], "six", "an answer of its own stays");
}

#[test]
fn prompt_and_answer_may_be_in_other_columns() {
    let columns = Columns { prompt: Some("task".into()), answer: Some("extra.final".into()), ..Columns::default() };
    let options = PromptOptions { columns, ..PromptOptions::default() };
    let rows = load_with(r#"{"task": "2+3=", "extra": {"final": 5}}"#, None, &options).unwrap();
    assert_eq!(rows[0].prompt_text, "2+3=");
    assert_eq!(*rows[0].columns, *json!({"task": "2+3=", "extra": {"final": 5}, "answer": 5}).as_object().unwrap());
    let error =
        load_with("{\"task\": \"a\", \"extra\": {\"final\": 1}}\n{\"task\": \"b\"}", None, &options).unwrap_err();
    assert!(
        error.starts_with("/rows.jsonl, line 2: has no column `extra.final` (`answer_column`), but `task`"),
        "{error}"
    );
}

/// Two files of prompts with 1, 2, 3 and 4 tokens each.
fn two_files(dir: &Path) -> Dataset {
    let lines = "{\"prompt_ids\": [1]}\n{\"prompt_ids\": [1, 1]}\n{\"prompt_ids\": [1, 1, \
        1]}\n{\"prompt_ids\": [1, 1, 1, 1]}\n";
    let paths = ["a.jsonl", "b.jsonl"].map(|name| dir.join(name));
    paths.iter().for_each(|path| fs::write(path, lines).unwrap());
    Dataset::load(&paths, "train", &byte_tokenizer(None), &PromptOptions::default()).unwrap()
}

#[test]
fn prompts_without_room_for_a_completion_are_counted_and_left_out_and_the_others_keep_their_ids() {
    let dir = tempfile::tempdir().unwrap();
    let mut dataset = two_files(dir.path());
    assert_eq!(dataset.sizes(), [4, 4]);
    let long = dataset.leave_out_long(3).unwrap();
    assert_eq!((long.rows, long.left_out, long.shortened, long.max_model_len), (8, 4, 0, 3));
    assert_eq!(long.left_out_ids, [2, 3, 6, 7]);
    assert_eq!(dataset.sizes(), [2, 2]);
    assert_eq!(dataset.rows().iter().map(|row| row.prompt_id.0).collect::<Vec<_>>(), [0, 1, 4, 5]);
    assert!(dataset.leave_out_long(3).unwrap().is_empty());
    let error = dataset.leave_out_long(1).unwrap_err().to_string();
    assert!(
        error.contains("a.jsonl: none of its 2 prompts leaves room") && error.contains("`max_model_len`"),
        "{error}"
    );
}

#[test]
fn control_tokens_of_messages_are_text_and_those_of_texts_are_tokens() {
    let messages = &load(r#"{"prompt": [{"role": "user", "content": "a<s>"}]}"#, Some(TEMPLATE))[0];
    assert_eq!(messages.prompt_text, "<|user|>a<s>\n<|assistant|>");
    assert_eq!(messages.prompt_ids.len(), messages.prompt_text.len(), "a byte each");
    let text = &load(r#"{"prompt": "a<s>"}"#, Some(TEMPLATE))[0];
    assert_eq!((text.prompt_ids.len(), text.prompt_ids.last()), (3, Some(&BOS)));
}

#[test]
fn tools_and_template_arguments_reach_the_template() {
    let line =
        r#"{"prompt": [{"role": "user", "content": "a"}], "tools": [7], "chat_template_kwargs": {"tools": "K"}}"#;
    assert_eq!(load(line, Some(TEMPLATE))[0].prompt_text, "<|user|>a\n<|assistant|>[7]");
}

/// The remarks on rows, and their prompts.
fn told(lines: &str, template: Option<&str>, options: &PromptOptions) -> (Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, lines).unwrap();
    let tokenizer = byte_tokenizer(template);
    let dataset = Dataset::load(&[path], "train", &tokenizer, options).unwrap();
    let remarks = dataset.remarks(&tokenizer, options);
    (remarks, dataset.rows().iter().map(|row| row.prompt_text.clone()).collect())
}

#[test]
fn what_rows_give_a_template_that_does_not_read_it_is_told() {
    let lines = r#"{"prompt": [{"role": "user", "content": "a"}], "tools": [{}], "chat_template_kwargs": {"loud": true}}
{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{}]}, {"role": "user", "content": "c"}]}
{"prompt": [{"role": "user", "content": "a"}], "tools": [], "chat_template_kwargs": {}}
{"prompt": "d", "tools": [{}], "chat_template_kwargs": "{\"loud\": true}"}"#;
    let plain = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let (remarks, _) = told(lines, Some(plain), &PromptOptions::default());
    let words = [
        "have `loud` in `chat_template_kwargs`, which changes nothing: the chat template does not read it",
        "have `tool_calls`, which changes nothing",
        "have `tools`, which changes nothing",
        "have `chat_template_kwargs` beside a text, which changes nothing: texts get no chat template",
        "have `tools` beside a text",
    ];
    assert_eq!(remarks.len(), words.len(), "{remarks:?}");
    for (remark, words) in remarks.iter().zip(words) {
        assert!(remark.starts_with("1 of 4 prompts of ") && remark.contains(words), "{remark}");
    }
    let reads = "{{ tools }}{{ loud }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}";
    let (remarks, _) = told(lines.rsplit_once('\n').unwrap().0, Some(reads), &PromptOptions::default());
    assert_eq!(remarks, Vec::<String>::new());
}

#[test]
fn words_that_the_template_passes_over_are_told_with_an_example() {
    let known = "{% for m in messages %}{% if m.role in ['user', 'system'] %}[{{ m.role }}] {{ m.content | trim \
        }}\n{% endif %}{% endfor %}>";
    let lines = r#"{"prompt": [{"role": "user", "content": " What is 1 + 1? "}]}
{"prompt": [{"role": "human", "content": "What is 1 + 2?"}]}
{"prompt": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
{"prompt": [{"role": "user", "content": [{"type": "text", "text": "What is 1 + 3?"}]}]}"#;
    let (remarks, prompts) = told(lines, Some(known), &PromptOptions::default());
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    for words in
        ["in 2 of 4 prompts of ", "line 2, it is the message of role `human`: \"What is 1 + 2?\"", "`chat_template`"]
    {
        assert!(remarks[0].contains(words), "{words}: {}", remarks[0]);
    }
    assert_eq!(prompts[3], "[user] What is 1 + 3?\n>");
    assert_eq!(told(r#"{"prompt": "plain"}"#, Some(known), &PromptOptions::default()).0, Vec::<String>::new());
    let image = r#"{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}"#;
    let error = load_with(image, Some(known), &PromptOptions::default()).unwrap_err();
    assert!(error.contains("line 1: message 0 has a part `image`"), "{error}");
}

#[test]
fn a_row_keeps_its_own_system_message() {
    let options = PromptOptions { system_prompt: Some("Be brief.".into()), ..PromptOptions::default() };
    let lines = r#"{"prompt": [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hi"}]}
{"prompt": [{"role": "user", "content": "Hi"}]}"#;
    let (remarks, prompts) = told(lines, Some(TEMPLATE), &options);
    assert_eq!(prompts[0], "<|system|>Answer in French.\n<|user|>Hi\n<|assistant|>");
    assert_eq!(prompts[1], "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>");
    assert!(remarks[0].starts_with("1 of 2 prompts") && remarks[0].contains("`system_prompt`"), "{remarks:?}");
    let gemma = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{{ \
        messages[0].content }}";
    let error = load_with(r#"{"prompt": "Hi"}"#, Some(gemma), &options).unwrap_err();
    assert!(
        error.contains("System role not supported (line 1 of the template); without `system_prompt` it can"),
        "{error}"
    );
    let own = r#"{"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "Hi"}]}"#;
    let error = load_with(own, Some(gemma), &options).unwrap_err();
    assert!(error.contains("line 1: ") && !error.contains("`system_prompt`"), "{error}");
}

#[test]
fn prompts_that_begin_twice_are_told() {
    let (remarks, _) =
        told("{\"prompt\": \"<s>[INST] a [/INST]\"}\n{\"prompt\": \"b\"}", None, &PromptOptions::default());
    assert!(remarks[0].starts_with("1 of 2 prompts") && remarks[0].contains("have it twice"), "{remarks:?}");
    // This tokenizer puts nothing before texts: the text itself has the token twice.
    let (tokenizer, options) = (bare_byte_tokenizer(), PromptOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prompts.jsonl");
    fs::write(&path, "{\"prompt\": \"<s><s>a\"}").unwrap();
    let dataset = Dataset::load(&[path], "train", &tokenizer, &options).unwrap();
    assert_eq!(dataset.rows()[0].prompt_ids[..2], [BOS; 2]);
    assert_eq!(dataset.remarks(&tokenizer, &options), Vec::<String>::new());
}

/// Errors of 400 rows whose template may take `most` steps, and the steps that it has taken.
fn refused(template: &str, most: u64) -> (String, u64) {
    let tokenizer = byte_tokenizer(Some(template));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}]}\n".repeat(400)).unwrap();
    let table = shared_data::read(&path, "train").unwrap();
    let mut dataset = Dataset { sources: Vec::new(), rows: Vec::new(), odd: OddPrompts::default() };
    let error = dataset.add(&path, table, &tokenizer, &PromptOptions::default(), most).unwrap_err();
    (error.to_string(), steps(&tokenizer))
}

#[test]
fn a_template_without_end_ends_the_start_at_once() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let (error, taken) = refused(endless, most_steps(400));
    assert!(
        error.contains("line 1: ") && error.contains("for one prompt") && error.contains("`chat_template`"),
        "{error}"
    );
    // Rows behind it are not rendered, a few that were begun already left aside.
    assert!(taken < 20 * shared_chat::FUEL, "{taken}");
}

#[test]
fn a_template_that_is_slow_for_every_row_ends_the_start_before_the_last() {
    let heavy = "{% for a in range(150) %}{% for b in range(200) %}{% endfor %}{% endfor %}a";
    let (error, taken) = refused(heavy, 1_000_000);
    assert!(error.contains("more than 1000000 steps for 400 rows together"), "{error}");
    assert!(error.contains("`chat_template`") && taken < 20_000_000, "{taken} steps: {error}");
    assert_eq!(most_steps(8000), 500_000_000, "some seconds' worth");
}

#[test]
fn variables_for_the_template_that_change_nothing_are_told() {
    let switch = "{% if enable_thinking %}t{% endif %}{{ messages[0].content }}";
    let with = |template: Option<&str>, kwargs: &str| {
        let kwargs = kwargs.parse().unwrap();
        byte_tokenizer(template).with_template_kwargs(Some(&kwargs))
    };
    let of = |kwargs: &str, more: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        fs::write(&path, format!("{{\"prompt\": [{{\"role\": \"user\", \"content\": \"a\"}}]{more}}}")).unwrap();
        let dataset = Dataset::load(&[path], "train", &with(Some(switch), kwargs), &PromptOptions::default()).unwrap();
        dataset.rows()[0].prompt_text.clone()
    };
    assert_eq!(of(r#"{"enable_thinking": true}"#, ""), "ta");
    assert_eq!(of(r#"{"enable_thinking": false}"#, ""), "a");
    assert_eq!(of(r#"{"enable_thinking": false}"#, r#", "chat_template_kwargs": {"enable_thinking": true}"#), "ta");
    assert!(with(Some(switch), r#"{"enable_thinking": 1}"#).remarks().iter().all(|remark| !remark.contains("kwargs")));
    let last = |tokenizer: &Tokenizer| tokenizer.remarks().last().cloned().unwrap_or_default();
    let remark = last(&with(Some(switch), r#"{"thinking": false}"#));
    assert!(remark.contains("thinking changes nothing: the chat template reads enable_thinking"), "{remark}");
    assert!(last(&with(None, r#"{"a": 1}"#)).contains("the model has no chat template"));
}

#[test]
fn bad_rows_are_named_by_file_line_and_reason() {
    let good = "{\"prompt\": \"a\"}\n\n";
    for (line, reason) in [
        ("{\"prompt\": \"a\"", "is not valid JSON: EOF while parsing an object (column 14)"),
        ("[1]", "is no JSON object"),
        ("{\"text\": \"a\"}", "has neither `prompt`"),
        ("{\"prompt\": 5}", "`prompt` is neither a text nor a list of messages"),
        ("{\"prompt\": []}", "`prompt` is an empty list of messages"),
        ("{\"prompt\": [{\"content\": \"a\"}]}", "message 0 of `prompt` is no object with a `role`"),
        ("{\"prompt_ids\": [1, -2]}", "`prompt_ids` is no list of token ids"),
        ("{\"prompt_ids\": []}", "the prompt has no tokens"),
        ("{\"prompt_ids\": [1, 512]}", "token 512 of the prompt is not in the model's vocabulary of 512 tokens"),
        ("{\"question\": 5, \"answer\": \"a\"}", "`question` is no text"),
        ("{\"nums\": [1, \"2\"], \"target\": 3}", "`nums` is no list of whole numbers"),
        ("{\"nums\": [1], \"target\": \"3\"}", "`target` is no whole number"),
        ("{\"prompt\": \"\u{1}\"}", "is not valid JSON: control character"),
    ] {
        let error = load_with(&format!("{good}{line}\n{good}"), None, &PromptOptions::default()).unwrap_err();
        assert!(error.starts_with(&format!("/rows.jsonl, line 3: {reason}")), "{error}");
    }
}

#[test]
fn a_dataset_has_rows() {
    let error = load_with("\n\n", None, &PromptOptions::default()).unwrap_err();
    assert!(error.contains("holds no rows"), "{error}");
    let missing = Dataset::load(&["/no/such.jsonl".into()], "train", &byte_tokenizer(None), &PromptOptions::default());
    assert!(missing.unwrap_err().to_string().starts_with("/no/such.jsonl: cannot be read"));
}

/// GSM8K's files go through Qwen's tokenizer whole.
#[test]
fn gsm8k_is_read_whole() {
    let Some(data) = harness::data_dir("gsm8k_is_read_whole") else { return };
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(data.join("tokenizers/qwen2.5").join(file), dir.path().join(file)).unwrap();
    }
    fs::copy(data.join("configs/qwen2.5-0.5b.config.json"), dir.path().join("config.json")).unwrap();
    let tokenizer = Tokenizer::open(&shared::ModelDir::open(dir.path()).unwrap()).unwrap();
    let path = data.join("gsm8k/test.jsonl");
    let dataset = Dataset::load(&[path], "train", &tokenizer, &PromptOptions::default()).unwrap();
    assert_eq!(dataset.len(), 1319);
    let first = &dataset.rows()[0];
    assert_eq!(first.columns["answer"], "18");
    assert!(first.prompt_text.ends_with("<|im_end|>\n<|im_start|>assistant\n"));
    for row in dataset.rows() {
        assert!(row.columns["answer"].as_str().is_some_and(|a| rollout_rewards::rules::number::number(a).is_some()));
        let solution = row.columns["solution"].as_str().unwrap();
        let answer = row.columns["answer"].as_str().unwrap();
        assert_eq!(rollout_rewards::rules::gsm8k::score(solution, answer), 1.0);
    }
}

/// Messages as JSON in a text, in ShareGPT's keys, and with keys that hold nothing, as Parquet has them in every row.
#[test]
fn messages_are_messages_however_they_are_written() {
    let lines = r#"{"prompt": [{"role": "user", "content": "2+3?", "tool_calls": null, "name": null}]}
{"prompt": "[{\"role\": \"user\", \"content\": \"2+3?\"}]"}
{"prompt": [{"from": "human", "value": "2+3?"}], "tools": "[7]"}"#;
    let template = TEMPLATE
        .replace("{{ m.content }}", "{% if 'tool_calls' in m %}{{ m.tool_calls | length }}{% endif %}{{ m.content }}");
    let rows = load(lines, Some(&template));
    let expected = "<|user|>2+3?\n<|assistant|>";
    assert_eq!(
        rows.iter().map(|row| row.prompt_text.as_str()).collect::<Vec<_>>(),
        [expected, expected, "<|user|>2+3?\n<|assistant|>[7]"]
    );
    // Rewards see the row's own messages, those of ShareGPT's with the keys that they look for.
    let messages = |row: &PromptRow| row.reward_input([]).messages.unwrap().to_vec();
    assert_eq!(messages(&rows[0])[0]["tool_calls"], json!(null));
    assert_eq!(messages(&rows[2]), [json!({"role": "user", "content": "2+3?"})]);
}

#[test]
fn prompts_of_the_evaluation_that_are_trained_on_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = |name: &str, lines: &str| {
        let path = dir.path().join(name);
        fs::write(&path, lines).unwrap();
        Dataset::load(&[path], "train", &byte_tokenizer(Some(TEMPLATE)), &PromptOptions::default()).unwrap()
    };
    let trained =
        dataset("train.jsonl", "{\"prompt\": \"2+3=\", \"answer\": 5}\n{\"question\": \"6*3?\", \"answer\": \"18\"}\n");
    let other = dataset("other.jsonl", "{\"prompt\": \"2+4=\"}\n{\"prompt\": \"2+3\"}\n");
    assert_eq!(other.overlap(&trained), None);
    let same = dataset("same.csv", "prompt,level\n2+4=,1\n2+3=,2\n2+3=,3\n");
    let said = same.overlap(&trained).unwrap();
    assert!(
        said.contains(
            "same.csv: 2 of 3 prompts of the evaluation are among those of the training, for instance \"2+3=\";"
        ),
        "{said}"
    );
    let asked = dataset("asked.jsonl", r#"{"prompt": [{"role": "user", "content": "6*3?"}]}"#);
    assert!(asked.overlap(&trained).unwrap().contains("1 of 1 prompts"), "what the model sees is compared");
    let system = r#"{"prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": " 6*3?\n"}]}"#;
    let spaced = dataset("spaced.jsonl", &format!("{system}\n{{\"prompt\": \" 2+3= \"}}\n{{\"prompt\": \"2 +3=\"}}"));
    let said = spaced.overlap(&trained).unwrap();
    assert!(said.contains("2 of 3 prompts"), "system prompt and blanks at the ends make no other question: {said}");
    let talk = |first: &str| {
        format!(
            r#"{{"prompt": [{{"role": "user", "content": "{first}"}}, {{"role": "assistant", "content": "?"}}, {{"role": "user", "content": "go on"}}]}}"#
        )
    };
    let (one, two) = (dataset("one.jsonl", &talk("a")), dataset("two.jsonl", &talk("b")));
    assert_eq!(one.overlap(&two), None, "the last words of a conversation are no question of their own");
}
