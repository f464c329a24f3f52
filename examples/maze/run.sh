#!/bin/sh
# Makes mazes and a warm start, and trains in them; the policy is asked before and after. To be called in the folder of
# the repository: sh examples/maze/run.sh [SEED] [OPTIONS OF THE RUN]
set -eu
here=$(dirname "$0")
seed=${1:-42}
[ $# -eq 0 ] || shift
made=$PWD/runs/maze

if [ ! -d "$made/warm" ]; then
    python3 "$here/make.py" "$made" --seed "$seed"
    mkdir -p "$made/model"
    cp "$here"/../small_model/*.json "$here"/../small_model/*.jinja "$made/model"
    tandem sft --model "$made/model" --data "$made/warm.jsonl" --output "$made/warm" --init-seed "$seed" \
        --max-steps 700 --batch-size 16 --learning-rate 2e-3 --lr-scheduler-type cosine --warmup-steps 60
fi
tandem train "$here/run.toml" --seed "$seed" "$@"
# With options, the run may lie elsewhere.
[ $# -eq 0 ] || exit 0
# The warm start and what became of it, in the same mazes, with the environment of the run.
tandem compare "$made/warm" "$made/run" --dataset "$made/held_out.jsonl" --max-completion-length 224
