"""Makes the cases smollm3 and gemma3 of model_numerics.json, and models/smollm3 and models/gemma3, with transformers.

Tiny models with random weights: every kind of layer occurs, and windows are shorter than prompts and completions. A case of the
same name is replaced, the other cases stay. Run with torch, transformers and safetensors installed, from this folder.
"""

import hashlib
import json
import math
import pathlib

import torch
import transformers
from safetensors.torch import save_file

SHARED = dict(
    vocab_size=512, hidden_size=32, intermediate_size=64, num_attention_heads=4, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.02, attention_dropout=0.0,
)
# Rotary positions and none, windows and none, in all four combinations; heads of 8.
SMOLLM3 = transformers.SmolLM3Config(
    **SHARED, num_hidden_layers=4, num_key_value_heads=2, rms_norm_eps=1e-6,
    no_rope_layers=[1, 0, 1, 0], use_sliding_window=True, sliding_window=6,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
)
# Heads wider than hidden_size / num_attention_heads, scores scaled by something else, stretched positions in full layers.
GEMMA3 = transformers.Gemma3TextConfig(
    **SHARED, num_hidden_layers=3, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6, query_pre_attn_scalar=24,
    sliding_window=5, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)
HYPER = {
    "lr": 3e-05, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.1, "max_grad_norm": 1.0, "epsilon_low": 0.2,
    "epsilon_high": 0.28, "beta_kl": 0.04, "loss_type": "grpo", "temperature": 1.0, "steps": 3,
}
ADVANTAGES = [1.0, -0.7, 0.4, -1.3]
PROMPTS, COMPLETIONS, FORWARD = [9, 9, 13, 13], [11, 3, 8, 1], [1, 9, 30]


def fill(model, seed):
    """Weights that make logits differ by more than rounding; norms away from what they begin with."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("norm.weight"):
                parameter.add_(0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                # Gemma 3 multiplies its embeddings with the root of their width.
                scaled = "embed" in name and hasattr(model.model.embed_tokens, "scalar_embed_scale")
                parameter.copy_(noise * (0.2 if scaled else 0.3 if "embed" in name else 1.2 / math.sqrt(parameter.shape[1])))


def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def token_logps(model, prompt, completion, temperature):
    rows = torch.log_softmax(logits(model, prompt + completion)[len(prompt) - 1 : -1] / temperature, -1)
    return rows.gather(-1, torch.tensor(completion)[:, None])[:, 0], rows


def loss_of(logps, old, advantages):
    """GRPO with the k3 penalty; also the mean of the penalty, the clipped tokens and all ratios."""
    total, kl, clipped, ratios = 0.0, 0.0, 0, []
    low, high = 1 - HYPER["epsilon_low"], 1 + HYPER["epsilon_high"]
    for row, before, advantage in zip(logps, old, advantages):
        ratio = torch.exp(row - before)
        policy = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        k3 = torch.exp(before - row) - (before - row) - 1
        total = total + (policy + HYPER["beta_kl"] * k3).mean() / len(logps)
        kl += float(k3.detach().sum())
        clipped += int(((ratio < low) & (advantage < 0) | (ratio > high) & (advantage > 0)).sum())
        ratios += ratio.tolist()
    return total, kl / sum(map(len, logps)), clipped, ratios


def summary(tensor):
    flat = tensor.detach().double().flatten()
    index = sorted({0, 1, 2, 3, len(flat) // 2, len(flat) - 1})
    figures = {"sum": float(flat.sum()), "abs_sum": float(flat.abs().sum()), "l2": float(flat.norm())}
    return {"shape": list(tensor.shape), **figures, "index": index, "value": [float(flat[i]) for i in index]}


def train(model, prompts, completions):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": HYPER["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=HYPER["lr"], betas=tuple(HYPER["betas"]), eps=HYPER["eps"])
    run = lambda: [token_logps(model, p, c, HYPER["temperature"])[0] for p, c in zip(prompts, completions)]
    old, steps = [row.detach() for row in run()], []
    for _ in range(HYPER["steps"]):
        optimizer.zero_grad()
        logps = run()
        loss, kl, clipped, ratios = loss_of(logps, old, ADVANTAGES)
        loss.backward()
        norms = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), HYPER["max_grad_norm"]))
        optimizer.step()
        steps.append({
            "loss": float(loss.detach()), "grad_norm_before_clip": norm, "grad_l2_per_tensor": norms, "kl_token_mean": kl,
            "clipped_tokens": clipped, "ratio_min": min(ratios), "ratio_max": max(ratios),
            "logps": [row.tolist() for row in logps],
            "weights_after": {name: summary(p) for name, p in model.named_parameters()},
        })
    with torch.no_grad():
        return steps, [row.tolist() for row in old], [row.tolist() for row in run()]


def in_float64(model):
    """The model in float64 throughout: the norms of the families, and the softmax of eager attention, are in float32."""
    for module in model.modules():
        if module.__class__.__name__.endswith("RMSNorm"):
            eps = getattr(module, "eps", None) or module.variance_epsilon
            offset = 1.0 if hasattr(module, "eps") else 0.0
            module.forward = lambda x, m=module, e=eps, o=offset: (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e) * (o + m.weight)
            )
    model.set_attn_implementation("sdpa")
    return model.double()


def save_configs(config, directory, hub):
    stated = config.to_dict()
    stated |= {"architectures": [hub.pop("architecture")], "dtype": "float32"}
    for key in [k for k in stated if k.startswith("_") or k in ("chunk_size_feed_forward", "is_encoder_decoder")]:
        del stated[key]
    (directory / "config.transformers5.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n")
    old = {k: v for k, v in stated.items() if k not in ("rope_parameters", "dtype")} | {"torch_dtype": "float32"} | hub
    (directory / "config.json").write_text(json.dumps({k: v for k, v in old.items() if v is not ...}, indent=1) + "\n")


def case(name, config, hub, seed):
    directory = pathlib.Path("models") / name
    (directory / "after_3_steps").mkdir(parents=True, exist_ok=True)
    new = lambda: transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model = new()
    fill(model, seed)
    tensors = lambda m: {n: p.detach().contiguous() for n, p in m.named_parameters()}
    save_file(tensors(model), directory / "model.safetensors", metadata={"format": "pt"})
    save_configs(config, directory, hub)
    model.generation_config.save_pretrained(directory)
    # What was written is what is computed with, in the layout of the hub and in that of transformers 5.
    again = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed + 1)
    draw = lambda count: torch.randint(3, config.vocab_size, (count,), generator=generator).tolist()
    stems = {}
    prompts = [stems.setdefault(length, [1] + draw(length - 1)) for length in PROMPTS]
    completions = [draw(length) for length in COMPLETIONS]
    forward = []
    with torch.no_grad():
        for length in FORWARD:
            ids = [1] + draw(length - 1)
            rows = logits(model, ids)
            assert torch.allclose(rows, logits(again, ids), atol=1e-5), "the written configuration means something else"
            forward.append({
                "ids": ids, "logits_positions": list(range(length)), "logits": rows.tolist() if length <= 9 else None,
                "logits_last": rows[-1].tolist(), "argmax": rows.argmax(-1).tolist(),
                "logsumexp": torch.logsumexp(rows, -1).tolist(),
            })
        prompt = [1] + draw(8)
        whole, logps, margin = list(prompt), [], math.inf
        for _ in range(24):
            row = torch.log_softmax(logits(model, whole)[-1], -1)
            best = torch.topk(row, 2).values
            margin = min(margin, float(best[0] - best[1]))
            whole.append(int(row.argmax()))
            logps.append(float(row.max()))
        greedy = {"prompt_ids": prompt, "continuation_ids": whole[len(prompt) :], "logprobs": logps, "min_argmax_margin": margin}
        pairs = list(zip(prompts, completions))
        plain = [token_logps(model, p, c, 1.0) for p, c in pairs]
        cool = [token_logps(model, p, c, 0.7)[0].tolist() for p, c in pairs]
        entropies = [(-(rows.exp() * rows).sum(-1)).tolist() for _, rows in plain]
    wide = new()
    wide.load_state_dict(model.state_dict())
    wide_steps, _, _ = train(in_float64(wide), prompts, completions)
    steps, old, after = train(model, prompts, completions)
    save_file(tensors(model), directory / "after_3_steps" / "model.safetensors", metadata={"format": "pt"})
    off = [(a.double() - b).abs() for a, b in zip(model.parameters(), wide.parameters())]
    flat = lambda rows: torch.tensor([x for row in rows for x in row], dtype=torch.float64)
    deviation = {
        "loss": [abs(a["loss"] - b["loss"]) for a, b in zip(steps, wide_steps)],
        "grad_norm_rel": [abs(a["grad_norm_before_clip"] / b["grad_norm_before_clip"] - 1) for a, b in zip(steps, wide_steps)],
        "logps": [float((flat(a["logps"]) - flat(b["logps"])).abs().max()) for a, b in zip(steps, wide_steps)],
        "weights_after_3": max(float(x.detach().max()) for x in off),
        "weights_after_3_mean": sum(float(x.detach().sum()) for x in off) / sum(x.numel() for x in off),
    }
    by_decay = lambda decays: [n for n, p in model.named_parameters() if (p.ndim >= 2) == decays]
    file = directory / "model.safetensors"
    return {
        "name": name,
        "params": {"model_dir": str(directory), "dtype": "float32", "tied": True, "n_params": sum(p.numel() for p in model.parameters())},
        "inputs": {
            "prompt_ids": prompts, "completion_ids": completions, "advantages": ADVANTAGES,
            "old_logps": "log-probs of the initial model at the training temperature (= ref_logps); values in old_logps_values",
            "old_logps_values": old, "hyper": HYPER, "decay_params": by_decay(True), "no_decay_params": by_decay(False),
        },
        "expected": {
            "forward": forward, "greedy": greedy, "completion_logps": [logps.tolist() for logps, _ in plain],
            "completion_entropies": entropies, "completion_logps_temperature_0_7": cool, "training": steps,
            "completion_logps_after": after, "fp32_vs_fp64_deviation": deviation,
            "weights_after_file": str(directory / "after_3_steps" / "model.safetensors"),
            "sha256_model": hashlib.sha256(file.read_bytes()).hexdigest(),
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    hub_smollm3 = {"architecture": "SmolLM3ForCausalLM", "rope_theta": 20000.0, "rope_scaling": None}
    # `layer_types` is left to the pattern.
    hub_gemma3 = {
        "architecture": "Gemma3ForCausalLM", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "layer_types": ...,
    }
    cases = [case("smollm3", SMOLLM3, hub_smollm3, 5), case("gemma3", GEMMA3, hub_gemma3, 8)]
    path = pathlib.Path("model_numerics.json")
    golden = json.loads(path.read_text())
    made = {c["name"] for c in cases}
    golden["cases"] = [c for c in golden["cases"] if c["name"] not in made] + cases
    path.write_text(json.dumps(golden))
