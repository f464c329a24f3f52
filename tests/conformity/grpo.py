"""A step of `tandem train` and the same step by TRL's GRPOTrainer, for every loss type that both have.

TRL is given the completions that Tandem sampled, and their rewards; advantages, old log-probs, loss, gradient, clipping
and AdamW are its own. A step has two updates on all completions, so that ratios leave 1 and some are clipped.
"""

import datasets
import peers
import trl
from support import PROMPTS, WORK, answer, largest, model, read_rows, tandem, worst, write_rows

RATE, GENERATIONS, LENGTH = 1e-4, 4, 24
TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
COMMON = {"epsilon": 0.1, "epsilon_high": 0.12, "num_iterations": 2, "learning_rate": RATE, "max_grad_norm": 1.0}


def options(loss_type):
    """Options of both, by TRL's names."""
    own = {"loss_type": loss_type}
    if loss_type == "cispo":
        own |= {"epsilon_high": 1.2}
    if loss_type == "luspo":
        own |= {"importance_sampling_level": "sequence"}
    return COMMON | own


def by_tandem(base, loss_type):
    """The run's folder after one step."""
    prompts = write_rows(WORK / "prompts.jsonl", [{"prompt": prompt} for prompt in PROMPTS])
    run = WORK / f"run-{loss_type}"
    flags = [word for key, value in options(loss_type).items() for word in (f"--{key}", value)]
    count = GENERATIONS * len(PROMPTS)
    tandem(
        "train", "--model", base, "--dataset", prompts, "--reward_funcs", "repetition_penalty:ngram_size=1",
        "--max_steps", 1, "--save_steps", 1, "--num_generations", GENERATIONS, "--generation_batch_size", count,
        "--per_device_train_batch_size", count, "--max_completion_length", LENGTH, "--lr_scheduler_type", "constant",
        "--output_dir", run, "--rollout_threads", 1, "--learner_threads", 1, "--stop", "3>", *flags,
    )
    return run


def sampled(run, tokenizer):
    """Completions of the step by prompt: token ids of prompt and completion, log-probs, reward."""
    texts, tokens = (read_rows(run / "completions" / f"{name}-1.jsonl") for name in ("step", "tokens"))
    found = {}
    for text, ids in zip(texts, tokens, strict=True):
        assert (text["group"], text["sample"]) == (ids["group"], ids["sample"])
        row = {"prompt_ids": tokenizer(text["prompt"])["input_ids"], "token_ids": ids["tokens"],
               "logprobs": ids["sampler"], "reward": text["reward"]}
        found.setdefault(text["prompt"], []).append(row)
    assert len(found) == len(PROMPTS) and all(len(rows) == GENERATIONS for rows in found.values())
    return found


def by_trl(base, tokenizer, loss_type, rows):
    """The model after the same step, and the means of loss and gradient norm over its updates."""
    rewards = {tuple(row["prompt_ids"] + row["token_ids"]): row["reward"] for group in rows.values() for row in group}

    def rollout(prompts, _trainer):
        following = {prompt: iter(group) for prompt, group in rows.items()}
        given = [next(following[prompt]) for prompt in prompts]
        names = {"prompt_ids": "prompt_ids", "completion_ids": "token_ids", "logprobs": "logprobs"}
        return {name: [row[key] for row in given] for name, key in names.items()}

    def reward(prompts, completion_ids, **_):
        ids = [tokenizer(prompt)["input_ids"] + completion for prompt, completion in zip(prompts, completion_ids)]
        return [rewards[tuple(row)] for row in ids]

    count = len(rewards)
    settings = trl.GRPOConfig(
        output_dir=str(WORK / f"trl-{loss_type}"), max_steps=2, per_device_train_batch_size=count,
        gradient_accumulation_steps=1, num_generations=GENERATIONS, max_completion_length=LENGTH, beta=0.0,
        lr_scheduler_type="constant", weight_decay=0.0, gradient_checkpointing=False, bf16=False, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, optim="adamw_torch", logging_steps=1,
        **options(loss_type),
    )
    trainer = trl.GRPOTrainer(
        peers.opened(base), reward_funcs=reward, args=settings, processing_class=tokenizer, rollout_func=rollout,
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
    )
    trainer.train()
    mean = lambda key: sum(record[key] for record in trainer.state.log_history if key in record) / 2
    return trainer.model.eval(), mean("loss"), mean("grad_norm")


if __name__ == "__main__":
    base = model("qwen2")
    tokenizer = peers.tokenizer(base)
    differences, losses, norms = [], [], []
    for loss_type in TYPES:
        run = by_tandem(base, loss_type)
        rows = sampled(run, tokenizer)
        every = [row for group in rows.values() for row in group]
        # Where all are alike, advantages are 0, and ways to normalise are one.
        assert len({row["reward"] for row in every}) > 2 and len({len(row["token_ids"]) for row in every}) > 2
        trained, loss, norm = by_trl(base, tokenizer, loss_type, rows)
        [metrics] = read_rows(run / "metrics.jsonl")
        losses.append(abs(metrics["loss"] - loss))
        norms.append(abs(metrics["grad_norm"] - norm) / norm)
        theirs = peers.row_logprobs(trained, every)
        ours = peers.row_logprobs(peers.opened(run / "checkpoint-1"), every)
        moved = largest(zip(theirs, peers.row_logprobs(peers.opened(base), every), strict=True))
        assert moved > 0.05, f"{loss_type}: updates that change nothing say nothing: {moved}"
        differences.append(largest(zip(ours, theirs, strict=True)))
        print(loss_type, losses[-1], norms[-1], differences[-1], moved)
    answer(f"{len(TYPES)} loss types", loss=worst(losses), norm=worst(norms), logprob=worst(differences))
