"""schedules.json, made anew by `schedules.py` from the optimization.py of the installed transformers."""

import importlib.util
import json
import pathlib
import subprocess
import sys

from support import GOLDEN, answer, golden

if __name__ == "__main__":
    package = pathlib.Path(importlib.util.find_spec("transformers").origin).parent
    command = [sys.executable, str(GOLDEN / "schedules.py"), str(package / "optimization.py")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found, stored = json.loads(done.stdout)["cases"], golden("schedules.json")["cases"]
    largest = 0.0
    for made, kept in zip(found, stored, strict=True):
        assert made["name"] == kept["name"] and made["params"] == kept["params"], made["name"]
        peak = kept["params"]["learning_rate"]
        pairs = zip(made["expected"]["rates"], kept["expected"]["rates"], strict=True)
        largest = max(largest, *(abs(a - b) / peak for a, b in pairs))
    answer(f"{len(stored)} schedules", rate=largest)
