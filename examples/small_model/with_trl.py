"""An example's GRPO run in TRL, to compare with: `python3 with_trl.py runs/calculator examples/calculator --out DIR`.

Takes the warm start and the rows that the example has made, and the options of its run.toml. Writes DIR/metrics.jsonl
(step, seconds since the first step began, reward, calls, mean length), DIR/model and DIR/result.json with the share of
held-out rows that are right before and after. Needs trl 1.16, datasets, jmespath and torch; nothing of Tandem needs
this file.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import tomllib

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("made", type=pathlib.Path, help="folder with warm/, train.jsonl and held_out.jsonl")
parser.add_argument("example", type=pathlib.Path, help="folder of the example, with run.toml")
parser.add_argument("--out", type=pathlib.Path, required=True)
parser.add_argument("--steps", type=int)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()

options = tomllib.loads((args.example / "run.toml").read_text())
sys.path.insert(0, str(args.example))
torch.set_num_threads(args.threads)
warm = str(args.made / "warm")
tokenizer = PreTrainedTokenizerFast.from_pretrained(warm)
model = AutoModelForCausalLM.from_pretrained(warm, dtype=torch.float32, attn_implementation="sdpa")
files = {name: str(args.made / f"{name}.jsonl") for name in ("train", "held_out")}
rows = load_dataset("json", data_files=files)

if "environment_factory" in options:
    from maze import Maze

    what = {"environment_factory": Maze, "reward_funcs": []}
else:
    from tools import calculate, right

    what = {"tools": [calculate], "reward_funcs": right}

config = GRPOConfig(
    output_dir=str(args.out),
    per_device_train_batch_size=options["per_device_train_batch_size"],
    per_device_eval_batch_size=options["num_generations"] * 25,
    gradient_accumulation_steps=1,
    num_generations=options["num_generations"],
    max_completion_length=options["max_completion_length"],
    max_tool_calling_iterations=options["max_tool_calling_iterations"],
    max_steps=args.steps or options["max_steps"],
    learning_rate=options["learning_rate"],
    lr_scheduler_type=options["lr_scheduler_type"],
    warmup_steps=options["warmup_steps"],
    max_grad_norm=1.0,
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
        self.file = open(args.out / "metrics.jsonl", "w", buffering=1)

    def on_log(self, _, state, __, logs=None, **___):
        if logs and "reward" in logs:
            row = {"step": state.global_step, "seconds": round(time.perf_counter() - self.begin, 3)}
            kept = ("reward", "tools/call_frequency", "completions/mean_length", "grad_norm")
            self.file.write(json.dumps(row | {name: logs.get(name) for name in kept}) + "\n")


os.makedirs(args.out, exist_ok=True)
trainer = GRPOTrainer(
    model=model,
    args=config,
    train_dataset=rows["train"],
    eval_dataset=rows["held_out"],
    processing_class=tokenizer,
    callbacks=[Record()],
    **what,
)
begin = time.perf_counter()
before = trainer.evaluate()["eval_reward"]
middle = time.perf_counter()
trainer.train()
seconds = time.perf_counter() - middle
after = trainer.evaluate()["eval_reward"]
result = {"before": before, "after": after, "seconds": round(seconds, 1), "evaluation": round(middle - begin, 1)}
print(json.dumps(result))
(args.out / "result.json").write_text(json.dumps(result) + "\n")
trainer.save_model(str(args.out / "model"))
