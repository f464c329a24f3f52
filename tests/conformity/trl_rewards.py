"""overlong_punishment.json and repetition_penalty_reward.json, computed anew by TRL's own reward functions."""

from support import answer, differences, golden, worst
from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

if __name__ == "__main__":
    found = []
    overlong = golden("overlong_punishment.json")["cases"]
    for case in overlong:
        params = case["params"]
        score = get_soft_overlong_punishment(params["max_completion_len"], params["soft_punish_cache"])
        rewards = score([[0] * length for length in case["inputs"]["lengths"]])
        found += differences(rewards, case["expected"]["rewards"], case["name"])
    repetition = golden("repetition_penalty_reward.json")["cases"]
    for case in repetition:
        score = get_repetition_penalty_reward(**case["params"])
        ids = case["inputs"]["completion_ids"]
        rewards = score(completions=[""] * len(ids), completion_ids=ids)
        found += differences(rewards, case["expected"]["rewards"], case["name"])
    answer(f"{len(found)} completions", reward=worst(found))
