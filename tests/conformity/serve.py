"""`tandem serve`, asked by lm-eval as it is released (`local-completions`), with tasks of its own over local rows.

lm-eval tokenises prompts and continuations itself, sends token ids, and adds up the log-probs that come back. Each sum
is compared with `tandem logprobs` of the same ids, and each greedy flag with `tandem generate` at temperature 0. Two
models are asked: stories260K with its SentencePiece tokenizer and a token before every text, and random weights over
the tokenizer of Qwen2.5, whose tokens may be parts of a character.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

from support import PROGRAMS, WORK, answer, environment, largest, read_rows, tandem, worst, write_rows

# lm-eval asks the endpoint itself, whatever proxy there may be, and keeps its copies of rows with the check's files.
os.environ |= {"NO_PROXY": "127.0.0.1", "HF_HOME": str(WORK / "huggingface")}

import lm_eval
import numpy
import requests
import transformers
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from safetensors.numpy import save_file

CONTEXTS = [
    "Once upon a time, there was a little girl named Lily. She",
    "Tom saw a big red ball in the park. He wanted to",
    "The sun was hot and the dog",
    "\"Can I have some milk?\" asked the cat. Her mom said:",
    "2 + 3 =",
    "Zoë ate a crème brûlée. 🙂",
    "def add(a, b):\n   ",
    "",
]
# Common and rare words, other alphabets, and a character of four bytes.
CONTINUATIONS = [
    " was very happy.", " play with the ball.", " barked", "\nThe end.", " 5", " flibbertigibbet, 東京 and 🦀!",
    " return a + b",
]
LONG = (
    "Once upon a time, there was a little boy named Ben. He liked to play with his toy car in the garden. One day, he "
    "saw a big bird in the tree. The bird was sad because it could not find its mom. Ben wanted to help the bird. He "
    "asked his mom to look with him. They looked and looked, and then they saw her by the pond. The bird was happy."
)
# Longest input of a request, so that the long text takes several.
MAX_LENGTH = 96
GENERATED = 24


class Noted(LocalCompletionsAPI):
    """Notes every log-likelihood that it asks for: ids of context and continuation, the sum, and the greedy flag."""

    def __init__(self, **options):
        super().__init__(**options)
        self.notes = []

    def _loglikelihood_tokens(self, requests, **options):
        found = super()._loglikelihood_tokens(requests, **options)
        self.notes += [(*request[1:], *one) for request, one in zip(requests, found, strict=True)]
        return found


class Serve:
    """`tandem serve` with a model, for as long as the block runs."""

    def __init__(self, place):
        command = [PROGRAMS / "tandem", "serve", "--model", place, "--served-model-name", "model", "--port", 0]
        command = [*map(str, command), "--threads", "1"]
        self.process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, cwd=WORK)
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"serving model at (http://127\.0\.0\.1:\d+) ", line):
                self.address = found[1]
                break
        else:
            sys.exit(f"`tandem serve` failed: {said.strip()}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            sys.exit(f"`tandem serve` ended with {self.process.returncode}")


def data(name):
    """A folder with real data, which is no part of the repository."""
    place = pathlib.Path(os.environ.get("TANDEM_DATA_DIR", "")) / name
    if "TANDEM_DATA_DIR" not in os.environ or not place.is_dir():
        sys.exit(f"this check needs {name} in the folder that TANDEM_DATA_DIR names")
    return place


def model_of_qwens_tokenizer():
    """Random weights that tell tokens well apart, over the tokens of Qwen2.5."""
    place, tokens, width, inner = WORK / "random", 151936, 64, 96
    shutil.copytree(data("tokenizers/qwen2.5"), place)
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": tokens, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "use_sliding_window": False, "torch_dtype": "float32", "eos_token_id": 151643,
    }
    (place / "config.json").write_text(json.dumps(config))
    random = numpy.random.default_rng(0)
    draw = lambda *shape: (0.25 * random.standard_normal(shape)).astype(numpy.float32)
    one = numpy.ones(width, numpy.float32)
    weights = {"model.embed_tokens.weight": draw(tokens, width), "model.norm.weight": one}
    for layer in range(2):
        sizes = {"self_attn.q_proj": (width, width), "self_attn.k_proj": (width // 2, width),
                 "self_attn.v_proj": (width // 2, width), "self_attn.o_proj": (width, width),
                 "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
        block = {f"{name}.weight": draw(*shape) for name, shape in sizes.items()}
        block |= {f"self_attn.{name}_proj.bias": draw(width if name == "q" else width // 2) for name in "qkv"}
        block |= {"input_layernorm.weight": one, "post_attention_layernorm.weight": one}
        weights |= {f"model.layers.{layer}.{name}": value for name, value in block.items()}
    save_file(weights, place / "model.safetensors")
    return place


def completed(place, prompts, count):
    """The likeliest completion of each row of prompts, of at most `count` tokens."""
    drawn = WORK / f"{place.name}-greedy.jsonl"
    given = write_rows(WORK / f"{place.name}-prompts.jsonl", prompts)
    tandem("generate", "--model", place, "--prompts", given, "--output", drawn, "--temperature", 0,
           "--max-completion-length", count, "--threads", 1)
    return read_rows(drawn)


def tasks(place):
    """Tasks of all kinds that lm-eval has."""
    asked = [context for context in CONTEXTS if context]
    likely = {count: completed(place, [{"prompt": context} for context in asked], count) for count in (1, 2, 12)}
    pairs = [(context, one) for context in CONTEXTS for one in CONTINUATIONS]
    pairs += [(context, row["text"]) for rows in likely.values() for context, row in zip(asked, rows) if row["text"]]
    rows = {
        "loglikelihood": [{"context": context, "continuation": one} for context, one in pairs],
        "multiple_choice": [{"context": context, "choices": CONTINUATIONS, "right": 0} for context in asked],
        "loglikelihood_rolling": [{"text": LONG}, {"text": " ".join(CONTINUATIONS)}],
        "generate_until": [{"context": context, "continuation": ""} for context in asked],
    }
    parts = {
        "loglikelihood": {"doc_to_text": "{{context}}", "doc_to_target": "{{continuation}}"},
        "multiple_choice": {"doc_to_text": "{{context}}", "doc_to_target": "right", "doc_to_choice": "choices"},
        "loglikelihood_rolling": {"doc_to_text": "", "doc_to_target": "{{text}}"},
        "generate_until": {
            "doc_to_text": "{{context}}", "doc_to_target": "{{continuation}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": GENERATED, "do_sample": False, "temperature": 0.0},
        },
    }
    for kind, own in parts.items():
        path = write_rows(WORK / f"{place.name}-{kind}.jsonl", rows[kind])
        files = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}, "test_split": "test"}
        yield {"task": f"{place.name}_{kind}", "output_type": kind, "target_delimiter": "", **files, **own}


def asked_by_lm_eval(place, serve, **options):
    """What lm-eval has asked for and was told, and the texts that it has generated, in the order of the rows."""
    # stories260K was trained with a token before every text, which lm-eval adds only if it is told to.
    lm = Noted(base_url=f"{serve.address}/v1/completions", model="model", tokenizer=str(place),
               add_bos_token=place.name == "stories260K", max_length=MAX_LENGTH, **options)
    found = lm_eval.simple_evaluate(
        model=lm, tasks=list(tasks(place)), bootstrap_iters=0, task_manager=TaskManager(include_defaults=False)
    )
    samples = sorted(found["samples"][f"{place.name}_generate_until"], key=lambda sample: sample["doc_id"])
    return lm.notes, [sample["resps"][0][0] for sample in samples]


def goes_on(theirs, row):
    """The text with which a completion goes on after its prompt, up to the end of the line."""
    decode = lambda ids: theirs.decode(ids, skip_special_tokens=True)
    whole, prompt = decode(row["prompt_ids"] + row["token_ids"]), decode(row["prompt_ids"])
    assert whole.startswith(prompt), f"{whole!r} does not go on after {prompt!r}"
    return whole[len(prompt):].split("\n")[0]


def with_other_ids(theirs, serve):
    """Texts of which the endpoint makes other tokens than the tokenizer that lm-eval uses."""
    texts = [context + one for context in CONTEXTS for one in CONTINUATIONS] + [LONG]
    ours = [requests.post(f"{serve.address}/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    return sum(theirs(text).input_ids != ids for text, ids in zip(texts, ours))


def compared(place, notes):
    """Largest difference of a log-likelihood, greedy flags that differ, and continuations that are greedy."""
    rows = [{"prompt_ids": context, "token_ids": continuation} for context, continuation, *_ in notes]
    given, scored = write_rows(WORK / f"{place.name}-ids.jsonl", rows), WORK / f"{place.name}-scored.jsonl"
    tandem("logprobs", "--model", place, "--input", given, "--output", scored, "--threads", 1)
    sums = [sum(row["logprobs"]) for row in read_rows(scored)]
    longest = max(len(row["token_ids"]) for row in rows)
    likeliest = completed(place, [{"prompt_ids": row["prompt_ids"]} for row in rows], longest)
    begins = lambda drawn, row: drawn["token_ids"][: len(row["token_ids"])] == row["token_ids"]
    flags = [begins(*pair) for pair in zip(likeliest, rows, strict=True)]
    differing = sum(flag != told for flag, (*_, told) in zip(flags, notes))
    return largest((ours, told) for ours, (*_, told, _) in zip(sums, notes)), differing, sum(flags)


if __name__ == "__main__":
    likelihoods, flags, texts, ids, greedy, total = [], 0, 0, 0, 0, 0
    for place in [shutil.copytree(data("stories260K"), WORK / "stories260K"), model_of_qwens_tokenizer()]:
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        with Serve(place) as serve:
            ids += with_other_ids(theirs, serve)
            # Several prompts in a request, and several requests at once.
            asked = [asked_by_lm_eval(place, serve, **way) for way in ({"batch_size": 4}, {"num_concurrent": 8})]
        rows = completed(place, [{"prompt": context} for context in CONTEXTS if context], GENERATED)
        expected = [goes_on(theirs, row) for row in rows]
        for notes, generated in asked:
            difference, differing, of_greedy = compared(place, notes)
            assert 0 < of_greedy < len(notes), f"{place.name}: {of_greedy} of {len(notes)} flags say nothing"
            likelihoods.append(difference)
            flags, greedy, total = flags + differing, greedy + of_greedy, total + len(notes)
            texts += sum(told != text for told, text in zip(generated, expected, strict=True))
    answer(f"2 models, {total} log-likelihoods, {greedy} of them of greedy continuations",
           likelihood=worst(likelihoods), greedy=flags, text=texts, ids=ids)
