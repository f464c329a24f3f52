"""The calculator as a function in Python, and the reward, for TRL."""

import re


def calculate(expression: str) -> str:
    """Computes the exact value of an arithmetic expression.

    Args:
        expression: Numbers joined by + - * / // ** and parentheses, such as (12 + 7) * 3.

    Returns:
        The value.
    """
    if not set(expression) <= set("0123456789 +-*/()"):
        raise ValueError("this is no expression of numbers, + - * / // ** and parentheses")
    return str(eval(expression, {"__builtins__": {}}))


def right(completions, answer, **kwargs):
    """Whether the last number of the policy's last turn is the answer, as the built-in rule `numeric` says."""
    last = [messages[-1] for messages in completions]
    said = [message.get("content") or "" if message["role"] == "assistant" else "" for message in last]
    return [float(re.findall(r"\d+", text)[-1:] == [value]) for text, value in zip(said, answer)]
