"""Calls a reward function for Tandem: a line of JSON for each group comes in, a line with its scores goes out.

Started as `python3 -c PROGRAM file|module PLACE FUNCTION`, with an empty FUNCTION for the only one of a file. PROGRAM
is this file and a call of `main`. The first line has the name of the function, and whether it asks for `environments`.
Requests come over standard input and answers go over standard output; both are moved elsewhere before any code of the
user runs, so that what that prints is not taken for an answer.

An object with a method `answer` in the place of the function gets the requests as they come, and returns the fields of
the answer. The Python package `tandem_rl` has this file as a module: such objects of its pass requests on to
the process that trains, which calls its functions with `Caller` too. The program of environments begins with this file.
"""

import asyncio
import copy
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback

# Lines of a traceback that are passed on.
MAX_LINES = 30

# Characters of a value that a function logs. Tandem cuts it shorter; this keeps the answer below its own limit.
MAX_LOGGED = 4096


def own_descriptors():
    """Files for requests and answers; standard input is empty from here on, standard output is standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # As standard error: what UTF-8 does not have is printed as an escape, and does not raise.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    return requests, answers


def load(kind, place, name):
    """The function, and its name."""
    folder = os.path.dirname(place) if kind == "file" else os.getcwd()
    if sys.path and sys.path[0] == "":
        sys.path[0] = folder
    else:
        sys.path.insert(0, folder)
    sys.argv = [place]
    module = import_file(place) if kind == "file" else importlib.import_module(place)
    name = name or only_function(module)
    function = getattr(module, name, None)
    if not callable(function):
        found = ", ".join(own_functions(module)) or "none"
        raise Refusal(f"no function `{name}` in {place}; its functions: {found}")
    return function, name


def import_file(path):
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def own_functions(module):
    """Names of the public functions that are defined in a module, in order."""
    defined = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    return [name for name in defined if not name.startswith("_") and vars(module)[name].__module__ == module.__name__]


def only_function(module):
    names = own_functions(module)
    if len(names) == 1:
        return names[0]
    file = os.path.basename(module.__file__)
    if not names:
        raise Refusal(f"{file} has no public function")
    raise Refusal(f"{file} has {len(names)} public functions: name one, as {file}:{names[0]} (or {', '.join(names[1:])})")


class Caller:
    """The function with what it is called with."""

    def __init__(self, function):
        self.function = function
        self.file = getattr(getattr(function, "__code__", None), "co_filename", None)
        self.loop = None
        self.named = parameters(function)
        self.shown = set()
        self.log = Log(0)

    def answer(self, request):
        """The fields of the answer: scores, and what the function has logged."""
        return {"scores": self.scores(request), **self.log.fields()}

    def scores(self, request):
        """An entry for each completion: a number, None, or why there is none. `log` is what was logged meanwhile.

        Where a call for several raises, only those are to fail that raise by themselves. The others are scored together
        once more, since a score may depend on the others of its group.
        """
        completions = request["completions"]
        found, raised = self.together(request, completions)
        if not raised or len(completions) == 1:
            return found
        told = found[0].get("traceback")
        scores, rest, log = [], [], Log(0)
        for place, one in enumerate(completions):
            [score], raised = self.together(request, [one])
            scores.append(score)
            if not raised:
                rest.append(place)
                log = self.log
        if len(rest) > 1:
            again, _ = self.together(request, [completions[place] for place in rest])
            log = self.log
            for place, score in zip(rest, again):
                scores[place] = score
        self.log = log.of(len(completions), rest)
        if told is not None:
            failures = [score for score in scores if isinstance(score, dict)]
            if failures:
                failures[0].setdefault("traceback", told)
            else:
                print(told, file=sys.stderr)
        return scores

    def together(self, request, completions):
        """Entries for completions that are scored in one call, and whether the call raised."""
        self.log = Log(len(completions))
        try:
            return [entry(value) for value in self.call(request, completions)], False
        except Refusal as error:
            failed, raised = {"error": str(error)}, False
        except BaseException as error:
            failed, raised = self.failure(error), True
        # What a call has logged that raised goes with it.
        self.log = Log(len(completions))
        others = {key: text for key, text in failed.items() if key != "traceback"}
        return [failed, *[dict(others) for _ in completions[1:]]], raised

    def call(self, request, completions):
        result = self.function(**self.arguments(request, completions))
        if inspect.isawaitable(result):
            result = self.awaited(result)
        if hasattr(result, "tolist"):
            result = result.tolist()
        # A set has no order.
        if isinstance(result, (str, bytes, dict, set, frozenset)) or not hasattr(result, "__iter__"):
            hint = "; name an instance of the class" if inspect.isclass(self.function) else ""
            raise Refusal(f"returned {shortened(result)} and not a list of {len(completions)} numbers{hint}")
        result = list(result)
        if len(result) != len(completions):
            raise Refusal(f"returned {len(result)} scores for {len(completions)} completions")
        return result

    def awaited(self, result):
        """What an `async` function returns."""
        self.loop = self.loop or asyncio.new_event_loop()
        return self.loop.run_until_complete(result)

    def arguments(self, request, completions):
        """As TRL's trainer: lists with an element for each completion, those of the columns with copies."""
        prompt, messages = request["prompt"], request.get("messages")
        if messages is not None:
            prompt = messages
        texts = [answer_of(completion, messages is not None) for completion in completions]
        columns = {name: value for name, value in request["columns"].items() if name not in ("prompt", "completion")}
        arguments = {name: copies(value, completions) for name, value in columns.items()}
        arguments["prompts"] = [opened(value, one) for value, one in zip(copies(prompt, completions), completions)]
        arguments["completions"] = texts
        arguments["completion_ids"] = [completion["token_ids"] for completion in completions]
        arguments["owner_masks"] = [owner_mask(completion) for completion in completions]
        arguments.update(log_extra=self.log.log_extra, log_metric=self.log.log_metric)
        # Only a process with environments has them.
        if any("environment" in completion for completion in completions):
            arguments["environments"] = [completion["environment"] for completion in completions]
        return {name: value for name, value in arguments.items() if self.named is None or name in self.named}

    def failure(self, error):
        """An exception as an entry; tracebacks from one place go along once."""
        found, frame = failure(error, self.file), where(error, self.file)
        kind = (type(error), frame and (frame.filename, frame.lineno))
        if kind in self.shown:
            found.pop("traceback", None)
        self.shown.add(kind)
        return found


class Log:
    """What a function logs beside its scores, as TRL's trainer takes it."""

    def __init__(self, completions):
        self.completions = completions
        self.extra = {}
        self.metrics = {}

    def log_extra(self, column, values):
        """Adds a column to the table of completions, with a value for each completion."""
        values = [logged(value) for value in values]
        if len(values) != self.completions:
            raise ValueError(f"log_extra: {column!r} has {len(values)} values for {self.completions} completions")
        self.extra[str(column)] = values

    def log_metric(self, name, value):
        """Adds a value to a metric of the step. One that is not finite is left out."""
        value = float(value)
        if math.isfinite(value):
            self.metrics.setdefault(str(name), []).append(value)

    def fields(self):
        """Its part of the answer."""
        return {"log_extra": self.extra, "log_metric": self.metrics}

    def of(self, completions, places):
        """The same as the log of so many completions, of which these were called with."""
        log = Log(completions)
        log.metrics = self.metrics
        for column, values in self.extra.items():
            of_place = dict(zip(places, values))
            log.extra[column] = [of_place.get(place) for place in range(completions)]
        return log


def logged(value):
    """A value as JSON has it: a text if JSON has none of its kind, or if it is long."""
    for method in ("tolist", "item"):
        if hasattr(value, method) and not isinstance(value, (str, bytes, int, float)):
            value = getattr(value, method)()
            break
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        value = text = str(value)
    return value if len(text) <= MAX_LOGGED else text[:MAX_LOGGED]


def parameters(function):
    """The names that a function can be called with; None if it takes any."""
    found = signature(function)
    if found is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
        return None
    return set(found)


def signature(function):
    """The parameters of a function by name; None where they are not known. Those of a decorated one are the wrapper's,
    which is called. A wrapper that names none passes on what it gets, and the function within says what it takes."""
    while True:
        try:
            found = inspect.signature(function, follow_wrapped=False).parameters
        except (TypeError, ValueError):
            found = None
        within = getattr(function, "__wrapped__", None)
        names = [one for one in (found or {}).values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if within is None or names:
            return found
        function = within


def asks_for_environments(function):
    """Whether `environments` is among the parameters of a function, or of one that it wraps."""
    while function is not None:
        if "environments" in (signature(function) or {}):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def answer_of(completion, in_messages):
    """A completion as TRL has it: a text, or messages. A conversation with tools has several."""
    if completion.get("messages") is not None:
        return completion["messages"]
    return [{"role": "assistant", "content": completion["text"]}] if in_messages else completion["text"]


def opened(prompt, completion):
    """A prompt with the text of the completion's environment as the policy saw it: behind the last message of the user,
    else behind the last one of all."""
    opening = completion.get("opening")
    if opening and prompt and isinstance(prompt, list):
        of_user = [message for message in prompt if message.get("role") == "user"]
        message = (of_user or prompt)[-1]
        message["content"] = joined_content(message.get("content"), opening)
    return prompt


def joined_content(content, text):
    if isinstance(content, list):
        return content + [{"type": "text", "text": text}]
    return (content or "") + text


def owner_mask(completion):
    """1 for each token that the policy sampled, 0 for each that was given to it."""
    return completion.get("owner_mask") or [1] * len(completion["token_ids"])


def copies(value, completions):
    return [copy.deepcopy(value) for _ in completions]


def entry(value):
    """A score as JSON has it: numbers of any library, True and False as 1 and 0."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        return {"error": f"returned the text {shortened(value)} and not a number"}
    try:
        number = float(value)
    except Exception:
        return {"error": f"returned {shortened(value)} and not a number"}
    return number if math.isfinite(number) else {"error": f"returned {number}"}


def shortened(value):
    text = f"{value!r} ({type(value).__name__})" if not isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


class Refusal(Exception):
    """Something that is wrong without an exception of the user's code."""


# Sources without a file that are a user's: cells of a notebook, and lines typed in.
TYPED = ("<ipython-input", "<stdin>", "<python-input")
OWN = parameters.__code__.co_filename


def users(stack):
    """The frames of a stack that are neither of this program nor of the import system."""
    return [f for f in stack if f.filename != OWN and (f.filename.startswith(TYPED) or not f.filename.startswith("<"))]


def where(error, file):
    """The frame in which an exception arose: the last one of the user's file, else the last one."""
    frames = users(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in reversed(frames) if frame.filename == file), frames[-1] if frames else None)


def origin(error):
    """The exception that came first: libraries wrap what the system refused in errors of their own."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


def missing_variable(error):
    """The variable that `os.environ[…]` has not found."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    is_lookup = place is not None and place.tb_frame.f_code is type(os.environ).__getitem__.__code__
    return error.args[0] if is_lookup and isinstance(error, KeyError) else None


def failure(error, file):
    """An exception in one line, with its traceback."""
    if isinstance(error, Refusal):
        return {"error": str(error)}
    told = traceback.TracebackException.from_exception(error)
    text = f"{type(error).__name__}: {told}".splitlines()[0]
    frame = None if isinstance(error, SyntaxError) else where(error, file)
    if frame is not None:
        text += f" ({os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name})"
    first = origin(error)
    variable = missing_variable(error) or missing_variable(first)
    if variable is not None:
        text += f", the environment variable `{variable}` is not set"
    if first is not error and isinstance(first, (OSError, MemoryError)):
        text += f", from {type(first).__name__}: {first}".splitlines()[0]
    told.stack = traceback.StackSummary.from_list(users(told.stack))
    lines = "".join(told.format()).rstrip().splitlines()
    return {"error": text, "traceback": "\n".join(lines[-MAX_LINES:])}


def main():
    requests, answers = own_descriptors()

    def answer(value):
        answers.write(json.dumps(value).encode() + b"\n")
        answers.flush()

    kind, place, name = sys.argv[1:4]
    try:
        function, name = load(kind, place, name)
    except BaseException as error:
        answer(failure(error, place))
        return 1
    answer({"ready": name, "environments": asks_for_environments(function)})
    caller = function if hasattr(function, "answer") else Caller(function)
    for line in requests:
        request = json.loads(line)
        # With its number, so that nothing else can be taken for the answer.
        answer({"id": request["id"], **caller.answer(request)})
    return 0
