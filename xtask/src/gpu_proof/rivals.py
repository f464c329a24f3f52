"""What the figures of `xtask gpu-proof-run` are held against: the limits of the device as torch reaches them, transformers'
generate, and a training step in plain torch with its flash attention. Each prints one line of JSON. Exits with 77 where a package
is missing."""

import argparse
import json
import os
import statistics
import sys
import time

MISSING = 77
MICRO_BATCH = 16  # rows of a forward pass: 16 x 384 positions

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["limits", "generate", "step"])
parser.add_argument("--device", required=True)
parser.add_argument("--model", help="folder with config.json")
parser.add_argument("--num-prompts", type=int)
parser.add_argument("--prompt-length", type=int)
parser.add_argument("--completion-length", type=int)
parser.add_argument("--num-generations", type=int, default=8)
parser.add_argument("--repeat", type=int, default=3)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--lora-r", type=int)
args = parser.parse_args()
cuda = args.device == "cuda"


def missing(error):
    print(f"{error.name} is not installed", file=sys.stderr)
    sys.exit(MISSING)


try:
    import torch
except ModuleNotFoundError as error:
    missing(error)
if cuda and not torch.cuda.is_available():
    sys.exit("torch finds no GPU")


def seconds(work):
    """The median of a few times, after one that does not count."""
    times = []
    for _ in range(args.repeat + 1):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def limits():
    """Bytes that a copy reads and writes per second, and operations of a square product."""
    count = 1 << (31 if cuda else 24)
    source = torch.ones(count, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    found = {"copy_bytes_per_s": 10 * 2 * count / seconds(lambda: [target.copy_(source) for _ in range(10)])}
    torch.backends.cuda.matmul.allow_tf32 = False
    n = 8192 if cuda else 512
    for name, dtype in [("bf16", torch.bfloat16), ("fp32", torch.float32)]:
        a, b = (torch.randn(n, n, device=args.device).to(dtype) for _ in "ab")
        found[f"{name}_flops_per_s"] = 10 * 2 * n**3 / seconds(lambda: [a @ b for _ in range(10)])
    return found


def load(dtype):
    """Random weights, which need no reading."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        missing(error)
    config = transformers.AutoConfig.from_pretrained(args.model)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model, f"transformers {transformers.__version__}, torch {torch.__version__}"


def generate():
    model, versions = load(torch.float16 if cuda else torch.float32)
    model.eval()
    from transformers import GenerationConfig

    length = args.completion_length
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length, min_new_tokens=length, pad_token_id=0
    )
    shape = (args.num_prompts, args.prompt_length)
    ids = torch.randint(1, model.config.vocab_size, shape, device=args.device).repeat_interleave(args.num_generations, 0)
    with torch.inference_mode():
        took = seconds(lambda: model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config))
    return {"seconds": took, "tokens_per_s": ids.shape[0] * length / took, "versions": versions}


def step():
    """GRPO's clipped loss on the completions, forward, backward and AdamW."""
    model, versions = load(torch.float32)
    model.train()
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if args.lora_r:
        try:
            import peft
        except ModuleNotFoundError as error:
            missing(error)
        lora = peft.LoraConfig(
            r=args.lora_r, lora_alpha=2 * args.lora_r, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=cuda)
    torch.backends.cuda.matmul.allow_tf32 = False
    attention = torch.nn.attention.SDPBackend
    backends = [attention.FLASH_ATTENTION] if args.bf16 and cuda else [attention.EFFICIENT_ATTENTION, attention.MATH]
    rows, length = args.num_prompts * args.num_generations, args.completion_length
    passes = []

    def logprobs(ids):
        logits = model(input_ids=ids, logits_to_keep=length + 1, use_cache=False).logits[:, :-1]
        pairs = zip(logits, ids[:, -length:])
        return torch.stack([row.gather(-1, own[:, None])[:, 0] - row.logsumexp(-1) for row, own in pairs]).float()

    def once():
        ids = torch.randint(1, model.config.vocab_size, (rows, args.prompt_length + length), device=args.device)
        advantages = torch.randn(rows, 1, device=args.device)
        start = time.perf_counter()
        for part, advantage in zip(ids.split(MICRO_BATCH), advantages.split(MICRO_BATCH)):
            with torch.nn.attention.sdpa_kernel(backends):
                with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
                    found = logprobs(part)
                ratio = (found - found.detach()).exp()
                loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / (rows * length)
                loss.backward()
        if cuda:
            torch.cuda.synchronize()
        passes.append(time.perf_counter() - start)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    took = seconds(once)
    return {"step_s": took, "fwd_bwd_s": statistics.median(passes[1:]), "versions": versions}


found = {"limits": limits, "generate": generate, "step": step}[args.what]()
if os.path.exists("/proc/self/status"):
    with open("/proc/self/status", encoding="utf-8") as status:
        found["peak_rss_bytes"] = next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(json.dumps(found))
