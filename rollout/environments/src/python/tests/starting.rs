//! What cannot begin says why, where, and what to do.

use serde_json::json;

use crate::{
    StartError,
    testing::{Folder, nothing, sample},
};

const CLASS: &str = "class E:\n    def reset(self, **row):\n        pass\n";

/// A file, the tools and the class that are wanted of it, and words of the refusal.
type Case<'a> = (&'a str, &'a [&'a str], Option<&'a str>, &'a [&'a str]);

fn error(text: &str, tools: &[&str], class: Option<&str>) -> StartError {
    Folder::with(text).start(tools, class).err().expect("a refusal")
}

#[test]
fn what_cannot_be_used_is_refused_with_file_line_and_the_way_out() {
    let function = "def f(a: int):\n    \"\"\"Does.\n\n    Args:\n        a: It.\n    \"\"\"\n";
    let cases: &[Case<'_>] = &[
        ("def f(:\n    pass\n", &["f"], None, &["SyntaxError: ", "e.py, line 1"]),
        (
            "import no_such_module\n",
            &["f"],
            None,
            &["No module named 'no_such_module'", "e.py, line 1", "`reward_python`"],
        ),
        (function, &["g"], None, &["e.py:g: no `g` in ", "its functions and classes: f"]),
        (
            "\ndef f(a):\n    \"\"\"Does.\"\"\"\n",
            &["f"],
            None,
            &["e.py, line 2: tool `f`: argument `a` has no type hint: write"],
        ),
        ("def f(a: int):\n    pass\n", &["f"], None, &["e.py, line 1: tool `f`: it has no docstring: say in"]),
        (CLASS, &["E"], None, &["e.py:E is a class: `environment_factory` takes classes"]),
        (function, &["f", "f"], None, &["two tools are called `f`"]),
        ("class E:\n    pass\n", &[], Some("E"), &["e.py:E: `E` has no method `reset`"]),
        (
            "class E:\n    def __init__(self, size):\n        pass\n",
            &[],
            Some("E"),
            &["called without arguments: give `size` a default"],
        ),
        (
            "class E:\n    def __init__(self):\n        raise OSError('no sea')\n",
            &[],
            Some("E"),
            &["OSError: no sea", "e.py, line 3"],
        ),
        (
            "class E:\n    def reset(self):\n        pass\n\n    def f(self, *a: int):\n        \"\"\"Does.\n\n        \
             Args:\n            a: It.\n        \"\"\"\n",
            &[],
            Some("E"),
            &["e.py, line 5", "`*a`"],
        ),
        (
            "def f(a: int, /):\n    \"\"\"Does.\n\n    Args:\n        a: It.\n    \"\"\"\n",
            &["f"],
            None,
            &["e.py, line 1: tool `f`: ", "`a` takes none by name: take the `/` away"],
        ),
        (
            "def f():\n    \"\"\"Does.\"\"\"\n    yield 1\n",
            &["f"],
            None,
            &["e.py, line 1: tool `f`: it has a `yield`, ", "`return` a text, or a list"],
        ),
        (
            "async def f():\n    \"\"\"Does.\"\"\"\n    yield 1\n",
            &["f"],
            None,
            &["e.py, line 1: tool `f`: it has a `yield`, "],
        ),
        (
            "import functools\n\n\n@functools.lru_cache()\ndef f():\n    \"\"\"Does.\"\"\"\n    yield 1\n",
            &["f"],
            None,
            &["e.py, line 4: tool `f`: it has a `yield`, "],
        ),
        (
            "class E:\n    def reset(self):\n        pass\n\n    async def f(self):\n        \"\"\"Does.\"\"\"\n\
             \x20       yield 1\n",
            &[],
            Some("E"),
            &["e.py, line 5: tool `f`: it has a `yield`, "],
        ),
        ("import os\nos._exit(7)\n", &["f"], None, &["the process ended (exit status: 7)"]),
    ];
    for (text, tools, class, words) in cases {
        let error = error(text, tools, *class).to_string();
        for word in *words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

/// What its decorator makes of a generator is a value like others.
#[test]
fn a_generator_that_a_decorator_reads_to_its_end_is_a_tool() {
    let text = r#"
import functools


def listed(function):
    @functools.wraps(function)
    def read():
        return list(function())

    return read


@listed
def f() -> list:
    """Does."""
    yield 1
    yield 2
"#;
    let environments = Folder::with(text).start(&["f"], None).unwrap();
    environments.opened(sample(1, 0), nothing()).unwrap();
    assert_eq!(environments.said(sample(1, 0), "f", nothing()), "[1, 2]");
}

/// Python's JSON has these numbers, and JSON has not.
#[test]
fn numbers_that_json_has_not_are_refused_with_argument_and_value() {
    let docstring = |text: &str| format!("    \"\"\"Does.\n\n    Args:\n        a: It{text}\n    \"\"\"\n");
    let level = "import enum\nimport typing\n\n\nclass Level(enum.Enum):\n    LOW = 1.0\n    HIGH = float('inf')\n\n\n";
    for (hint, text, value) in [
        ("Level", "", "inf"),
        ("typing.Literal[1, float('nan')]", "", "nan"),
        ("float", " (choices: [1, 2, Infinity])", "inf"),
        ("float", " (choices: [1, -1e999])", "-inf"),
    ] {
        let error = error(&format!("{level}def f(a: {hint}):\n{}", docstring(text)), &["f"], None).to_string();
        let words = format!("tool `f`: argument `a` may be {value}, and JSON has no such number");
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn choices_that_do_not_end_a_description_are_refused() {
    for text in ["(choices: [1, 2]).", "(Choices: [1, 2]) of them", "(choices: [1, 2]"] {
        let text = format!("def f(a: int):\n    \"\"\"Does.\n\n    Args:\n        a: It {text}\n    \"\"\"\n");
        let error = error(&text, &["f"], None).to_string();
        assert!(error.contains("tool `f`: the choices of `a` do not end its description"), "{error}");
    }
}

/// Methods that are written in other ways than most.
const METHODS: &str = r#"
import functools


class Base:
    data = functools.partial(int, "1")
    Inner = dict

    def __init__(self):
        self.lent = Lender().lent
        self.data_too = len

    def reset(self, **row):
        pass

    @classmethod
    def of_class(cls, a: int) -> int:
        """Does.

        Args:
            a: It.
        """
        return a + 1

    @functools.lru_cache()
    def cached(self, a: int) -> int:
        """Does.

        Args:
            a: It.
        """
        return a + 2

    @staticmethod
    def alone() -> int:
        """Does."""
        return 3

    @property
    def trap(self):
        raise RuntimeError("evaluated")


class Lender:
    def lent(self) -> int:
        """Does."""
        return 4


class Rewarded(Base):
    @classmethod
    def get_reward(cls):
        return 0.5


class Partly(Base):
    def add(self, a: int, b: int) -> int:
        """Does."""

    more = functools.partialmethod(add, 1)


class Counts(dict, Base):
    def __init__(self):
        pass


class Chosen(Base):
    @functools.singledispatchmethod
    def on(self, a: int):
        """Does."""


class PartlyRewarded(Base):
    get_reward = functools.partialmethod(lambda self: 1.0)


class Number(Base):
    get_reward = 5
"#;

#[test]
fn every_kind_of_method_is_a_tool_or_is_refused_by_name() {
    let folder = Folder::with(METHODS);
    let environments = folder.start(&[], Some("Rewarded")).unwrap();
    assert_eq!(environments.names(nothing()), ["alone", "cached", "lent", "of_class"]);
    environments.opened(sample(1, 0), nothing()).unwrap();
    for (tool, arguments, said) in [("of_class", json!({"a": 1}), "2"), ("cached", json!({"a": 1}), "3")] {
        assert_eq!(environments.said(sample(1, 0), tool, arguments), said);
    }
    assert_eq!(environments.said(sample(1, 0), "lent", nothing()), "4");
    assert_eq!(environments.scored(sample(1, 0)), Ok(Some(0.5)), "a class method gives the reward");
    assert!(!folder.start(&[], Some("Base")).unwrap().give_rewards());
    assert_eq!(folder.start(&[], Some("Counts")).unwrap().names(nothing()), ["alone", "cached", "of_class"]);
    for (class, words) in [
        (
            "Partly",
            "e.py:Partly: `Partly.more` is a `partialmethod` and no method: write `def more(self, …)`, or call it",
        ),
        ("Chosen", "`Chosen.on` is a `singledispatchmethod` and no method: "),
        (
            "PartlyRewarded",
            "`PartlyRewarded.get_reward` is a `partialmethod` and no method: write `def get_reward(self, …)`",
        ),
        ("Number", "`Number.get_reward` is a `int` and no method: "),
    ] {
        let error = folder.start(&[], Some(class)).err().expect(class).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_traceback_comes_with_an_error_of_the_users_code() {
    let error = error("def broken():\n    return 1 / 0\n\n\nbroken()\n", &["f"], None);
    assert!(error.to_string().contains("ZeroDivisionError"), "{error}");
    let words = error.words().join("\n");
    assert!(words.contains("line 5") && words.contains("line 2, in broken"), "{words}");
}

#[test]
fn files_and_interpreters_that_are_not_there_are_named() {
    let folder = Folder::with(CLASS);
    let started = folder.start_with(&[], Some("E"), |sources| sources.host.python = "no-such-python".into());
    let error = started.err().unwrap().to_string();
    assert!(error.contains("no-such-python") && error.contains("`reward_python`"), "{error}");
    let started = folder.start_with(&[], None, |sources| sources.tools = vec!["gone.py:f".into()]);
    let error = started.err().unwrap().to_string();
    assert!(error.contains("gone.py:f: ") && error.contains("no such file"), "{error}");
}

#[test]
fn modules_are_imported_from_the_folder() {
    let folder = Folder::with(CLASS);
    let started = folder.start_with(&[], None, |sources| {
        sources.environment_factory = Some("e.E".parse().unwrap());
    });
    assert!(!started.unwrap().give_rewards(), "it has no `get_reward`");
}
