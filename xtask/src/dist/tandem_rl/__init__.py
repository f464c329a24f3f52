"""The programs of Tandem: GRPO post-training of language models.

The package installs the programs themselves as commands (`tandem --help`). From Python, run them as processes:

    subprocess.run([tandem_rl.binary("tandem"), "train", "run.toml"], check=True)
"""

from pathlib import Path

__all__ = ["__version__", "binary"]

__version__ = "@VERSION@"


def binary(name):
    """The path of a program of this package: `tandem`, `rollout`, `learner`, `rollout-fleet`, `rollout-serve`.

    The commands of the package let reward functions run in the interpreter that has the package; a program that is
    started by its path takes `python3`, unless `reward_python` or the variable TANDEM_REWARD_PYTHON names another one.

    Raises:
        ValueError: the package has no such program.
    """
    path = Path(__file__).resolve().parent / "bin" / name
    if not path.is_file():
        raise ValueError(f"tandem_rl has no program {name!r}")
    return path
