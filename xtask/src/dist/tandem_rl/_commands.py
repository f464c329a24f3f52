"""The commands that the package installs: a function for each program, which becomes that program."""

import os
import sys

from tandem_rl import binary


def _become(name):
    """Lets reward functions run in this interpreter, unless another one is named, and runs the program in its place."""
    if sys.executable:
        os.environ.setdefault("TANDEM_REWARD_PYTHON", sys.executable)
    program = str(binary(name))
    os.execv(program, [program, *sys.argv[1:]])
