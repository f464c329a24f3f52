"""The figures and models of model_numerics.json, made anew with transformers.

`model_numerics.py` makes its two families from nothing, weights included. The other cases have no generator here: their
stored weights are opened, and the same functions compute forward passes, a greedy continuation and the training steps.
"""

import json
import shutil
import subprocess
import sys

from safetensors.torch import load_file
from support import GOLDEN, WORK, answer, differences, golden, worst

sys.path.insert(0, str(GOLDEN))

import model_numerics
import peers
import torch

# These say how far float32 is from float64 where the file was made, and where files are.
NOT_COMPARED = ("fp32_vs_fp64_deviation", "sha256_model", "weights_after_file")


def compared(case):
    return {key: value for key, value in case["expected"].items() if key not in NOT_COMPARED}


def of_tied_head(found, expected):
    """Files and figures may have a head that is the embedding under its own name as well."""
    if "lm_head.weight" in expected:
        found.setdefault("lm_head.weight", found["model.embed_tokens.weight"])


def weights(found, expected):
    """The largest difference of a weight in two files."""
    found, expected = load_file(found), load_file(expected)
    of_tied_head(found, expected)
    assert found.keys() == expected.keys()
    return worst(float((found[name] - expected[name]).abs().max()) for name in expected)


def again(case):
    """What the functions of `model_numerics.py` make of the stored weights and inputs of a case."""
    inputs, expected = case["inputs"], case["expected"]
    model = peers.opened(GOLDEN / case["params"]["model_dir"])
    pairs = list(zip(inputs["prompt_ids"], inputs["completion_ids"]))
    with torch.no_grad():
        forward = []
        for given in expected["forward"]:
            rows = model_numerics.logits(model, given["ids"])
            forward.append({
                "ids": given["ids"], "logits_positions": given["logits_positions"],
                "logits": given["logits"] and rows[given["logits_positions"]].tolist(),
                "logits_last": rows[-1].tolist(), "argmax": rows.argmax(-1).tolist(),
                "logsumexp": torch.logsumexp(rows, -1).tolist(),
            })
        plain = [model_numerics.token_logps(model, p, c, 1.0) for p, c in pairs]
        cool = [model_numerics.token_logps(model, p, c, 0.7)[0].tolist() for p, c in pairs]
        entropies = [(-(rows.exp() * rows).sum(-1)).tolist() for _, rows in plain]
    greedy = dict(expected["greedy"])
    greedy["continuation_ids"] = peers.greedy(model, greedy["prompt_ids"], len(greedy["continuation_ids"]))
    greedy["logprobs"] = peers.logprobs(model, greedy["prompt_ids"], greedy["continuation_ids"])
    model_numerics.HYPER, model_numerics.ADVANTAGES = inputs["hyper"], inputs["advantages"]
    steps, _, after = model_numerics.train(model, *zip(*pairs))
    for step, stated in zip(steps, expected["training"], strict=True):
        of_tied_head(step["weights_after"], stated["weights_after"])
    stated = WORK / "after.safetensors"
    model_numerics.save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, stated)
    found = {
        "forward": forward, "greedy": greedy, "completion_logps": [logps.tolist() for logps, _ in plain],
        "completion_entropies": entropies, "completion_logps_temperature_0_7": cool, "training": steps,
        "completion_logps_after": after,
    }
    return found, weights(stated, GOLDEN / expected["weights_after_file"])


if __name__ == "__main__":
    stored = {case["name"]: case for case in golden("model_numerics.json")["cases"]}
    place = WORK / "golden"
    shutil.copytree(GOLDEN, place, ignore=shutil.ignore_patterns("smollm3", "gemma3"))
    subprocess.run([sys.executable, "model_numerics.py"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    made = {case["name"]: case for case in json.loads((place / "model_numerics.json").read_text())["cases"]}
    figures, moved = [], []
    for name, case in stored.items():
        if name in ("smollm3", "gemma3"):
            found = compared(made[name])
            for file in ("model.safetensors", "after_3_steps/model.safetensors"):
                moved.append(weights(*(root / case["params"]["model_dir"] / file for root in (place, GOLDEN))))
        else:
            found, difference = again(case)
            moved.append(difference)
        figures.append(worst(differences(found, compared(case), name)))
        print(name, figures[-1], moved[-1], file=sys.stderr)
    answer(f"{len(stored)} models", figure=worst(figures), weight=worst(moved))
