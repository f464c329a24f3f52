"""Folders for ONNX Runtime GenAI of models of every family, opened and driven by its released Python package.

Tandem's sampler draws completions, greedily and at random. GenAI continues the same prompts greedily, and its logits
give the random completions log-probs, token by token, with the cache that it keeps itself. The folders of integers are
held against ONNX Runtime's own quantiser, and their log-probs against transformers with the same rounding of weights
and inputs, which says whether a distance from fp32 is rounding. The lines for plain ONNX Runtime in
docs/exporting-genai.md run too.
"""

import re
import subprocess
import sys

import blocks
import numpy
import onnx
import onnxruntime_genai
import peers
from onnxruntime.capi import _pybind_state as quantiser
from safetensors.numpy import load_file
from support import (
    OLDER, PROMPTS, ROOT, WORK, answer, completed, largest, model, read_rows, tandem, worst, write_rows,
)

# The families that are exported for GenAI.
FAMILIES = OLDER + ["lfm2", "qwen3_5"]
PAGE = ROOT / "docs" / "exporting-genai.md"
FORMATS = ["fp32", "fp16", "int8", "int4"]
NEW_TOKENS = 24


def exported(place, rows):
    """A folder for each format. The export compares these rows: a model holds pseudo-random tokens for unlikely, and
    rounding moves their log-probs most. An export in fp16 may be refused: it has a bound, and random weights differ by
    more than trained ones."""
    out, folders = WORK / f"{place.name}-genai", {}
    for name in FORMATS:
        words = ["--format", "genai", "--dtype", name, "--out", out / name, "--rows", rows]
        try:
            tandem("export", "--model", place, *words)
            folders[name] = out / name
        except SystemExit as refused:
            if name != "fp16" or "the export is not the model: the log-prob" not in str(refused):
                raise
    return folders


def generator(folder, length):
    opened = onnxruntime_genai.Model(str(folder))
    options = onnxruntime_genai.GeneratorParams(opened)
    options.set_search_options(max_length=length, do_sample=False)
    return onnxruntime_genai.Generator(opened, options)


def greedy(folder, prompt):
    """The tokens that GenAI appends to a prompt."""
    made = generator(folder, len(prompt) + NEW_TOKENS)
    made.append_tokens(numpy.array([prompt], numpy.int32))
    while not made.is_done():
        made.generate_next_token()
    return [int(token) for token in made.get_sequence(0)[len(prompt):]]


def logprobs(folder, prompt, completion):
    """Log-probs of the tokens of a completion."""
    made, ids, found = generator(folder, len(prompt) + len(completion) + 1), prompt, []
    for token in completion:
        made.append_tokens(numpy.array([ids], numpy.int32))
        logits = numpy.array(made.get_logits())[0, -1].astype(numpy.float64)
        highest = logits.max()
        found.append(logits[token] - highest - numpy.log(numpy.exp(logits - highest).sum()))
        ids = [token]
    return found


def drawn_greedily(place):
    """A file with prompts and completions that Tandem's sampler makes at temperature 0."""
    prompts = write_rows(WORK / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
    out = WORK / f"{place.name}-greedy.jsonl"
    tandem("generate", "--model", place, "--prompts", prompts, "--output", out, "--temperature", 0,
           "--max-completion-length", NEW_TOKENS, "--threads", 1)
    return out


def printed_by_page(folder, prompt):
    """The text that the last Python block of the page prints."""
    lines = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1]
    command = [sys.executable, "-c", lines, str(folder), prompt, str(NEW_TOKENS)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def quantised(weight, bits):
    """Codes and scales that ONNX Runtime makes of a weight."""
    (rows, columns), count = weight.shape, -(-weight.shape[1] // 32)
    codes = numpy.zeros((rows, count, 4 * bits), numpy.uint8)
    scales, zeros = numpy.zeros((rows, count), numpy.float32), numpy.zeros(rows * count, numpy.uint8)
    quantise = getattr(quantiser, f"quantize_matmul_{bits}bits")
    quantise(codes, numpy.ascontiguousarray(weight.T), scales, zeros, 32, rows, columns, True)
    return codes, scales


def differing_blocks(folder, weights):
    """Weights of a folder whose codes or scales are not those of ONNX Runtime's quantiser, and all that were seen."""
    seen = {tensor.name: tensor for tensor in onnx.load(str(folder / "model.onnx")).graph.initializer}
    differing = total = 0
    for name, tensor in seen.items():
        if name.endswith(".codes"):
            weight = weights[name.removesuffix(".codes")]
            codes, scales = quantised(weight, 8 * tensor.dims[2] // 32)
            stored = onnx.numpy_helper.to_array(tensor)
            of_scales = onnx.numpy_helper.to_array(seen[name.replace(".codes", ".scales")])
            differing += not (numpy.array_equal(codes, stored) and numpy.array_equal(scales, of_scales))
            total += 1
    return differing, total


if __name__ == "__main__":
    distances, kept = {name: [] for name in FORMATS}, {name: [0, 0] for name in FORMATS}
    of_rounded = {name: [] for name in ["int8", "int4"]}
    differing = total = others = refused = 0
    for family in FAMILIES:
        place = model(family)
        likeliest = drawn_greedily(place)
        folders, drawn, ours = exported(place, likeliest), completed(place), read_rows(likeliest)
        refused += "fp16" not in folders
        for name, folder in folders.items():
            rounded = blocks.opened(place, folder) if name in of_rounded else None
            for row in drawn:
                found = logprobs(folder, row["prompt_ids"], row["token_ids"])
                distances[name].append(largest(zip(row["logprobs"], found, strict=True)))
                if rounded is not None:
                    same = peers.logprobs(rounded, row["prompt_ids"], row["token_ids"])
                    of_rounded[name].append(largest(zip(same, found, strict=True)))
            for row in ours:
                # GenAI does not give the token that ends a sequence.
                expected = row["token_ids"][:-1] if row["finish_reason"] == "stop" else row["token_ids"]
                found = greedy(folder, row["prompt_ids"])
                kept[name][0] += sum(a == b for a, b in zip(expected, found))
                kept[name][1] += max(len(expected), len(found))
        for row in ours:
            others += printed_by_page(folders["fp32"], row["prompt"]) != row["prompt"] + row["text"] + "\n"
        for name in of_rounded:
            # In a model of images and text, the weights of its text model have names of the whole.
            stored = load_file(place / "model.safetensors").items()
            weights = {key.replace("model.language_model.", "model."): weight for key, weight in stored}
            found = differing_blocks(folders[name], weights)
            differing, total = differing + found[0], total + found[1]
    assert total > 0
    share = ", ".join(f"{name} {same}/{all_of}" for name, (same, all_of) in kept.items())
    compared = [found for found_of_all in of_rounded.values() for found in found_of_all]
    answer(
        f"{len(FAMILIES)} families, {refused} of them refused in fp16, {total} weights in blocks; greedy tokens that are "
        f"the same: {share}",
        logprob=worst(distances["fp32"]), fp16_logprob=worst(distances["fp16"]),
        int8_logprob=worst(distances["int8"]), int4_logprob=worst(distances["int4"]),
        int8_rounded=worst(of_rounded["int8"]), int4_rounded=worst(of_rounded["int4"]),
        # Where an input lies between two steps, it may round the other way, which moves the rest of its completion.
        moved=sum(found > 1e-3 for found in compared) / len(compared),
        greedy=kept["fp32"][1] - kept["fp32"][0], page=others, blocks=differing,
    )
