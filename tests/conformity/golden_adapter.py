"""adapter.json and adapters/qwen2, made anew with PEFT by `adapter.py`."""

import json
import shutil
import subprocess
import sys

from safetensors.torch import load_file
from support import GOLDEN, WORK, answer, differences, golden, worst

if __name__ == "__main__":
    place = WORK / "golden"
    shutil.copytree(GOLDEN, place, ignore=shutil.ignore_patterns("adapters"))
    done = subprocess.run([sys.executable, "adapter.py"], cwd=place, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])["cases"][0]
    [stored] = golden("adapter.json")["cases"]
    made, kept = (load_file(root / "adapters/qwen2/adapter_model.safetensors") for root in (place, GOLDEN))
    assert made.keys() == kept.keys(), f"PEFT has other parameters: {made.keys() ^ kept.keys()}"
    configs = [json.loads((root / "adapters/qwen2/adapter_config.json").read_text()) for root in (place, GOLDEN)]
    for config in configs:
        # PEFT writes a set, whose order is by chance.
        config["target_modules"].sort()
    assert configs[0] == configs[1], f"PEFT writes another configuration: {configs[0]}"
    answer(
        f"{len(kept)} tensors",
        figure=worst(differences(found["expected"], stored["expected"], "adapter")),
        weight=worst(float((made[name] - kept[name]).abs().max()) for name in kept),
    )
