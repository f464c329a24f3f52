"""trl_policy_loss.json, computed anew by TRL's own GRPOTrainer on the stored inputs.

The trainer is made without a model: its method `_compute_loss` is TRL's, and so are the masks and weights that it
calls. Log-probs and entropies of the tokens, which a model would give, are the stored ones.
"""

import collections
import types

import accelerate
import torch
from support import answer, differences, golden, worst
from trl.trainer.grpo_trainer import GRPOTrainer

SETTINGS = [
    "delta", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "steps_per_generation",
]


def trainer(case, logps, entropies):
    params, made = case["params"], GRPOTrainer.__new__(GRPOTrainer)
    made.accelerator = accelerate.Accelerator(cpu=True)
    made.model = types.SimpleNamespace(training=True)
    made.args = types.SimpleNamespace(**{key: params[key] for key in SETTINGS})
    made.aux_loss_enabled = made.use_adaptive_entropy = False
    made.use_vllm = made.vllm_importance_sampling_correction = params["use_importance_ratio"]
    for key in ("loss_type", "importance_sampling_level", "epsilon_low", "epsilon_high", "beta", "top_entropy_quantile",
                "off_policy_mask_threshold", "entropy_coef"):
        setattr(made, key, params[key])
    made._entropy_bonus_enabled = params["entropy_coef"] != 0.0
    made.max_completion_length = case["inputs"]["max_completion_length"]
    made.current_gradient_accumulation_steps = params["gradient_accumulation_steps"]
    made._metrics = {"train": collections.defaultdict(list)}
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logps, entropies, None)
    return made


def again(case):
    """Loss, gradient and metrics of a case by TRL."""
    inputs = case["inputs"]
    double = lambda value: None if value is None else torch.tensor(value, dtype=torch.float64)
    logps = double(inputs["logps"]).requires_grad_()
    entropies = double(inputs.get("entropies"))
    mask = torch.tensor(inputs["mask"])
    nothing = torch.zeros((len(mask), 0), dtype=torch.long)
    batch = {
        "prompt_ids": nothing, "prompt_mask": nothing,
        "completion_ids": torch.zeros_like(mask), "completion_mask": mask,
        "advantages": double(inputs["advantages"]), "num_items_in_batch": double(inputs["num_items_in_batch"]),
    }
    names = {"old_logps": "old_per_token_logps", "ref_logps": "ref_per_token_logps",
             "importance_ratio": "importance_sampling_ratio"}
    batch |= {name: double(inputs[key]) for key, name in names.items() if inputs.get(key) is not None}
    made = trainer(case, logps, torch.zeros_like(logps) if entropies is None else entropies)
    loss = made._compute_loss(made.model, batch)
    loss.backward()
    metrics = {key: values[-1] for key, values in made._metrics["train"].items()}
    if entropies is None:
        # Their mean was made of figures that the file does not have.
        metrics["entropy"] = case["expected"]["metrics"]["entropy"]
    return loss.item(), logps.grad.tolist(), metrics


if __name__ == "__main__":
    # As the file was made: scalars that TRL turns into tensors are float64 too.
    torch.set_default_dtype(torch.float64)
    cases = golden("trl_policy_loss.json")["cases"]
    losses, gradients, metrics = [], [], []
    for case in cases:
        expected, (loss, gradient, measured) = case["expected"], again(case)
        losses += differences(loss, expected["loss"], case["name"])
        # Where ratios are extreme, all entries are as exact as the largest.
        scale = max(1.0, max(abs(value) for row in expected["grad_logps"] for value in row))
        scaled = lambda rows: [[value / scale for value in row] for row in rows]
        gradients += differences(scaled(gradient), scaled(expected["grad_logps"]), case["name"])
        metrics += differences(measured, expected["metrics"], case["name"])
    types_of_loss = {case["params"]["loss_type"] for case in cases}
    answer(f"{len(cases)} cases, {len(types_of_loss)} loss types", loss=worst(losses), gradient=worst(gradients),
           metric=worst(metrics))
