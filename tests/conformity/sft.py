"""`tandem sft` and TRL's SFTTrainer: the same rows, three updates, and what both models then say of the rows."""

import json

import datasets
import peers
import torch
import trl
from support import FAMILIES, VOCABULARY, WORK, answer, largest, model, tandem, worst, write_rows

STEPS, RATE = 3, 1e-3


def rows():
    """Rows of several lengths. All of them make an update, so their order does not matter."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda count: torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()
    return [{"prompt_ids": draw(p), "completion_ids": draw(c)} for p, c in [(3, 5), (9, 2), (1, 12), (14, 1)]]


def by_trl(place, given):
    """The trained model, and the loss of its last update."""
    table = datasets.Dataset.from_list([
        {"input_ids": row["prompt_ids"] + row["completion_ids"],
         "completion_mask": [0] * len(row["prompt_ids"]) + [1] * len(row["completion_ids"])}
        for row in given
    ])
    network = peers.opened(place)
    # A loss for the balance of experts is none of `tandem sft`.
    balance = {"router_aux_loss_coef": 0.0} if hasattr(network.config, "router_aux_loss_coef") else {}
    settings = trl.SFTConfig(
        output_dir=str(WORK / f"{place.name}-trl"), max_steps=STEPS, per_device_train_batch_size=len(given),
        learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, logging_steps=1,
        completion_only_loss=True, gradient_checkpointing=False, bf16=False, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True, optim="adamw_torch", max_length=None,
        **balance,
    )
    trainer = trl.SFTTrainer(
        network, args=settings, train_dataset=table,
        processing_class=peers.tokenizer(place),
    )
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(losses) == STEPS, losses
    return trainer.model.eval(), losses[-1]


def in_double(place, given):
    """The loss of the last update in double precision: each row on its own, so that nothing is padded."""
    network = peers.opened(place).double()
    # The products of experts in groups have no double precision.
    network.set_experts_implementation("eager")
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.0)
    count = sum(len(row["completion_ids"]) for row in given)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for row in given:
            prompt, ids = len(row["prompt_ids"]), torch.tensor(row["prompt_ids"] + row["completion_ids"])
            with peers.double_precision():
                logits = network(input_ids=ids[None]).logits[0, prompt - 1:-1]
                part = torch.nn.functional.cross_entropy(logits, ids[prompt:], reduction="sum") / count
                part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return loss


def share_of_allowed(loss, theirs, exact):
    """A loss's distance from double precision, over the one allowed: 1e-5, or three times that of TRL where fp32 is
    less exact, but at most 1e-4."""
    return abs(loss - exact) / min(max(1e-5, 3 * abs(theirs - exact)), 1e-4)


if __name__ == "__main__":
    given = rows()
    logprobs, losses, exact_losses = [], [], []
    for family in FAMILIES:
        base = peers.with_towers(model(family))
        theirs, their_loss = by_trl(base, given)
        out = WORK / f"{family}-sft"
        told = tandem(
            "sft", "--model", base, "--data", write_rows(WORK / "rows.jsonl", given), "--output", out,
            "--max-steps", STEPS, "--batch-size", len(given), "--learning-rate", RATE,
            "--lr-scheduler-type", "constant", "--threads", 1,
        )
        loss = json.loads(told.splitlines()[-1])["loss"]
        losses.append(abs(loss - their_loss))
        exact_losses.append(share_of_allowed(loss, their_loss, in_double(base, given)))
        said = lambda network: [
            value for row in given for value in peers.logprobs(network, row["prompt_ids"], row["completion_ids"])
        ]
        found, expected = said(peers.opened(out)), said(theirs)
        moved = largest(zip(expected, said(peers.opened(base)), strict=True))
        assert moved > 0.1, f"{family}: updates that change nothing say nothing: {moved}"
        logprobs.append(largest(zip(found, expected, strict=True)))
    answer(f"{len(FAMILIES)} families, {STEPS} updates", loss=worst(losses), exact_loss=worst(exact_losses), logprob=worst(logprobs))
