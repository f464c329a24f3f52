"""Tandem in Python: GRPO post-training of language models, by the names of TRL.

    from tandem_rl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=my_reward, train_dataset=dataset)
    trainer.train()

A trainer starts Tandem's programs, which the package brings, and follows them. `Run` reads what a run has written. The
programs are commands too (`tandem --help`), and `binary` has their paths:

    subprocess.run([tandem_rl.binary("tandem"), "train", "run.toml"], check=True)

Only the standard library is needed. `datasets`, `pandas` and `tqdm` are used where they are installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tandem_rl._programs import TandemError, binary

if TYPE_CHECKING:
    from tandem_rl.config import GRPOConfig
    from tandem_rl.run import Run
    from tandem_rl.trainer import GRPOTrainer, TrainOutput

__all__ = ["GRPOConfig", "GRPOTrainer", "Run", "TandemError", "TrainOutput", "__version__", "binary"]

__version__ = "@VERSION@"

# Imported at the first use: the commands of the package need none of it.
_PLACES = {"GRPOConfig": "config", "GRPOTrainer": "trainer", "TrainOutput": "trainer", "Run": "run"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
