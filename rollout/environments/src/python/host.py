"""Keeps the environments of a run for Tandem: tools and classes in Python as TRL takes them, thousands of episodes at
once.

The program is host.py of the rewards, schemas.py, entries.py and this file in a row, started as `python3 -c PROGRAM
CONFIG`. Its first line says what there is, or why it cannot begin. Then each line that comes in is a request, and each
line that goes out is the answer to the request with its `id`. Answers come in any order.

    {"id": 1, "episode": 7, "do": "open", "environment": null, "row": {…}}
        {"id": 1, "text": null}, or a text for the prompt
    {"id": 2, "episode": 7, "do": "step", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
        {"id": 2, "replies": [{"name": "add", "content": "3", "failed": false}], "reward": null, "done": false}
    {"id": 3, "episode": 7, "do": "score"}
        {"id": 3, "reward": 0.5}, or null
    {"id": 4, "episode": 7, "do": "close"}
        {"id": 4}
    {"id": 5, "do": "rate", "function": "e.py:f", "episodes": [7], "group": {…}, "seconds": 10.0}
        {"id": 5, "scores": [0.5], …}, as host.py of the rewards answers a group
    {"id": 6, "do": "ping"}
        {"id": 6}

An answer with `error` is a failure of the episode; `late` and `too_long` say of which kind, and `traceback` where it
arose. An answer with `abandoned` has the number of calls that go on though nobody waits for them.
"""

import collections
import queue
import threading

PROTOCOL = 1

# Bytes of a text that a function returns. The reply of a tool is cut there, as hardly a model has room for more: the
# conversation ends as one whose reply is too long, and is trained on. A policy must not leave the loss by long replies.
MAX_TEXT = 1 << 20

# Bytes of all replies of a turn, which are cut likewise.
MAX_TURN = 2 * MAX_TEXT

# Characters of an error, and of its traceback.
MAX_ERROR = 16384

# Seconds in which a class may make an instance.
BUILDING = 300.0

# Seconds in which a cancelled function may end by itself.
ENDING = 1.0


class Late(Exception):
    """A call that took too long."""


class Unusable(Exception):
    """A value of the user's function that cannot be passed on; the text goes on from the name of the function."""


class TooLong(Unusable):
    """A text that is longer than MAX_TEXT."""


# Exceptions that mean the end of a generator or of a coroutine wherever one raises them.
ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)


class Raised(Exception):
    """One of `ENDS` that the user's code has raised. A coroutine could not pass it on as it is."""

    def __init__(self, origin):
        super().__init__()
        self.origin = origin


def own(error):
    """The exception that the user's code has raised."""
    return error.origin if isinstance(error, Raised) else error


class Rater(Caller):
    """A reward function that asks for environments, with what one call needs."""

    def __init__(self, function, host):
        super().__init__(function)
        self.host = host
        self.shown = host.shown

    def awaited(self, result):
        # On the loop that runs the `async` methods of the environments.
        waited = asyncio.run_coroutine_threadsafe(outcome_of(result), self.host.loop)
        try:
            return value_of(waited.result(), "the function")
        except Raised as error:
            raise error.origin from None


def rater(entry):
    """The reward function of an entry of `reward_funcs`."""
    named = Named(entry)
    if not callable(named.value):
        raise Refusal(f"{named.entry} is no function")
    return named.value


def distinct(tools, entry):
    """Schemas of the tools of a row, whose names must differ."""
    names = [function.__name__ for function in tools]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Refusal(f"{entry}: two tools are called `{twice[0]}`")
    return [tool_schema(function) for function in tools]


class Episode:
    """An environment in use."""

    def __init__(self, factory):
        self.factory = factory
        self.instance = None
        self.tools = {}
        self.running = None
        # Whether its instance can serve another episode.
        self.sound = True


# Stands for an episode that is not open: it has no tools and no reward.
NOBODY = Episode(None)


class Job:
    """A call on a thread."""

    def __init__(self, work, loop):
        self.work = work
        self.begun = loop.create_future()
        self.outcome = loop.create_future()
        self.abandoned = False


class Threads:
    """Threads for functions that are not async. At most `most` calls run; those that nobody waits for do not count."""

    def __init__(self, loop, most):
        self.loop, self.most = loop, most
        self.idle, self.waiting, self.running = [], collections.deque(), 0

    def start(self, work):
        job = Job(work, self.loop)
        self.waiting.append(job)
        self.fill()
        return job

    def fill(self):
        while self.waiting and self.running < self.most:
            job = self.waiting[0]
            if job.begun.cancelled():
                self.waiting.popleft()
                continue
            try:
                inbox = self.idle.pop() if self.idle else self.new()
            except RuntimeError as error:
                # The system has no more threads: the next one that is free takes the call.
                if not self.running:
                    self.waiting.popleft()
                    job.begun.set_result(None)
                    job.outcome.set_result((None, error))
                return
            self.waiting.popleft()
            self.running += 1
            job.begun.set_result(None)
            inbox.put(job)

    def new(self):
        inbox = queue.SimpleQueue()
        threading.Thread(target=self.serve, args=(inbox,), daemon=True).start()
        return inbox

    def serve(self, inbox):
        while True:
            job = inbox.get()
            try:
                outcome = (job.work(), None)
            except BaseException as error:
                outcome = (None, error)
            self.loop.call_soon_threadsafe(self.over, job, inbox, outcome)
            del job, outcome

    def over(self, job, inbox, outcome):
        self.idle.append(inbox)
        if not job.abandoned:
            self.running -= 1
        job.outcome.set_result(outcome)
        self.fill()

    def abandon(self, job):
        job.abandoned = True
        self.running -= 1
        self.fill()


class Host:
    """The environments of one process."""

    def __init__(self, config, answer):
        self.answer = answer
        self.timeout = config["timeout"]
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.threads = Threads(self.loop, config["threads"])
        self.tools = [tool(entry) for entry in config["tools"]]
        self.factories = {entry["key"]: Factory(entry) for entry in config["environments"]}
        self.raters = {entry["entry"]: rater(entry) for entry in config["rewards"]}
        # Errors of raters whose tracebacks have been told.
        self.shown = set()
        self.episodes = {}
        self.tasks = set()
        # Calls that go on though nobody waits for them, with the time since when.
        self.abandoned = {}

    def greeting(self):
        """The first line: tools and classes, with their schemas."""
        kinds = [
            {
                "key": key,
                "rewards": factory.rewards,
                "tools": distinct(self.tools + factory.tools(factory.idle[0]), factory.entry)[len(self.tools) :],
            }
            for key, factory in self.factories.items()
        ]
        tools = distinct(self.tools, "`tools`")
        return {"protocol": PROTOCOL, "ready": True, "tools": tools, "environments": kinds}

    def take(self, request):
        """Begins to serve a request."""
        episode = None
        if request["do"] == "open":
            episode = Episode(self.factories.get(request.get("environment")))
            self.episodes[request["episode"]] = episode
        elif request["do"] in ("step", "score"):
            episode = self.episodes.get(request["episode"], NOBODY)
        task = self.loop.create_task(self.served(request, episode))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        busy = [episode] if episode is not None else self.of_group(request)
        for one in busy:
            one.running = task

    def of_group(self, request):
        """The episodes of a request about a group."""
        return [self.episodes.get(number, NOBODY) for number in request.get("episodes", [])]

    async def served(self, request, episode):
        try:
            fields = await DO[request["do"]](self, request, episode)
        except asyncio.CancelledError:
            # A request about a group has marked its episodes.
            if episode is not None:
                episode.sound = False
            fields = {"error": "the episode was closed meanwhile"}
        except Exception as error:
            if episode is not None:
                episode.sound = False
            fields = told(error)
        self.say(request["id"], fields)

    def say(self, number, fields):
        # What has just been cancelled may be about to end.
        stubborn = sum(self.loop.time() - since > ENDING for since in self.abandoned.values())
        more = {"abandoned": stubborn} if stubborn else {}
        try:
            self.answer({"id": number, **fields, **more})
        except (TypeError, ValueError) as error:
            # Without an answer the conversation would wait for ever.
            self.answer({"id": number, "error": f"its answer cannot be written as JSON: {error}", **more})

    async def open(self, request, episode):
        episode.tools = {function.__name__: function for function in self.tools}
        if episode.factory is None:
            return {"text": None}
        idle = episode.factory.idle
        build = episode.factory.make
        episode.instance = idle.pop() if idle else await self.call(build, {}, "its constructor", within=BUILDING)
        episode.tools.update((method.__name__, method) for method in episode.factory.tools(episode.instance))
        return {"text": await self.call(episode.instance.reset, request["row"], "`reset`", opening)}

    async def step(self, request, episode):
        calls = request["calls"]
        replies = [None] * len(calls)
        together = []
        for place, call in enumerate(calls):
            function = episode.tools.get(call["name"])
            if function is None:
                replies[place] = refused(call["name"], f"Tool {call['name']} not found.")
            elif inspect.iscoroutinefunction(function):
                together.append(place)
            else:
                replies[place] = await self.reply(function, call)
        waiting = [self.reply(episode.tools[calls[place]["name"]], calls[place]) for place in together]
        for place, reply in zip(together, await asyncio.gather(*waiting, return_exceptions=True)):
            if isinstance(reply, BaseException):
                raise reply
            replies[place] = reply
        return {"replies": within_turn(replies), "reward": None, "done": False}

    async def reply(self, function, call):
        """The reply to one call. What the function raises is a reply too."""
        name, arguments = call["name"], call.get("arguments")

        def taken(value):
            return content_of(value, f"`{name}`")

        try:
            content = await self.call(function, {} if arguments is None else arguments, f"`{name}`", taken)
        except (Late, Unusable, Refusal):
            raise
        except Exception as error:
            return refused(name, described_error(own(error)))
        return {"name": name, "content": content, "failed": False}

    async def score(self, _request, episode):
        if episode.instance is None or not episode.factory.rewards:
            return {"reward": None}
        return {"reward": await self.call(episode.instance.get_reward, {}, "`get_reward`", number)}

    async def rate(self, request, _none):
        """What a reward function says of the conversations of a group, whose environments are all open."""
        group, episodes, seconds = request["group"], self.of_group(request), request["seconds"]
        for completion, episode in zip(group["completions"], episodes):
            completion["environment"] = episode.instance
        answer = Rater(self.raters[request["function"]], self).answer
        try:
            return await self.call(answer, {"request": group}, "the function", within=seconds)
        except BaseException as error:
            # The function may go on, and change what another conversation would get.
            for episode in episodes:
                episode.sound = False
            if isinstance(error, Late):
                raise Refusal(f"no answer within {seconds:g} s (`reward_timeout`)") from None
            raise

    async def close(self, request, _none):
        episode = self.episodes.pop(request["episode"], None)
        if episode is None:
            return {}
        if episode.running is not None and not episode.running.done():
            episode.running.cancel()
            await asyncio.wait({episode.running})
            await self.settle()
        if episode.sound and episode.instance is not None:
            episode.factory.idle.append(episode.instance)
        return {}

    async def ping(self, _request, _none):
        return {}

    async def call(self, function, arguments, what, taken=lambda value: value, within=None):
        """What a function returns, as `taken` makes of it. `Late` if that takes too long."""
        within = within or self.timeout
        taken = named(taken, what)
        if inspect.iscoroutinefunction(function):
            return await self.awaited(function(**arguments), taken, what, within)

        def work():
            value = function(**arguments)
            return value if inspect.isawaitable(value) else taken(value)

        value = await self.on_a_thread(work, what, within)
        return await self.awaited(value, taken, what, within) if inspect.isawaitable(value) else value

    async def awaited(self, waited, taken, what, within):
        task = self.loop.create_task(outcome_of(waited, taken))
        try:
            await asyncio.wait({task}, timeout=within)
        except asyncio.CancelledError:
            task.cancel()
            self.abandon(task)
            raise
        if not task.done():
            task.cancel()
            self.abandon(task)
            await self.settle()
            raise Late(what)
        if task.cancelled():
            raise Refusal(f"{what} was cancelled by its own code")
        return value_of(task.result(), what)

    async def on_a_thread(self, work, what, within):
        job = self.threads.start(work)
        try:
            # The time counts from here on.
            await job.begun
            await asyncio.wait({job.outcome}, timeout=within)
        except asyncio.CancelledError:
            self.abandon_thread(job)
            raise
        if not job.outcome.done():
            self.abandon_thread(job)
            raise Late(what)
        return value_of(job.outcome.result(), what)

    def abandon_thread(self, job):
        if not job.begun.cancelled() and not job.outcome.done():
            self.threads.abandon(job)
            self.abandon(job.outcome)

    def abandon(self, future):
        self.abandoned[future] = self.loop.time()
        future.add_done_callback(self.abandoned.pop)

    async def settle(self):
        """Lets what was cancelled end by itself."""
        if self.abandoned:
            await asyncio.wait(set(self.abandoned), timeout=ENDING)


DO = {
    "open": Host.open,
    "step": Host.step,
    "score": Host.score,
    "rate": Host.rate,
    "close": Host.close,
    "ping": Host.ping,
}


async def outcome_of(waited, taken=lambda value: value):
    # An exception that ends programs would end the loop, and with it all other episodes.
    try:
        return taken(await waited), None
    except asyncio.CancelledError:
        raise
    except RuntimeError as error:
        # Python puts a StopIteration of a coroutine into an error of its own, without its text.
        is_pythons = isinstance(error.__cause__, StopIteration) and str(error) == "coroutine raised StopIteration"
        return None, error.__cause__ if is_pythons else error
    except BaseException as error:
        return None, error


def value_of(outcome, what):
    value, error = outcome
    if error is None:
        return value
    if isinstance(error, ENDS):
        raise Raised(error)
    if isinstance(error, Exception):
        raise error
    raise Refusal(f"{what} raised {type(error).__name__}, which is to end the program")


def named(taken, what):
    """The same function with errors that begin with a name."""

    def take(value):
        try:
            return taken(value)
        except Unusable as error:
            raise type(error)(f"{what} {error}") from None

    return take


def content_of(value, what):
    """The content of a reply: a text, or a list of content blocks with texts."""
    what = f"{what} returned a text"
    if not is_blocks(value):
        return cut(str(value), MAX_TEXT, what)
    return [{"type": "text", "text": cut(text, MAX_TEXT, what)} for text in texts_of(value)]


def within_turn(replies):
    """The replies of a turn, cut where they are too long together."""
    size = len(json.dumps(replies, ensure_ascii=False).encode(errors="replace"))
    if size <= MAX_TURN:
        return replies
    print(f"the replies of a turn have {size} bytes; at most {MAX_TURN} are passed on", file=sys.stderr)
    room = MAX_TURN
    for reply in replies:
        content = reply["content"]
        text = content if isinstance(content, str) else "".join(texts_of(content))
        reply["content"] = cut(text, room)
        room -= len(reply["content"].encode())
    return replies


def is_blocks(value):
    return isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value)


def texts_of(parts):
    """The texts of content blocks."""
    for part in parts:
        if part["type"] != "text" or not isinstance(part.get("text"), str):
            raise Unusable(f"returned a content block of type {part['type']!r}; only texts can be given to the model")
    return [part["text"] for part in parts]


def opening(value):
    """The text of `reset` that is added to the prompt; None if there is none."""
    if is_blocks(value):
        value = "".join(texts_of(value))
    if value is not None and not isinstance(value, str):
        raise Unusable(f"returned {shortened(value)}; it may return a text, or nothing")
    return value and bounded(value)


def number(value):
    score = entry(value)
    if isinstance(score, dict):
        raise Unusable(score["error"])
    return score


def bounded(text):
    # A text may hold halves of characters, which UTF-8 does not have.
    data = text.encode(errors="replace")
    if len(data) > MAX_TEXT:
        raise TooLong(f"returned a text of {len(data)} bytes; at most {MAX_TEXT} are passed on")
    return data.decode()


def cut(text, most, what=None):
    """A text of at most so many bytes, in whole characters. `what` is said of one that is longer."""
    data = text.encode(errors="replace")
    if len(data) > most and what is not None:
        print(f"{what} of {len(data)} bytes; at most {most} are passed on", file=sys.stderr)
    return data[:most].decode(errors="ignore")


def refused(name, reason):
    """The reply to a call that failed, in TRL's words."""
    content = cut(str({"error": reason}), MAX_TEXT, "a call that failed has a text")
    return {"name": name, "content": content, "failed": True}


def described_error(error):
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def told(error):
    """The fields of an answer for an episode that failed."""
    if isinstance(error, Late):
        return {"error": str(error), "late": True}
    if isinstance(error, Unusable):
        return {"error": str(error), **({"too_long": True} if isinstance(error, TooLong) else {})}
    return explained(error)


def explained(error):
    """An exception of the user's code, with the place in a file of the user's where there is one."""
    error = own(error)
    frames = traceback.extract_tb(error.__traceback__)
    file = next((frame.filename for frame in reversed(frames) if frame.filename in FILES), None)
    return {key: text[:MAX_ERROR] for key, text in failure(error, file).items()}


def serve():
    requests, answers = own_descriptors()

    def answer(value):
        # JSON has neither NaN nor infinities, and UTF-8 has no halves of characters.
        answers.write(json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="replace") + b"\n")
        answers.flush()

    sys.path[:] = [folder for folder in sys.path if folder]
    try:
        config = json.loads(sys.argv[1])
        sys.argv = sys.argv[:1]
        host = Host(config, answer)
        answer(host.greeting())
    except BaseException as error:
        answer(explained(error))
        return 1

    def read():
        for line in requests:
            host.loop.call_soon_threadsafe(host.take, json.loads(line))
        host.loop.call_soon_threadsafe(host.loop.stop)

    threading.Thread(target=read, daemon=True).start()
    host.loop.run_forever()
    return 0


sys.exit(serve())
