"""The functions and classes that the entries of the configuration name, and the methods of the classes.

The program of environments has this file between schemas.py and host.py.
"""

import functools


class Named:
    """A value that an entry of the configuration names."""

    def __init__(self, entry):
        self.entry, kind, place, name = entry["entry"], entry["kind"], entry["place"], entry["name"]
        folder = os.path.dirname(place) if kind == "file" else os.getcwd()
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = imported(place) if kind == "file" else importlib.import_module(place)
        self.value = getattr(module, name, None)
        if self.value is None:
            found = ", ".join(own_names(module)) or "none"
            raise Refusal(f"{self.entry}: no `{name}` in {place}; its functions and classes: {found}")


FILES = {}


def imported(path):
    if path not in FILES:
        FILES[path] = import_file(path)
    return FILES[path]


def own_names(module):
    """Names of the public functions and classes that are defined in a module, in order."""
    kinds = (inspect.isfunction, inspect.isclass)
    defined = [name for name, value in vars(module).items() if any(kind(value) for kind in kinds)]
    return [name for name in defined if not name.startswith("_") and vars(module)[name].__module__ == module.__name__]


def tool(entry):
    """The function of an entry of `tools`."""
    named = Named(entry)
    if isinstance(named.value, type):
        raise Refusal(f"{named.entry} is a class: `environment_factory` takes classes, `tools` takes functions")
    if not callable(named.value) or not hasattr(named.value, "__name__"):
        raise Refusal(f"{named.entry} is no function")
    return named.value


# Methods of an environment that are no tools.
OWN_METHODS = ("reset", "get_reward")


class Factory:
    """What makes the environments of one kind, and those that wait for their next episode."""

    def __init__(self, entry):
        named = Named(entry)
        self.entry, self.make = named.entry, named.value
        if not callable(self.make):
            raise Refusal(f"{self.entry} is no class")
        needed = needs(self.make)
        if needed:
            raise Refusal(f"{self.entry} is called without arguments: give {', '.join(needed)} a default")
        instance = self.make()
        members = methods(instance, self.entry)
        if "reset" not in members:
            raise Refusal(f"{self.entry}: `{type(instance).__name__}` has no method `reset`, which begins an episode")
        self.rewards = "get_reward" in members
        self.methods = [name for name in members if name not in OWN_METHODS]
        self.idle = [instance]

    def tools(self, instance):
        return [getattr(instance, name) for name in self.methods]


def methods(instance, entry):
    """Names of the public methods of an environment, in order: those that TRL takes, and static ones.

    What a class would bind as a method and does not is refused by name. Left out, it would be missed in vain.
    """
    kind = type(instance)
    # Methods of other objects that the constructor has put there.
    given = {name for name, value in getattr(instance, "__dict__", {}).items() if inspect.ismethod(value)}
    found = []
    for name in sorted(given.union(dir(kind), OWN_METHODS)):
        written = inspect.getattr_static(instance, name, None)
        if name.startswith("_") or written is None or not (name in given or name in OWN_METHODS or binds(kind, name)):
            continue
        value = getattr(instance, name)
        is_one = inspect.ismethod(value) or isinstance(written, (staticmethod, types.FunctionType))
        if is_one and hasattr(value, "__name__"):
            found.append(name)
        elif not inspect.isbuiltin(value):
            what = f"`{kind.__name__}.{name}` is a `{type(written).__name__}` and no method"
            way_out = f"write `def {name}(self, …)`" + ("" if name in OWN_METHODS else f", or call it `_{name}`")
            raise Refusal(f"{entry}: {what}: {way_out}")
    return found


def binds(kind, name):
    """Whether an attribute of a class can be called and belongs to its instances. A property is not evaluated."""
    written = inspect.getattr_static(kind, name, None)
    is_data = isinstance(written, (type, property, functools.partial))
    return not is_data and hasattr(written, "__get__") and callable(getattr(kind, name, None))


def needs(function):
    """The arguments that a function cannot be called without."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [f"`{one.name}`" for one in found if one.default is one.empty and one.kind not in stars]
