"""The same GRPO run in TRL, to compare with: `python3 with_trl.py runs/countdown --out DIR [--steps N] [--seed N]`.

Takes what `cargo xtask example countdown --warm-up-only` has made: the warm start, its problems, and the options of run.toml.
Writes DIR/metrics.jsonl (step, seconds since the first step began, reward, mean length) and DIR/model, which
`tandem eval` takes. Needs trl 1.16, datasets and torch; nothing of Tandem needs this file.
"""

import argparse
import json
import os
import re
import time
import tomllib

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("countdown", help="folder of the example, with warm/ and train.jsonl")
parser.add_argument("--out", required=True)
parser.add_argument("--steps", type=int)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--micro-batch", type=int, default=256, help="completions of a forward pass")
args = parser.parse_args()

with open(os.path.join(os.path.dirname(__file__), "run.toml"), "rb") as file:
    options = tomllib.load(file)
torch.set_num_threads(args.threads)
warm = os.path.join(args.countdown, "warm")
# AutoTokenizer would take the class of Qwen2, which splits texts in a way of its own.
tokenizer = PreTrainedTokenizerFast.from_pretrained(warm)
model = AutoModelForCausalLM.from_pretrained(warm, dtype=torch.float32, attn_implementation="sdpa")
problems = load_dataset("json", data_files=os.path.join(args.countdown, "train.jsonl"), split="train")


def right(completion, numbers, target):
    """TinyZero's rule: the last line's last equation uses each number once and gives the target."""
    found = re.findall(r"<answer>(.*?)</answer>", completion.split("\n")[-1])
    if not found or not re.fullmatch(r"[\d+\-*/(). ]+", found[-1]):
        return False
    if sorted(int(word) for word in re.findall(r"\d+", found[-1])) != sorted(numbers):
        return False
    try:
        return abs(eval(found[-1], {"__builtins__": {}}) - target) < 1e-5
    except (SyntaxError, ZeroDivisionError, TypeError):
        return False


def countdown(completions, nums, target, **_):
    return [float(right(*row)) for row in zip(completions, nums, target)]


rows, generations = options["generation_batch_size"], options["num_generations"]
config = GRPOConfig(
    output_dir=args.out,
    per_device_train_batch_size=args.micro_batch,
    gradient_accumulation_steps=rows // args.micro_batch,
    num_generations=generations,
    max_completion_length=options["max_completion_length"],
    max_steps=args.steps or options["max_steps"],
    learning_rate=options["learning_rate"],
    lr_scheduler_type=options["lr_scheduler_type"],
    warmup_steps=options["warmup_steps"],
    seed=args.seed,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
)


class Record(TrainerCallback):
    """One line for each step."""

    def on_train_begin(self, *_, **__):
        self.begin = time.perf_counter()
        self.file = open(os.path.join(args.out, "metrics.jsonl"), "w", buffering=1)

    def on_log(self, _, state, __, logs=None, **___):
        if logs and "reward" in logs:
            row = {
                "step": state.global_step,
                "seconds": round(time.perf_counter() - self.begin, 3),
                "reward": logs["reward"],
                "completions/mean_length": logs.get("completions/mean_length"),
                "grad_norm": logs.get("grad_norm"),
            }
            self.file.write(json.dumps(row) + "\n")


os.makedirs(args.out, exist_ok=True)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=countdown,
    args=config,
    train_dataset=problems,
    processing_class=tokenizer,
    callbacks=[Record()],
)
trainer.train()
trainer.save_model(os.path.join(args.out, "model"))
