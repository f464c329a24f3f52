#!/bin/sh
# Makes rows and a warm start, trains with the calculator, and asks the policy before and after. To be called in the
# folder of the repository: sh examples/calculator/run.sh [SEED] [OPTIONS OF THE RUN]
set -eu
here=$(dirname "$0")
seed=${1:-42}
[ $# -eq 0 ] || shift
made=$PWD/runs/calculator

if [ ! -d "$made/warm" ]; then
    python3 "$here/make.py" "$made" --seed "$seed"
    mkdir -p "$made/model"
    cp "$here"/../small_model/*.json "$here"/../small_model/*.jinja "$made/model"
    tandem sft --model "$made/model" --data "$made/warm.jsonl" --output "$made/warm" --init-seed "$seed" \
        --max-steps 1500 --learning-rate 2e-3 --lr-scheduler-type cosine --warmup-steps 100
fi
# Without a tool: what the policy can do in its head.
tandem eval --model "$made/warm" --dataset "$made/held_out.jsonl" --reward-funcs numeric
# With it, before and after: `evaluation after step 0` and the last one.
tandem train "$here/run.toml" --seed "$seed" "$@"
