"""Makes reward_model.json: scores of small reward models by transformers, for the tests of `model:path=…`.

The weights follow from a formula (`values`), so that the test can make the same model without storing it.
Run with torch and transformers installed; prints the JSON.
"""

import json

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

BASE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=260, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False,
)
FAMILIES = [
    ("llama", "LlamaForSequenceClassification", dict(head_dim=8), 1),
    ("qwen2", "Qwen2ForSequenceClassification", dict(num_attention_heads=2, num_key_value_heads=1), 1),
    ("qwen3", "Qwen3ForSequenceClassification", dict(head_dim=16), 2),
]
SEQUENCES = [[72, 101, 108, 108, 111], [49, 32, 43, 32, 49, 32, 61, 32, 50, 10, 195, 169], [7]]


def values(name, shape):
    """Multiples of 1/1024 (exact in float32) that depend on name and position; around 1 for the norms."""
    count = 1
    for n in shape:
        count *= n
    seed = sum(name.encode())
    base = 1.0 if name.endswith("norm.weight") else 0.0
    flat = [base + ((seed * 31 + i * i * 7 + i * 13) % 509 - 254) / 1024 for i in range(count)]
    return torch.tensor(flat, dtype=torch.float32).reshape(shape)


def case(model_type, architecture, changes, labels):
    keys = {**BASE, **changes}
    config = AutoConfig.for_model(model_type, num_labels=labels, pad_token_id=0, **keys)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values(name, parameter.shape))
        # The score at every token: the last hidden state through the head, and at the last token transformers' own.
        scores = []
        for ids in SEQUENCES:
            hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state
            all_scores = model.score(hidden)[0, :, 0]
            own = model(input_ids=torch.tensor([ids])).logits[0, 0]
            assert torch.equal(own, all_scores[-1])
            scores.append([float(s) for s in all_scores])
    stored = dict(model_type=model_type, architectures=[architecture], num_labels=labels, **keys)
    return {"config": stored, "scores": scores}


if __name__ == "__main__":
    import transformers

    figures = {
        "about": f"reward_model.py with torch {torch.__version__}, transformers {transformers.__version__}",
        "sequences": SEQUENCES,
        "models": [case(*family) for family in FAMILIES],
    }
    print(json.dumps(figures))
