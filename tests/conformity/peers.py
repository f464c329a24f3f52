"""What the conformity checks compute with transformers."""

import contextlib
import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file
from support import FAMILIES, VOCABULARY, model

# Results that do not depend on the number of cores.
torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def is_whole(place):
    """Whether a directory is a model of images and text, with its text model within."""
    return "text_config" in json.loads((pathlib.Path(place) / "config.json").read_text())


def with_towers(place):
    """The directory; if it is a model of images and text, with random weights for what it lacks of its tower.

    Its tokens of images are such that no text has them.
    """
    if is_whole(place):
        stated = json.loads((place / "config.json").read_text())
        tokens = {key: VOCABULARY + i for i, key in enumerate(stated) if key.endswith("_token_id")}
        (place / "config.json").write_text(json.dumps(stated | tokens))
        torch.manual_seed(0)
        config, file = transformers.AutoConfig.from_pretrained(place), place / "model.safetensors"
        made = transformers.AutoModelForImageTextToText.from_config(config).state_dict()
        towers = {name: tensor.contiguous() for name, tensor in made.items() if name.startswith("model.visual.")}
        save_file(load_file(file) | towers, file, metadata={"format": "pt"})
    return place


# What two families are published within, beside Qwen3.5, whose tiny model is within such a model already.
WHOLES = {
    "gemma4": lambda text: transformers.Gemma4Config(
        text_config=text, image_token_id=VOCABULARY, video_token_id=VOCABULARY, audio_token_id=VOCABULARY,
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, head_dim=8, patch_size=4, position_embedding_size=16),
    ),
    "ministral3": lambda text: transformers.Mistral3Config(
        text_config=text, image_token_index=VOCABULARY,
        vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=2, head_dim=8, patch_size=4, image_size=16),
    ),
}


def models():
    """The families' models, each with its name; those with such models within a model of images and text as well."""
    for family in FAMILIES:
        place = with_towers(model(family))
        yield family, place
        if family in WHOLES:
            yield f"{family} in a whole", whole_model(place)


def whole_model(place):
    """A model of images and text around a text model, as transformers saves it; all other weights are random."""
    text, out = opened(place), place.with_name(f"{place.name}-whole")
    torch.manual_seed(0)
    whole = transformers.AutoModelForImageTextToText.from_config(WHOLES[place.name](text.config))
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.save_pretrained(out)
    return with_tokenizer(out, place)


def with_tokenizer(out, place):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place / name, out)
    return out


def text_model(place):
    """The text model of a model of images and text alone, as transformers saves it; other models as they are."""
    if not is_whole(place):
        return place
    out = place.with_name(f"{place.name}-text")
    opened(place, transformers.AutoModelForCausalLM).save_pretrained(out)
    return with_tokenizer(out, place)


def opened(place, by=None):
    """A directory as transformers opens it; every parameter must come from its files.

    A model of images and text is opened as one, unless another class is given.
    """
    whole = transformers.AutoModelForImageTextToText if is_whole(place) else transformers.AutoModelForCausalLM
    model, loading = (by or whole).from_pretrained(
        place, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    lost = {name: list(loading[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    # A tied head has no tensor of its own.
    lost["missing_keys"] = [key for key in lost["missing_keys"] if key != "lm_head.weight"]
    if any(lost.values()):
        raise SystemExit(f"{place}: transformers finds other parameters: {lost}")
    return model.eval()


@contextlib.contextmanager
def double_precision():
    """Within, float64 is computed where the families compute in float32 whatever their weights are: norms, softmax."""
    single = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = single


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
