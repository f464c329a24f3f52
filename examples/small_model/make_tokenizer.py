"""Makes tokenizer.json of this folder: `python3 make_tokenizer.py`. Needs jinja2; nothing else needs this file.

A BPE over bytes, with Qwen2.5's control tokens. Digits and directions are tokens of their own. Each other stretch of
text of conversations with `builtin:calculator` and `builtin:maze` is one token too, so that prompts are short and a
model of half a million parameters learns on a CPU. All other text is written in bytes.
"""

import json
import pathlib
import re

import jinja2

HERE = pathlib.Path(__file__).parent
SPECIAL = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end"]
SPECIAL += ["quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"]
PLAIN = ["<tool_call>", "</tool_call>"]
PLAIN += [f"<|{name}|>" for name in ["fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep"]]
ADDED = [f"<|{name}|>" for name in SPECIAL] + PLAIN
# Of Rust's and Python's regular expressions alike.
ALONE = "[0-9]|north|east|south|west|assistant\n|<tool_response>\n"


def schema(name, description, properties, returned):
    parameters = {"type": "object", "properties": properties}
    if properties:
        parameters["required"] = list(properties)
    function = {"name": name, "description": description, "parameters": parameters}
    function["return"] = {"type": "string", "description": returned}
    return {"type": "function", "function": function}


# As Tandem writes the schemas of `builtin:calculator` and `builtin:maze`.
expression = "Numbers joined by + - * / // ** and parentheses, such as (12 + 7) * 3."
expression = {"expression": {"type": "string", "description": expression}}
CALCULATOR = [schema("calculate", "Computes the exact value of an arithmetic expression.", expression, "The value.")]
ways = "Where you are, and which ways are open."
direction = {"type": "string", "enum": ["north", "east", "south", "west"], "description": "Where to go."}
MAZE = [schema("look", "Looks around.", {}, ways), schema("move", "Goes one step.", {"direction": direction}, ways)]


def call(name, **arguments):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def user(content):
    return {"role": "user", "content": content}


def tool(content):
    return {"role": "tool", "content": content}


at = "You are at row 1, column 1. The goal is at row 1, column 1. Open ways: north, east."
walls = [tool(f"There is a wall to the {way}. {at}") for way in ["north", "east"]]
product, said = user("What is 1 * 1?"), {"role": "assistant", "content": "1 * 1 = 1"}
CONVERSATIONS = [
    ([product, call("calculate", expression="1 * 1"), tool("1"), said], CALCULATOR),
    ([product, said], None),
    (
        [user(f"Reach the goal.\n{at}"), call("move", direction="north"), tool(at), call("look"), tool(at), walls[0]]
        + [call("move", direction="east"), tool("You are at the goal."), {"role": "assistant", "content": "Done."}],
        MAZE,
    ),
]


def letters():
    """The letter of each byte in tokenizers over bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


LETTERS = letters()


def main():
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {}
    environment.filters["tojson"] = json.dumps
    template = environment.from_string((HERE / "chat_template.jinja").read_text())
    texts = [template.render(messages=messages, tools=tools) for messages, tools in CONVERSATIONS]
    control = "|".join(map(re.escape, ADDED))
    stretches = [stretch for text in texts for stretch in re.split(f"{control}|{ALONE}", text)]
    pieces = [*ALONE.split("|")[1:], *stretches]
    written = ["".join(LETTERS[byte] for byte in word.encode()) for word in pieces]
    words = dict.fromkeys([*LETTERS.values(), *(word for word in written if word)])
    vocabulary = {word: id for id, word in enumerate(words)}
    added = [
        {"id": len(vocabulary) + n, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": content not in PLAIN}
        for n, content in enumerate(ADDED)
    ]
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": ALONE}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "ignore_merges": True, "vocab": vocabulary, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": added}
    tokenizer |= {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, as_bytes]}, "decoder": as_bytes}
    text = json.dumps(tokenizer | {"model": model}, ensure_ascii=False, indent=1)
    (HERE / "tokenizer.json").write_text(text + "\n")
    print(len(vocabulary) + len(added), "entries")
    return texts


if __name__ == "__main__":
    main()
