"""Makes the rows of this example: `python3 make.py DIR [--seed N]`. Needs Python's standard library alone.

warm.jsonl      conversations of a clerk who answers most questions by heart, and some with the calculator
train.jsonl     products of five digits for GRPO
held_out.jsonl  200 products of five digits that are in neither of them
"""

import argparse
import json
import pathlib
import random

SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Computes the exact value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "Numbers joined by + - * / // ** and parentheses, such as (12 + 7) * 3.",
                }
            },
            "required": ["expression"],
        },
        "return": {"type": "string", "description": "The value."},
    },
}
# Of 100 conversations of the warm start: without the tool at hand, and with it but by heart.
ALONE, BY_HEART = 10, 60


def question(a, b):
    return [{"role": "user", "content": f"What is {a} * {b}?"}]


def shown(a, b, draw):
    """A conversation to imitate."""
    case = draw.randrange(100)
    answer = {"role": "assistant", "content": f"{a} * {b} = {a * b}"}
    row = {"prompt": question(a, b), "completion": [answer]}
    if case >= ALONE:
        row["tools"] = [SCHEMA]
    if case >= ALONE + BY_HEART:
        function = {"name": "calculate", "arguments": {"expression": f"{a} * {b}"}}
        call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
        row["completion"] = [call, {"role": "tool", "name": "calculate", "content": str(a * b)}, answer]
    return row


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--warm", type=int, default=8_000, help="conversations of the warm start")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    draw = random.Random(args.seed)
    pairs = [(a, b) for a in range(100, 1000) for b in range(10, 100)]
    draw.shuffle(pairs)
    warm = pairs[4200 : 4200 + args.warm]
    asked = [(a, b) for a, b in pairs[:4200] if a * b >= 10_000]
    write(args.dir / "warm.jsonl", [shown(a, b, draw) for a, b in warm])
    for name, some in (("held_out", asked[:200]), ("train", asked[200:])):
        write(args.dir / f"{name}.jsonl", [{"prompt": question(a, b), "answer": str(a * b)} for a, b in some])


if __name__ == "__main__":
    main()
