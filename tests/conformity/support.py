"""What the conformity checks share: places, Tandem's programs, small models, figures.

`cargo xtask conformity` runs a check in an environment with CONFORMITY_PROGRAMS (the folder of Tandem's programs) and
CONFORMITY_WORK (an empty folder). The last line that a check prints is its answer: figures by name. The bounds are in
xtask, beside the list of the checks.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
PROGRAMS = pathlib.Path(os.environ.get("CONFORMITY_PROGRAMS", ROOT / "target" / "release"))
WORK = pathlib.Path(os.environ.get("CONFORMITY_WORK", ROOT / "target" / "conformity" / "work"))

# The families of models, each a tiny model with all kinds of its layers: those in tests/golden/models, and those in
# tests/golden/models-2026.
OLDER = ["llama", "qwen2", "qwen3", "smollm3", "gemma3"]
NEWER = [
    "olmo2", "ministral3", "phi3", "granite4", "granite4_h", "lfm2", "lfm3", "qwen3_5", "gemma4", "qwen3_moe",
]
FAMILIES = OLDER + NEWER
# Token ids that every tiny model has.
VOCABULARY = 256
# Longer and shorter than the windows of the tiny models.
PROMPTS = ["one and two = ", "2+2=", "a prompt that is longer than any of the windows: ", "z"]


def answer(cases, **figures):
    """The answer of a check: what was looked at, in words, and the figures that xtask holds against bounds.

    A figure that is no finite number becomes null, which is within no bound.
    """
    finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    print(json.dumps({"cases": cases, "figures": finite}))


def golden(name):
    return json.loads((GOLDEN / name).read_text())


def environment():
    """The environment of Tandem's programs."""
    return os.environ | {"TANDEM_CACHE_DIR": str(WORK / "cache")}


def tandem(*words, program="tandem"):
    """Runs one of Tandem's programs to its end; what it printed."""
    command = [str(PROGRAMS / program), *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=WORK)
    if done.returncode != 0:
        # The message goes to the page, where no path of a machine belongs.
        sys.exit(f"`{program} {words[0]}` failed: {done.stderr.strip().replace(f'{WORK}/', '')}")
    return done.stdout


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def model(family):
    """A copy of the family's tiny model, with a tokenizer of its tokens: printable characters and names."""
    place = WORK / family
    source = GOLDEN / ("models-2026" if family in NEWER else "models") / family
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("after_*", "*transformers5*"))
    config = json.loads((place / "config.json").read_text())
    # A model of images and text has its text model within.
    size = config.get("text_config", config)["vocab_size"]
    if "original_max_position_embeddings" in config:
        # Longrope: one prompt begins behind this length, and the others end before it.
        config["original_max_position_embeddings"] = 40
        (place / "config.json").write_text(json.dumps(config))
    tokens = ["<pad>", "<bos>", "<eos>", "\n", *map(chr, range(32, 127))]
    tokens += [f"<{i}>" for i in range(len(tokens), size)]
    special = [
        {"id": i, "content": tokens[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i in range(3)
    ]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    words = {"version": "1.0", "added_tokens": special, "decoder": {"type": "Fuse"},
             "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (place / "tokenizer.json").write_text(json.dumps(words))
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
             "tokenizer_class": "PreTrainedTokenizerFast"}
    (place / "tokenizer_config.json").write_text(json.dumps(named))
    return place


def trained(place, *options):
    """The last checkpoint of a run of two steps that moves the weights of a model well beyond rounding."""
    prompts = write_rows(WORK / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
    run = WORK / f"{place.name}-run"
    tandem(
        "train", "--model", place, "--dataset", prompts, "--reward_funcs", "repetition_penalty:ngram_size=1",
        "--max_steps", 2, "--save_steps", 2, "--num_generations", 4, "--generation_batch_size", 16,
        "--max_completion_length", 24, "--learning_rate", 1e-3, "--lr_scheduler_type", "constant",
        "--output_dir", run, "--rollout_threads", 1, "--learner_threads", 1, *options,
    )
    return run / "checkpoint-2"


def completed(place, *options):
    """Rows that Tandem's sampler makes of the prompts, with the learner's log-probs as `logprobs`."""
    prompts = write_rows(WORK / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
    drawn, scored = WORK / f"{place.name}-drawn.jsonl", WORK / f"{place.name}-scored.jsonl"
    tandem("generate", "--model", place, "--prompts", prompts, "--output", drawn, "--max-completion-length", 24,
           "--threads", 1, *options)
    tandem("logprobs", "--model", place, "--input", drawn, "--output", scored, "--threads", 1)
    return read_rows(scored)


def largest(pairs):
    """The largest absolute difference of pairs; not a number where one of them is none."""
    return worst(abs(a - b) for a, b in pairs)


def worst(values):
    """The largest of some figures, at least 0. One that is not a number is worse than any other."""
    result = 0.0
    for value in map(float, values):
        if math.isnan(value):
            return value
        result = max(result, value)
    return result


def differences(found, expected, place=""):
    """Differences of all numbers in two values of one form, relative where they are above 1.

    Whatever else is in them must be equal. Golden figures have null for what is not a number, and texts for infinities.
    """
    if isinstance(found, float) and not math.isfinite(found):
        found = None if math.isnan(found) else str(found)
    number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        for key in expected:
            yield from differences(found[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected)):
            yield from differences(*pair, f"{place}[{index}]")
    elif number(expected) and number(found):
        yield abs(found - expected) / max(1.0, abs(expected))
    elif found != expected:
        sys.exit(f"{place} is {str(found):.60} and not {str(expected):.60}")
