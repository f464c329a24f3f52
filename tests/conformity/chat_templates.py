"""Every chat template that TRL ships, rendered by transformers and by `tandem generate`, as token ids.

Each byte of a text is a token, so the ids say the text. What transformers refuses to render, Tandem has to refuse too.
"""

import json
import pathlib
import sys

import peers
import trl
from support import WORK, answer, model, read_rows, tandem, write_rows

USER = {"role": "user", "content": "What is 2 + 3?"}
SYSTEM = {"role": "system", "content": "Be brief."}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 5."}
TURNS = [USER, THOUGHT, {"role": "user", "content": " Sure? \n"}]
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two \"numbers\" <a & b>.",
    "parameters": {"type": "object", "properties": {
        "a": {"type": "integer", "description": "One."}, "b": {"type": "array", "items": {"type": "number"}},
    }, "required": ["a"]},
}}
CHATS = [
    {"prompt": [USER]},
    {"prompt": [SYSTEM, USER]},
    {"prompt": TURNS},
    {"prompt": [SYSTEM, *TURNS]},
    {"prompt": [{"role": "user", "content": "Ünï ✓ {{ x }} {% y %} '\"\\ \t<|im_end|>\n\n\nz"}]},
    {"prompt": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"prompt": TURNS, "chat_template_kwargs": {"enable_thinking": True}},
    {"prompt": [SYSTEM, USER], "tools": [TOOL]},
    {"prompt": [USER, USER]},
]


def with_bytes(place):
    """Gives a model the tokenizer whose tokens are bytes, and positions for long prompts."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = dict(zip(printable + others, map(chr, printable + [256 + i for i in range(len(others))])))
    tokens = ["<pad>", "<bos>", "<eos>", *(characters[byte] for byte in range(256))]
    words = json.loads((place / "tokenizer.json").read_text())
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    words |= {"pre_tokenizer": level, "decoder": level}
    words["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    (place / "tokenizer.json").write_text(json.dumps(words))
    config = json.loads((place / "config.json").read_text()) | {"max_position_embeddings": 16384}
    (place / "config.json").write_text(json.dumps(config))
    return place


def theirs(tokenizer, template, chat):
    """Token ids by transformers; nothing where the template cannot be rendered."""
    try:
        return tokenizer.apply_chat_template(
            chat["prompt"], chat_template=template, tools=chat.get("tools"), add_generation_prompt=True,
            return_dict=False, **chat.get("chat_template_kwargs", {}),
        )
    except Exception as refused:  # Errors of the template, and of Python in it.
        print(f"  transformers: {refused!r:.100}", file=sys.stderr)
        return None


def ours(place, file, chats):
    """Token ids by Tandem; nothing where it refuses these rows."""
    prompts, drawn = write_rows(WORK / "prompts.jsonl", chats), WORK / "drawn.jsonl"
    try:
        tandem("generate", "--model", place, "--chat-template", file, "--prompts", prompts, "--output", drawn,
               "--max-completion-length", 1, "--threads", 1)
    except SystemExit as refused:
        print(f"  tandem: {str(refused)[-300:]}", file=sys.stderr)
        return None
    return [row["prompt_ids"] for row in read_rows(drawn)]


if __name__ == "__main__":
    place = with_bytes(model("qwen2"))
    tokenizer = peers.tokenizer(place)
    files = sorted((pathlib.Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    assert files, "TRL ships no templates any more"
    other, rendered, refused = 0, 0, 0
    for file in files:
        template = file.read_text()
        expected = [theirs(tokenizer, template, chat) for chat in CHATS]
        pairs = [(chat, ids) for chat, ids in zip(CHATS, expected) if ids is not None]
        found = ours(place, file, [chat for chat, _ in pairs]) or [None] * len(pairs)
        for (chat, ids), own in zip(pairs, found, strict=True):
            rendered += 1
            if own != ids:
                other += 1
                texts = tokenizer.decode(ids), own and tokenizer.decode(own)
                print(f"{file.name}: {chat}\n{texts[0]!r}\n{texts[1]!r}", file=sys.stderr)
        for chat in (chat for chat, ids in zip(CHATS, expected) if ids is None):
            refused += 1
            own = ours(place, file, [chat])
            if own is not None:
                other += 1
                print(f"{file.name}: {chat} is rendered: {tokenizer.decode(own[0])!r}", file=sys.stderr)
    answer(f"{len(files)} templates, {rendered} prompts rendered and {refused} refused", prompt=other)
