"""The JSON schema of a tool, as transformers' `get_json_schema` gives it to a chat template.

Type hints become types, and a docstring in Google's style becomes the descriptions. `Refusal` comes from host.py of the
rewards, which stands before this file in the program.
"""

import enum
import re
import types
import typing

# Types whose values JSON has as they are.
SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}

PLAIN = {**SCALARS, list: "array", tuple: "array", dict: "object"}

# `Union[int, str]` and, where Python has it, `int | str`.
UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))

# Words that end the part of a docstring before them. They count wherever they stand.
SECTIONS = ("Args:", "Returns:", "Raises:")

# The line of an argument in the section `Args:`: its indentation, name and the beginning of its description. A type in
# brackets behind the name is passed over, as transformers does: the type hint counts.
ARGUMENT = re.compile(r"([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:(.*)")

# The values that an argument may have, at the end of its description: the rule of transformers.
CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
BEGINNING_OF_CHOICES = "(choices:"

NO_SCHEMA = (
    "a JSON schema is made of int, float, str, bool, None, list, dict, tuple, Any, Literal, Enum, Optional and Union"
)


def tool_schema(tool):
    """The schema of a function or a bound method; a `Refusal` with its place where it has none."""
    name = tool.__name__
    try:
        refuse_generators(tool)
        parameters, returns = hinted(tool)
        description, arguments, returned = described(tool)
        for argument, schema in parameters["properties"].items():
            describe(schema, argument, arguments)
    except Refusal as error:
        raise Refusal(f"{place(tool)}tool `{name}`: {error}") from None
    function = {"name": name, "description": description, "parameters": parameters}
    if returns is not None:
        function["return"] = {**returns, "description": returned} if returned is not None else returns
    return {"type": "function", "function": function}


def place(function):
    """The file and line of a function as the beginning of a message; empty where they are unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{os.path.basename(code.co_filename)}, line {code.co_firstlineno}: " if code else ""


def refuse_generators(tool):
    """Refuses a function that makes a generator: a model would read its address in memory and not what it yields."""
    # What a decorator in Python makes of a generator is its own affair. `lru_cache` hands the generator on.
    function = inspect.unwrap(getattr(tool, "__func__", tool), stop=inspect.isfunction)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Refusal("it has a `yield`, and a model cannot read a generator: `return` a text, or a list, at once")


def hinted(tool):
    """The schema of the arguments without descriptions, and that of the result; None where the hint has no schema."""
    try:
        hints = typing.get_type_hints(tool)
    except Exception as error:
        raise Refusal(f"its type hints cannot be read: {type(error).__name__}: {error}") from None
    given = dict(inspect.signature(tool).parameters)
    first = next(iter(given.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is first.empty:
        del given[first.name]
        hints.pop(first.name, None)
    required = []
    for name, parameter in given.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise Refusal(f"a model cannot give the arguments `{stars}{name}`: name each argument, or take a list")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise Refusal(f"a model gives arguments by name, and `{name}` takes none by name: take the `/` away")
        if parameter.annotation is parameter.empty:
            raise Refusal(f"argument `{name}` has no type hint: write `{name}: str`, or the type that it has")
        if parameter.default is parameter.empty:
            required.append(name)
    result = hints.pop("return", None)
    properties = {name: of_hint(hint, f"argument `{name}`") for name, hint in hints.items()}
    schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return schema, of_result(result)


def of_result(hint):
    # No model writes the result, so a result without a schema is left out.
    try:
        return None if hint is None else of_hint(hint, "its result")
    except Refusal:
        return None


def of_hint(hint, what):
    """The schema of a type hint; `what` has that hint."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return of_class(hint, what)
    if origin in UNIONS:
        return of_union(inner, what)
    if origin is typing.Literal:
        return of_values(list(inner), what, hint)
    if origin is list:
        return {"type": "array", "items": of_hint(inner[0], what)} if inner else {"type": "array"}
    if origin is tuple:
        return of_tuple(inner, what, hint)
    if origin is dict:
        values = {"additionalProperties": of_hint(inner[1], what)} if len(inner) == 2 else {}
        return {"type": "object", **values}
    raise Refusal(f"{what} has the type hint `{shown(hint)}`; {NO_SCHEMA}")


def of_class(hint, what):
    if hint is typing.Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return of_values([member.value for member in hint], what, hint)
    if isinstance(hint, type) and hint in PLAIN:
        return {"type": PLAIN[hint]}
    raise Refusal(f"{what} has the type hint `{shown(hint)}`; {NO_SCHEMA}")


def of_union(members, what):
    schemas = [of_hint(member, what) for member in members if member is not type(None)]
    names = sorted({schema["type"] for schema in schemas if isinstance(schema.get("type"), str)})
    if len(schemas) == 1:
        schema = schemas[0]
    elif all(list(schema) == ["type"] and isinstance(schema["type"], str) for schema in schemas):
        schema = {"type": one_or_all(names)}
    else:
        schema = {"anyOf": schemas}
    if type(None) in members:
        schema["nullable"] = True
    return schema


def of_values(values, what, hint):
    if not values or any(type(value) not in SCALARS for value in values):
        raise Refusal(f"{what} has the type hint `{shown(hint)}`: its values must be texts, numbers, bools or None")
    refuse_infinite(values, what)
    return {"type": one_or_all(list(dict.fromkeys(SCALARS[type(value)] for value in values))), "enum": values}


def refuse_infinite(values, what):
    """Refuses values that are, or have in them, a number that JSON cannot write."""
    for value in values:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise Refusal(f"{what} may be {value}, and JSON has no such number: leave it out, or take a text") from None


def of_tuple(inner, what, hint):
    if not inner:
        return {"type": "array"}
    if len(inner) == 1 or ... in inner:
        raise Refusal(f"{what} has the type hint `{shown(hint)}`: write `list[…]` for several elements of one type")
    return {"type": "array", "prefixItems": [of_hint(element, what) for element in inner]}


def one_or_all(names):
    return names[0] if len(names) == 1 else names


def shown(hint):
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def described(tool):
    """The description of a tool, those of its arguments by name, and that of its result if there is one."""
    text = (inspect.getdoc(tool) or "").strip()
    if not text:
        raise Refusal('it has no docstring: say in """…""" what it does, and what each argument is under `Args:`')
    arguments = re.search(r"\n\s*Args:\n", text)
    arguments = listed(before(text[arguments.end() :], SECTIONS[1:])) if arguments else {}
    returned = re.search(r"\n\s*Returns:\n", text)
    returned = before(text[returned.end() :], SECTIONS[2:]).strip() if returned else None
    return before(text, SECTIONS).strip(), arguments, returned


def before(text, words):
    """A text up to the first of the words in it."""
    return text[: min((at for at in map(text.find, words) if at >= 0), default=len(text))]


def listed(section):
    """The descriptions in the section `Args:`, each in one line. A line that is indented deeper goes on with one."""
    found, lines, indentation = {}, None, ""
    for line in filter(str.strip, section.split("\n")):
        begins = ARGUMENT.match(line)
        deeper = line.startswith((f"{indentation} ", f"{indentation}\t"))
        # A name without a word behind it takes the next line, however that begins.
        if begins and (lines is None or not deeper and lines != [""]):
            indentation, name, rest = begins.groups()
            found[name] = lines = [rest.strip()]
        elif lines is not None:
            lines.append(line.strip())
    return {name: " ".join(filter(None, lines)) for name, lines in found.items()}


def describe(schema, argument, descriptions):
    """Adds the description of an argument to its schema, and the choices that the description ends with."""
    if argument not in descriptions:
        raise Refusal(f"its docstring does not describe the argument `{argument}`: add `{argument}: …` under `Args:`")
    text = descriptions[argument]
    choices = CHOICES.search(text)
    if choices:
        try:
            values = list_of(choices.group(1))
        except ValueError:
            raise Refusal(f'the choices of `{argument}` are no list: write (choices: ["a", "b"])') from None
        refuse_infinite(values, f"argument `{argument}`")
        schema["enum"] = [value.strip() if isinstance(value, str) else value for value in values]
        text = text[: choices.start()].strip()
    elif BEGINNING_OF_CHOICES in text.lower():
        raise Refusal(
            f"the choices of `{argument}` do not end its description, and would be passed over: take away what stands "
            "behind them, and close them with `)`"
        )
    schema["description"] = text


def list_of(text):
    values = json.loads(text)
    if not isinstance(values, list):
        raise ValueError(text)
    return values
