"""Checkpoints of LoRA runs, of every family: PEFT opens them, merges them, and computes the same with them.

`tandem merge` is compared with PEFT's own merge as well: weight by weight, and as transformers opens it.
"""

import json

import peers
import peft
from support import FAMILIES, WORK, answer, completed, largest, tandem, trained, worst

OPTIONS = ["--use_peft", "true", "--lora_r", 4, "--learning_rate", 0.02]


def with_peft(adapter):
    """An adapter on the base that it names, as PEFT opens it."""
    stated = json.loads((adapter / "adapter_config.json").read_text())
    return peft.PeftModel.from_pretrained(peers.opened(stated["base_model_name_or_path"]), adapter).eval()


if __name__ == "__main__":
    adapted, merged, weights, tokens = [], [], [], 0
    for family, base in peers.models():
        adapter = trained(base, *OPTIONS)
        rows = completed(adapter)
        ours = [value for row in rows for value in row["logprobs"]]
        theirs = with_peft(adapter)
        found = peers.row_logprobs(theirs, rows)
        adapted.append(largest(zip(ours, found, strict=True)))
        changed = largest(zip(found, peers.row_logprobs(peers.opened(base), rows), strict=True))
        assert changed > 0.01, f"{family}: an adapter that changes nothing says nothing: {changed}"

        whole = WORK / f"{base.name}-merged"
        tandem("merge", adapter, whole)
        opened = peers.opened(whole)
        merged.append(largest(zip(ours, peers.row_logprobs(opened, rows), strict=True)))
        expected, found = theirs.merge_and_unload().state_dict(), opened.state_dict()
        assert expected.keys() == found.keys(), f"{family}: {expected.keys() ^ found.keys()}"
        weights.append(worst(float((expected[name] - found[name]).abs().max()) for name in expected))
        tokens += len(ours)
    answer(f"{len(FAMILIES)} families, {tokens} tokens", logprob=worst(adapted), merged_logprob=worst(merged),
           merged_weight=worst(weights))
