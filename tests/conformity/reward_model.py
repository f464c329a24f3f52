"""Reward models: `tandem reward-model` and TRL's RewardTrainer from the same start, and scores by transformers."""

import json

import datasets
import peers
import torch
import transformers
import trl
from support import FAMILIES, VOCABULARY, WORK, answer, largest, model, read_rows, tandem, worst, write_rows
from transformers.modeling_layers import GenericForSequenceClassification

# Tandem makes no reward model of Gemma 4.
FAMILIES = [family for family in FAMILIES if family != "gemma4"]
RATE = 1e-3


def pairs():
    """Pairs of answers to a prompt. All of them make an update, so their order does not matter."""
    generator = torch.Generator().manual_seed(2)
    draw = lambda count: torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()
    lengths = [(3, 5, 7), (9, 2, 1), (1, 12, 4), (6, 6, 6)]
    return [{"prompt_ids": draw(p), "chosen_ids": draw(a), "rejected_ids": draw(b)} for p, a, b in lengths]


def train(start, given, out, epochs):
    tandem(
        "reward-model", "--model", start, "--pairs", write_rows(WORK / "pairs.jsonl", given), "--output", out,
        "--epochs", epochs, "--batch-size", len(given), "--learning-rate", RATE, "--threads", 1,
    )
    return out


def of_transformers(place):
    """The class that opens a reward model: where transformers has none for the family, its generic class of sequence
    classifiers over the family's base."""
    name = json.loads((place / "config.json").read_text())["architectures"][0]
    family = name.removesuffix("ForSequenceClassification")
    if family in ("Lfm2", "Lfm3", "GraniteMoeHybrid"):
        assert not hasattr(transformers, name), f"transformers has {name} now"
        return type(name, (GenericForSequenceClassification, getattr(transformers, f"{family}PreTrainedModel")), {})
    return transformers.AutoModelForSequenceClassification


def opened(place):
    """A reward model as transformers opens it."""
    scorer = of_transformers(place).from_pretrained(place, dtype=torch.float32, attn_implementation="eager")
    assert scorer.config.num_labels == 1, scorer.config.num_labels
    return scorer.eval()


def answers(given):
    return [(pair["prompt_ids"], pair[key]) for pair in given for key in ("chosen_ids", "rejected_ids")]


def scores(scorer, given):
    with torch.no_grad():
        return [float(scorer(input_ids=torch.tensor([p + c])).logits[0, 0]) for p, c in answers(given)]


def by_tandem(place, given):
    rows = [{"prompt_ids": p, "completion_ids": c} for p, c in answers(given)]
    out = WORK / "scores.jsonl"
    tandem("score", "--model", place, "--input", write_rows(WORK / "answers.jsonl", rows), "--output", out,
           "--threads", 1)
    return [score for row in read_rows(out) for score in row["scores"]]


def by_trl(start, given, epochs):
    table = datasets.Dataset.from_list([
        {"chosen_ids": pair["prompt_ids"] + pair["chosen_ids"],
         "rejected_ids": pair["prompt_ids"] + pair["rejected_ids"]}
        for pair in given
    ])
    settings = trl.RewardConfig(
        output_dir=str(WORK / f"{start.name}-trl"), num_train_epochs=epochs, per_device_train_batch_size=len(given),
        learning_rate=RATE, lr_scheduler_type="linear", weight_decay=0.0, max_grad_norm=1.0, disable_dropout=True,
        gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True,
        optim="adamw_torch", max_length=None,
    )
    trainer = trl.RewardTrainer(
        opened(start), args=settings, train_dataset=table,
        processing_class=peers.tokenizer(start),
    )
    trainer.train()
    return trainer.model.eval()


if __name__ == "__main__":
    given = pairs()
    opens, trains = [], []
    for family in FAMILIES:
        # A head that is no longer 0: TRL would begin with a random one.
        start = train(peers.text_model(model(family)), given, WORK / f"{family}-start", 2)
        ours = by_tandem(start, given)
        assert max(map(abs, ours)) > 0.01, f"{family}: scores that are 0 say nothing: {ours}"
        opens.append(largest(zip(ours, scores(opened(start), given), strict=True)))
        trained = by_tandem(train(start, given, WORK / f"{family}-trained", 3), given)
        theirs = scores(by_trl(start, given, 3), given)
        moved = largest(zip(trained, ours, strict=True))
        assert moved > 0.01, f"{family}: updates that change nothing say nothing: {moved}"
        trains.append(largest(zip(trained, theirs, strict=True)))
    answer(f"{len(FAMILIES)} families, {2 * len(given)} answers", score=worst(opens), trained_score=worst(trains))
