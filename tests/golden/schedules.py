"""Makes schedules.json: learning rates of every update, by transformers' own functions in `optimization.py`.

Needs the file of an installed or unpacked transformers, and no torch: `python schedules.py .../transformers/optimization.py > schedules.json`.
"""

import ast
import functools
import json
import math
import pathlib
import sys
import types
import warnings

SCHEDULES = {
    "constant": "get_constant_schedule",
    "constant_with_warmup": "get_constant_schedule_with_warmup",
    "linear": "get_linear_schedule_with_warmup",
    "cosine": "get_cosine_schedule_with_warmup",
    "cosine_with_restarts": "get_cosine_with_hard_restarts_schedule_with_warmup",
    "polynomial": "get_polynomial_decay_schedule_with_warmup",
    "inverse_sqrt": "get_inverse_sqrt_schedule",
    "cosine_with_min_lr": "get_cosine_with_min_lr_schedule_with_warmup",
    "cosine_warmup_with_min_lr": "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "warmup_stable_decay": "get_wsd_schedule",
}

# Schedule, settings, warm-up, updates, peak rate.
CASES = [
    ("constant", None, 0, 8, 1e-6),
    ("constant_with_warmup", None, 3, 8, 1e-6),
    ("linear", None, 3, 10, 2e-5),
    ("linear", {}, 0, 7, 2e-5),
    ("cosine", None, 2, 11, 1e-6),
    ("cosine", {"num_cycles": 1.5}, 2, 12, 1e-6),
    ("cosine_with_restarts", None, 2, 12, 1e-6),
    ("cosine_with_restarts", {"num_cycles": 3}, 2, 17, 1e-6),
    ("cosine_with_restarts", {"num_cycles": 2}, 0, 9, 1e-6),
    ("polynomial", None, 3, 12, 1e-6),
    ("polynomial", {"power": 2.0, "lr_end": 1e-8}, 3, 12, 1e-6),
    ("polynomial", {"power": 0.5, "lr_end": 0.0}, 0, 9, 3e-4),
    ("inverse_sqrt", None, 4, 15, 1e-6),
    ("inverse_sqrt", None, 0, 9, 1e-6),
    ("inverse_sqrt", {"timescale": 7}, 4, 15, 1e-6),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, 2, 13, 1e-6),
    ("cosine_with_min_lr", {"min_lr": 2e-7, "num_cycles": 1.0}, 0, 9, 1e-6),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}, 4, 14, 1e-6),
    ("cosine_warmup_with_min_lr", {"min_lr": 3e-7, "warmup_lr_rate": 0.25}, 4, 14, 1e-6),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.0, "warmup_lr_rate": 0.5}, 1, 9, 1e-6),
    ("warmup_stable_decay", {"num_decay_steps": 4}, 3, 14, 1e-6),
    ("warmup_stable_decay", {"num_decay_steps": 4, "min_lr_ratio": 0.1, "decay_type": "linear"}, 3, 14, 1e-6),
    ("warmup_stable_decay", {"num_decay_steps": 5, "num_stable_steps": 2, "warmup_type": "cosine", "decay_type": "1-sqrt"}, 4, 14, 1e-6),
    ("warmup_stable_decay", {"num_decay_steps": 5, "warmup_type": "1-sqrt", "min_lr_ratio": 0.2, "num_cycles": 1.0}, 4, 14, 1e-6),
    ("warmup_stable_decay", {"num_decay_steps": 9}, 4, 10, 1e-6),
]


def functions(path):
    """The functions of the file, in which LambdaLR is the lambda itself."""
    tree = ast.parse(pathlib.Path(path).read_text())
    body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and "schedule" in node.name or getattr(node, "name", "") in ("_get_wsd_scheduler_lambda", "_get_constant_lambda", "get_wsd_schedule")]
    for node in body:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args + node.args.kwonlyargs:
            argument.annotation = None
    names = {"math": math, "warnings": warnings, "partial": functools.partial, "LambdaLR": lambda optimizer, function, last_epoch=-1: function}
    exec(compile(ast.Module([n for n in body if n.name != "get_scheduler"], []), path, "exec"), names)
    return names


if __name__ == "__main__":
    names = functions(sys.argv[1])
    cases = []
    for kind, settings, warmup, total, peak in CASES:
        given = {} if kind == "constant" else {"num_warmup_steps": warmup}
        if kind not in ("constant", "constant_with_warmup", "inverse_sqrt"):
            given["num_training_steps"] = total
        factor = names[SCHEDULES[kind]](types.SimpleNamespace(defaults={"lr": peak}), **given, **(settings or {}))
        rates = [peak * factor(step) for step in range(total + 3)]
        params = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": settings, "warmup_steps": warmup, "total": total, "learning_rate": peak}
        cases.append({"name": f"{kind} {json.dumps(settings)}", "params": params, "inputs": {}, "expected": {"rates": rates}})
    print(json.dumps({"kind": "schedules", "source": "schedules.py with transformers 5.24.0", "cases": cases}))
