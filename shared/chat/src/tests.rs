//! Chat templates, compared with what transformers renders.

use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, text)| (name.to_owned(), text.into())).into_iter().collect();
    ChatTemplate::new(source, tokens, OffsetDateTime::UNIX_EPOCH).unwrap()
}

fn messages(pairs: &[(&str, &str)]) -> Vec<Value> {
    pairs.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn prompt(source: &str, pairs: &[(&str, &str)]) -> Result<String, TemplateError> {
    template(source).render_prompt(&messages(pairs), &Map::new())
}

/// ChatML, which keeps the spaces of messages.
const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|assistant|>{% endif %}";

#[test]
fn blocks_are_trimmed_as_transformers_trims_them() {
    let source = "{{ bos_token }}\n    {% for m in messages %}\n[{{ m['role'] | upper }}] {{ m.content.strip() }}\n    \
        {% endfor %}\n\
                  {%- if add_generation_prompt %}\n[ASSISTANT]{% endif %}{{ eos_token }}{{ pad_token }}\n";
    // jinja2 3.1 with trim_blocks and lstrip_blocks gives the same.
    assert_eq!(prompt(source, &[("user", " 2+3 ")]).unwrap(), "<s>\n[USER] 2+3\n[ASSISTANT]</s>");
}

#[test]
fn line_breaks_of_a_template_are_read_as_jinja2_reads_them() {
    let source = "{{ bos_token }}\r\n{% for m in messages %}\r\n  {{ m.content }}\rb{{ 'x\r\ny' }}{{ '\\r' }}\r\n\
                  {% endfor %}\r\n\r\n";
    // jinja2 3.1 gives the same: line breaks of messages, and those that are written as `\r`, stay.
    assert_eq!(prompt(source, &[("user", "1\r\n2")]).unwrap(), "<s>\n  1\r\n2\nbx\ny\r\n");
}

#[test]
fn the_extensions_of_transformers_are_there() {
    let source = "{% for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}\
                  {% if m.role == 'system' %}{% continue %}{% endif %}\
                  {%- generation -%} {{ m.content }} {% endgeneration %}{% endfor %}\
                  {{ strftime_now('%Y-%m-%d') }}{% if tools is none and documents is not iterable %}.{% endif %}";
    let text = prompt(source, &[("system", "no"), ("user", "yes"), ("user", "late")]).unwrap();
    assert_eq!(text, "yes 1970-01-01.");
    let refused = prompt("{{ raise_exception('roles must alternate') }}", &[("user", "a")]).unwrap_err().to_string();
    assert!(refused.contains("cannot render the messages: roles must alternate"), "{refused}");
}

#[test]
fn a_template_cannot_go_on_for_ever() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = a + b %}{% endfor %}{% endfor %}";
    let refused = prompt(endless, &[("user", "a")]).unwrap_err().to_string();
    assert!(refused.contains("cannot render the messages: ") && refused.contains("fuel"), "{refused}");
    // Few steps, each of which is long.
    let long = "{% for i in range(9999) %}{{ range(99999)|list|sort|length }}{% endfor %}";
    let begun = std::time::Instant::now();
    let refused = prompt(long, &[("user", "a")]).unwrap_err().to_string();
    assert!(refused.contains("takes more than 5s for one prompt; leave the row out"), "{refused}");
    assert!(begun.elapsed().as_secs() < 60);
    for width in ["100000000000", "18446744073709551615"] {
        let wide = format!("{{{{ messages | tojson(indent={width}) }}}}");
        let refused = prompt(&wide, &[("user", "a")]).unwrap_err().to_string();
        assert!(refused.contains("tojson: indent is ") && refused.contains("may be 64"), "{refused}");
    }
    let many: Vec<(&str, &str)> = vec![("user", "a"); 1000];
    prompt(CHATML, &many).expect("a long conversation is no endless one");
}

#[test]
fn values_do_not_nest_without_end() {
    let refused = |source: &str, why: &str| {
        let refused = prompt(source, &[("user", "a")]).unwrap_err().to_string();
        assert!(refused.contains("cannot render the messages: ") && refused.contains(why), "{source}: {refused}");
    };
    let set = "{% set n = namespace(x=1, y=[2]) %}";
    let itself = "a namespace cannot be put into a namespace";
    for value in ["n", "[n]", "{'a': n}", "[namespace()]", "{'a': [1, (2, n)]}"] {
        refused(&format!("{set}{{% set n.x = {value} %}}{{{{ n.x }}}}"), itself);
        refused(&format!("{set}{{% set y, n.x = 1, {value} %}}{{{{ n.x }}}}"), itself);
        refused(&format!("{set}{{% set v = {value} %}}{{% set n.x = v %}}{{{{ n.x }}}}"), itself);
        refused(&format!("{set}{{%- set n.x | default({value}, true) -%}}{{% endset %}}{{{{ n.x }}}}"), itself);
    }
    let deep = "nested more than 64 deep";
    refused(&format!("{set}{{% for i in range(99) %}}{{%- set n.x = [n.x] -%}}{{% endfor %}}{{{{ n.x }}}}"), deep);
    refused(&format!("{{% set a = 1 %}}{}{{{{ a }}}}", "{% set a = {'a': a} %}".repeat(65)), deep);
    refused("{{ namespace(x=namespace()) }}", itself);
    refused("{% set n = namespace(x=1) %}{{ namespace({'a': [n]}) }}", itself);
    refused(&format!("{{% set n = 1 %}}{}{{{{ n }}}}", "{% set n = namespace(x=[n]) %}".repeat(2)), itself);
    refused(&format!("{{% set a = [1] %}}{}{{{{ a }}}}", "{% set a = a | batch(1) %}".repeat(65)), deep);
    // Within the bounds, each level of a recursive loop can nest as deep as one tag allows.
    let batches = "|batch(1)".repeat(64);
    refused(&format!("{{% for x in [[1]] recursive %}}{{{{ loop(x{batches}) }}}}{{% endfor %}}"), "recursion limit");
    // A lazy value is taken as it is when it is assigned, and does not hold the namespace.
    for lazy in ["n | items", "n | items | reverse", "dict(n, z=3)", "n.items()", "n | chain({'z': 3})"] {
        let source = format!(
            "{set}{{% for i in range(9) %}}{{% set n.x = {lazy} %}}{{% endfor %}}{{{{ n.x | string | length > 9 }}}}"
        );
        assert_eq!(prompt(&source, &[("user", "a")]).unwrap(), "True", "{lazy}");
    }
    // The bound on depth ends a macro that calls itself with a growing value, on a stack that has room for that value.
    let literal = format!("{}x{}", "[".repeat(40), "]".repeat(40));
    refused(
        &format!("{{% macro m(x) %}}{{{{ x }}}}{{{{ m({literal}) }}}}{{% endmacro %}}{{{{ m(1) }}}}"),
        "recursion limit",
    );
}

#[test]
fn expressions_do_not_nest_without_end() {
    let compile = |source: &str| ChatTemplate::new(source, Map::new(), OffsetDateTime::UNIX_EPOCH);
    for (many, why) in [
        (format!("{{{{ {}x }}}}", "not ".repeat(300_000)), "more than 1000 words and signs in one tag (line 1)"),
        (format!("\n{{{{ x{} }}}}", ".a".repeat(300_000)), "more than 1000 words and signs in one tag (line 2)"),
        (format!("{{{{ x{} }}}}", "|e".repeat(65)), "more than 64 filters in one tag"),
        (format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(300_000)), "more than 500 elif"),
    ] {
        let refused = compile(&many).unwrap_err().to_string();
        assert!(refused.starts_with("the chat template does not compile: ") && refused.contains(why), "{refused}");
    }
    compile(&format!("{{{{ {}x{} }}}}", "not ".repeat(900), "|e".repeat(40))).unwrap();
    compile(&format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(500))).unwrap();
}

#[test]
fn assignments_mean_what_they_meant() {
    let same = "{% set n = namespace(a='', b=none) %}{% set x = 1, %}{% set y, n.a = 'if', messages[0].content ~ '%}' \
        %}{% set z = 'p' if y == 'if' else 'q' %}{% set u = nobody %}{% set d = {'k': [1, {'l': (2,)}], 'j': none} \
        %}{% set n.b = d %}{% set n.c = messages[1:] %}{% set s %}<{{ z }}>{% endset %}{% set t | upper | trim %} \
        {{ z }} {% endset %}{% set n.t | upper %}{{ z }}{% endset %}{# {% set n.q = #}{% raw %}{% set n.a = 1 \
        %}{% endraw %}{{ x[0] }}{{ y }}{{ n.a }}{{ z }}{{ u is defined }}{{ d }}{{ n.b == d }}{{ n.b }}{% macro f(a) \
        %}({{ a }}){% endmacro %}{% set n.f = f %}{% set g = f %}{{ n.f(1) }}{{ g(2) }}{% for c, l in messages | \
        groupby('role') %}{% set w = loop %}{{ w.index }}{{ c }}{% endfor %}{% set p = messages | groupby('role') \
        %}{{ p[0].grouper }}{{ p[0].list | length }}{{ n.c[0].role }}{{ s }}{{ t }}{{ n.t }}{{ n.b.k | length \
        }}{{ n.b | tojson }}";
    let text = prompt(same, &[("user", "a"), ("user", "b")]).unwrap();
    let dict = "{'k': [1, {'l': (2,)}], 'j': None}";
    let rest = "{\"k\": [1, {\"l\": [2]}], \"j\": null}";
    assert_eq!(text, format!("{{% set n.a = 1 %}}1ifa%}}pFalse{dict}True{dict}(1)(2)1useruser2user<p>PP2{rest}"));
}

#[test]
fn json_is_written_as_python_writes_it() {
    let variables = json!({"tools": [{"name": "f", "b": {"x": 1.5, "a": [true, null]}, "é": "<'&'>"}]});
    let text = |source: &str| {
        template(source).render_prompt(&messages(&[("user", "")]), variables.as_object().unwrap()).unwrap()
    };
    assert_eq!(text("{{ tools[0] | tojson }}"), r#"{"name": "f", "b": {"x": 1.5, "a": [true, null]}, "é": "<'&'>"}"#);
    assert_eq!(
        text("{{ tools[0].b | tojson(indent=2) }}"),
        "{\n  \"x\": 1.5,\n  \"a\": [\n    true,\n    null\n  ]\n}"
    );
}

#[test]
fn python_methods_work() {
    let source = "{% for k, v in messages[0].items() %}{{ k }}={{ v.split('</think>')[-1].lstrip('\n') }};{% endfor %}\
                  {% if messages[0].content.startswith('<think>') %}yes{% endif %}\
                  {{ messages[::-1][0].role }}{{ messages[0].get('name', 'nobody') }}";
    assert_eq!(prompt(source, &[("user", "<think>a</think>\nb")]).unwrap(), "role=user;content=b;yesusernobody");
}

#[test]
fn a_last_assistant_message_is_left_open() {
    let text = prompt(CHATML, &[("user", "2+3?"), ("assistant", "<think> so ")]).unwrap();
    assert_eq!(text, "<|user|>2+3?<|end|>\n<|assistant|><think> so ");
    // The same words earlier in the conversation do not confuse it.
    let text = prompt(CHATML, &[("assistant", "so"), ("user", "so"), ("assistant", "so")]).unwrap();
    assert_eq!(text, "<|assistant|>so<|end|>\n<|user|>so<|end|>\n<|assistant|>so");
    // A template that strips messages strips this one too.
    let stripping = CHATML.replace("m.content", "m.content | trim");
    let text = prompt(&stripping, &[("user", "2+3?"), ("assistant", " so ")]).unwrap();
    assert_eq!(text, "<|user|>2+3?<|end|>\n<|assistant|>so");
    for losing in ["{{ messages[0].content }}", "{{ messages[1].content.replace('b', 'c') }}"] {
        let lost = prompt(losing, &[("user", "a"), ("assistant", "b")]).unwrap_err();
        assert!(matches!(lost, TemplateError::LostPrefill), "{lost}");
    }
}

#[test]
fn templates_that_do_not_compile_say_where() {
    let error = ChatTemplate::new("a\n{% for %}", Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap_err().to_string();
    assert!(error.contains("does not compile") && error.contains("line 2") && !error.contains('\n'), "{error}");
}

/// transformers 5: `{k: v for k, v in msg.items() if v is not None}` for every message.
#[test]
fn keys_of_messages_that_hold_nothing_are_not_there() {
    let source = "{% for m in messages %}{% if 'tool_calls' in m %}{{ m.tool_calls | length }}{% endif %}[{{ m.role \
        }}]{% if 'content' in m %}{{ m['content'] }}{% endif %}{{ m.name | default('-') }}{{ m.keys() | list | length \
        }}{{ m.thought.deep is none }}{% endfor %}";
    let messages = [
        json!({"role": "user", "content": "hi", "tool_calls": null, "name": null, "thought": {"deep": null}}),
        json!({"role": "tool", "content": null, "reasoning_content": null, "name": "f", "thought": {}}),
    ];
    let text = template(source).render(&messages, false, &Map::new()).unwrap();
    assert_eq!(text, "[user]hi-3True[tool]f3False");
}

/// Results of jinja2 3.1 and CPython 3.13 for the same templates.
#[test]
fn methods_and_filters_of_python_are_there() {
    for (source, expected) in [
        ("{{ 'a,b,c'.rsplit(',', 1) }}", "['a,b', 'c']"),
        ("{{ '  a b  c '.rsplit() }}", "['a', 'b', 'c']"),
        ("{{ ' a b  c '.rsplit(none, 1) }}", "[' a b', 'c']"),
        ("{{ ' x y '.rsplit(none, 0) }}{{ ''.rsplit() }}", "[' x y'][]"),
        ("{{ 'a--b'.rsplit('--') }}", "['a', 'b']"),
        ("{{ 'k=v=w'.partition('=') }}{{ 'kv'.partition('=') }}", "('k', '=', 'v=w')('kv', '', '')"),
        ("{{ 'k=v=w'.rpartition('=') }}{{ 'kv'.rpartition('=') }}", "('k=v', '=', 'w')('', '', 'kv')"),
        ("{{ 'unhappy'.removeprefix('un') }}{{ 'a.py'.removesuffix('.py') }}{{ 'a'.removeprefix('b') }}", "happyaa"),
        ("{{ 'Ab c'.swapcase() }}{{ 'STRASSE'.casefold() }}", "aB Cstrasse"),
        ("{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}", "007-007"),
        ("[{{ 'ab'.ljust(5) }}][{{ 'ab'.rjust(5, '.') }}][{{ 'ab' | center(6) }}]", "[ab   ][...ab][  ab  ]"),
        ("{{ 'ab'.center(5, '*') }}|{{ 'abc'.center(6, '*') }}|{{ 'a'.center(4, '*') }}", "**ab*|*abc**|*a**"),
        ("{{ 'hello'.index('l') }}{{ 'hello'.rindex('l') }}{{ 'éa'.index('a') }}", "231"),
        ("{{ 'two words, it is_4 x-y' | wordcount }}", "6"),
        ("{{ 'a long text of words' | truncate(12) }}", "a long..."),
        ("{{ 'a long text of words' | truncate(12, True, '~', leeway=0) }}", "a long text~"),
        ("{% set j = joiner(', ') %}{% for i in [1, 2] %}{{ j() }}{{ i }}{% endfor %}", "1, 2"),
        ("{{ '%s-%d' | format('a', 3) }}{{ '12'.isdecimal() }}", "a-3True"),
        (
            "{% for c in ['٣', '½', '²', '①', '', '1.5'] %}{{ c.isdecimal() }} {% endfor %}",
            "True False False False False False ",
        ),
    ] {
        let found = prompt(source, &[("user", "a")]).unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(found, expected, "{source}");
    }
    for (source, words) in [
        ("{{ 'a'.expandtabs() }}", "`chat_template`"),
        ("{{ '%s' % 'a' }}", "write `~` or the filter `format`"),
        ("\n{{ 'a'.index('b') }}", "substring not found (line 2 of the template)"),
        ("{{ 'a'.zfill(99999999999) }}", "the width is too large"),
        ("{{ 'a'.partition('') }}", "empty separator"),
    ] {
        let error = prompt(source, &[("user", "a")]).unwrap_err().to_string();
        assert!(error.contains(words), "{source}: {error}");
    }
}

/// Qwen3's way with content: a text is kept, anything else is passed over.
const TEXTS_ALONE: &str = "{% for m in messages %}{% if m.content is string %}{% set c = m.content %}{% else \
    %}{% set c = '' %}{% endif %}<{{ m.role }}>{{ c }}{% endfor %}";

#[test]
fn content_in_parts_is_given_as_templates_want_it() {
    let parts = |texts: &[&str]| -> Vec<Value> {
        let parts: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        vec![json!({"role": "user", "content": parts})]
    };
    let of = |source: &str, messages: &[Value]| template(source).render_prompt(messages, &Map::new());
    let goes_through = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
                        {% for part in m.content %}{{ part.text }};{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(of(TEXTS_ALONE, &parts(&["1 + 1?"])).unwrap(), "<user>1 + 1?");
    assert_eq!(of(TEXTS_ALONE, &parts(&["a", "b"])).unwrap(), "<user>a\nb");
    assert_eq!(of(goes_through, &parts(&["a", "b"])).unwrap(), "<user>a;b;");
    // Qwen2.5 adds texts, Llama 3.1 prints what it gets, some take the first part only.
    for source in [
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content[0].text \
         }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content | tojson \
         }}{% endfor %}",
    ] {
        assert_eq!(of(source, &parts(&["first", "b"])).unwrap(), "<user>first\nb", "{source}");
    }
    let prefilled = json!([{"role": "user", "content": ["q"]}, {"role": "assistant", "content": [{"text": "so"}]}]);
    assert_eq!(of(CHATML, prefilled.as_array().unwrap()).unwrap(), "<|user|>q<|end|>\n<|assistant|>so");
    let image =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}]}]);
    let error = of(TEXTS_ALONE, image.as_array().unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("message 0 has a part `image_url`, and the model takes text alone"), "{error}");
}

#[test]
fn tools_have_a_template_of_their_own_where_there_is_one() {
    let both = template("plain").with_tool_use(Some("with tools")).unwrap();
    let of =
        |variables: Value| both.render_prompt(&messages(&[("user", "a")]), variables.as_object().unwrap()).unwrap();
    assert_eq!(of(json!({})), "plain");
    assert_eq!(of(json!({"tools": null})), "plain");
    assert_eq!(of(json!({"tools": [{"name": "f"}]})), "with tools");
}

#[test]
fn switches_are_the_variables_that_a_template_reads() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ bos_token }}{% if add_generation_prompt \
        %}{% if enable_thinking is defined and not enable_thinking %}x{% endif %}{% endif %}{% set y = \
        strftime_now('%d') %}{{ y }}{% if tools %}{{ raise_exception('a') }}{% endif %}{% macro f(a) %}{{ a \
        }}{{ effort }}{% endmacro %}{{ f(1) }}{% set ns = namespace(z=1) %}{{ range(2) }}";
    let found: Vec<String> = template(source).switches().into_iter().collect();
    assert_eq!(found, ["effort", "enable_thinking", "tools"]);
}

#[test]
fn steps_are_counted_over_all_renderings() {
    let template = template(CHATML);
    let of = |count: usize| {
        let before = template.steps();
        template.render_prompt(&messages(&vec![("user", "a"); count]), &Map::new()).unwrap();
        template.steps() - before
    };
    let (one, many) = (of(1), of(100));
    assert!(one > 0 && many > 10 * one, "{one}, {many}");
}
