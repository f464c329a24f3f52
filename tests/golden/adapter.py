"""Makes adapter.json and adapters/qwen2 with PEFT: a LoRA adapter of models/qwen2, and what the model computes with it.

The adapter is PEFT's own `save_pretrained`; only the path of its base is rewritten, as seen from the adapter. Run with torch,
transformers and peft installed, from this folder.
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file

BASE, OUT = "models/qwen2", pathlib.Path("adapters/qwen2")
IDS = [[1, 5, 9, 33, 2, 77, 120, 64, 8, 3], [7, 7, 300, 12]]


def logprobs(model, ids):
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [float(rows[t, ids[t + 1]]) for t in range(len(ids) - 1)]


def base():
    return transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager").eval()


if __name__ == "__main__":
    torch.manual_seed(0)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=12, use_rslora=True,
        target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
    )
    model = peft.get_peft_model(base(), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            # A new adapter's B is 0, and would change nothing.
            torch.nn.init.normal_(parameter, std=0.05)
    before = [logprobs(base(), ids) for ids in IDS]
    model.eval().save_pretrained(OUT)
    (OUT / "README.md").unlink(missing_ok=True)
    stated = json.loads((OUT / "adapter_config.json").read_text())
    stated["base_model_name_or_path"] = "../../" + BASE
    (OUT / "adapter_config.json").write_text(json.dumps(stated, indent=2) + "\n")
    after = [logprobs(model, ids) for ids in IDS]
    merged = model.merge_and_unload().state_dict()
    sums = {name: float(t.double().abs().sum()) for name, t in sorted(merged.items()) if name.endswith("_proj.weight")}
    case = {
        "name": "qwen2",
        "params": {"adapter_dir": str(OUT), "base_dir": BASE},
        "inputs": {"ids": IDS},
        "expected": {"base_logprobs": before, "logprobs": after, "merged_abs_sums": sums},
    }
    source = f"adapter.py with peft {peft.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    print(json.dumps({"kind": "adapter", "source": source, "cases": [case]}))
