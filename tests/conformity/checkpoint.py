"""Checkpoints of full training, of every family: transformers opens them, and computes the same with them."""

import peers
import transformers
from safetensors.torch import load_file
from support import FAMILIES, answer, completed, largest, trained, worst


def tensors(place):
    """The tensors of a directory: those of its text model, and others."""
    found = load_file(place / "model.safetensors")
    others = {name for name in found if peers.is_whole(place) and "language_model." not in name}
    return [{name: found[name] for name in found if (name in others) == other} for other in (False, True)]


if __name__ == "__main__":
    logprobs, greedy, tokens = [], 0, 0
    for family, base in peers.models():
        checkpoint = trained(base)
        (before, others), (after, carried) = tensors(base), tensors(checkpoint)
        moved = worst(float((after[name] - before[name]).abs().max()) for name in before)
        assert moved > 1e-4, f"{family}: a checkpoint like its base says nothing: weights moved by {moved}"
        assert others.keys() == carried.keys(), f"{family}: {others.keys() ^ carried.keys()}"
        assert all(others[name].equal(carried[name]) for name in others), f"{family}: a tower has changed"

        theirs = peers.opened(checkpoint)
        rows = completed(checkpoint)
        found = peers.row_logprobs(theirs, rows)
        ours = [value for row in rows for value in row["logprobs"]]
        logprobs.append(largest(zip(ours, found, strict=True)))
        if family == "qwen3_5":
            # transformers also opens the text model of such a whole alone.
            text = peers.opened(checkpoint, transformers.AutoModelForCausalLM)
            logprobs.append(largest(zip(ours, peers.row_logprobs(text, rows), strict=True)))
        likeliest = completed(checkpoint, "--temperature", 0)
        for row in likeliest:
            expected = peers.greedy(theirs, row["prompt_ids"], 24)
            found = row["token_ids"]
            greedy += sum(a != b for a, b in zip(expected, found)) + abs(len(expected) - len(found))
        tokens += len(ours) + sum(len(row["token_ids"]) for row in likeliest)
    answer(f"{len(FAMILIES)} families, {tokens} tokens", logprob=worst(logprobs), greedy=greedy)
