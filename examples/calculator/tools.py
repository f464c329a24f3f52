"""The calculator as a function in Python."""

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
    """As the built-in rule `numeric`: whether the last word of the policy is the answer."""
    return [float(messages[-1]["role"] == "assistant" and messages[-1].get("content") == value) for messages, value in zip(completions, answer)]
