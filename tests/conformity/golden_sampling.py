"""sampling.json, computed anew by the logits processors that transformers makes of a generation configuration."""

import torch
import transformers
from support import GOLDEN, answer, differences, golden, worst


# Whose the processors are does not matter.
MODEL = transformers.AutoModelForCausalLM.from_config(transformers.Qwen2Config.from_pretrained(GOLDEN / "models/qwen2"))


def processors(params):
    settings = {key: value for key, value in params.items() if value is not None}
    config = transformers.GenerationConfig(do_sample=True, **settings)
    return MODEL._get_logits_processor(config, input_ids_seq_length=1)


if __name__ == "__main__":
    cases = golden("sampling.json")["cases"]
    other, figures = 0, []
    for case in cases:
        ids = torch.tensor([case["inputs"]["context_ids"]])
        logits = torch.tensor([case["inputs"]["logits"]], dtype=torch.float64)
        found = processors(case["params"])(ids, logits)[0]
        kept = (found > -torch.inf).nonzero()[:, 0].tolist()
        expected = case["expected"]
        chances = torch.softmax(found, -1)
        figures += differences(chances.tolist(), expected["probs"], case["name"])
        if kept != expected["kept"]:
            other += 1
        elif expected["logprobs_kept"]:
            figures += differences(chances.log()[kept].tolist(), expected["logprobs_kept"], case["name"])
    answer(f"{len(cases)} distributions", kept=other, logprob=worst(figures))
