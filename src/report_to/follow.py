"""Tells trackers of a run's figures: python3 -c FOLLOW RUN_DIR RUN_NAME TRACKER... With --check in place of directory and
name, it only looks for the packages.

The first line of its standard input has the run's options as JSON. It reads metrics.jsonl and eval.jsonl of RUN_DIR as
they grow, until its standard input ends. What it has told is noted in report_to.json, so that nothing is told twice when
the run is resumed. Trackers cannot take anything back: of steps that are made again after a crash, they keep what they
were told first.
"""

import importlib
import json
import os
import secrets
import select
import sys


class Wandb:
    def __init__(self, name, config, state):
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "tandem"), name=name, config=config, id=state.get("id"), resume="allow"
        )
        state["id"] = self.run.id
        self.run.define_metric("train/*", step_metric="train/step")
        self.run.define_metric("eval/*", step_metric="eval/step")

    def log(self, figures):
        self.run.log(figures)

    def finish(self):
        self.run.finish()


class Trackio:
    def __init__(self, name, config, state):
        import trackio

        self.trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT", "tandem")
        if "id" not in state:
            # Trackio tells runs apart by their names: under one that is taken, this run would go on with the other.
            state["id"] = f"{name}-{secrets.token_hex(3)}" if name in self.taken(project, name) else name
        trackio.init(project=project, name=state["id"], config=config, resume="allow", embed=False)

    def taken(self, project, name):
        """The names of a project's runs. Where they cannot be read, `name` counts as taken."""
        try:
            return {run.name for run in self.trackio.Api().runs(project)}
        except ValueError:
            # There is no such project yet.
            return set()
        except Exception:
            return {name}

    def log(self, figures):
        step = figures.get("train/step", figures.get("eval/step"))
        self.trackio.log(figures, step=step)

    def finish(self):
        self.trackio.finish()


TRACKERS = {"wandb": Wandb, "trackio": Trackio}


def look_for(tracker):
    """Ends the program if the package of a tracker cannot be imported."""
    try:
        importlib.import_module(tracker)
    except ImportError as error:
        sys.exit(f"{tracker}: {error}; `pip install {tracker}` for this Python ({sys.executable})")


def records(path, offset):
    """Whole lines behind an offset, and where they end. A learner that starts again may have made the file shorter."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset if offset <= size else 0)
            begin, data = file.tell(), file.read()
    except FileNotFoundError:
        return [], 0
    end = data.rfind(b"\n") + 1
    found, damaged = [], 0
    for line in data[:end].split(b"\n"):
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError:
            damaged += 1
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            found.append(record)
        elif record is not None:
            damaged += 1
    if damaged:
        print(f"warning: {os.path.basename(path)}: {damaged} damaged lines were left out", file=sys.stderr, flush=True)
    return found, begin + end


def named(kind, record):
    """TRL's names, which the event files for TensorBoard have too."""
    short = lambda key: key[len("eval_"):] if kind == "eval" and key.startswith("eval_") else key
    figures = {short(key): value for key, value in record.items()}
    return {f"{kind}/{key}": value for key, value in figures.items() if isinstance(value, (int, float))}


def main(run_dir, name, *wanted):
    path = os.path.join(run_dir, "report_to.json")
    try:
        with open(path) as file:
            states = json.load(file)
    except (FileNotFoundError, ValueError):
        states = {}
    config = json.loads(sys.stdin.readline())
    trackers = {}
    for tracker in wanted:
        look_for(tracker)
        try:
            trackers[tracker] = TRACKERS[tracker](name, config, states.setdefault(tracker, {}))
        except Exception as error:
            text = " ".join(str(error).split()) or type(error).__name__
            sys.exit(f"{tracker}: {text}")
    # Trackers write to standard output as well.
    os.write(READY, b"ready\n")
    offsets = {"train": 0, "eval": 0}
    files = {"train": "metrics.jsonl", "eval": "eval.jsonl"}
    ended = False
    while not ended:
        # Whatever is there when the run has ended is read once more.
        ended = bool(select.select([sys.stdin], [], [], 1.0)[0])
        news = False
        for kind, file in files.items():
            found, offsets[kind] = records(os.path.join(run_dir, file), offsets[kind])
            for record in found:
                for tracker, state in states.items():
                    if tracker in trackers and record.get("step", -1) > state.get(kind, -1):
                        trackers[tracker].log(named(kind, record))
                        state[kind] = record["step"]
                        news = True
        if news:
            with open(path + ".tmp", "w") as file:
                json.dump(states, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".tmp", path)
    for tracker in trackers.values():
        tracker.finish()


READY = os.dup(1)
os.dup2(2, 1)
if sys.argv[1] == "--check":
    for wanted in sys.argv[2:]:
        look_for(wanted)
else:
    main(*sys.argv[1:])
