"""Reward functions of a process that trains with `tandem_rl.GRPOTrainer`.

A copy of this file is beside the run, with the sources of the functions at its end. Tandem starts reward functions from
a file, in processes of their own. Those that this file has pass each request on to the process that trains, over the
Unix socket that the file `rewards.address` names, and that process calls the function. So the functions work while that
process trains, and at no other time.
"""

import json as _json
import os as _os
import socket as _socket

_ADDRESS = _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "rewards.address")


def _connect():
    try:
        with open(_ADDRESS) as file:
            address = file.read()
        connection = _socket.socket(_socket.AF_UNIX)
        connection.connect(address)
    except OSError as error:
        raise RuntimeError(
            "the Python process that has this reward function does not train now: go on with GRPOTrainer and "
            "train(resume_from_checkpoint=True), or name a function in a file"
        ) from error
    return connection.makefile("rwb")


class _Served:
    """A function of the process that trains. Tandem asks for an `answer`, and calls nothing."""

    connection = None

    def __init__(self, name):
        self.name = name

    def __call__(self, **_):
        raise TypeError("this reward function is asked for an answer")

    def answer(self, request):
        """Scores, and what the function has logged, as the process that trains has them."""
        connection = _Served.connection
        connection.write(_json.dumps({"function": self.name, "request": request}).encode() + b"\n")
        connection.flush()
        line = connection.readline()
        if not line:
            # Without an answer, this process ends; the next one finds nobody.
            raise EOFError("the Python process that trains has gone")
        return _json.loads(line)


if __name__ != "__main__":
    _Served.connection = _connect()

