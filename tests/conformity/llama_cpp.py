"""GGUF files of models of every family that llama.cpp knows, run by llama.cpp itself, as the package xllamacpp has it.

Tandem's sampler draws completions, greedily and at random. llama.cpp continues the same prompts greedily, and gives the
random completions log-probs, a token at a time. Models of the older families with YaRN are among them.
"""

import json

import xllamacpp
from support import FAMILIES, PROMPTS, WORK, answer, completed, model, read_rows, tandem, worst, write_rows

# LFM3 is not exported: llama.cpp does not know it.
PLACES = [family for family in FAMILIES if family != "lfm3"]
# The pattern of layers that llama.cpp takes for granted.
PATTERNS = {
    "smollm3": {"use_sliding_window": False, "sliding_window": None, "layer_types": ["full_attention"] * 4,
                "no_rope_layers": [1, 1, 1, 0]},
    "gemma3": {"sliding_window_pattern": 6, "query_pre_attn_scalar": 16},
}
# With factors of their own on cosines and sines, and without.
YARN = {
    "llama": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "qwen3": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "attention_factor": 1.25},
}
# llama.cpp computes their GELU by a table of 16-bit numbers.
OF_TABLE = ["gemma3", "gemma4"]
# llama.cpp rounds the length of a context up to this. It takes Phi's frequencies by that length, and not by that of a
# sequence.
CONTEXT = 256
NEW_TOKENS = 24


def of_bytes(place):
    """The model's tokenizer as one of bytes, which llama.cpp has: the same tokens with the same ids."""
    path = place / "tokenizer.json"
    words = json.loads(path.read_text())
    letters = {" ": "Ġ", "\n": "Ċ"}
    words["model"]["vocab"] = {letters.get(token, token): i for token, i in words["model"]["vocab"].items()}
    words["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    words["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    path.write_text(json.dumps(words))
    return place


def changed(family, changes, name):
    """The family's model with other values in its config.json."""
    place = model(family)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))
    return place.rename(WORK / name)


class LlamaCpp:
    """A file that llama.cpp has opened. Everything is computed in fp32."""

    def __init__(self, path):
        options = xllamacpp.CommonParams()
        options.model.path = str(path)
        options.n_ctx = options.n_batch = options.n_ubatch = CONTEXT
        options.n_parallel = 1
        options.warmup = False
        options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.swa_full = True
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(options)

    def next(self, ids):
        """Log-probs of all tokens after some."""
        asked = {"prompt": ids, "n_predict": 1, "n_probs": 1 << 20, "samplers": [], "cache_prompt": True}
        made = self.server.handle_completions(asked)
        made = made[0] if isinstance(made, (list, tuple)) else made
        return {each["id"]: each["logprob"] for each in made["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}

    def logprobs(self, prompt, completion):
        return [self.next(prompt + completion[:i])[token] for i, token in enumerate(completion)]

    def greedy(self, prompt, count):
        found = []
        for _ in range(count):
            likeliest = self.next(prompt + found)
            found.append(max(likeliest, key=likeliest.get))
        return found


if __name__ == "__main__":
    distances, of_table, others, rows = [], [], 0, 0
    scaled = {family: {"rope_scaling": yarn, "rope_parameters": None} for family, yarn in YARN.items()}
    places = [changed(family, changes, f"{family}-yarn") for family, changes in scaled.items()]
    places += [changed(family, PATTERNS[family], family) if family in PATTERNS else model(family) for family in PLACES]
    for place in map(of_bytes, places):
        prompts = write_rows(WORK / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
        likeliest, file = WORK / f"{place.name}-greedy.jsonl", WORK / f"{place.name}.gguf"
        tandem("generate", "--model", place, "--prompts", prompts, "--output", likeliest, "--temperature", 0,
               "--max-completion-length", NEW_TOKENS, "--threads", 1)
        tandem("export", "--model", place, "--format", "gguf", "--out", file, "--rows", likeliest)
        drawn, opened = completed(place), LlamaCpp(file)
        original = json.loads((place / "config.json").read_text()).get("original_max_position_embeddings", 0)
        is_long = lambda row: len(row["prompt_ids"]) > original
        for row in filter(is_long, drawn):
            found = opened.logprobs(row["prompt_ids"], row["token_ids"])
            apart = [abs(a - b) for a, b in zip(row["logprobs"], found, strict=True)]
            if place.name in OF_TABLE:
                of_table += apart
            else:
                distances += apart
            rows += 1
        for row in filter(is_long, read_rows(likeliest)):
            others += opened.greedy(row["prompt_ids"], len(row["token_ids"])) != row["token_ids"]
    answer(
        f"{len(places)} models, two of them with YaRN; {rows} completions",
        logprob=worst(distances), table_logprob=sum(of_table) / len(of_table), greedy=others,
    )
