"""Checkpoints of full training, of every family: transformers opens them, and computes the same with them."""

import peers
from safetensors.torch import load_file
from support import FAMILIES, NEWER, answer, completed, largest, model, trained, worst

if __name__ == "__main__":
    logprobs, sampled, greedy, tokens = [], [], 0, 0
    for family in FAMILIES + NEWER:
        base = model(family)
        checkpoint = trained(base)
        before, after = (load_file(place / "model.safetensors") for place in (base, checkpoint))
        moved = worst(float((after[name] - before[name]).abs().max()) for name in before)
        assert moved > 1e-4, f"{family}: a checkpoint like its base says nothing: weights moved by {moved}"

        theirs = peers.opened(checkpoint)
        rows = completed(checkpoint)
        found = peers.row_logprobs(theirs, rows)
        ours = [value for row in rows for value in row["logprobs"]]
        logprobs.append(largest(zip(ours, found, strict=True)))
        likeliest = completed(checkpoint, "--temperature", 0)
        for row in likeliest:
            expected = peers.greedy(theirs, row["prompt_ids"], 24)
            found = row["token_ids"]
            greedy += sum(a != b for a, b in zip(expected, found)) + abs(len(expected) - len(found))
        tokens += len(ours) + sum(len(row["token_ids"]) for row in likeliest)
    answer(f"{len(FAMILIES + NEWER)} families, {tokens} tokens", logprob=worst(logprobs), greedy=greedy)
