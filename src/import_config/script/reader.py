"""Reads a script that trains with TRL, and prints what its trainer is given as JSON. Nothing of the script is run.

The script comes on standard input. An expression is an object with its `line` and `is`, which has one key:

    value     a literal, or what literals alone make
    list      expressions
    mapping   pairs of a name and an expression
    call      a call of something imported: `of`, `positional`, `named`, and the `item` that is taken of the result
    name      something imported, by its full name
    defined   a function or class at the top level of the script
    unread    why the value is not known
"""

import ast
import json
import math
import operator
import posixpath
import re
import resource
import sys

# Most memory of this process.
MEMORY = 2 << 30
# Most expressions that are looked at: a few names can stand for a list without end.
MOST_STEPS = 20_000
# Most lists, mappings and calls within each other: the reader of the answer has a bound too.
DEEPEST = 24
LONGEST_TEXT = 1 << 16
# Letters of the script in a message.
LONGEST_EXCERPT = 60
# Methods that change what they are called on.
CHANGING = {
    "add", "add_special_tokens", "add_tokens", "append", "clear", "extend", "insert", "load_adapter", "load_state_dict",
    "pop", "popitem", "remove", "resize_token_embeddings", "reverse", "setdefault", "sort", "update",
}  # fmt: skip
# Methods of transformers' arguments that set several of them.
SETTING = {
    "set_dataloader", "set_evaluate", "set_logging", "set_lr_scheduler", "set_optimizer", "set_push_to_hub", "set_save",
    "set_testing", "set_training",
}  # fmt: skip
# Arguments of GRPOTrainer and GRPOConfig that decide the training. The trainer keeps most of them under their names.
ARGUMENTS = {
    "args", "environment_factory", "eval_dataset", "model", "optimizers", "peft_config", "processing_class",
    "quantization_config", "reward_funcs", "reward_processing_classes", "rollout_func", "tools", "train_dataset",
    "adam_beta1", "adam_beta2", "adam_epsilon", "beta", "bf16", "chat_template_kwargs", "delta", "entropy_coef",
    "entropy_coef_delta", "entropy_coef_max", "entropy_coef_min", "entropy_target", "epsilon", "epsilon_high",
    "eval_steps", "generation_batch_size", "generation_kwargs", "gradient_accumulation_steps", "gradient_checkpointing",
    "greater_is_better", "importance_sampling_level", "label_smoothing_factor", "learning_rate",
    "load_best_model_at_end", "log_completions", "logging_steps", "loss_type", "lr_scheduler_kwargs",
    "lr_scheduler_type", "mask_truncated_completions", "max_completion_length", "max_grad_norm", "max_prompt_length",
    "max_steps", "max_tool_calling_iterations", "metric_for_best_model", "min_p", "multi_objective_aggregation",
    "neftune_noise_alpha", "num_completions_to_print", "num_generations", "num_iterations", "num_train_epochs",
    "off_policy_mask_threshold", "optim", "optim_args", "optim_target_modules", "output_dir",
    "per_device_train_batch_size", "ref_model_mixup_alpha", "ref_model_sync_steps", "repetition_penalty", "report_to",
    "resume_from_checkpoint", "reward_weights", "run_name", "sapo_temperature_neg", "sapo_temperature_pos",
    "save_steps", "save_total_limit", "scale_rewards", "seed", "shuffle_dataset", "steps_per_generation",
    "sync_ref_model", "temperature", "top_entropy_quantile", "top_k", "top_p", "train_sampling_strategy",
    "use_adaptive_entropy", "use_bias_correction_kl", "vespo_k_neg", "vespo_k_pos", "vespo_lambda_neg",
    "vespo_lambda_pos", "vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode",
    "vllm_structured_outputs_regex", "warmup_ratio", "warmup_steps", "weight_decay",
}  # fmt: skip
# Names of what holds arguments, or of the trainer that does.
HOLDS_ARGUMENTS = re.compile("(^|_)(args?|arguments?|cfg|conf|config|params|trainer)$")
# Packages whose objects are none of the trainer's.
OF_OTHERS = ("logging.", "mlflow.", "numpy.", "torch.", "trackio.", "wandb.")
# Attributes of models and tokenizers that change neither prompts nor weights.
HARMLESS = {
    "pad_token", "pad_token_id", "padding_side", "truncation_side", "model_max_length", "config.use_cache",
    "config.pad_token_id", "generation_config.pad_token_id",
}  # fmt: skip
DTYPES = {f"torch.{name}" for name in ("bfloat16", "float16", "float32", "float64", "half", "float")}
NUMBERS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


class Scope:
    """Names of the script, or of a function or class of its."""

    def __init__(self, parent=None, name=None, is_class=False):
        self.parent, self.name, self.is_class = parent, name, is_class
        # Of each name: kind, line, node, and whether it is set exactly once whatever happens.
        self.names = {}

    def bind(self, name, kind, line, node, steady):
        self.names.setdefault(name, []).append((kind, line, node, steady))

    def of(self, name):
        scope = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope


class Place:
    """Where a statement is: in which function of the top level, in a loop, under a condition, in the main block."""

    def __init__(self, function=None, looped=False, steady=True, guarded=False):
        self.function, self.looped, self.steady, self.guarded = function, looped, steady, guarded

    def but(self, **changed):
        return Place(**{**vars(self), **changed})


class Script:
    """The script, walked through once."""

    def __init__(self, text):
        self.lines = re.split(r"\r\n|\r|\n", text)
        self.module = Scope()
        self.calls, self.changes, self.touched, self.stars = [], [], [], []
        self.steps, self.depth, self.followed = 0, 0, []
        self.block(ast.parse(text).body, self.module, Place())

    def block(self, statements, scope, place):
        for statement in statements:
            self.statement(statement, scope, place)

    def statement(self, node, scope, place):
        shaky = place.but(steady=False)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.definition(node, scope, place)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports(node, scope, place)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            # A declaration alone sets nothing.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None:
                self.expression(node.value, scope, place)
                for target in targets:
                    self.target(target, node, scope, place, value=node.value)
        elif isinstance(node, ast.AugAssign):
            self.expression(node.value, scope, place)
            self.target(node.target, node, scope, shaky)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self.target(target, node, scope, shaky)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            for name in node.names:
                scope.bind(name, "other", node.lineno, node, False)
                self.module.bind(name, "other", node.lineno, node, False)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.expression(node.test if isinstance(node, ast.While) else node.iter, scope, place)
            if not isinstance(node, ast.While):
                self.target(node.target, node, scope, shaky)
            self.block(node.body + node.orelse, scope, shaky.but(looped=True))
        elif isinstance(node, ast.If):
            self.expression(node.test, scope, place)
            main = is_main(node.test)
            self.block(node.body, scope, place.but(guarded=True) if main else shaky)
            self.block(node.orelse, scope, shaky)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.expression(item.context_expr, scope, place)
                if item.optional_vars is not None:
                    self.target(item.optional_vars, node, scope, place)
            self.block(node.body, scope, place)
        else:
            self.others(node, scope, shaky)

    def others(self, node, scope, place):
        """What is within a statement of another kind, such as `try` and `match`."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child, scope, place)
            elif isinstance(child, ast.expr):
                self.expression(child, scope, place)
            else:
                # What an `except` or a `case` sets.
                name = getattr(child, "name", None)
                if isinstance(name, str):
                    scope.bind(name, "other", getattr(child, "lineno", node.lineno), node, False)
                self.others(child, scope, place)

    def definition(self, node, scope, place):
        scope.bind(node.name, "def", node.lineno, node, place.steady and not node.decorator_list)
        for decorator in node.decorator_list:
            self.expression(decorator, scope, place)
        inner = Scope(scope, node.name, isinstance(node, ast.ClassDef))
        if isinstance(node, ast.ClassDef):
            # The body of a class runs with the import.
            return self.block(node.body, inner, place)
        every = node.args
        for default in every.defaults + [each for each in every.kw_defaults if each is not None]:
            self.expression(default, scope, place)
        arguments = getattr(every, "posonlyargs", []) + every.args + every.kwonlyargs + [every.vararg, every.kwarg]
        for argument in arguments:
            if argument is not None:
                inner.bind(argument.arg, "argument", argument.lineno, node, False)
        self.block(node.body, inner, Place(function=place.function or node.name))

    def imports(self, node, scope, place):
        for alias in node.names:
            if isinstance(node, ast.Import):
                full = alias.name if alias.asname else alias.name.split(".")[0]
                scope.bind(alias.asname or full, "import", node.lineno, full, place.steady)
            elif alias.name == "*":
                self.stars.append(node.module)
            else:
                full = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                scope.bind(alias.asname or alias.name, "import", node.lineno, full, place.steady)

    def target(self, target, node, scope, place, value=None):
        """What an assignment sets, or changes."""
        if isinstance(target, ast.Name):
            kind = "other" if value is None else "assigned"
            scope.bind(target.id, kind, node.lineno, node if value is None else value, place.steady)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self.target(each, node, scope, place)
        elif isinstance(target, ast.Starred):
            self.target(target.value, node, scope, place)
        else:
            self.change(target, node, scope)

    def change(self, target, node, scope):
        """Something within a value, by an attribute, an item or a method."""
        path = []
        while True:
            if isinstance(target, ast.Attribute):
                path.insert(0, target.attr)
            elif isinstance(target, ast.Subscript):
                path.insert(0, f"[{text_of(target.slice)}]")
            elif is_call_of(target, "vars") and len(target.args) == 1:
                path.insert(0, "__dict__")
            else:
                break
            target = target.args[0] if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name):
            self.changes.append((scope, target.id, node.lineno, ".".join(path)))
        self.touched.append((scope, target, path, node))

    def expression(self, node, scope, place):
        for each in ast.walk(node):
            if isinstance(each, getattr(ast, "NamedExpr", ())):
                self.target(each.target, each, scope, place.but(steady=False))
            elif isinstance(each, ast.Call):
                self.calls.append((each, scope, place))
                of = each.func
                if isinstance(of, ast.Attribute) and of.attr in CHANGING | SETTING:
                    self.change(of, each, scope)
                given = list(each.args) if is_call_of(each, "setattr") or is_call_of(each, "delattr") else []
                if isinstance(of, ast.Attribute) and of.attr in ("__setattr__", "__delattr__"):
                    # Called on the object, or on a class with the object as the first argument.
                    given = ([] if len(each.args) > 1 + (of.attr == "__setattr__") else [of.value]) + each.args
                if given:
                    name = text_of(given[1]) if len(given) > 1 else ""
                    self.change(ast.Attribute(value=given[0], attr=name or "setattr"), each, scope)

    def excerpt(self, node):
        """The beginning of an expression as it is written."""
        line = self.lines[node.lineno - 1].encode()
        one = node.end_lineno == node.lineno
        text = line[node.col_offset : node.end_col_offset if one else None].decode(errors="replace").strip()
        if one and len(text) <= LONGEST_EXCERPT:
            return text
        # The last method of a chain is what the value comes from.
        method = getattr(getattr(node, "func", None), "attr", None)
        return f"{text[:LONGEST_EXCERPT]}…" + (f".{method}(…)" if method else "")

    def unread(self, node, why=None):
        return found(node, "unread", why or f"`{self.excerpt(node)}` is computed when the script runs")

    def read(self, node, scope):
        """What an expression is."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            return self.unread(node, "the script has too many expressions")
        how = getattr(self, f"read_{type(node).__name__}", None)
        if how is None:
            return self.unread(node)
        nests = isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Call))
        if nests and self.depth == DEEPEST:
            return self.unread(node, f"`{self.excerpt(node)}` is within more than {DEEPEST} lists, mappings and calls")
        self.depth += nests
        value = how(node, scope)
        self.depth -= nests
        return value

    def read_Constant(self, node, scope):
        return self.literal(node, node.value)

    def literal(self, node, value):
        is_plain = value is None or isinstance(value, (bool, str, int, float))
        if isinstance(value, str):
            # Half of a character is no JSON.
            is_plain = len(value) <= LONGEST_TEXT and not re.search("[\ud800-\udfff]", value)
        elif isinstance(value, float):
            is_plain = math.isfinite(value)
        elif isinstance(value, int):
            is_plain = -(1 << 63) <= value < 1 << 63
        what = f"`{self.excerpt(node)}` is no text, truth value or finite number of 64 bits"
        return found(node, "value", value) if is_plain else self.unread(node, what)

    def read_List(self, node, scope):
        items = [self.read(each, scope) for each in node.elts]
        if all("value" in item["is"] for item in items):
            return found(node, "value", [item["is"]["value"] for item in items])
        return found(node, "list", items)

    read_Tuple = read_Set = read_List

    def read_Dict(self, node, scope):
        pairs = []
        for key, value in zip(node.keys, node.values):
            read = self.read(value, scope)
            if key is None:
                pairs += self.spread(value, read)
                continue
            name = self.read(key, scope)["is"].get("value")
            if not isinstance(name, (str, int)):
                return self.unread(key)
            pairs.append([str(name), read])
        return self.mapping(node, pairs)

    def mapping(self, node, pairs):
        if all("value" in value["is"] for _, value in pairs):
            return found(node, "value", {name: value["is"]["value"] for name, value in pairs})
        return found(node, "mapping", list(dict(pairs).items()))

    def spread(self, node, read):
        """The pairs of `**node`."""
        known = read["is"]
        if isinstance(known.get("value"), dict):
            return [[name, found(node, "value", value)] for name, value in known["value"].items()]
        if "mapping" in known:
            return known["mapping"]
        return [[f"**{self.excerpt(node)}", read if "unread" in known else self.unread(node)]]

    def read_UnaryOp(self, node, scope):
        value = self.read(node.operand, scope)["is"].get("value")
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return self.literal(node, not value)
        if is_number(value) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return self.literal(node, -value if isinstance(node.op, ast.USub) else value)
        return self.unread(node)

    def read_BinOp(self, node, scope):
        left, right = (self.read(each, scope)["is"].get("value") for each in (node.left, node.right))
        how = NUMBERS.get(type(node.op))
        if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
            return self.literal(node, left + right)
        is_small = not isinstance(node.op, ast.Pow) or (is_number(right) and abs(right) <= 64)
        if how is None or not is_number(left) or not is_number(right) or not is_small:
            return self.unread(node)
        try:
            return self.literal(node, how(left, right))
        except ArithmeticError:
            return self.unread(node)

    def read_JoinedStr(self, node, scope):
        text = ""
        for part in node.values:
            is_plain = isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None
            value = self.read(part.value if is_plain else part, scope)["is"].get("value")
            if not isinstance(value, (str, int, float)):
                return self.unread(node)
            text += str(value)
        return self.literal(node, text)

    def read_Lambda(self, node, scope):
        return self.unread(node, f"`{self.excerpt(node)}` is a function without a name; write it with `def`")

    def read_Name(self, node, scope):
        name, home = node.id, scope.of(node.id)
        full = self.full(node, scope)
        if full is not None:
            return self.imported(node, full)
        if home is None:
            return self.unread(node)
        bindings = home.names[name]
        if len(bindings) > 1:
            lines = sorted({line for _, line, _, _ in bindings})
            listed = ", ".join(map(str, lines))
            return self.unread(node, f"`{name}` is set more than once (lines {listed})")
        kind, line, bound, steady = bindings[0]
        if kind == "argument":
            return self.unread(node, f"`{name}` is an argument of `{home.name}`")
        if kind == "def":
            where = f"`{name}` is defined in line {line}"
            if home is not self.module:
                return self.unread(node, f"{where} within `{home.name}`, where no import finds it; move it out")
            if not steady:
                return self.unread(node, f"{where} under a condition or a decorator; define it without")
            return found(node, "defined", name)
        if not steady:
            return self.unread(node, f"`{name}` is set in line {line} under a condition, in a loop or in a `try`")
        if kind == "other" or (home, name) in self.followed:
            return self.unread(node, f"`{name}` is set in line {line} to what is computed when the script runs")
        self.followed.append((home, name))
        value = self.read(bound, home)
        self.followed.pop()
        is_loaded = value["is"].get("call", {}).get("of", "").endswith(".from_pretrained")
        for scope, changed, line, path in self.changes:
            if changed == name and scope.of(name) is home and not (is_loaded and path in HARMLESS):
                return self.unread(node, f"`{name}` is changed in line {line}")
        return value

    def full(self, node, scope):
        """The full name of something imported, or of a part of that."""
        path = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        home = scope.of(node.id)
        if home is None:
            return f"trl.{node.id}" if any(star == "trl" for star in self.stars) and node.id[0].isupper() else None
        names = {bound if kind == "import" else None for kind, _, bound, _ in home.names[node.id]}
        return ".".join([*names, *path]) if len(names) == 1 and None not in names else None

    def imported(self, node, full):
        if full in DTYPES:
            return found(node, "value", full.split(".")[1])
        return found(node, "name", full)

    def read_Attribute(self, node, scope):
        full = self.full(node, scope)
        return self.unread(node) if full is None else self.imported(node, full)

    def read_Subscript(self, node, scope):
        base = self.read(node.value, scope)
        index = node.slice.value if type(node.slice).__name__ == "Index" else node.slice
        item = self.read(index, scope)["is"].get("value")
        if "call" in base["is"] and isinstance(item, str) and "item" not in base["is"]["call"]:
            return found(node, "call", {**base["is"]["call"], "item": item})
        if isinstance(base["is"].get("value"), dict) and item in base["is"]["value"]:
            return found(node, "value", base["is"]["value"][item])
        return self.unread(node)

    def read_Call(self, node, scope):
        full = self.full(node.func, scope)
        positional, named = self.arguments(node, scope)
        if isinstance(node.func, ast.Name) and node.func.id == "dict" and scope.of("dict") is None and not positional:
            return self.mapping(node, named)
        if full is None:
            return self.unread(node)
        texts = [each["is"].get("value") for each in positional]
        if texts and not named and all(isinstance(text, str) for text in texts):
            if full in ("os.path.join", "pathlib.Path"):
                return self.literal(node, posixpath.join(*texts))
        return found(node, "call", {"of": full, "positional": positional, "named": named})

    def arguments(self, node, scope):
        """The arguments of a call, without and with a name."""
        named = []
        for each in node.keywords:
            value = self.read(each.value, scope)
            named += [[each.arg, value]] if each.arg else self.spread(each.value, value)
        return [self.read(each, scope) for each in node.args], named

    def changed(self):
        """Arguments of the trainer that the script sets by another way than in their call, each with the first line."""
        lines = {}
        for scope, root, path, node in self.touched:
            names, at = set_by(path, node)
            last = at[-1] if at else getattr(root, "id", "")
            if path[-1] == "setattr" and not HOLDS_ARGUMENTS.search(last.lower()):
                # A name that is not written out: much else is set so, such as modules of a model.
                continue
            if names & ARGUMENTS and not self.is_another(root, at, scope):
                for name in sorted(names & ARGUMENTS):
                    lines.setdefault(name, (node.lineno, self.excerpt(node)))
        return [{"name": name, "line": line, "text": text} for name, (line, text) in lines.items()]

    def is_another(self, root, at, scope):
        """Whether what is found at a path of a value is clearly neither the trainer nor what it is given."""
        if not isinstance(root, ast.Name):
            return is_call_of(root, "super")
        parts = [root.id, *at]
        if any(part.endswith(("tokenizer", "processing_class", "generation_config")) for part in parts):
            return True
        if any(one.endswith("model") and part == "config" for one, part in zip(parts, parts[1:])):
            return True
        home = scope.of(root.id)
        bindings = home.names[root.id] if home else []
        if bindings and all(kind in ("import", "def") for kind, _, _, _ in bindings):
            return True
        if len(bindings) != 1:
            return False
        kind, _, bound, _ = bindings[0]
        if kind == "argument":
            # `self` of a class of the script.
            arguments = getattr(bound.args, "posonlyargs", []) + bound.args.args
            is_self = home.parent.is_class and bool(arguments) and arguments[0].arg == root.id
            if is_self:
                return not {"trainer", "training_args"} & set(at)
        # Of `a = b = GRPOConfig(…)` either name leads to the same.
        names = [name for name, several in home.names.items() if any(each[2] is bound for each in several)]
        if isinstance(bound, ast.Call) and len(names) == 1:
            if (self.full(bound.func, home) or "").startswith(OF_OTHERS):
                return True
            if not at and self.makes_another(bound.func, home):
                return True
        if isinstance(bound, ast.Name):
            # Another name for `self`, or for what a function is called with.
            first = home.of(bound.id)
            given = [kind for kind, _, _, _ in first.names[bound.id]] if first else []
            return given == ["argument"] and self.is_another(bound, at, home)
        # What a function is called with, or what a loop goes through, may be anything: its name tells, or a call.
        if kind != "argument" and not isinstance(bound, (ast.For, ast.AsyncFor)):
            return False
        named = any(HOLDS_ARGUMENTS.search(part.lower()) for part in parts)
        return not named and not (kind == "argument" and self.gets_arguments(bound, root.id))

    def gets_arguments(self, function, name):
        """Whether a call in the script gives a function the trainer or its configuration under this name."""
        places = [each.arg for each in getattr(function.args, "posonlyargs", []) + function.args.args]
        for node, scope, _ in self.calls:
            if getattr(node.func, "id", None) != getattr(function, "name", ""):
                continue
            given = [value for place, value in zip(places, node.args) if place == name]
            for value in given + [each.value for each in node.keywords if each.arg == name]:
                home = scope.of(value.id) if isinstance(value, ast.Name) else None
                made = [bound for _, _, bound, _ in home.names[value.id]] if home else [value]
                fulls = [self.full(one.func, scope) or "" for one in made if isinstance(one, ast.Call)]
                if any(full.startswith("trl.") for full in fulls) or HOLDS_ARGUMENTS.search(getattr(value, "id", "")):
                    return True
        return False

    def makes_another(self, of, scope):
        """Whether a call makes an object of a class that is not the trainer's. A configuration that is changed under
        the name that it was given is found where that name is read."""
        if getattr(of, "id", None) == "cls" or is_call_of(getattr(of, "value", None), "super"):
            return True
        if isinstance(of, ast.Attribute) and of.attr in ("parse_args", "parse_known_args"):
            return True
        full = self.full(of, scope)
        if full is not None:
            is_class = full.split(".")[-1][:1].isupper() or full.endswith(".from_pretrained")
            return is_class and not is_trainer(full)
        home = scope.of(of.id) if isinstance(of, ast.Name) else None
        nodes = [bound for _, _, bound, _ in home.names[of.id]] if home else []
        return len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef) and self.is_apart(nodes[0], home)

    def is_apart(self, node, scope, depth=0):
        """Whether a class of the script has no base that is one of trl, of transformers, or unknown."""
        for base in node.bases:
            full = self.full(base, scope)
            home = scope.of(base.id) if isinstance(base, ast.Name) else None
            nodes = [bound for _, _, bound, _ in home.names[base.id]] if home else []
            own = nodes[0] if len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef) else None
            if full is not None and full.startswith(("trl.", "transformers.")):
                return False
            if isinstance(base, ast.Name) and home is None and full is None:
                # One that Python has by itself.
                continue
            if full is None and (own is None or depth > 9 or not self.is_apart(own, home, depth + 1)):
                return False
        return True

    def report(self):
        trainers = [call for call in self.calls if is_trainer(self.full(call[0].func, call[1]))]
        trains = []
        for node, scope, _ in self.calls:
            of = node.func
            if isinstance(of, ast.Attribute) and of.attr == "train":
                made = of.value
                home = scope.of(made.id) if isinstance(made, ast.Name) else None
                nodes = [bound for _, _, bound, _ in home.names[made.id]] if home else [made]
                if any(trainer is made for trainer, _, _ in trainers for made in nodes):
                    trains.append((node, scope))
        return {
            "trainers": [{"looped": place.looped, **self.called(node, scope)} for node, scope, place in trainers],
            "trains": [self.called(node, scope) for node, scope in trains],
            "changed": self.changed(),
            "imports": self.heavy_imports(),
            "runs": self.runs_with_import(trainers),
            "loads": next(self.loads(), None),
        }

    def called(self, node, scope):
        """A call that is read whatever its name is."""
        positional, named = self.arguments(node, scope)
        return {"line": node.lineno, "call": {"of": "", "positional": positional, "named": named}}

    def heavy_imports(self):
        """Libraries that an import of the script needs."""
        bound = (binding for bindings in self.module.names.values() for binding in bindings)
        names = {full.split(".")[0] for kind, _, full, _ in bound if kind == "import"}
        return sorted(names & {"trl", "torch", "transformers", "datasets", "peft", "accelerate"})

    def loads(self):
        """Lines that fetch a model or dataset with an import of the script."""
        for node, scope, place in self.calls:
            full = self.full(node.func, scope) or ""
            if place.function is None and not place.guarded and full.endswith(("load_dataset", ".from_pretrained")):
                yield node.lineno

    def runs_with_import(self, trainers):
        """The line that trains where the script is imported, if one does."""
        for node, _, place in trainers:
            if place.function is None and not place.guarded:
                return node.lineno
        training, before = {place.function for _, _, place in trainers} - {None}, None
        while training != before:
            before = set(training)
            for node, _, place in self.calls:
                if isinstance(node.func, ast.Name) and node.func.id in training:
                    if place.function is None and not place.guarded:
                        return node.lineno
                    training |= {place.function} - {None}
        return None


def found(node, kind, value):
    return {"line": node.lineno, "is": {kind: value}}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_trainer(full):
    return full is not None and full.startswith("trl.") and full.endswith(".GRPOTrainer")


def is_call_of(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def text_of(node):
    """A text that is written out, or an empty one."""
    node = node.value if type(node).__name__ == "Index" else node
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def set_by(path, node):
    """The names of the attributes that a change sets, and the path of the object that has them. `args` stands for
    names that only a run would tell."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == path[-1]:
        path = path[:-1]
        if node.func.attr in SETTING:
            return {"args"}, path
        if path and path[-1] == "__dict__":
            return keys_of(node), path[:-1]
    while path and path[-1].startswith("["):
        if path[-2:-1] == ["__dict__"]:
            return {path[-1][1:-1] or "args"}, path[:-2]
        path = path[:-1]
    if not path:
        return set(), path
    return {"args" if path[-1] in ("__dict__", "setattr") else path[-1]}, path[:-1]


def keys_of(call):
    """The keys that a method of a dictionary changes."""
    names = {each.arg or "" for each in call.keywords}
    for place, each in enumerate(call.args):
        if isinstance(each, ast.Dict):
            names |= {text_of(key) if key is not None else "" for key in each.keys}
        elif place == 0:
            names.add(text_of(each))
    return {name or "args" for name in names} or {"args"}


def is_main(test):
    """Whether a condition is `__name__ == "__main__"`."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = {getattr(side, "id", None) or getattr(side, "value", None) for side in (test.left, test.comparators[0])}
    return sides == {"__name__", "__main__"}


def main():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        report = Script(sys.stdin.buffer.read().decode()).report()
    except SyntaxError as error:
        report = {"wrong": f"line {error.lineno or 1}: is no valid Python: {error.msg}"}
    except ValueError as error:
        report = {"wrong": f"is no valid Python: {error}"}
    except (RecursionError, MemoryError):
        report = {"wrong": "has expressions within expressions that are too deep to read"}
    print(json.dumps(report, allow_nan=False))


main()
