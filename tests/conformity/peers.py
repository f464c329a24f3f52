"""What the conformity checks compute with transformers."""

import torch
import transformers

# Results that do not depend on the number of cores.
torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def opened(place):
    """A directory as transformers opens it; every parameter must come from its files."""
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        place, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    lost = {name: list(loading[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    # A tied head has no tensor of its own.
    lost["missing_keys"] = [key for key in lost["missing_keys"] if key != "lm_head.weight"]
    if any(lost.values()):
        raise SystemExit(f"{place}: transformers finds other parameters: {lost}")
    return model.eval()


def logprobs(model, prompt, completion):
    """Log-probs of the tokens of a completion."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion]), use_cache=False).logits[0]
    rows = torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)
    return rows.gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()


def row_logprobs(model, rows):
    """Log-probs of all tokens of Tandem's rows, one after another."""
    return [value for row in rows for value in logprobs(model, row["prompt_ids"], row["token_ids"])]


def greedy(model, prompt, count):
    """The likeliest tokens after a prompt, by transformers' own generation."""
    ids = torch.tensor([prompt])
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    return whole[0, len(prompt) :].tolist()


def tokenizer(place):
    """The tokenizer of a directory as its tokenizer.json says: AutoTokenizer goes by the family of the model too."""
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"), **named)
