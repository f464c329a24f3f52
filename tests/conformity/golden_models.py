"""The figures and models of model_numerics.json, made anew with transformers.

Stored weights are opened, and the functions of `model_numerics.py` compute forward passes, a greedy continuation and
the training steps. Two families are also made from nothing, weights included: `model_numerics.py` has their generator.

AdamW divides a gradient by its own size. So where a gradient is near 0, its rounding error decides on a share of the
learning rate, and the weight after a step says nothing about the size of the error. Therefore a weight is compared by
the error of its gradients that would explain its difference: as elsewhere in float32, 1e-5 of the largest entry.
"""

import itertools
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
from torch.optim.optimizer import register_optimizer_step_pre_hook

# The families with a generator.
MADE = ("smollm3", "gemma3")
# The error of a gradient, as a share of the largest one of its tensor.
ERROR = 1e-5
# Two computations round a weight twice in each step: with the decay, and with the movement.
ROUNDINGS = 4
# These say how far float32 is from float64 where the file was made, and where files are.
NOT_COMPARED = ("fp32_vs_fp64_deviation", "sha256_model", "weights_after_file")


def compared(case):
    return {key: value for key, value in case["expected"].items() if key not in NOT_COMPARED}


def of_tied_head(found, expected):
    """Files and figures may have a head that is the embedding under its own name as well."""
    if "lm_head.weight" in expected:
        found.setdefault("lm_head.weight", found["model.embed_tokens.weight"])


def tensors(file):
    found = load_file(file)
    of_tied_head(found, ["lm_head.weight"])
    return found


def movement(gradients, hyper):
    """How far AdamW moves each weight of a tensor with the gradients of its steps, weight decay aside."""
    first = second = total = torch.zeros(())
    one, two = hyper["betas"]
    for step, gradient in enumerate(gradients, 1):
        first, second = one * first + (1 - one) * gradient, two * second + (1 - two) * gradient**2
        size = (second / (1 - two**step)).sqrt() + hyper["eps"]
        total = total + hyper["lr"] * first / (1 - one**step) / size
    return total


def explained(gradients, weight, hyper):
    """How far two weights may be from each other after the steps, if the gradients differ by their error."""
    errors = [ERROR * gradient.abs().max() for gradient in gradients]
    there = movement(gradients, hyper)
    far = torch.zeros(())
    for signs in itertools.product((-1, 1), repeat=len(gradients)):
        moved = movement([g + sign * e for g, e, sign in zip(gradients, errors, signs)], hyper)
        far = torch.maximum(far, (moved - there).abs())
    return far + len(gradients) * ROUNDINGS * 2**-24 * weight.abs()


def trained(model, inputs, pairs):
    """As `model_numerics.train`, and the gradients that AdamW has been given, by name, step by step."""
    model_numerics.HYPER, model_numerics.ADVANTAGES = inputs["hyper"], inputs["advantages"]
    given = []
    keep = lambda *_: given.append({name: p.grad.double() for name, p in model.named_parameters()})
    hook = register_optimizer_step_pre_hook(keep)
    steps, _, after = model_numerics.train(model, *zip(*pairs))
    hook.remove()
    return steps, after, {name: [step[name] for step in given] for name in given[0]}


def again(case):
    """What the functions of `model_numerics.py` make of the stored weights and inputs of a case; and the largest
    difference of a weight, as a share of what the error of gradients explains."""
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
    steps, after, gradients = trained(model, inputs, pairs)
    for step, stated in zip(steps, expected["training"], strict=True):
        of_tied_head(step["weights_after"], stated["weights_after"])
    stored, shares = tensors(GOLDEN / expected["weights_after_file"]), []
    for name, weight in model.named_parameters():
        difference = (weight.detach().double() - stored[name].double()).abs()
        shares.append(float((difference / explained(gradients[name], stored[name].double(), inputs["hyper"])).max()))
    found = {
        "forward": forward, "greedy": greedy, "completion_logps": [logps.tolist() for logps, _ in plain],
        "completion_entropies": entropies, "completion_logps_temperature_0_7": cool, "training": steps,
        "completion_logps_after": after,
    }
    return found, worst(shares)


if __name__ == "__main__":
    stored = {case["name"]: case for case in golden("model_numerics.json")["cases"]}
    place = WORK / "golden"
    shutil.copytree(GOLDEN, place, ignore=shutil.ignore_patterns(*MADE))
    subprocess.run([sys.executable, "model_numerics.py"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    made = {case["name"]: case for case in json.loads((place / "model_numerics.json").read_text())["cases"]}
    figures, moved = [], []
    for name, case in stored.items():
        found, share = again(case)
        apart = [worst(differences(found, compared(case), name))]
        if name in MADE:
            apart.append(worst(differences(compared(made[name]), compared(case), name)))
            begun = [tensors(root / case["params"]["model_dir"] / "model.safetensors") for root in (place, GOLDEN)]
            apart.append(worst(float((begun[0][key] - begun[1][key]).abs().max()) for key in begun[1]))
        print(name, apart, share, file=sys.stderr)
        figures.append(worst(apart))
        moved.append(share)
    answer(f"{len(stored)} models", figure=worst(figures), weight=worst(moved))
