//! What cannot begin says why, where, and what to do.

use crate::{StartError, testing::Folder};

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
        ("import os\nos._exit(7)\n", &["f"], None, &["the process ended (exit status: 7)"]),
    ];
    for (text, tools, class, words) in cases {
        let error = error(text, tools, *class).to_string();
        for word in *words {
            assert!(error.contains(word), "{word}: {error}");
        }
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
